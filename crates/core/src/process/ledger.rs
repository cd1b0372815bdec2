//! The state that the processes of a run share.

/// The charges, needs and debts of all processes of a run, as one of them, "this process", sees them. Other processes
/// change them at any time. All numbers are pages, unless noted.
pub trait Ledger {
    /// Names a process.
    type Process: Copy + PartialEq;

    /// The limit.
    fn limit(&self) -> u64;
    /// Pages charged to all processes.
    fn charged(&self) -> u64;
    /// Pages charged to this process.
    fn own(&self) -> u64;
    /// The number of processes.
    fn live(&self) -> u64;
    /// The weights of the other processes ([`LedgerMut::set_weight`]), added.
    fn weights_of_others(&self) -> u64;
    /// The pages that load control grants to this process, while it does.
    fn granted(&self) -> Option<u64> {
        None
    }
    /// Pages that other processes lack.
    fn wanted_by_others(&self) -> u64;
    /// Pages that the other members of the family have asked this process to pay for, and that it has not acknowledged.
    fn asked(&self) -> u64;
    /// Pages for which somebody of the family has to pay, and that nobody was asked for: a count that only grows.
    fn unasked(&self) -> u64;
    /// The other members of the family that have a debt.
    fn debtors(&self) -> impl Iterator<Item = Self::Process>;
    /// Pages of the debt of `debtor` that it was not asked to pay for.
    fn owed_by(&self, debtor: Self::Process) -> u64;
    /// All pages that `debtor` has paid for, modulo 2^32.
    fn paid_by(&self, debtor: Self::Process) -> u32;
    /// Whether nothing of the debt of `debtor` is due, and no request to it is unacknowledged.
    fn is_even(&self, debtor: Self::Process) -> bool;
}

/// The words of the ledger that this process changes.
pub trait LedgerMut: Ledger {
    /// Charge `n` pages if the sum stays within the limit.
    fn try_charge(&mut self, n: u64) -> bool;
    /// Charge `n` pages whatever the limit.
    fn charge_anyway(&mut self, n: u64);
    /// Uncharge `n` pages, at most those of this process.
    fn uncharge(&mut self, n: u64);
    /// Tell the others how much this process lacks; 0: nothing. `anew`: they look at it even if it is no more than before.
    fn set_wanted(&mut self, n: u64, anew: bool);
    /// What this process counts when the limit is divided, at most [`super::FULL_WEIGHT`].
    fn set_weight(&mut self, weight: u64);
    /// Publish the debt of this process, the part of it that is due, and the shared pages that no other is charged for.
    /// Acknowledge `asked` pages of the requests.
    fn set_debt(&mut self, owed: u64, due: u64, shared: u64, asked: u64);
    /// This process has paid for `n` pages of its debt.
    fn paid(&mut self, n: u64);
    /// Ask `debtor` to pay for `n` pages.
    fn ask_to_pay(&mut self, debtor: Self::Process, n: u64);
    /// Add `n` to [`Ledger::unasked`].
    fn count_unasked(&mut self, n: u64);
}
