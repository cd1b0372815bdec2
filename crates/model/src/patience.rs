//! The time for which the core may keep a thread waiting, whatever fails.
//!
//! Each wait has an account of the virtual time in which the driver of its process was working and the core could
//! have made progress. Excluded is time caused by the machine: other drivers' turns and idle time, an unread fault
//! message, an event that keeps the address space changing, a stalled I/O that carries the page or memory for it, and
//! naps after a random refusal. The last has a bound too: a refusal may be bad luck, dozens in a row are not.
//!
//! The rest is bounded by the time for which the core is told to wait for memory, its own patience with immovable
//! pages, the naps of a driver that notices nothing, and the I/Os of a full queue. A wait that ends only because all
//! others stop, or because a timer repairs it, is therefore found while everything fails. While other I/O is in
//! flight, the core keeps a fault waiting for long, because the I/O may bring memory: that time has its own bound,
//! and so has a wait in which writes fail.

use foreswap_core::Entry;
use foreswap_core::units::{Frame, Nanos};

use crate::process::{Process, Wait};
use crate::space::Use;
use crate::system::System;
use crate::view::LATENCY;

/// The nap while threads wait and nothing is in flight; at least twice that, except in the check for crawling
/// programs (`progress`).
const NAP: Nanos = 5_000_000;
/// The nap as a fraction of the time for which the core is told to wait for memory.
const NAPS: Nanos = 4;
/// The core's own patience with immovable pages, unless it is told to have less.
pub const UNMOVABLE: Nanos = 200_000_000;
/// The core's patience while I/O is in flight: with failing, retried writes, some always is.
const FAILING: Nanos = 25 * UNMOVABLE;
/// The additional time of a wait beside other I/O.
const BESIDE_IO: Nanos = 100_000_000;
/// Naps in a row after a random refusal: at three in ten, once in 10^13.
const MISFORTUNES: u32 = 25;

/// How long the core has kept a thread waiting.
#[derive(Clone, Copy, Default)]
pub struct Kept {
    /// Virtual time.
    pub time: Nanos,
    /// Of this, naps: nothing was in flight.
    pub idle: Nanos,
    /// Naps not counted, because something was refused by chance.
    pub misfortunes: u32,
    /// A write failed meanwhile.
    pub failed: bool,
}

impl Process {
    /// The nap while threads wait and nothing is in flight: shorter if the core says so.
    pub fn nap(&self, now: Nanos) -> Nanos {
        let nap = if self.space.reads > 0 {
            NAP
        } else {
            self.longest_nap()
        };
        self.mm.moment_left(now).map_or(nap, |left| left.min(nap))
    }

    fn longest_nap(&self) -> Nanos {
        (2 * NAP).max(self.setup.config.full_timeout / NAPS)
    }

    /// The longest that the core may keep a thread waiting.
    fn patience(&self) -> Nanos {
        let timeout = self.setup.config.full_timeout;
        let queue = self.setup.queue as u64 * LATENCY;
        timeout + timeout.min(UNMOVABLE) + 3 * self.longest_nap() + 4 * queue
    }

    /// Time passes until `to` while this driver waits: for I/O, or only for time.
    pub fn pass(&mut self, sys: &mut System, to: Nanos) {
        let time = to.saturating_sub(sys.now);
        sys.pass(time);
        self.keep(sys, time);
    }

    /// Threads were kept waiting for this time.
    pub fn keep(&mut self, sys: &System, time: Nanos) {
        // Refused operations are retried after the next nap, not before.
        let naps = time >= NAP;
        let refused = self.space.unlucky;
        self.space.unlucky &= !naps;
        let unlucky = refused && self.space.flights.is_empty();
        if self.waiting == 0 || self.space.changing > 0 || self.without_turn > 0 {
            return;
        }
        let idle = self.space.flights.is_empty();
        let mut idly = false;
        for thread in 0..self.threads.len() {
            let Some(wait) = self.threads[thread].filter(|wait| wait.told) else {
                continue;
            };
            if self.space.stalls > 0 && self.is_behind_a_stall(&wait) {
                continue;
            }
            let mut kept = wait.kept;
            if naps {
                kept.misfortunes = if unlucky { kept.misfortunes + 1 } else { 0 };
            }
            if !unlucky || kept.misfortunes > MISFORTUNES {
                kept.time += time;
                kept.idle += if idle { time } else { 0 };
                idly |= idle && !unlucky;
            }
            let patience = self.patience() + if kept.failed { FAILING } else { 0 };
            assert!(
                kept.idle <= patience && kept.time <= patience + BESIDE_IO,
                "a thread is kept waiting for page {} for {} ms, {} of them idly, {} are the most: {}",
                wait.at,
                kept.time / 1_000_000,
                kept.idle / 1_000_000,
                patience / 1_000_000,
                self.state(sys)
            );
            if let Some(wait) = &mut self.threads[thread] {
                wait.kept = kept;
            }
        }
        if idly {
            self.keep_idly(sys, time);
        }
    }

    /// Its page comes with a stalled I/O. If its page is in none, it may wait for a stalled one: for memory, or for
    /// room in the queue.
    fn is_behind_a_stall(&self, wait: &Wait) -> bool {
        let flights = &self.space.flights;
        match self.mm.entry(self.space.vpn(wait.at)) {
            Entry::Cached(frame) if self.space.frame_use[frame.0 as usize] != Use::Idle => {
                let brings = |frames: &[Frame]| frames.contains(&frame);
                flights
                    .iter()
                    .any(|flight| flight.stalls && brings(&flight.frames))
            }
            _ => true,
        }
    }
}
