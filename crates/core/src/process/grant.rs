//! When the memory of a process is managed.
//!
//! While all memory that the program could touch is charged in advance, no page of it needs to leave, and nothing is
//! registered: the process is *bare*, and no fault costs more than without foreswap. Growth that cannot be charged
//! ends that, and so does another process that needs the memory. From then on the process is *armed*: its memory is
//! managed, and the grant pays for the pages that are present.

use super::account::Account;
use super::ledger::LedgerMut;

/// Pages granted in advance, to save a request per growth.
const AHEAD: u64 = 2048;
/// The part of the need that is granted in advance.
const PART: u64 = 4;

/// The pages charged in advance for a bare process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grant {
    pages: u64,
}

impl Grant {
    /// Charge `need` pages, all that the program could touch, and some more if they are available. Returns how many
    /// pages may still appear before the next call; `None` if the need cannot be charged: arm.
    pub fn extend<P: Copy + PartialEq>(
        &mut self,
        account: &Account<P>,
        ledger: &mut impl LedgerMut<Process = P>,
        need: u64,
    ) -> Option<u64> {
        let more = need.saturating_sub(self.pages);
        let ahead = (need / PART).min(AHEAD);
        let ahead = [ahead, 0]
            .into_iter()
            .find(|ahead| account.try_charge(ledger, more + ahead))?;
        self.pages += more + ahead;
        Some(self.pages - need)
    }

    /// Charge up to `n` pages that are already touched, as many as are available. Returns how many.
    pub fn take_free<P: Copy + PartialEq>(
        &mut self,
        account: &Account<P>,
        ledger: &mut impl LedgerMut<Process = P>,
        n: u64,
    ) -> u64 {
        let free = n.min(account.available(ledger));
        match ledger.try_charge(free) {
            true => {
                self.pages += free;
                free
            }
            false => 0,
        }
    }

    /// The granted pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The process is armed: the grant pays for the pages that will be found. If it were returned first, another
    /// process could get it in between, and both would hold it.
    pub fn spend<P: Copy + PartialEq>(&mut self, account: &mut Account<P>) {
        account.prepay(core::mem::take(&mut self.pages));
    }
}
