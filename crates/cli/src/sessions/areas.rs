//! Changes of areas: every engine is told, and answers.

use super::*;

impl Sessions {
    /// Engines that start from now on get the area.
    pub fn add_area(&mut self, area: AreaId, descriptors: Descriptors) {
        self.areas
            .push(AreaFile::new(&self.ledger, area, descriptors));
        self.areas.sort_unstable_by_key(|area| area.number.0);
    }

    /// Engines that start from now on do not get the area.
    pub fn remove_area(&mut self, area: AreaId) {
        self.areas.retain(|other| other.number != area);
    }

    /// Sends an order to all running engines, and stops waiting for the order before.
    pub fn order(&mut self, area: AreaId, step: AreaStep) {
        self.rounds = self.rounds.wrapping_add(1);
        let order = AreaOrder {
            area,
            step,
            round: self.rounds,
        };
        let joining = self.areas.iter().find(|other| other.number == area);
        let joining = joining.filter(|_| step == AreaStep::Attach);
        let mut pending = Pending {
            order,
            waiting: HashSet::new(),
            failed: None,
        };
        for session in &self.sessions {
            let Some(record) = session.record else {
                continue;
            };
            let own = joining.and_then(|area| area.own(record));
            let mut fds = Vec::new();
            // Without them the engine cannot attach the area, and answers so.
            if let (Some(area), Some(own)) = (joining, &own) {
                fds.extend(area.descriptors(&self.ledger, own));
                // For the first area that is encrypted.
                fds.extend(self.key.as_ref().map(RunKey::fd));
            }
            // An engine with a broken connection ends soon, and with it its part of the order.
            if protocol::send(&session.socket, &Message::Area(order), &fds).is_ok() {
                pending.waiting.insert(session.id);
            }
        }
        self.starved = None;
        self.pending = Some(pending);
    }

    pub(super) fn on_area_done(&mut self, index: usize, order: AreaOrder, ok: bool) {
        let Session { id, pid, .. } = self.sessions[index];
        if let Some(pending) = &mut self.pending
            && pending.order == order
        {
            pending.waiting.remove(&id);
            if !ok {
                pending.failed.get_or_insert(pid);
            }
        }
    }

    /// Processes that have not carried out the last order.
    pub fn waits_for(&self) -> Vec<Pid> {
        let Some(pending) = &self.pending else {
            return Vec::new();
        };
        let waiting = |session: &&Session| pending.waiting.contains(&session.id);
        let sessions = self.sessions.iter().filter(waiting);
        sessions.map(|session| session.pid).collect()
    }

    /// A process that could not carry out the last order.
    pub fn failed(&self) -> Option<Pid> {
        self.pending.as_ref()?.failed
    }

    /// The area whose draining starves a fault of some process.
    pub fn starved(&self) -> Option<AreaId> {
        self.starved
    }
}
