//! Polling for the reply to a small read, instead of sleeping until it comes.
//!
//! A thread waits for such a read, and an idle CPU takes long to wake: 20 us in a virtual machine, as long as a near server
//! takes to answer. So the relay looks again and again for a while, and lets every other thread of its CPU run in between. A
//! server that does not answer within that while is not polled any more, but for a try now and then.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::Notify;

/// How long: what a near server and two wake-ups take.
const WHILE: Duration = Duration::from_micros(150);
/// Reads in a row whose replies may come later.
const MISSES: u32 = 8;
/// Reads between two tries with a server that takes longer.
const BETWEEN_TRIES: u32 = 256;
/// The most bytes of reads that threads wait for; larger ones are read ahead.
pub const SMALL: u32 = 64 << 10;

/// Whether it pays to poll.
pub struct Polling {
    asked: Notify,
    /// Reads in a row whose replies came later.
    missed: Cell<u32>,
    /// Reads since the last try.
    without: Cell<u32>,
}

impl Polling {
    /// A server of which nothing is known.
    pub fn new() -> Self {
        Self {
            asked: Notify::new(),
            missed: Cell::new(0),
            without: Cell::new(0),
        }
    }

    /// A small read was sent.
    pub fn on_sent(&self) {
        self.asked.notify_one();
    }

    /// Whether to poll for the read that was just sent.
    fn pays(&self) -> bool {
        if self.missed.get() < MISSES {
            return true;
        }
        self.without.set((self.without.get() + 1) % BETWEEN_TRIES);
        self.without.get() == 0
    }

    /// The reply came while it was polled for, or did not.
    fn learn(&self, came: bool) {
        self.missed.set(match came {
            true => 0,
            false => MISSES.min(self.missed.get() + 1),
        });
    }

    /// Polls after each small read, for ever. `waits_for`: the age of the oldest small read without a reply.
    pub async fn run(&self, waits_for: impl Fn() -> Option<Duration>) {
        loop {
            self.asked.notified().await;
            if !self.pays() {
                continue;
            }
            let came = loop {
                match waits_for() {
                    None => break true,
                    Some(age) if age >= WHILE => break false,
                    Some(_) => {
                        rustix::thread::sched_yield();
                        tokio::task::yield_now().await;
                    }
                }
            };
            self.learn(came);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_takes_longer_is_rarely_polled() {
        let polling = Polling::new();
        let polled = |reads: u32, came: bool| {
            let mut polled = 0;
            for _ in 0..reads {
                if polling.pays() {
                    polled += 1;
                    polling.learn(came);
                }
            }
            polled
        };
        assert_eq!(polled(100, true), 100);
        assert_eq!(polled(200, false), MISSES);
        let before = polled(BETWEEN_TRIES - 200 + MISSES, false);
        assert_eq!(before, 1);
        assert_eq!(polled(10 * BETWEEN_TRIES, false), 10);
        // One that answers soon from now on is found at the next try.
        let soon = polled(2 * BETWEEN_TRIES, true);
        assert!(soon >= BETWEEN_TRIES, "{soon}");
    }
}
