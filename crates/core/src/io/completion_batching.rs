//! Whether the disk completes its requests in batches.
//!
//! The disk of a virtual machine may be served by one thread of the host, which executes one request after the other
//! and raises its interrupt only when the queue is empty. If the queue is refilled as entries free up, such a disk
//! reports nothing until the queue is full. Then everything completes at once, and the disk idles until it gets more.
//! It is fastest in batches: no background I/O begins while it has any, and as much as possible when all has ended. A
//! disk that reports each completion is fastest with more in flight. The core estimates the kind of disk all the time.
//!
//! A store far away ends requests together as well, if they were sent together: all of them after the way to it. Requests
//! that took little longer than that were not executed one after the other, and say nothing about batches.

use crate::units::Nanos;
use crate::world::Disk;

/// Requests that complete together on such a disk; fewer may do so by chance.
const SEVERAL: u64 = 3;
/// Requests that end together after less than so many ways to the store were executed side by side.
const ONE_BY_ONE: Nanos = 2;
/// Hysteresis of the estimate: this many more batches than single completions must be seen before the disk counts as
/// one of that kind.
const CONFIDENCE: u32 = 6;

/// An estimate of how the disk completes.
#[derive(Default)]
pub(crate) struct CompletionBatching {
    /// The disk at the last observation.
    seen: Disk,
    /// The last observation at which it had none of the requests that it has, and the last of all.
    since: Nanos,
    looked: Nanos,
    /// From none (0) to [`CONFIDENCE`].
    evidence: u32,
    believed: bool,
}

impl CompletionBatching {
    /// Returns whether no background I/O should begin now. `way`: the latency without transfer, asked where it matters.
    pub fn observe(&mut self, disk: Disk, way: impl FnOnce() -> Nanos, now: Nanos) -> bool {
        let was_idle = self.seen.left == 0;
        let begun = disk.begun.saturating_sub(self.seen.begun);
        let ended = (self.seen.left + begun).saturating_sub(disk.left);
        // Of the requests that it had at the last observation.
        let left = disk.left.saturating_sub(begun);
        self.seen = disk;
        if was_idle {
            self.since = self.looked;
        }
        self.looked = now;
        let took = now.saturating_sub(self.since);
        if left == 0 {
            self.since = now;
        }
        if ended >= SEVERAL && left == 0 {
            if took >= ONE_BY_ONE * way() {
                self.evidence = (self.evidence + 1).min(CONFIDENCE);
            }
        } else if ended > 0 && left > 0 {
            self.evidence = self.evidence.saturating_sub(1);
        }
        self.believed = match self.believed {
            true => self.evidence > 0,
            false => self.evidence == CONFIDENCE,
        };
        self.believed && disk.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that has `n` I/Os at a time, and tells of their ends `together` at a time.
    fn seen(batching: &mut CompletionBatching, n: u64, together: u64) -> bool {
        let mut disk = batching.seen;
        disk.begun += n;
        disk.left += n;
        let mut held_back = batching.observe(disk, || 0, 0);
        while disk.left > 0 {
            disk.left = disk.left.saturating_sub(together);
            held_back |= batching.observe(disk, || 0, 0);
        }
        assert!(!batching.observe(disk, || 0, 0), "it has nothing");
        held_back
    }

    #[test]
    fn a_disk_that_ends_all_batching_is_found_out_and_given_batches() {
        let mut batching = CompletionBatching::default();
        for _ in 0..CONFIDENCE {
            assert!(!seen(&mut batching, 4, 4));
        }
        assert!(seen(&mut batching, 4, 4));
        assert!(seen(&mut batching, 1, 1));
    }

    #[test]
    fn one_that_tells_of_each_end_has_as_much_as_there_is_room_for() {
        let mut batching = CompletionBatching::default();
        for n in 1..100 {
            assert!(!seen(&mut batching, n, 1));
        }
        for _ in 0..=CONFIDENCE {
            seen(&mut batching, 8, 8);
        }
        // It was chance.
        for _ in 0..2 {
            seen(&mut batching, 8, 1);
        }
        assert!(!seen(&mut batching, 8, 1));
    }

    #[test]
    fn single_ends_say_nothing() {
        let mut batching = CompletionBatching::default();
        for _ in 0..100 {
            assert!(!seen(&mut batching, 1, 1));
        }
    }

    #[test]
    fn an_open_read_since_the_last_look_is_no_evidence() {
        let mut batching = CompletionBatching::default();
        let mut disk = Disk::default();
        for _ in 0..20 {
            disk.begun += 3;
            disk.left += 3;
            batching.observe(disk, || 0, 0);
            // They ended, and two more began.
            disk.begun += 2;
            disk.left = 2;
            batching.observe(disk, || 0, 0);
            disk.left = 0;
            batching.observe(disk, || 0, 0);
        }
        disk.begun += 1;
        disk.left += 1;
        assert!(batching.observe(disk, || 0, 0), "evidence was lost");
    }

    #[test]
    fn requests_that_take_no_longer_together_were_executed_side_by_side() {
        const LATENCY: Nanos = 20_000_000;
        let held_back = |time: Nanos| {
            let (mut batching, mut now) = (CompletionBatching::default(), 0);
            let mut held_back = false;
            let mut disk = Disk::default();
            for _ in 0..=CONFIDENCE {
                (disk.begun, disk.left) = (disk.begun + 4, 4);
                held_back |= batching.observe(disk, || LATENCY, now);
                now += time;
                disk.left = 0;
                batching.observe(disk, || LATENCY, now);
            }
            held_back
        };
        assert!(!held_back(LATENCY + LATENCY / 10));
        assert!(held_back(4 * LATENCY));
    }

    #[test]
    fn batches_that_begin_and_end_between_two_looks_count() {
        const WAY: Nanos = 100_000;
        let mut batching = CompletionBatching::default();
        let (mut now, mut disk) = (0, Disk::default());
        for _ in 0..CONFIDENCE {
            now += 20 * WAY;
            disk.begun += 8;
            batching.observe(disk, || WAY, now);
        }
        (disk.begun, disk.left) = (disk.begun + 1, 1);
        assert!(batching.observe(disk, || WAY, now + 1));
    }
}
