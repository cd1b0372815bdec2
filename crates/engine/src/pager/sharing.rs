//! What this process tells the others of its need for memory, and hears of theirs.

use foreswap_core::process::Turn;
use foreswap_core::units::Nanos;

use super::world::now;
use super::{Mode, Pager, publish};
use crate::sys::process;

/// How often the pager checks the fair share of memory.
const SHARING: Nanos = 10_000_000;
/// The same while some of its pages are not paid for.
const OWING: Nanos = 2_000_000;
/// Pages asked of other processes when a fault finds none.
const STALLED_WANT: u64 = 64;

impl Pager {
    /// From time to time, report whether this process lacks memory, and check whether others do.
    pub(super) fn share(&mut self, at: Nanos) {
        if at >= self.next_share {
            let interval = if self.has_to_pay() { OWING } else { SHARING };
            self.next_share = at + interval;
            self.settle_debts();
            publish::demand(self.w.ledger, self.w.me, &self.mm);
            let stalled = self.mm.is_stalled();
            let stats = &self.mm.stats;
            let faults = stats.faults_major + stats.faults_minor + stats.faults_zero;
            let goes_on = faults != core::mem::replace(&mut self.shared_at, faults);
            let ran = process::cpu_time(self.w.pid);
            let works = stalled || goes_on || !self.copies.is_empty();
            let mut seat = self.w.seat();
            self.w.account.look_at_activity(&mut seat, at, ran, works);
            // The memory of those that wait is taken before its own.
            let turn = self.w.ledger.turn(self.w.me, now);
            // Background reclaim may sleep at this instant, although each fault wakes it. It sleeps also while each page
            // that comes takes the frame of one that goes: what comes back soon shows the need then.
            let (woke, returned) = (self.mm.stats.kswapd_wakeups, self.mm.stats.refaults);
            let reclaims = woke != core::mem::replace(&mut self.woke_at, woke);
            let returns = returned != core::mem::replace(&mut self.returned_at, returned);
            let takes = reclaims || self.mm.is_reclaiming() || matches!(turn, Turn::Has(_));
            let needy = stalled || goes_on && (takes || returns);
            let waits = stalled || !self.copies.is_empty();
            let least = if waits { STALLED_WANT } else { 0 };
            self.w.account.ask(&mut seat, needy, least);
            self.follow_share();
        }
        if self.w.ledger.pressure() != self.pressure {
            self.settle_debts();
            self.periodic(at);
        }
    }

    /// Apply a changed limit.
    pub(super) fn follow_limit(&mut self) {
        let limit = self.w.ledger.limit_pages();
        if limit == self.limit {
            return;
        }
        self.limit = limit;
        self.follow_share();
        let over = self.w.ledger.charged_pages() > limit;
        if over && self.mode == Mode::Bare && !self.hold.is_held() {
            // The grant no longer fits the limit, and only managed memory can be given back.
            self.arm_all();
        }
    }

    /// Reclaim depends on the memory that this process can count on, which changes with the limit, the number of
    /// processes and their use.
    pub(super) fn follow_share(&mut self) {
        let share = self.w.account.share(&self.w.seat());
        if share.abs_diff(self.counted_on) > self.counted_on / 8 {
            self.counted_on = share;
            self.mm.on_limit(share);
        }
    }
}
