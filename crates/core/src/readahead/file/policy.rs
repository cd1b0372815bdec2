//! A policy of file readahead: its inputs and its answers.

use super::cache::{Cached, FilePage};
use super::limits::Limits;
use super::plan::{Plan, Run};
/// A file's pages in memory, as a read uses them.
pub trait PageCache: Cached {
    /// Removes the mark of a cached page; returns whether there was one.
    fn take_mark(&mut self, page: FilePage) -> bool;

    /// Starts one read of the run's absent pages and puts the mark on the page that the run names, if that page was
    /// absent.
    fn read(&mut self, run: &Run);
}

/// A page that a read wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// The page.
    pub page: FilePage,
    /// Pages from it to the end of the program's request, itself included. May reach past the end of the file. At least
    /// 1.
    pub want: u64,
}

/// A readahead policy. Its state of one open file is the implementing type itself.
pub trait FileReadahead {
    /// A read reaches a page at which the policy asked to be called, before the page is looked up. The first page of
    /// each read is one. Returns the plan and the page of the next call.
    fn on_approach(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> (Plan, FilePage) {
        let _ = (cache, limits);
        (
            Plan::default(),
            FilePage(ask.page.0.saturating_add(ask.want)),
        )
    }

    /// The page is not cached. The page itself is read whatever the plan is.
    fn on_miss(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> Plan;

    /// The page is cached and had a mark, which has been removed.
    fn on_mark(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> Plan;

    /// A fault on a mapping of the file, and not a read; a miss or a mark may follow. A fault has no beginning or end
    /// that later reads could be compared with.
    fn on_fault(&mut self) {}

    /// A read that began in the page `first` ended at the byte before `end`.
    fn on_end(&mut self, first: FilePage, end: u64);
}
