//! Pages that were mapped for threads a moment ago are not evicted yet.
//!
//! A thread that waited for its page needs a moment to wake up and touch it. If memory is so short that reclaim goes
//! around all mapped pages in one call, it would find that very page. The thread would wait again and again: all faults
//! are served, and no thread makes progress. The last few of these pages therefore stay for that moment. Later, when
//! nothing else can be moved (pages may be locked, read-only or shared by a fork), these are evicted first, as they are
//! known to be movable. While they are fewer than threads may need at a time, the limit yields instead: otherwise the
//! threads would take each other's pages.

use crate::units::{LEAF_PAGES, Nanos, Vpn};

/// The number of threads that are likely to be woken at once.
pub(crate) const PAGES: usize = 16;
/// The time that a thread needs to wake up, on a CPU that slept and has other threads to run.
pub(crate) const GRACE: Nanos = 200_000;

/// The last of these pages, each with when it was mapped.
#[derive(Default)]
pub(crate) struct RecentFaults {
    pages: [(Vpn, Nanos); PAGES],
    next: usize,
}

impl RecentFaults {
    /// A page was mapped for a thread that waited for it.
    pub(crate) fn note(&mut self, page: Vpn, now: Nanos) {
        self.pages[self.next] = (page, now);
        self.next = (self.next + 1) % PAGES;
    }

    /// The pages that may not be touched yet.
    pub(crate) fn untouched(&self, now: Nanos) -> impl Iterator<Item = Vpn> {
        let lately = move |at: Nanos| at > 0 && now.saturating_sub(at) < GRACE;
        let pages = self.pages.iter().filter(move |(_, at)| lately(*at));
        pages.map(|&(page, _)| page)
    }

    /// Time until the last of them may be evicted.
    pub(crate) fn untouched_for(&self, now: Nanos) -> Option<Nanos> {
        let last = self
            .pages
            .iter()
            .map(|&(_, at)| at)
            .max()
            .filter(|&at| at > 0)?;
        (last + GRACE).checked_sub(now).filter(|&left| left > 0)
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = Vpn> {
        self.pages
            .iter()
            .filter(|(_, at)| *at > 0)
            .map(|&(page, _)| page)
    }

    /// The pages whose moment is over, the oldest first.
    pub(crate) fn touched(&self, now: Nanos) -> impl Iterator<Item = Vpn> {
        let (later, first) = self.pages.split_at(self.next);
        let pages = first.iter().chain(later);
        let had = move |at: Nanos| at > 0 && now.saturating_sub(at) >= GRACE;
        pages.filter(move |(_, at)| had(*at)).map(|&(page, _)| page)
    }

    /// Whether one of them is among the pages of `unit`.
    pub(crate) fn is_in(&self, unit: Vpn, now: Nanos) -> bool {
        let end = unit.plus(LEAF_PAGES as u64);
        self.untouched(now).any(|page| (unit..end).contains(&page))
    }
}
