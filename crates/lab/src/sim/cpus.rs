//! The scheduler: as many tasks run as there are CPUs, the others wait in the order in which they became ready. A
//! task that has run for a slice while others wait goes to the end.

use std::collections::VecDeque;

use foreswap_core::units::Nanos;

use super::machine::ActorId;

/// How long a task runs while others wait.
pub const SLICE: Nanos = 4_000_000;

/// The CPUs.
#[derive(Debug)]
pub struct Cpus {
    free: u32,
    waiting: VecDeque<ActorId>,
}

impl Cpus {
    /// This many CPUs, all free.
    pub fn new(count: u32) -> Self {
        Cpus {
            free: count,
            waiting: VecDeque::new(),
        }
    }

    /// `who` wants to run. True: it has a CPU. Otherwise it gets one by [`Cpus::leave`].
    pub fn enter(&mut self, who: ActorId) -> bool {
        if self.free == 0 {
            self.waiting.push_back(who);
            return false;
        }
        self.free -= 1;
        true
    }

    /// A CPU is given up; returns its next owner, if there is one.
    pub fn leave(&mut self) -> Option<ActorId> {
        let next = self.waiting.pop_front();
        self.free += u32::from(next.is_none());
        next
    }

    /// Whether a task that has run this long must make room.
    pub fn is_over(&self, ran: Nanos) -> bool {
        ran >= SLICE && !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_task_that_is_ready_first_runs_first() {
        let mut cpus = Cpus::new(2);
        assert!(cpus.enter(ActorId(1)) && cpus.enter(ActorId(2)));
        assert!(!cpus.is_over(SLICE), "nobody waits");
        assert!(!cpus.enter(ActorId(3)) && !cpus.enter(ActorId(4)));
        assert!(cpus.is_over(SLICE) && !cpus.is_over(SLICE - 1));
        assert_eq!(cpus.leave(), Some(ActorId(3)));
        assert_eq!(cpus.leave(), Some(ActorId(4)));
        assert_eq!(cpus.leave(), None);
        assert!(cpus.enter(ActorId(5)));
    }
}
