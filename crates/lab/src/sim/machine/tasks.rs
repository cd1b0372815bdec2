//! The tasks: they touch pages and wait for absent ones, map, unmap, gather and end.

use foreswap_core::Outcome;
use foreswap_core::units::{Nanos, Vpn, pages};

use super::{ActorId, BASE, Event, FAULTS, Machine, SimError};
use crate::sim::program::{Op, Program};
use crate::sim::rng::mix;

impl<P: Program> Machine<P> {
    /// A task runs until it has steps to execute, waits, or another actor comes first.
    pub(super) fn task(&mut self, who: ActorId) -> Result<bool, SimError> {
        let n = who.0 as usize;
        loop {
            let now = self.now;
            let task = &mut self.tasks[n];
            if task.ended {
                return Ok(false);
            }
            let op = match &task.op {
                Some(op) => op.clone(),
                None => {
                    if self.cpus.is_over(now - self.actors[n].since) {
                        self.leave(who);
                        self.plan(now, Event::Ready(who));
                        return Ok(false);
                    }
                    let op = task.program.next(now);
                    task.began = now;
                    task.faults = 0;
                    task.op = Some(op.clone());
                    op
                }
            };
            let takes = match op {
                Op::Touch { page, write, work } => {
                    if self.memory.read(page).is_none() {
                        return self.fault(who, page);
                    }
                    self.use_page(page, write)?;
                    self.touch + work
                }
                Op::Spin(time) => time,
                Op::Map(range) => {
                    self.mm.adopt(&mut self.memory, range, &[]);
                    self.set_out(who, self.fault);
                    return Ok(self.end_op(n, self.fault));
                }
                Op::Unmap(range) => {
                    self.memory.now = now;
                    self.memory.vanish(&range);
                    for page in pages(&range) {
                        self.expected[(page.0 - BASE.0) as usize] = 0;
                    }
                    self.mm.unmap(&mut self.memory, &range);
                    self.set_out(who, self.fault);
                    return Ok(self.end_op(n, self.fault));
                }
                Op::Gather => {
                    self.leave(who);
                    self.gathered.push(who);
                    self.go_on();
                    return Ok(false);
                }
                Op::End => {
                    self.tasks[n].ended = true;
                    self.running -= 1;
                    self.leave(who);
                    self.go_on();
                    return Ok(false);
                }
            };
            self.end_op(n, takes);
            self.now_at(now + takes, who);
            if self.now < now + takes {
                return Ok(false);
            }
        }
    }

    /// When all remaining tasks have gathered and are not held, they continue.
    pub(super) fn go_on(&mut self) {
        if self.held || self.gathered.len() < self.running {
            return;
        }
        for who in std::mem::take(&mut self.gathered) {
            self.end_op(who.0 as usize, self.switch);
            self.plan(self.now + self.switch, Event::Ready(who));
        }
    }

    fn end_op(&mut self, n: usize, takes: Nanos) -> bool {
        let now = self.now;
        let task = &mut self.tasks[n];
        task.waiting = None;
        if let Some(op) = task.op.take() {
            task.program.done(&op, now + takes - task.began);
        }
        true
    }

    fn use_page(&mut self, page: Vpn, write: bool) -> Result<(), SimError> {
        let expected = &mut self.expected[(page.0 - BASE.0) as usize];
        let found = self.memory.read(page).unwrap_or_default();
        if found != *expected {
            return Err(SimError::Wrong {
                at: self.now,
                page,
                found,
                expected: *expected,
            });
        }
        self.memory.touch(page);
        if write {
            self.writes += 1;
            *expected = mix(self.writes) >> 1 | 1;
            self.memory.write(page, *expected);
        }
        Ok(())
    }

    /// The page is absent: wait for it, or request it.
    fn fault(&mut self, who: ActorId, page: Vpn) -> Result<bool, SimError> {
        let n = who.0 as usize;
        let at = self.now;
        let task = &mut self.tasks[n];
        let asked = task.waiting == Some(page) && !task.served;
        if asked && !std::mem::take(&mut task.woken) {
            // A task without memory reclaims: direct reclaim.
            if self.mm.is_stalled() && self.work(who, 0) {
                return Ok(true);
            }
            if self.memory.read(page).is_some() {
                // The page came by that work.
                return Ok(true);
            }
            let task = &mut self.tasks[n];
            task.blocked = Some(at);
            self.leave(who);
            return Ok(false);
        }
        task.faults += 1;
        if task.faults > FAULTS {
            return Err(SimError::Loop { at, page });
        }
        self.memory.now = at;
        self.memory.faulting = Some(page);
        let outcome = self.mm.on_fault(&mut self.memory, page.address());
        self.memory.faulting = None;
        let task = &mut self.tasks[n];
        task.waiting = Some(page);
        task.woken = false;
        task.served = outcome != Outcome::Waits;
        self.set_out(who, self.fault);
        self.poke();
        Ok(true)
    }
}
