//! The pages that forks share, as the processes of a family tell each other: see `process::Debt` in the core.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::ProcId;
use super::mapping::Ledger;
use super::records::ProcessState;

/// The state of a debt, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DebtState {
    /// Shared pages that are not charged to the process.
    pub owed: u64,
    /// Of these, pages that are to be paid for.
    pub due: u64,
    /// Shared pages that no other is charged for.
    pub shared: u64,
}

fn word(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Ledger {
    /// A new family's number, not 0.
    pub fn new_family(&self) -> u32 {
        let last = self.header().families.fetch_add(1, SeqCst);
        last.wrapping_add(1).max(1)
    }

    /// The family of a process; 0: none.
    pub fn family(&self, process: ProcId) -> u32 {
        self.stats(process).family.load(SeqCst)
    }

    /// Sets it.
    pub fn set_family(&self, process: ProcId, family: u32) {
        self.stats(process).family.store(family, SeqCst);
    }

    /// Pages that nobody of the family was asked to pay for.
    pub fn unasked(&self, family: u32) -> u64 {
        self.unasked_of(family).load(SeqCst)
    }

    /// Adds to them.
    pub fn count_unasked(&self, family: u32, n: u64) {
        self.unasked_of(family).fetch_add(n, SeqCst);
    }

    /// Some families have a count in common: their members may pay for more than they must.
    fn unasked_of(&self, family: u32) -> &AtomicU64 {
        let all = &self.header().unasked;
        &all[family as usize % all.len()]
    }

    /// The pages in the memory of the process that are charged to others.
    pub fn owed(&self, process: ProcId) -> u64 {
        self.stats(process).owed_pages.load(SeqCst).into()
    }

    /// Of the debt of `process`, the pages that it was not asked to pay for.
    pub fn owed_unasked(&self, process: ProcId) -> u64 {
        let stats = self.stats(process);
        let due = stats.due_pages.load(SeqCst);
        let asked = stats.asked_pages.load(SeqCst);
        let owed = stats.owed_pages.load(SeqCst);
        owed.saturating_sub(due.saturating_add(asked)).into()
    }

    /// Publishes the debt of a process. `asked` pages of the requests are among the due ones.
    pub fn set_debt(&self, process: ProcId, debt: DebtState, asked: u32) {
        let (stats, owing) = (self.stats(process), &self.header().owing);
        if debt.owed > 0 {
            owing.insert(process);
        }
        stats.owed_pages.store(word(debt.owed), SeqCst);
        if debt.owed == 0 {
            owing.remove(process);
        }
        stats.due_pages.store(word(debt.due), SeqCst);
        stats.shared_pages.store(word(debt.shared), SeqCst);
        stats.asked_pages.fetch_sub(asked, SeqCst);
    }

    /// Pages for which the process is asked to pay.
    pub fn asked(&self, process: ProcId) -> u32 {
        self.stats(process).asked_pages.load(SeqCst)
    }

    /// Asks `debtor` to pay for `n` pages.
    pub fn ask_to_pay(&self, debtor: ProcId, n: u64) {
        self.stats(debtor).asked_pages.fetch_add(word(n), SeqCst);
        self.raise_pressure();
    }

    /// Whether the process asks the others before it copies shared pages.
    pub fn protects(&self, process: ProcId) -> bool {
        self.stats(process).protects.load(SeqCst) != 0
    }

    /// Sets whether it does.
    pub fn set_protects(&self, process: ProcId, does: bool) {
        self.stats(process).protects.store(does.into(), SeqCst);
    }

    /// Records that the process has paid for `n` more pages.
    pub fn pays(&self, process: ProcId, n: u64) {
        self.stats(process).paid_pages.fetch_add(n as u32, SeqCst);
    }

    /// All pages that the process has paid for, modulo 2^32.
    pub fn paid(&self, process: ProcId) -> u32 {
        self.stats(process).paid_pages.load(SeqCst)
    }

    /// Whether the process has nothing to pay at present, requested or not.
    pub fn is_even(&self, process: ProcId) -> bool {
        self.asked(process) == 0 && self.stats(process).due_pages.load(SeqCst) == 0
    }

    /// The other living processes of the family of `process` that have not paid for all that they share.
    pub fn debtors(&self, process: ProcId) -> impl Iterator<Item = ProcId> {
        let family = self.family(process);
        self.header().owing.members().filter(move |&other| {
            other != process
                && family != 0
                && self.family(other) == family
                && self.state(other) == ProcessState::Live
                && self.owed(other) > 0
        })
    }

    /// Supervisor: `process` has ended, and its charge is returned. The others of its family may still
    /// have the shared pages among that, and those that it was asked to pay for: those with debts are asked to pay.
    pub(super) fn pass_on(&self, process: ProcId) {
        let stats = self.stats(process);
        let [shared, asked] =
            [&stats.shared_pages, &stats.asked_pages].map(|word| word.swap(0, Relaxed));
        let mut left = u64::from(shared) + u64::from(asked);
        for debtor in self.debtors(process) {
            let pages = left.min(self.owed_unasked(debtor));
            if pages > 0 {
                self.ask_to_pay(debtor, pages);
            }
            left -= pages;
        }
        if left > 0 {
            self.count_unasked(self.family(process), left);
        }
    }
}
