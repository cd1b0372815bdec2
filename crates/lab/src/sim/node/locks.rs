//! The locks of allocation and reclaim: one for the free frames of each zone, one for the lists of each node.
//!
//! They are spin locks: a waiter uses its CPU, and gets the lock in order of request. Work under a lock is one access
//! per page to the memory that describes it; the lock itself passes between CPUs in one cache line.

use foreswap_core::linux_kswapd::ZoneIndex;
use foreswap_core::units::Nanos;

use super::zones::ZONES;

/// When each lock becomes free.
#[derive(Debug)]
pub struct Locks {
    zones: Vec<[Nanos; ZONES]>,
    lists: Vec<Nanos>,
    handover: Nanos,
}

impl Locks {
    /// All free. `handover`: the cost of a transfer between CPUs.
    pub fn new(nodes: usize, handover: Nanos) -> Self {
        Locks {
            zones: vec![[0; ZONES]; nodes],
            lists: vec![0; nodes],
            handover,
        }
    }

    /// An actor that has run since `now` wants a zone's free frames from `when` on, for `held`. Returns its wait.
    pub fn zone(
        &mut self,
        node: usize,
        zone: ZoneIndex,
        [now, when]: [Nanos; 2],
        held: Nanos,
    ) -> Nanos {
        let lock = &mut self.zones[node][zone.0];
        take(lock, [now, when], held, self.handover)
    }

    /// The same for the lists of a node.
    pub fn lists(&mut self, node: usize, now: Nanos, held: Nanos) -> Nanos {
        self.lists_later(node, [now, now], held)
    }

    /// The same for an actor that has run since `now` and wants them from `when` on.
    pub fn lists_later(&mut self, node: usize, at: [Nanos; 2], held: Nanos) -> Nanos {
        take(&mut self.lists[node], at, held, self.handover)
    }
}

/// Later requests are queued among those of now: no actor waits for a lock that is free until then.
fn take(free: &mut Nanos, [now, when]: [Nanos; 2], held: Nanos, handover: Nanos) -> Nanos {
    let waits = match free.saturating_sub(when) {
        0 => 0,
        left => left + handover,
    };
    let passed = if *free > now { handover } else { 0 };
    *free = (*free).max(now) + passed + held;
    waits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_waits_for_a_held_lock_and_takes_it_over() {
        let mut locks = Locks::new(2, 10);
        assert_eq!(locks.lists(0, 1_000, 300), 0);
        assert_eq!(locks.lists(0, 1_100, 300), 210);
        assert_eq!(locks.lists(0, 1_100, 300), 520);
        // The other node's lock and a zone's lock are independent.
        assert_eq!(locks.lists(1, 1_100, 300), 0);
        let at = [1_100, 1_100];
        assert_eq!(locks.zone(0, ZoneIndex(2), at, 300), 0);
        assert_eq!(locks.zone(0, ZoneIndex(1), at, 300), 0);
        assert_eq!(locks.zone(0, ZoneIndex(2), [1_399, 1_399], 1), 11);
        // Free again.
        assert_eq!(locks.lists(0, 1_920, 300), 0);
    }

    #[test]
    fn a_later_request_does_not_delay_an_earlier_one() {
        let mut locks = Locks::new(1, 10);
        assert_eq!(locks.lists_later(0, [1_000, 5_000], 300), 0);
        assert_eq!(locks.lists(0, 1_200, 300), 110);
        // Its own wait is the remainder by then.
        assert_eq!(locks.lists_later(0, [1_300, 1_500], 300), 120);
        assert_eq!(locks.lists(0, 2_000, 300), 0);
    }
}
