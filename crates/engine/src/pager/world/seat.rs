//! The ledger as one process of the run sees it.

use foreswap_core::process;

use crate::ledger::{Ledger, ProcId};

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

    fn try_charge(&mut self, n: u64) -> bool {
        self.ledger.try_charge(self.me, n)
    }

    fn charge_anyway(&mut self, n: u64) {
        self.ledger.charge_anyway(self.me, n);
    }

    fn uncharge(&mut self, n: u64) {
        self.ledger.uncharge(self.me, n);
    }

    fn set_wanted(&mut self, n: u64) {
        self.ledger.set_wanted(self.me, n);
    }

    fn wanted_by_others(&self) -> u64 {
        self.ledger.wanted_by_others(self.me)
    }

    fn asked(&self) -> u64 {
        self.ledger.asked(self.me).into()
    }

    fn set_debt(&mut self, owed: u64, due: u64, asked: u64) {
        // The requests are 32 bits wide.
        self.ledger.set_owed(self.me, owed, due, asked as u32);
    }

    fn paid(&mut self, n: u64) {
        self.ledger.pays(self.me, n);
    }

    fn debtors(&self) -> impl Iterator<Item = ProcId> {
        self.ledger.debtors(self.me)
    }

    fn paid_by(&self, child: ProcId) -> u32 {
        self.ledger.paid(child)
    }

    fn is_even(&self, child: ProcId) -> bool {
        self.ledger.is_even(child)
    }

    fn ask_to_pay(&mut self, child: ProcId, n: u32) {
        self.ledger.ask_to_pay(child, n);
    }
}
