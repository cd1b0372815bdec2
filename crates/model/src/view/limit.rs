//! The charge of one process: by its account where processes form families, otherwise by the machine's sum alone.

use foreswap_core::process::Account;
use foreswap_core::world::{Limit, Sharing};

use super::View;
use crate::family::Seat;
use crate::system::System;

impl View<'_> {
    /// The ledger as this process sees it.
    fn seat(&self) -> Seat<&System> {
        Seat {
            sys: self.sys,
            pid: self.space.pid,
        }
    }

    /// Charge by the account of the process.
    fn account<T>(
        &mut self,
        act: impl FnOnce(&mut Account<usize>, &mut Seat<&mut System>) -> T,
    ) -> T {
        let pid = self.space.pid;
        let seat = &mut Seat {
            sys: &mut *self.sys,
            pid,
        };
        let value = act(&mut self.space.account, seat);
        self.space.charged = self.sys.ledger[pid].charged;
        value
    }
}

impl Limit for View<'_> {
    fn limit(&self) -> u64 {
        self.sys.limit
    }

    fn available(&self) -> u64 {
        if self.sys.families {
            return self.space.account.available(&self.seat());
        }
        self.sys.limit.saturating_sub(self.sys.charged)
    }

    fn try_charge(&mut self, n: u64) -> bool {
        if self.sys.families {
            return self.account(|account, ledger| account.try_charge(ledger, n));
        }
        if self.available() < n {
            for (pid, pressure) in self.sys.pressure.iter_mut().enumerate() {
                if pid != self.space.pid {
                    *pressure = (*pressure).max(n);
                }
            }
            return false;
        }
        self.sys.charged += n;
        self.space.charged += n;
        true
    }

    fn charge_existing(&mut self, n: u64) {
        if self.sys.families {
            self.account(|account, ledger| account.charge_existing(ledger, n));
        } else {
            self.sys.charged += n;
            self.space.charged += n;
        }
        if self.space.existed || self.space.lenient {
            self.sys.excuse();
        }
    }

    fn uncharge(&mut self, n: u64) {
        self.space.given_back += n;
        let pressure = &mut self.sys.pressure[self.space.pid];
        *pressure = pressure.saturating_sub(n);
        if self.sys.families {
            return self.account(|account, ledger| account.uncharge(ledger, n));
        }
        assert!(
            self.space.charged >= n,
            "{n} pages are given back, of {} that were charged",
            self.space.charged
        );
        self.sys.charged -= n;
        self.space.charged -= n;
    }

    fn shares_found(&self) -> bool {
        self.space.account.debt().is_open()
    }

    fn on_copied(&mut self, n: u64) {
        if self.sys.families {
            self.account(|account, ledger| account.on_copied(ledger, n));
        }
    }

    fn let_go(&mut self, n: u64) {
        if !self.sys.families {
            return self.uncharge(n);
        }
        self.account(|account, ledger| account.let_go(ledger, n));
    }

    fn sharing(&self) -> Sharing {
        self.space.account.sharing()
    }

    fn excess(&self) -> u64 {
        let pressure = self.sys.pressure[self.space.pid];
        if self.sys.families {
            // Frames of due pages are not charged, and can be given back.
            let own = pressure.min(self.space.charged);
            return self.space.account.excess(&self.seat()).max(own);
        }
        let over = self.sys.charged.saturating_sub(self.sys.limit);
        over.max(pressure).min(self.space.charged)
    }
}
