//! The ledger as one process of the run sees it.

use foreswap_core::process;

use super::now;
use crate::ledger::{DebtState, Ledger, ProcId};

/// The place of this process in the ledger.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    /// The memory that all processes of the run share.
    pub ledger: &'static Ledger,
    /// This process' record in it.
    pub me: ProcId,
}

impl process::Ledger for Seat {
    type Process = ProcId;

    fn limit(&self) -> u64 {
        self.ledger.limit_pages()
    }

    fn charged(&self) -> u64 {
        self.ledger.charged_pages()
    }

    fn own(&self) -> u64 {
        self.ledger.process_charged(self.me)
    }

    fn live(&self) -> u64 {
        self.ledger.live().into()
    }

    fn weights_of_others(&self) -> u64 {
        self.ledger.weights_of_others(self.me)
    }

    fn granted(&self) -> Option<u64> {
        match self.ledger.turn(self.me, now) {
            process::Turn::Free => None,
            process::Turn::Has(pages) | process::Turn::Waits(pages) => Some(pages),
        }
    }

    fn wanted_by_others(&self) -> u64 {
        self.ledger.wanted_by_others(self.me)
    }

    fn asked(&self) -> u64 {
        self.ledger.asked(self.me).into()
    }

    fn unasked(&self) -> u64 {
        self.ledger.unasked(self.ledger.family(self.me))
    }

    fn debtors(&self) -> impl Iterator<Item = ProcId> {
        self.ledger.debtors(self.me)
    }

    fn owed_by(&self, debtor: ProcId) -> u64 {
        self.ledger.owed_unasked(debtor)
    }

    fn paid_by(&self, debtor: ProcId) -> u32 {
        self.ledger.paid(debtor)
    }

    fn is_even(&self, debtor: ProcId) -> bool {
        self.ledger.is_even(debtor)
    }
}

impl process::LedgerMut for Seat {
    fn try_charge(&mut self, n: u64) -> bool {
        self.ledger.try_charge(self.me, n)
    }

    fn charge_anyway(&mut self, n: u64) {
        self.ledger.charge_anyway(self.me, n);
    }

    fn uncharge(&mut self, n: u64) {
        self.ledger.uncharge(self.me, n);
    }

    fn set_wanted(&mut self, n: u64, anew: bool) {
        self.ledger.set_wanted(self.me, n, anew);
    }

    fn set_weight(&mut self, weight: u64) {
        self.ledger.set_weight(self.me, weight);
    }

    fn set_debt(&mut self, owed: u64, due: u64, shared: u64, asked: u64) {
        let debt = DebtState { owed, due, shared };
        // The requests are 32 bits wide.
        self.ledger.set_debt(self.me, debt, asked as u32);
    }

    fn paid(&mut self, n: u64) {
        self.ledger.pays(self.me, n);
    }

    fn ask_to_pay(&mut self, debtor: ProcId, n: u64) {
        self.ledger.ask_to_pay(debtor, n);
    }

    fn count_unasked(&mut self, n: u64) {
        self.ledger.count_unasked(self.ledger.family(self.me), n);
    }
}
