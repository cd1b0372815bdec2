//! How long the core may keep a thread waiting, whatever goes wrong.
//!
//! Each wait has an account of the virtual time that passed while the driver of its process was at work and
//! the core could have gone on. Not on it is what the machine made: time in which other drivers were at work
//! or nobody was, a fault message that nobody read yet, an event that keeps the address space changing, an
//! I/O that stalls and that the page, or the memory for it, comes with, and naps after which something was
//! refused by chance. The last has an end too: a refusal may be bad luck, dozens in a row are not.
//!
//! What is left is bounded: by what the core is told to wait for memory, its own patience with what cannot be
//! moved, the naps of a driver in which it notices nothing, and the I/Os of a full queue. So what ends only
//! because everybody else stops, or because a timer mends it, is found while everything goes wrong. While
//! other I/O is in flight the core gives no fault up for long, as it may bring memory: that time has a bound of
//! its own, and so has a wait in which writes fail.

use foreswap_core::Entry;
use foreswap_core::units::{Frame, Nanos};

use super::process::{Process, Wait};
use super::space::Use;
use super::system::System;
use super::view::LATENCY;

/// What passes where threads wait and nothing is in flight; at the least twice that, but where it is looked at
/// whether a program crawls (`progress`).
const NAP: Nanos = 5_000_000;
/// Of what the core is told to wait for memory, what passes then; so that it need not be asked too often.
const NAPS: Nanos = 4;
/// The core's own patience with pages that cannot be moved out, where it is not told to have less.
pub const UNMOVABLE: Nanos = 200_000_000;
/// The core's patience while I/O is in flight: with writes that fail, and are tried again, some always is.
const FAILING: Nanos = 25 * UNMOVABLE;
/// What a wait beside other I/O may take besides.
const BESIDE_IO: Nanos = 100_000_000;
/// Naps in a row after which something was refused by chance: at three times out of ten the most, once in
/// 10^13.
const MISFORTUNES: u32 = 25;

/// How long the core has kept a thread waiting.
#[derive(Clone, Copy, Default)]
pub struct Kept {
    /// Virtual time.
    pub time: Nanos,
    /// Of this, naps: nothing was in flight.
    pub idle: Nanos,
    /// Naps that are not in it, as something was refused by chance.
    pub misfortunes: u32,
    /// A write failed meanwhile.
    pub failed: bool,
}

impl Process {
    /// What passes when threads wait and nothing is in flight: less where the core says that it need not be so long.
    pub fn nap(&self, now: Nanos) -> Nanos {
        let nap = if self.space.reads > 0 {
            NAP
        } else {
            self.longest_nap()
        };
        self.mm.moment_left(now).map_or(nap, |left| left.min(nap))
    }

    fn longest_nap(&self) -> Nanos {
        (2 * NAP).max(self.plan.full_timeout / NAPS)
    }

    /// The longest that the core may keep a thread waiting.
    fn patience(&self) -> Nanos {
        let timeout = self.plan.full_timeout;
        let queue = u64::from(self.plan.queue) * LATENCY;
        timeout + timeout.min(UNMOVABLE) + 3 * self.longest_nap() + 4 * queue
    }

    /// Time passes until `to` while this driver waits: for I/O, or for nothing but time.
    pub fn pass(&mut self, sys: &mut System, to: Nanos) {
        let time = to.saturating_sub(sys.now);
        sys.pass(time);
        self.keep(sys, time);
    }

    /// Threads were kept waiting for so long.
    pub fn keep(&mut self, sys: &System, time: Nanos) {
        // What was refused is tried again after the next nap, not before.
        let naps = time >= NAP;
        let refused = self.space.unlucky;
        self.space.unlucky &= !naps;
        let unlucky = refused && self.space.flights.is_empty();
        if self.waiting == 0 || self.space.changing > 0 {
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

    /// Its page comes with an I/O that stalls. Where it is in none, what stalls may be what it waits for:
    /// memory, or a place in the queue.
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
