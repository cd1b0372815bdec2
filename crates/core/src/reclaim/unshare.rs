//! Pages that a fork shares are copied before they are evicted, one run at a time.
//!
//! The kernel does not move a page that parent and child share. A copy makes it movable, and costs a page until the
//! copy is evicted. Reclaim therefore asks for the copies of one run, evicts that run first when the copies are made,
//! and asks for no other run meanwhile. If it asked wherever its hand finds a shared page, everything would be copied
//! before the hand comes back to evict the first copy.

use crate::units::{Nanos, Vpn};

/// How long a run may stay immovable. Copies are made in microseconds; a page that is still refused then is pinned.
const PATIENCE: Nanos = 20_000_000;
/// After this time the driver is asked once more: it may drop a request.
const AGAIN: Nanos = 5_000_000;

/// Pages from the first one on.
type Run = (Vpn, u32);

/// The run that is being copied.
#[derive(Debug, Default)]
pub(crate) struct Unsharing {
    run: Option<Run>,
    /// When a page of it left last, and when the driver was asked.
    since: Nanos,
    asked: Nanos,
}

/// What follows an attempt to evict the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// The run is done.
    Done,
    /// Its next page is pinned: leave it alone for a while.
    Pinned,
    /// The copies are not made yet.
    Wait,
    /// Ask the driver for the copies again.
    Ask,
}

impl Unsharing {
    /// Whether `page` is of that run: if it was evicted now, the copying thread would fault on it.
    pub fn has(&self, page: Vpn) -> bool {
        let of = |(first, n): Run| first <= page && page < first.plus(n.into());
        self.run.is_some_and(of)
    }

    /// The kernel refused to move these pages: a fork shares them, or they are pinned. Returns whether to ask the
    /// driver for copies: not while another run is being copied.
    pub fn begin(&mut self, run: Run, now: Nanos) -> bool {
        let none = self.run.is_none();
        if none {
            (self.run, self.since, self.asked) = (Some(run), now, now);
        }
        none
    }

    /// The run that is being copied.
    pub fn run(&self) -> Option<Run> {
        self.run
    }

    /// The driver still works on the copies.
    pub fn go_on(&mut self, now: Nanos) {
        self.since = now;
    }

    /// An attempt to evict the run has `moved` some pages; `left` are left, which the kernel `refused` if so.
    pub fn on_tried(&mut self, moved: bool, left: Run, refused: bool, now: Nanos) -> Next {
        if moved {
            self.since = now;
        }
        let pinned = now.saturating_sub(self.since) > PATIENCE;
        self.run = Some(left).filter(|_| refused && !pinned);
        if pinned {
            return Next::Pinned;
        } else if !refused {
            return Next::Done;
        }
        let again = now.saturating_sub(self.asked) > AGAIN;
        if again {
            self.asked = now;
            return Next::Ask;
        }
        Next::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Run = (Vpn(10), 8);

    #[test]
    fn one_run_is_copied_at_a_time() {
        let mut copies = Unsharing::default();
        assert!(copies.begin(RUN, 1));
        assert!(!copies.begin((Vpn(50), 8), 2));
        assert!(copies.has(Vpn(17)) && !copies.has(Vpn(18)));
        assert_eq!(copies.on_tried(true, (Vpn(18), 0), false, 3), Next::Done);
        assert!(copies.begin((Vpn(50), 8), 4));
    }

    #[test]
    fn the_driver_is_asked_again_and_a_page_that_stays_is_pinned() {
        let mut copies = Unsharing::default();
        copies.begin(RUN, 0);
        assert_eq!(copies.on_tried(false, RUN, true, AGAIN), Next::Wait);
        assert_eq!(copies.on_tried(false, RUN, true, AGAIN + 1), Next::Ask);
        let left = (Vpn(11), 7);
        assert_eq!(copies.on_tried(true, left, true, AGAIN + 2), Next::Wait);
        copies.go_on(AGAIN + 3);
        let end = AGAIN + 3 + PATIENCE;
        assert_eq!(copies.on_tried(false, left, true, end), Next::Ask);
        assert_eq!(copies.on_tried(false, left, true, end + 1), Next::Pinned);
        assert_eq!(copies.run(), None);
    }
}
