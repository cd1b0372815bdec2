//! A ledger for the tests.

use alloc::vec;
use alloc::vec::Vec;

use crate::process::{FULL_WEIGHT, Ledger, LedgerMut};

/// A ledger of a few processes, all of one family.
pub(super) struct Run {
    pub(super) limit: u64,
    pub(super) charged: Vec<u64>,
    pub(super) wanted: Vec<u64>,
    pub(super) asked: Vec<u64>,
    pub(super) owed: Vec<u64>,
    pub(super) shared: Vec<u64>,
    pub(super) due: Vec<u64>,
    pub(super) paid: Vec<u32>,
    pub(super) unasked: u64,
    pub(super) weights: Vec<u64>,
}

impl Run {
    pub(super) fn new(limit: u64, processes: usize) -> Self {
        Run {
            limit,
            charged: vec![0; processes],
            wanted: vec![0; processes],
            asked: vec![0; processes],
            owed: vec![0; processes],
            weights: vec![FULL_WEIGHT; processes],
            shared: vec![0; processes],
            due: vec![0; processes],
            paid: vec![0; processes],
            unasked: 0,
        }
    }

    pub(super) fn seat(&mut self, me: usize) -> Seat<'_> {
        Seat { run: self, me }
    }
}

pub(super) struct Seat<'a> {
    pub(super) run: &'a mut Run,
    me: usize,
}

impl Ledger for Seat<'_> {
    type Process = usize;

    fn limit(&self) -> u64 {
        self.run.limit
    }

    fn charged(&self) -> u64 {
        self.run.charged.iter().sum()
    }

    fn own(&self) -> u64 {
        self.run.charged[self.me]
    }

    fn live(&self) -> u64 {
        self.run.charged.len() as u64
    }

    fn weights_of_others(&self) -> u64 {
        self.run.weights.iter().sum::<u64>() - self.run.weights[self.me]
    }

    fn wanted_by_others(&self) -> u64 {
        self.run.wanted.iter().sum::<u64>() - self.run.wanted[self.me]
    }

    fn asked(&self) -> u64 {
        self.run.asked[self.me]
    }

    fn unasked(&self) -> u64 {
        self.run.unasked
    }

    fn debtors(&self) -> impl Iterator<Item = usize> {
        let all = 0..self.run.owed.len();
        all.filter(|&other| other != self.me && self.run.owed[other] > 0)
    }

    fn owed_by(&self, debtor: usize) -> u64 {
        let due = self.run.due[debtor] + self.run.asked[debtor];
        self.run.owed[debtor].saturating_sub(due)
    }

    fn paid_by(&self, debtor: usize) -> u32 {
        self.run.paid[debtor]
    }

    fn is_even(&self, debtor: usize) -> bool {
        self.run.asked[debtor] == 0 && self.run.due[debtor] == 0
    }
}

impl LedgerMut for Seat<'_> {
    fn try_charge(&mut self, n: u64) -> bool {
        let fits = self.charged() + n <= self.run.limit;
        self.run.charged[self.me] += if fits { n } else { 0 };
        fits
    }

    fn charge_anyway(&mut self, n: u64) {
        self.run.charged[self.me] += n;
    }

    fn uncharge(&mut self, n: u64) {
        self.run.charged[self.me] -= n.min(self.own());
    }

    fn set_wanted(&mut self, n: u64, _anew: bool) {
        self.run.wanted[self.me] = n;
    }

    fn set_weight(&mut self, weight: u64) {
        self.run.weights[self.me] = weight;
    }

    fn set_debt(&mut self, owed: u64, due: u64, shared: u64, asked: u64) {
        (self.run.owed[self.me], self.run.due[self.me]) = (owed, due);
        self.run.shared[self.me] = shared;
        self.run.asked[self.me] -= asked;
    }

    fn paid(&mut self, n: u64) {
        self.run.paid[self.me] = self.run.paid[self.me].wrapping_add(n as u32);
    }

    fn ask_to_pay(&mut self, debtor: usize, n: u64) {
        self.run.asked[debtor] += n;
    }

    fn count_unasked(&mut self, n: u64) {
        self.run.unasked += n;
    }
}
