//! File readahead: which pages are read in addition when a program reads a file, and when.
//!
//! A policy is called at two moments: a read *misses* a page, or it *meets a mark*, which an earlier window left so
//! that the next one starts before the program gets there. It answers with a [`Plan`]: pages to read, and the place of
//! the next mark. It decides on the cached pages, the limit of the file and its state of this open file. It reads
//! nothing itself and knows no time.
//!
//! [`OpenFile`] is one open file under one [`Policy`]. [`Reading`] is one read through the cache, page by page; it is
//! the same for all policies. The policies, one file each:
//!
//! - `ondemand`: readahead on demand (seed 004), as in the seed (`ondemand`) and as in Linux 6.18 (`linux`)
//! - `legacy`: the two windows of Linux 2.6.20 with which the seed compares
//! - `streams`: foreswap's own, a state for each of several streams and strides
//! - `mapped`: faults on mapped files, on top of any of them

mod cache;
mod legacy;
mod limits;
mod mapped;
mod ondemand;
mod open_file;
mod plan;
mod policy;
mod reading;
mod stream;
mod streams;
#[cfg(test)]
mod tests;

pub use cache::{Cached, FilePage};
pub use limits::{Limits, Pattern};
pub use mapped::MISSES_TO_GIVE_UP;
pub use ondemand::OnDemand;
pub use open_file::{OpenFile, Policy};
pub use plan::{Plan, Run, Window};
pub use policy::{Ask, FileReadahead, PageCache};
pub use reading::{Event, Reading};
