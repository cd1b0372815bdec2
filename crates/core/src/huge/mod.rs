//! Huge pages, moved and swapped whole.
//!
//! A *unit* is the 512 aligned pages of one leaf of the page table. Where the access pattern justifies it, a unit is
//! evicted by one move and one write to a slot cluster of its own, and comes back by one read and one move. The
//! kernel's huge page behind it is never split on the way. A touch maps all of a unit that is in frames. A unit that is
//! on an area only is read whole when a stream reaches it, and page by page when touches are scattered. A leaf whose
//! pages came back one by one is made a huge page again when all of it is mapped and its region is touched in order.
//!
//! A page that cannot be moved, a failed read or a discard of a part splits the unit: its pages continue as single
//! pages, and nothing is lost.

use crate::units::{LEAF_PAGES, Nanos, Vpn};

/// When memory is managed in huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Thp {
    /// Never.
    Never,
    /// Where it is touched in order, and densely.
    #[default]
    Adaptive,
    /// Wherever a whole aligned leaf lies in one region.
    Always,
}

/// First page of the unit of `page`.
pub const fn unit_of(page: Vpn) -> Vpn {
    Vpn(page.0 / LEAF_PAGES as u64 * LEAF_PAGES as u64)
}

/// After the system had no huge page, this many tries do not ask for one: each costs a system call, and a huge page
/// that appears meanwhile is not lost.
const NONE_LEFT: u32 = 16;
/// Full leaves that are skipped after one could not be made huge: its neighbours are likely to fail as well.
const LEAN: u32 = 64;
/// The time without a unit taken after which no units are kept ready.
const IDLE: Nanos = 50_000_000;
/// How long a fault waits for a huge page before single pages are moved instead. Only a disk that has stopped takes
/// longer to write a unit, or a host that gives this machine no CPU time; single pages would wait for these too.
const UNIT_WAIT: Nanos = 1_000_000_000;
/// The largest number of separate stretches of changed pages that are written one by one; with more, the whole unit is.
const STRETCHES: usize = 8;
/// If this part of a unit has changed, all of it gets new slots, and stays a unit. With less, it is split, and only the
/// changed pages are written.
const CHANGED_PART: u32 = 4;

/// Whether the system has huge pages at the moment, and whether they are in use.
#[derive(Default)]
pub(crate) struct Huge {
    /// Tries that are skipped, as the system had no huge page.
    rest: u32,
    /// When a stream or a first touch last took a unit.
    wanted_at: Option<Nanos>,
    /// Full leaves that are skipped, as making them huge failed.
    lean: u32,
    /// Evicted units whose digests are being computed.
    digesting: u32,
}

impl Huge {
    /// A stream or a first touch takes a unit.
    pub fn want(&mut self, now: Nanos) {
        self.wanted_at = Some(now);
    }

    /// Units are being taken.
    pub fn are_wanted(&self, now: impl FnOnce() -> Nanos) -> bool {
        let since = self.wanted_at.map(|at| now().saturating_sub(at));
        since.is_some_and(|since| since <= IDLE)
    }

    /// The system had no huge page a short time ago.
    pub fn is_scarce(&self) -> bool {
        self.rest > 0
    }

    /// Whether to ask the system for a huge page now. A refusal counts.
    pub fn may_ask(&mut self) -> bool {
        let may = self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        may
    }

    /// The system had none.
    pub fn on_none(&mut self) {
        self.rest = NONE_LEFT;
    }

    /// Whether to make a full leaf a huge page. A refusal counts.
    pub fn may_collapse(&mut self) -> bool {
        let may = self.lean == 0;
        self.lean = self.lean.saturating_sub(1);
        may
    }

    /// A leaf could not be made a huge page, or would be refused again if it was one.
    pub fn on_not_collapsed(&mut self) {
        self.lean = LEAN;
    }

    /// The digests of a unit are being computed.
    pub fn begin_digest(&mut self) {
        self.digesting += 1;
    }

    /// They are known.
    pub fn end_digest(&mut self) {
        self.digesting -= 1;
    }

    /// Evicted pages whose digests are not known yet: some will be memory soon.
    pub fn digesting(&self) -> u64 {
        u64::from(self.digesting) * LEAF_PAGES as u64
    }
}

/// Whether a fault that came at `since` waits for a huge page.
pub(crate) fn may_wait(since: Nanos, now: Nanos) -> bool {
    now.saturating_sub(since) < UNIT_WAIT
}

/// Whether an evicted unit of which `dirty` pages have changed stays a unit, and gets new slots.
pub(crate) fn stays_whole(dirty: u32) -> bool {
    dirty * CHANGED_PART >= LEAF_PAGES as u32
}

/// Whether all of a unit is written to its old slots, and not only its changed pages, which begin at so many places.
pub(crate) fn writes_all(stretches: usize) -> bool {
    stretches > STRETCHES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failure_the_system_is_left_alone_for_some_tries() {
        let mut huge = Huge::default();
        assert!(huge.may_ask() && huge.may_ask());
        huge.on_none();
        assert!(huge.is_scarce());
        let refused = (0..100).take_while(|_| !huge.may_ask()).count();
        assert_eq!(refused as u32, NONE_LEFT);
        assert!(huge.may_collapse());
        huge.on_not_collapsed();
        let refused = (0..100).take_while(|_| !huge.may_collapse()).count();
        assert_eq!(refused as u32, LEAN);
    }

    #[test]
    fn units_are_kept_ready_while_some_are_taken() {
        let mut huge = Huge::default();
        assert!(!huge.are_wanted(|| 0));
        huge.want(7);
        assert!(huge.are_wanted(|| 7 + IDLE));
        assert!(!huge.are_wanted(|| 8 + IDLE));
    }
}
