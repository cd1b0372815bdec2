//! The recorder of `run --trace`: events of the program as the pager sees them.
//!
//! It records faults and where their page was found, pages mapped without a fault, evictions, and address space
//! changes. Each record goes to a ring that the supervisor reads. The recorder does not compress, write files or
//! wait. A process that is not traced has no recorder.

use foreswap_core::units::{PageRange, Vpn, len};
use foreswap_core::{Entry, Mm};

use super::world::now;
use crate::ledger::{Ring, Seen, SeenKind};

/// The most faults that are distinguished from pages mapped without a fault. Each waiting thread has one.
const WAITING: usize = 64;

/// The recorder.
#[derive(Debug)]
pub struct Recorder {
    ring: Ring,
    /// Pages for which a thread waits, the oldest first.
    waiting: Vec<Vpn>,
}

impl Recorder {
    /// Records to `ring`.
    pub fn new(ring: Ring) -> Self {
        let waiting = Vec::with_capacity(WAITING);
        Self { ring, waiting }
    }

    fn put(&self, kind: SeenKind, pages: &PageRange) {
        self.ring.put(&Seen {
            time: now(),
            kind,
            write: false,
            tid: 0,
            page: pages.start.0,
            pages: len(pages),
            to: 0,
        });
    }

    /// A range is managed from now on, is discarded, or is unmapped.
    pub fn change(&self, kind: SeenKind, pages: &PageRange) {
        self.put(kind, pages);
    }

    /// A range moves.
    pub fn moves(&self, from: &PageRange, to: Vpn) {
        self.ring.put(&Seen {
            time: now(),
            kind: SeenKind::Move,
            write: false,
            tid: 0,
            page: from.start.0,
            pages: len(from),
            to: to.0,
        });
    }

    /// A thread touched `page`, and the core is about to be asked for it.
    pub fn fault(&mut self, mm: &Mm, page: Vpn, tid: u32, write: bool) {
        let kind = match mm.entry(page) {
            Entry::Unmapped => SeenKind::New,
            Entry::Cached(_) if mm.is_ahead(page) => SeenKind::Ahead,
            Entry::Cached(_) | Entry::SameFilled(_) => SeenKind::Kept,
            Entry::Swapped { .. } => SeenKind::Away,
            // The page is present, lost, or unknown.
            Entry::Resident(_) | Entry::Poisoned | Entry::Guarded => return,
        };
        if self.waiting.contains(&page) {
            // Another thread faulted first.
            return;
        }
        if self.waiting.len() == WAITING {
            self.waiting.remove(0);
        }
        self.waiting.push(page);
        self.ring.put(&Seen {
            time: now(),
            kind,
            write,
            tid,
            page: page.0,
            pages: 1,
            to: 0,
        });
    }

    /// `n` pages were mapped. Pages for which no thread waits count as read ahead.
    pub fn mapped(&mut self, page: Vpn, n: u32) {
        let end = page.plus(n.into());
        let mut from = page;
        let mut hits: Vec<Vpn> = Vec::new();
        self.waiting.retain(|waiting| {
            let hit = (page..end).contains(waiting);
            hits.extend(hit.then_some(*waiting));
            !hit
        });
        hits.sort_unstable();
        for hit in hits.into_iter().chain([end]) {
            if from < hit {
                self.put(SeenKind::Prefetched, &(from..hit));
            }
            from = hit.plus(1);
        }
    }

    /// `n` pages were evicted.
    pub fn evicted(&self, page: Vpn, n: u32) {
        self.put(SeenKind::Evicted, &(page..page.plus(n.into())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(ring: &Ring) -> Vec<(SeenKind, u64, u64)> {
        let seen = std::iter::from_fn(|| ring.take());
        seen.map(|seen| (seen.kind, seen.page, seen.pages))
            .collect()
    }

    #[test]
    fn pages_that_threads_wait_for_were_not_prefetched() {
        let ours = Ring::create().expect("a ring");
        let theirs = Ring::attach(ours.fd().try_clone_to_owned().expect("dup")).expect("attached");
        let mut recorder = Recorder::new(theirs);
        recorder.waiting.extend([Vpn(14), Vpn(10), Vpn(99)]);
        recorder.mapped(Vpn(10), 6);
        use SeenKind::Prefetched;
        assert_eq!(kinds(&ours), [(Prefetched, 11, 3), (Prefetched, 15, 1)]);
        assert_eq!(recorder.waiting, [Vpn(99)]);
        recorder.mapped(Vpn(99), 1);
        recorder.mapped(Vpn(99), 1);
        recorder.evicted(Vpn(7), 3);
        assert_eq!(
            kinds(&ours),
            [(Prefetched, 99, 1), (SeenKind::Evicted, 7, 3)]
        );
    }
}
