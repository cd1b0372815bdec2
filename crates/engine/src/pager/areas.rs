//! Areas that are added and removed while the program runs, by order of the supervisor.
//!
//! An area is attached before any process may put a page there: the supervisor enables it only when every engine has
//! answered. An engine that starts later finds the area in its welcome, before it looks at a slot. Removal is the
//! reverse: no process puts a page there any more, every process moves its pages away, and the area is closed once no
//! slot is in use.

use std::ops::{ControlFlow, Range};

use foreswap_store::ring::Io;
use rustix::fd::{AsFd, OwnedFd};

use super::boot::hide;
use super::world::now;
use super::{Pager, SOON};
use crate::ledger::protocol::{AreaFiles, AreaOrder, AreaStep, Client};
use crate::ledger::{AreaId, AreaState};
use crate::sys::own_memory;

impl Pager {
    /// A few hundred times a second, and at once after a message: execute the supervisor's orders.
    pub(crate) fn poll_control(&mut self) {
        self.finish_detaching();
        self.tell_starved();
        let now = now();
        if now < self.next_orders {
            return;
        }
        self.next_orders = now + SOON;
        while self.heed_order().is_continue() {}
        if self.mm.is_draining() {
            // The free space of the other areas decides where pages go.
            self.w.refresh();
        }
    }

    fn heed_order(&mut self) -> ControlFlow<()> {
        let Some((order, fds)) = self.w.client.as_mut().and_then(Client::order) else {
            return ControlFlow::Break(());
        };
        let area = order.area;
        let done = match order.step {
            AreaStep::Attach => self.attach(area, fds).is_some(),
            AreaStep::Use => {
                self.w.look_at_areas();
                self.mm.use_area(area.0);
                true
            }
            AreaStep::Drain => {
                self.drain(area);
                true
            }
            AreaStep::Detach => {
                self.w.look_at_areas();
                self.detaching.push(order);
                self.finish_detaching();
                return ControlFlow::Continue(());
            }
        };
        self.answer_order(order, done);
        ControlFlow::Continue(())
    }

    fn answer_order(&self, order: AreaOrder, done: bool) {
        if let Some(client) = &self.w.client {
            // Without a supervisor, no one waits for the answer.
            let _ = client.done(order, done);
        }
    }

    fn attach(&mut self, area: AreaId, fds: Vec<OwnedFd>) -> Option<()> {
        let mut fds = fds.into_iter();
        let (tables, file, own) = (fds.next()?, fds.next()?, fds.next()?);
        let range = self.w.ledger.attach_area(area, tables).ok()?;
        let ram = self.w.ledger.attach_ram(area, file.as_fd());
        let hidden = |range: &Range<usize>| hide(range).is_ok();
        let is_mapped = hidden(&range) && ram.is_ok_and(|ram| ram.as_ref().is_none_or(hidden));
        let files = AreaFiles { file, own };
        if !is_mapped
            || self.learn_key(area, fds.next()).is_none()
            || self.w.open_area(area, &files, &self.bell).is_err()
        {
            self.close(area);
            return None;
        }
        self.areas.push((area, files));
        self.w.look_at_areas();
        Some(())
    }

    /// The key, if this area is the first that needs it.
    fn learn_key(&mut self, area: AreaId, key: Option<OwnedFd>) -> Option<()> {
        if self.w.cipher.is_none() && self.w.is_sealed(area) {
            let cipher = crate::key::cipher(key?).ok()?;
            self.w.encrypt_with(cipher).ok()?;
        }
        Some(())
    }

    fn drain(&mut self, area: AreaId) {
        self.told_starved = false;
        self.w.look_at_areas();
        self.w.refresh();
        self.mm.drain(&mut self.w, area.0);
    }

    /// An engine that starts while an area is drained takes part.
    pub(crate) fn drain_as_ordered(&mut self) {
        let ledger = self.w.ledger;
        let draining = |&area: &AreaId| ledger.area_state(area) == AreaState::Draining;
        if let Some(area) = ledger.areas().find(draining) {
            self.drain(area);
        }
    }

    /// Close areas that have no I/O in flight.
    fn finish_detaching(&mut self) {
        let mut at = 0;
        while let Some(&order) = self.detaching.get(at) {
            if self.mm.has_io(order.area.0) {
                at += 1;
                continue;
            }
            self.detaching.swap_remove(at);
            self.mm.forget_area(order.area.0);
            self.close(order.area);
            self.answer_order(order, true);
        }
    }

    fn close(&mut self, area: AreaId) {
        self.w.io.set_area(area.0.into(), None);
        self.w.io.set_ram(area.0.into(), None);
        self.w.io.set_sealed(area.0.into(), None);
        self.w.close_far(area);
        self.areas.retain(|(number, _)| *number != area);
        // SAFETY: the engine's other threads look at the pressure word only.
        if let Some((tables, ram)) = unsafe { self.w.ledger.detach_area(area) } {
            own_memory::unlist(tables.start);
            if let Some(ram) = ram {
                own_memory::unlist(ram.start);
            }
        }
        self.w.look_at_areas();
    }

    /// A fault cannot continue: the supervisor must enable the area again.
    fn tell_starved(&mut self) {
        if let Some(area) = self.mm.starved()
            && !self.told_starved
            && let Some(client) = &self.w.client
        {
            let _ = client.starved(AreaId(area));
            self.told_starved = true;
        }
    }

    /// The supervisor is gone, and with it the order to empty an area.
    pub(crate) fn on_orphaned(&mut self) {
        let ledger = self.w.ledger;
        for area in ledger.areas() {
            if ledger.area_state(area) == AreaState::Draining {
                ledger.set_area_state(area, AreaState::Usable);
                self.mm.use_area(area.0);
            }
        }
        self.w.look_at_areas();
    }
}
