//! The progress of a program whose memory is mostly immovable.
//!
//! A program and its forks that only read share their mapped pages, and the MMU moves none of them: together they may
//! hold more of these than the limit. The bound of each wait (`patience`) does not detect a program that crawls: each
//! fault waits briefly, but all of them do. While a process only reads, there are accounts over all of its faults:
//!
//! - *Time*: the idle waits of threads. The core's patience ends once, then the limit gives way, and the pages that
//!   came in then make room for the next. Time without waits is therefore subtracted, and a constant for each served
//!   fault. While the limit gives way to another process, that process takes what comes free, and the time of others
//!   does not count: the core's patience bounds each of their waits.
//! - *The limit*: it gives way for as many pages as threads may need at a time. A larger gain, net of pages given
//!   back, while other pages could be moved is a creeping limit.
//! - *Work*: moves that the MMU refused.

use foreswap_core::units::Nanos;

use crate::patience::UNMOVABLE;
use crate::process::{Fork, Process};
use crate::space::{Mapping, Page};
use crate::system::System;

/// The longest idle wait, after subtraction.
const MOST: Nanos = 3 * UNMOVABLE;
/// The time subtracted for a served fault.
const SERVED: Nanos = 2_000_000;
/// Pages that a process may gain as the limit gives way repeatedly, although as many as the second constant could be
/// moved: the 16 most recent are left alone, and some lie ahead of the sweep, which also visits all immovable
/// pages.
const GAINED: u64 = 48;
const MOVABLE: usize = 32;

/// Moves that may be refused in one call of the core, which may serve each of 16 threads by trying a batch.
const REFUSED: u32 = 1_000;
/// Huge pages that may be made in vain, beyond one per this number of calls of the core.
const IN_VAIN: u32 = 64;
const CALLS: u32 = 4;
/// Writes per 1000 touches of a program that only reads, if it may write.
const WRITES: u32 = 10;

/// The accounts of a process.
#[derive(Default)]
pub struct Progress {
    /// The time of idle waits, after subtraction.
    kept: Nanos,
    /// The time of the last update.
    at: Nanos,
    /// Pages gained as the limit gave way repeatedly, and not given back.
    gained: u64,
    /// When it last gave way.
    yielded: Option<Nanos>,
    /// Huge pages made in vain, each counted as the calls of the core that allow it.
    in_vain: u32,
}

impl Process {
    /// The program and its present children only read from now on, for this many touches each.
    pub fn only_read(&mut self, touches: u32, protected: bool) {
        self.space.reads = touches;
        self.space.protected = protected && touches > 0;
        self.excuse_crawl();
    }

    /// One more touch: whether it must be a read.
    pub fn reads_only(&mut self, sys: &mut System) -> bool {
        let Some(left) = self.space.reads.checked_sub(1) else {
            return false;
        };
        let reads = self.space.protected || !sys.chance.one_in(WRITES);
        self.space.reads = left;
        self.space.protected &= left > 0;
        reads
    }

    /// The amounts on the accounts had a reason.
    pub fn excuse_crawl(&mut self) {
        self.progress = Progress::default();
    }

    /// Threads may wait for other reasons than immovable memory. A failed area is skipped, whatever its room; a
    /// process that does so gives nothing back to others either.
    fn has_other_reason(&self, sys: &System) -> bool {
        let failed = sys.write_failed && sys.out_of_slots.contains(&true);
        let full = failed || !sys.has_room(self.space.pid);
        self.space.reads == 0 || self.fork != Fork::No || full
    }

    /// Threads were kept idle for this time, until now.
    pub fn keep_idly(&mut self, sys: &System, time: Nanos) {
        if self.has_other_reason(sys) {
            return self.excuse_crawl();
        }
        let lately = |at| sys.now.saturating_sub(at) < UNMOVABLE;
        let to_other = |&(pid, at): &(usize, _)| pid != self.space.pid && lately(at);
        if sys.yielded.as_ref().is_some_and(to_other) {
            self.progress.at = sys.now;
            return;
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

    /// A waiting thread continues.
    pub fn went_on(&mut self) {
        self.progress.kept = self.progress.kept.saturating_sub(SERVED);
    }

    /// The limit gave way, because nothing could be moved.
    pub fn limit_yielded(&mut self, sys: &mut System) {
        sys.yielded = Some((self.space.pid, sys.now));
        // The core was told to have less patience than its own.
        let hasty = self.setup.config.full_timeout < UNMOVABLE;
        if hasty || self.has_other_reason(sys) {
            return self.excuse_crawl();
        }
        let (progress, back) = (&mut self.progress, &mut self.space.given_back);
        let lately = |at: Nanos| sys.now.saturating_sub(at) < UNMOVABLE;
        if !progress.yielded.replace(sys.now).is_some_and(lately) {
            progress.gained = 0;
        }
        // Pages given back meanwhile compensate.
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

    /// Checks the attempts of the core in one call.
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
