//! Bugs to be found: fifteen mistakes that a memory manager can be made with, each off until a test turns it
//! on. They show that what looks for bugs (the lab's `torture`) finds such ones. Only built with the
//! feature `planted`, which nothing that is shipped has.

use crate::mm::Mm;

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A thread that waits for a page is not woken when the page is discarded.
    LostWakeUp,
    /// A page that comes back gives its slot up twice.
    SlotFreedTwice,
    /// A read of pages that are unmapped meanwhile still brings them.
    StaleWindow,
    /// A page that kept its slot counts as clean though it was written to.
    KeptClean,
    /// A page is taken for written though its write failed.
    EarlyPublish,
    /// What is read is not compared with its digest.
    UncheckedDigest,
    /// A fork counts one of the child's slots for the parent only.
    ForgottenCount,
    /// The frame of a page that is gone when its read fails is not free again.
    LeakedFrame,
    /// A fault that finds no memory while others wait for some is forgotten.
    ForgottenStall,
    /// A discard does not see a page whose write is in flight.
    MissedDiscard,
    /// Swapoff takes 512 pages of two leaves for one unit.
    UnitOfTwoLeaves,
    /// Reclaim takes pages away before the threads that waited for them have touched them.
    TakenUntouched,
    /// Where nothing can be moved, what came in lately does not make room for what comes next.
    CreepingLimit,
    /// A page is put where a guard is.
    ReplacedGuard,
    /// A page that a late discard took is missed.
    HastyLoss,
}

impl Mm {
    /// Make this mistake from now on.
    #[must_use]
    pub fn with_bug(mut self, bug: Bug) -> Self {
        self.planted = Some(bug);
        self
    }

    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }
}
