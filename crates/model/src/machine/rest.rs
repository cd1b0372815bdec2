//! How the machine comes to rest, and the state that is required then.

use foreswap_core::units::Nanos;

use super::Machine;
use crate::family::charged_for;
use crate::process::{Access, Process};
use crate::summary::Summary;
use crate::system::Chaos;

/// The nap of drivers whose threads wait until copies are paid for.
const LOOKS: Nanos = 2_000_000;
/// Rounds within which the machine must come to rest.
const ROUNDS: u32 = 20_000;

impl Machine {
    /// Time passes while all drivers are working.
    pub(super) fn pass(&mut self, time: Nanos) {
        self.sys.pass(time);
        for process in &mut self.processes {
            process.keep(&self.sys, time);
        }
    }

    /// No more failures: every thread must get its page in bounded time, and the machine must come to rest.
    pub(super) fn settle(&mut self) {
        let chaos = std::mem::take(&mut self.sys.chaos);
        for round in 0.. {
            let mut rest = true;
            for n in (0..self.processes.len()).rev() {
                rest &= self.quiet_round(n);
            }
            if rest {
                break;
            }
            // Naps are for processes that wait for no event.
            let comes = self.processes.iter().any(|p| !p.space.flights.is_empty());
            let nap = if comes {
                0
            } else {
                let waits = self.processes.iter();
                let left = waits.filter_map(|p| p.mm.moment_left(self.sys.now));
                let copies = self.processes.iter().any(Process::waits_for_copies);
                let nap = match copies {
                    true => LOOKS,
                    false => self.plan.full_timeout / 16,
                };
                left.min().map_or(nap, |left| left.min(nap))
            };
            self.pass(1_000 + nap);
            for process in &mut self.processes {
                // The machine causes these naps.
                process.excuse_crawl();
            }
            assert!(
                round < ROUNDS,
                "the machine does not come to rest: {}",
                self.states()
            );
        }
        self.sys.chaos = chaos;
    }

    pub(super) fn check(&mut self) {
        for process in &mut self.processes {
            process.check(&mut self.sys);
        }
        if self.sys.families {
            charged_for(&self.sys, &self.processes);
        }
    }

    fn states(&self) -> String {
        let states = self.processes.iter().map(|p| p.state(&self.sys));
        let states = states.collect::<Vec<_>>().join("; ");
        format!("emptying area {:?}; {states}", self.sys.draining)
    }

    /// All events of process `n` arrive. Returns whether no work is left.
    fn quiet_round(&mut self, n: usize) -> bool {
        let (process, sys) = (&mut self.processes[n], &mut self.sys);
        while !process.events.is_empty() {
            process.read_event(sys);
        }
        while !process.acks.is_empty() {
            process.acknowledge();
        }
        while !process.zaps.is_empty() {
            process.zap();
        }
        while !process.space.unshare.is_empty() {
            process.unshare();
        }
        while !process.messages.is_empty() {
            process.read_message(sys, 0, 0);
        }
        if let Some((_, due)) = process.space.first_due() {
            process.pass(sys, due);
        }
        while let Some(at) = process.space.ended(sys.now) {
            process.complete(sys, at);
        }
        if process.mm.must_retry() {
            process.call(sys, |mm, w| mm.retry(w));
        }
        self.go_on_with_fork(n);
        let (process, sys) = (&mut self.processes[n], &mut self.sys);
        process.settle_debts(sys);
        let more = process.run(sys);
        // Emptying an area continues by itself, however long it takes.
        let works = more || !process.space.flights.is_empty();
        let rest = process.at_rest() && (!works || process.mm.is_draining());
        if process.mm.starved().is_some() {
            self.keep();
        }
        rest
    }

    pub(super) fn collect(&mut self, process: &Process) {
        let stats = &process.mm.stats;
        assert!(
            stats.ahead.hits() <= stats.ahead.pages,
            "more readahead was used than was read: {:?}",
            stats.ahead
        );
        self.summary.add(&Summary {
            tally: process.tally,
            swap_in: stats.swap_in,
            swap_out: stats.swap_out,
            huge: stats.huge_swap_in + stats.huge_swap_out,
            drained: stats.huge_drained,
            ..Summary::default()
        });
    }

    /// Everything is read once more, then unmapped: nothing may be left.
    pub fn end(mut self) -> Summary {
        self.settle();
        self.check();
        self.keep();
        self.sys.chaos = Chaos::default();
        if self.sys.foreign {
            self.foreign_free();
        }
        for process in &mut self.processes {
            process.only_read(0, false);
        }
        while !self.processes.is_empty() {
            let n = self.processes.len() - 1;
            for at in 0..self.plan.pages as usize {
                let got = self.processes[n].touch(&mut self.sys, 0, at, None);
                if got == Access::Waits {
                    self.settle();
                }
            }
            self.processes[n].unmap(0..self.plan.pages as usize);
            self.settle();
            let Some(mut process) = self.processes.pop() else {
                break;
            };
            process.check_empty(&mut self.sys);
            self.collect(&process);
            process.exit(&mut self.sys);
        }
        self.sys.see_off();
        for (area, state) in self.sys.areas.iter().enumerate() {
            assert_eq!(state.used, 0, "slots of area {area} are left over");
        }
        assert_eq!(self.sys.charged, 0, "a charge is left over");
        self.summary.trace = self.sys.trace;
        self.summary
    }
}
