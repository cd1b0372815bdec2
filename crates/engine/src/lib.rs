//! The Linux engine of foreswap: the driver that lets `foreswap-core` serve a real process.

pub mod ledger;
pub mod sys;
