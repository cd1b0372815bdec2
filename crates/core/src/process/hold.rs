//! One fork at a time.
//!
//! A thread that forks waits until no write is in flight and the snapshot for the child is taken, forks, and reports
//! the end of the fork. Meanwhile nothing is evicted and no memory is registered. A second fork waits for the end of
//! the first. A thread whose memory grows waits too, but not for long: it may hold a lock that the forking thread
//! needs.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::units::Nanos;

/// How long a thread whose memory grew waits for the end of a fork.
const UNDER_FORK: Nanos = 50_000_000;

/// Where the fork is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stage<T> {
    /// There is none.
    #[default]
    None,
    /// The thread of call `T` waits until no write is in flight.
    Quieting(T),
    /// The thread forks.
    Held,
}

/// The forks of a process. `T` names the call of a waiting thread.
#[derive(Debug)]
pub struct Hold<T> {
    stage: Stage<T>,
    /// Calls of threads that are about to fork.
    forks: VecDeque<T>,
    /// Calls of threads whose memory grew, and how long they wait.
    growth: Vec<(T, Nanos)>,
}

impl<T> Default for Hold<T> {
    fn default() -> Self {
        Hold {
            stage: Stage::None,
            forks: VecDeque::new(),
            growth: Vec::new(),
        }
    }
}

impl<T: Copy> Hold<T> {
    /// A thread is about to fork. Returns whether it is its turn: the fork is quieting now.
    pub fn begin(&mut self, call: T) -> bool {
        let is_free = matches!(self.stage, Stage::None);
        if is_free {
            self.stage = Stage::Quieting(call);
        } else {
            self.forks.push_back(call);
        }
        is_free
    }

    /// No write is in flight and the snapshot is taken, or none is needed: the thread forks.
    pub fn hold(&mut self) {
        self.stage = Stage::Held;
    }

    /// The fork is over. Returns the call of the next one, to begin.
    pub fn release(&mut self) -> Option<T> {
        self.stage = Stage::None;
        self.forks.pop_front()
    }

    /// Where the fork is.
    pub fn stage(&self) -> Stage<T> {
        self.stage
    }

    /// There is no fork.
    pub fn is_none(&self) -> bool {
        matches!(self.stage, Stage::None)
    }

    /// A fork is held: nothing may be moved out or registered.
    pub fn is_held(&self) -> bool {
        matches!(self.stage, Stage::Held)
    }

    /// A thread waits for its turn to fork.
    pub fn is_quieting(&self) -> bool {
        matches!(self.stage, Stage::Quieting(_))
    }

    /// Memory grew that cannot be registered under the fork: the thread waits.
    pub fn delay_growth(&mut self, call: T, now: Nanos) {
        self.growth.push((call, now + UNDER_FORK));
    }

    /// Threads wait because their memory grew.
    pub fn delays_growth(&self) -> bool {
        !self.growth.is_empty()
    }

    /// The threads that wait no longer: the fork is over, or the first has waited long enough.
    pub fn end_delay(&mut self, now: Nanos) -> Vec<T> {
        let is_over = self
            .growth
            .first()
            .is_some_and(|&(_, until)| !self.is_held() || now >= until);
        match is_over {
            true => self.growth.drain(..).map(|(call, _)| call).collect(),
            false => Vec::new(),
        }
    }
}
