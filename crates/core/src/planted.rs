//! Planted bugs: fifteen mistakes that a memory manager can have, each off until a test turns it on. They show that the
//! lab's `torture` finds such bugs. Only built with the feature `planted`, which no shipped build has.

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A thread that waits for a page is not woken when the page is discarded.
    LostWakeUp,
    /// A page that is mapped again releases its slot twice.
    SlotFreedTwice,
    /// A read of pages that are unmapped meanwhile still maps them.
    StaleWindow,
    /// A page that kept its slot counts as clean though it was written to.
    KeptClean,
    /// A page counts as written though its write failed.
    EarlyPublish,
    /// Read pages are not compared with their digest.
    UncheckedDigest,
    /// A fork counts one of the child's slots for the parent only.
    ForgottenCount,
    /// The frame of a page that is gone when its read fails is not freed.
    LeakedFrame,
    /// A fault that finds no memory while others wait for some is forgotten.
    ForgottenStall,
    /// A discard does not see a page whose write is in flight.
    MissedDiscard,
    /// Swapoff takes 512 pages of two leaves for one unit.
    UnitOfTwoLeaves,
    /// Reclaim evicts pages before the threads that waited for them have touched them.
    TakenUntouched,
    /// If no page can be moved, recently faulted pages do not make room for the next ones.
    CreepingLimit,
    /// A page is mapped where a guard is.
    ReplacedGuard,
    /// A page that a late discard zapped counts as missing.
    HastyLoss,
}
