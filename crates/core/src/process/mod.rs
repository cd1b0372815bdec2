//! A process among the others of its run: which memory it is charged for, when its memory is managed, and how it
//! forks.
//!
//! All processes of a run share one limit ([`Ledger`]). [`Account`] decides how much of it this process uses, asks for
//! and gives back. [`Grant`] decides whether the memory of a process needs to be managed. [`Hold`] admits one fork at a
//! time. [`Load`] lets some processes wait for memory while not all can work in it; [`Teams`] are never held apart. The pages that a fork shares exist
//! once: the parent is charged for them, the child owes for them ([`Debt`]), and a write that would copy one waits until
//! the copy is paid for ([`Copies`]). Pages that came unnoticed wait for room (`Found`). A driver carries the decisions
//! out; the torture lab does too.

mod account;
mod activity;
mod copies;
mod debt;
mod debtors;
mod found;
mod grant;
mod hold;
mod ledger;
mod load;
mod team;
#[cfg(test)]
mod tests;

pub use account::Account;
pub use activity::FULL_WEIGHT;
pub use copies::{Copies, Copy, Opening, Protected};
pub use debt::Debt;
pub use debtors::Debtors;
pub use grant::Grant;
pub use hold::{Hold, Stage};
pub use ledger::{Ledger, LedgerMut};
pub use load::{Config as LoadConfig, Load, Seen, Turn};
pub use team::Teams;
