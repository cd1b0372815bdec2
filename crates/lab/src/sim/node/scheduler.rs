//! The I/O scheduler: Linux's deadline scheduler.
//!
//! Requests are dispatched in batches of one direction, in rising order on the disk. Reads go first, because tasks
//! wait for them; after two batches of reads a batch of writes has its turn. A batch continues where the last one of
//! its direction ended, or begins with the oldest request if that has expired. The values are Linux's defaults
//! (`Documentation/block/deadline-iosched.txt`).

use std::collections::BTreeMap;

use foreswap_core::units::Nanos;

use crate::sim::device::Transfer;

/// Requests of a batch (`fifo_batch`).
const BATCH: u32 = 16;
/// Batches of reads that precede waiting writes (`writes_starved`).
const STARVED: u32 = 2;
/// The expiry of a read and of a write (`read_expire`, `write_expire`).
const EXPIRE: [Nanos; 2] = [500_000_000, 5_000_000_000];

/// Requests of one direction.
#[derive(Debug, Default)]
struct Direction {
    /// By place and arrival.
    places: BTreeMap<(u64, u64), (u32, Transfer)>,
    /// Places by arrival, with their expiry.
    arrivals: BTreeMap<u64, (u64, Nanos)>,
    /// The end of the last batch: requests from here on continue it.
    next: (u64, u64),
}

impl Direction {
    /// The first request of a new batch.
    fn first(&self, now: Nanos) -> Option<(u64, u64)> {
        let (&arrival, &(place, old)) = self.arrivals.first_key_value()?;
        let following = self.places.range(self.next..).next();
        match following {
            Some((&key, _)) if old > now => Some(key),
            _ => Some((place, arrival)),
        }
    }
}

/// Requests not dispatched yet.
#[derive(Debug, Default)]
pub struct Scheduler {
    /// Reads, and writes.
    directions: [Direction; 2],
    arrivals: u64,
    /// The direction of the current batch, and its remaining requests.
    writes: bool,
    left: u32,
    /// Batches of reads that preceded waiting writes.
    passed: u32,
    /// A request is on the disk.
    busy: bool,
}

impl Scheduler {
    /// A request arrives at `now`.
    pub fn add(&mut self, now: Nanos, io: u32, transfer: Transfer) {
        self.arrivals += 1;
        let write = usize::from(transfer.write);
        let direction = &mut self.directions[write];
        let key = (transfer.first, self.arrivals);
        direction.places.insert(key, (io, transfer));
        let entry = (transfer.first, now + EXPIRE[write]);
        direction.arrivals.insert(self.arrivals, entry);
    }

    /// The disk has completed its request.
    pub fn ended(&mut self) {
        self.busy = false;
    }

    /// The next request for the disk, if it is idle and one waits.
    pub fn next(&mut self, now: Nanos) -> Option<(u32, Transfer)> {
        if self.busy {
            return None;
        }
        let key = match self.going_on() {
            Some(key) => key,
            None => self.new_batch(now)?,
        };
        self.left -= 1;
        let direction = &mut self.directions[usize::from(self.writes)];
        direction.next = (key.0, key.1 + 1);
        direction.arrivals.remove(&key.1);
        let request = direction.places.remove(&key)?;
        self.busy = true;
        Some(request)
    }

    fn going_on(&self) -> Option<(u64, u64)> {
        let direction = &self.directions[usize::from(self.writes)];
        let mut following = direction.places.range(direction.next..);
        let key = following.next().map(|(&key, _)| key);
        key.filter(|_| self.left > 0)
    }

    fn new_batch(&mut self, now: Nanos) -> Option<(u64, u64)> {
        let [reads, writes] = self.directions.each_ref().map(|d| !d.places.is_empty());
        self.writes = writes && (!reads || self.passed >= STARVED);
        if self.writes {
            self.passed = 0;
        } else if writes {
            self.passed += 1;
        }
        self.left = BATCH;
        self.directions[usize::from(self.writes)].first(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(scheduler: &mut Scheduler, now: Nanos, write: bool, first: u64) {
        let transfer = Transfer {
            write,
            first,
            pages: 1,
        };
        scheduler.add(now, first as u32, transfer);
    }

    fn order(scheduler: &mut Scheduler, now: Nanos) -> Vec<(bool, u64)> {
        std::iter::from_fn(|| {
            let next = scheduler.next(now).map(|(_, t)| (t.write, t.first));
            scheduler.ended();
            next
        })
        .collect()
    }

    #[test]
    fn requests_go_in_rising_order_and_one_at_a_time() {
        let mut scheduler = Scheduler::default();
        for first in [30, 10, 20] {
            add(&mut scheduler, 0, false, first);
        }
        assert_eq!(scheduler.next(0).map(|(io, _)| io), Some(10));
        assert_eq!(scheduler.next(0), None, "the disk is busy");
        scheduler.ended();
        add(&mut scheduler, 0, false, 5);
        assert_eq!(
            order(&mut scheduler, 0),
            [(false, 20), (false, 30), (false, 5)]
        );
    }

    #[test]
    fn writes_wait_for_two_batches_of_reads() {
        let mut scheduler = Scheduler::default();
        for n in 0..64 {
            add(&mut scheduler, 0, false, n);
            add(&mut scheduler, 0, true, 1_000 + n);
        }
        let order = order(&mut scheduler, 0);
        let runs: Vec<usize> = order.chunk_by(|a, b| a.0 == b.0).map(<[_]>::len).collect();
        assert_eq!(runs, [32, 16, 32, 48]);
    }

    #[test]
    fn an_expired_request_begins_a_batch() {
        let late = EXPIRE[0] + 1;
        let mut scheduler = Scheduler::default();
        add(&mut scheduler, 0, false, 5_000);
        assert!(scheduler.next(0).is_some());
        scheduler.ended();
        add(&mut scheduler, 1, false, 1);
        for n in 0..40 {
            add(&mut scheduler, late, false, 6_000 + n);
        }
        // The batch continues to its end, then the oldest request has its turn although it lies behind.
        let order: Vec<u64> = order(&mut scheduler, late).iter().map(|o| o.1).collect();
        assert_eq!(order[..15], (6_000..6_015).collect::<Vec<_>>());
        assert_eq!(order[15], 1);
    }
}
