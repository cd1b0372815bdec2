//! That a program goes on of whose memory most cannot be moved.
//!
//! A program and its forks that only read share what is mapped, and the MMU moves none of it: together they may
//! hold more of that than the limit. What bounds each wait (`patience`) does not see a program that crawls: no fault
//! waits long, but each does. So while a process only reads there are accounts over all of its faults.
//!
//! - *Time*: how long threads were kept waiting idly. The core's patience ends once, then the limit yields, and what
//!   came in by that makes room for what comes next. So time in which nobody is kept is taken off again, and
//!   something for each fault that was served.
//! - *The limit*: it yields to as many pages as threads may need at a time. More than are given back meanwhile, while
//!   pages are there that could be moved instead, is a limit that creeps up.
//! - *Work*: pages that the MMU was asked for and refused.

use foreswap_core::units::Nanos;

use super::patience::UNMOVABLE;
use super::process::{Fork, Process};
use super::space::{Mapping, Page};
use super::system::System;

/// The most that threads may be kept idly, beyond what is taken off.
const MOST: Nanos = 3 * UNMOVABLE;
/// What is taken off for a fault that was served.
const SERVED: Nanos = 2_000_000;
/// Pages that a process may gain as the limit yields again and again, though as many as the second figure could be
/// moved: the 16 that came in last are left alone, and some lie ahead of the clock hand, which looks at all that cannot be
/// moved as well.
const GAINED: u64 = 48;
const MOVABLE: usize = 32;

/// Moves that may be refused in one call of the core, which may serve each of 16 threads by trying a batch.
const REFUSED: u32 = 1_000;
/// Huge pages that may be made in vain, beyond one in so many calls of the core.
const IN_VAIN: u32 = 64;
const CALLS: u32 = 4;
/// Of 1000 touches of a program that only reads, those that write nevertheless, if they were to.
const WRITES: u32 = 10;

/// The accounts of a process.
#[derive(Default)]
pub struct Progress {
    /// For how long threads were kept, beyond what was taken off.
    kept: Nanos,
    /// When that was reckoned.
    at: Nanos,
    /// Pages that it gained as the limit yielded again and again, and has not given back.
    gained: u64,
    /// When it did last.
    yielded: Option<Nanos>,
    /// Huge pages made in vain, each counted as the calls of the core that allow it.
    in_vain: u32,
}

impl Process {
    /// The program, and the children that it has meanwhile, only read from now on, for so many touches each.
    pub fn only_read(&mut self, touches: u32, protected: bool) {
        self.space.reads = touches;
        self.space.protected = protected && touches > 0;
        self.excuse_crawl();
    }

    /// One touch more: is it to be a read?
    pub fn reads_only(&mut self, sys: &mut System) -> bool {
        let Some(left) = self.space.reads.checked_sub(1) else {
            return false;
        };
        let reads = self.space.protected || !sys.chance.one_in(WRITES);
        self.space.reads = left;
        self.space.protected &= left > 0;
        reads
    }

    /// What was on the accounts had a reason.
    pub fn excuse_crawl(&mut self) {
        self.progress = Progress::default();
    }

    /// Something else than memory that cannot be moved may be why threads wait. An area that failed is passed over,
    /// whatever room it has; a process that does so gives nothing back to others either.
    fn has_other_reason(&self, sys: &System) -> bool {
        let failed = sys.write_failed && sys.out_of_slots.contains(&true);
        let full = failed || !sys.has_room(self.space.pid);
        self.space.reads == 0 || self.fork != Fork::No || full
    }

    /// Threads were kept idly for so long, until now.
    pub fn keep_idly(&mut self, sys: &System, time: Nanos) {
        if self.has_other_reason(sys) {
            return self.excuse_crawl();
        }
        let progress = &mut self.progress;
        let since = sys.now.saturating_sub(progress.at);
        progress.kept = progress.kept.saturating_sub(since.saturating_sub(time)) + time;
        progress.at = sys.now;
        assert!(
            progress.kept <= MOST,
            "threads crawl: they were kept for {} ms more than {} ms for a fault: {}",
            progress.kept / 1_000_000,
            SERVED / 1_000_000,
            self.state(sys)
        );
    }

    /// A thread that waited goes on.
    pub fn went_on(&mut self) {
        self.progress.kept = self.progress.kept.saturating_sub(SERVED);
    }

    /// The limit yielded, as nothing could be moved.
    pub fn limit_yielded(&mut self, sys: &System) {
        // Less patience than the core would have was asked of it.
        let hasty = self.plan.full_timeout < UNMOVABLE;
        if hasty || self.has_other_reason(sys) {
            return self.excuse_crawl();
        }
        let (progress, back) = (&mut self.progress, &mut self.space.given_back);
        let lately = |at: Nanos| sys.now.saturating_sub(at) < UNMOVABLE;
        if !progress.yielded.replace(sys.now).is_some_and(lately) {
            progress.gained = 0;
        }
        // What was given back meanwhile makes up for it.
        progress.gained = progress.gained.saturating_sub(std::mem::take(back)) + 1;
        let gained = progress.gained;
        if gained <= GAINED {
            return;
        }
        let space = &self.space;
        let there = |page: &&Page| page.mapping == Mapping::Managed && page.present.is_some();
        let movable = |page: &&Page| there(page) && page.stays(space.protected).is_none();
        let movable = space.pages.iter().filter(movable).count();
        assert!(
            movable < MOVABLE,
            "the limit creeps up: it has yielded to {gained} pages, and {movable} could be moved: {}",
            self.state(sys)
        );
    }

    /// What the core tried in one call.
    pub fn weigh_work(&mut self, sys: &System) {
        let space = &self.space;
        assert!(
            space.refused <= REFUSED,
            "{} moves were refused in one call of the core: {}",
            space.refused,
            self.state(sys)
        );
        let in_vain = self.progress.in_vain + CALLS * space.in_vain;
        self.progress.in_vain = in_vain.saturating_sub(1);
        assert!(
            in_vain <= CALLS * IN_VAIN,
            "huge pages are made again and again of pages that cannot be moved: {}",
            self.state(sys)
        );
    }
}
