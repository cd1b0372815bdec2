//! A spin lock with its waiters, in order of arrival.
//!
//! A contended lock costs the wait, and the transfer of its cache line to the next holder. The holder continues at
//! once when it releases the lock.

use std::collections::VecDeque;

use foreswap_core::units::Nanos;

use super::machine::ActorId;

/// The kind of lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockId {
    /// Of a swap area: its slots and their use counts.
    Slots,
    /// Of the swap cache's index.
    Cache,
}

/// One lock.
#[derive(Default, Debug)]
pub struct Lock {
    held: bool,
    waiters: VecDeque<(ActorId, Nanos)>,
    /// Acquisitions, those that had to wait, and their total wait.
    pub taken: u64,
    pub contended: u64,
    pub waited: Nanos,
}

impl Lock {
    /// `who` wants the lock at `now`. True: it has it. Otherwise it gets it by [`Lock::release`].
    pub fn acquire(&mut self, who: ActorId, now: Nanos) -> bool {
        self.taken += 1;
        if self.held {
            self.contended += 1;
            self.waiters.push_back((who, now));
            return false;
        }
        self.held = true;
        true
    }

    /// Releases the lock; returns its next holder, if there is one.
    pub fn release(&mut self, now: Nanos) -> Option<ActorId> {
        let (next, since) = match self.waiters.pop_front() {
            Some(waiter) => waiter,
            None => {
                self.held = false;
                return None;
            }
        };
        self.waited += now - since;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_get_it_in_order() {
        let mut lock = Lock::default();
        assert!(lock.acquire(ActorId(1), 10));
        assert!(!lock.acquire(ActorId(2), 11));
        assert!(!lock.acquire(ActorId(3), 12));
        assert_eq!(lock.release(20), Some(ActorId(2)));
        assert_eq!(lock.release(30), Some(ActorId(3)));
        assert_eq!(lock.release(40), None);
        assert!(lock.acquire(ActorId(4), 50));
        assert_eq!((lock.taken, lock.contended, lock.waited), (4, 2, 9 + 18));
    }
}
