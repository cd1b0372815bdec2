//! The steps of a run. `steps` draws them.
//!
//! A step can be executed in any state; impossible parts of it are skipped. Any part of a list is therefore a list,
//! on which shrinking relies.

use serde::{Deserialize, Serialize};

/// The kind of a touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Touch {
    /// Reads.
    Read,
    /// Writes a new value.
    Write,
    /// Writes the present value.
    Same,
    /// Writes zeros.
    Zero,
}

/// The program's advice for a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Says {
    /// MADV_NORMAL.
    Normal,
    /// MADV_SEQUENTIAL.
    Sequential,
    /// MADV_RANDOM.
    Random,
    /// MADV_WILLNEED.
    WillNeed,
    /// MADV_COLD.
    Cold,
    /// MADV_PAGEOUT.
    PageOut,
}

/// A step. Pages are numbers in their process, modulo its size; `n` are pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// An idle thread touches a page; the driver reads its fault at once, or not.
    Touch {
        /// The page.
        page: u16,
        /// The kind of touch.
        access: Touch,
        /// The driver reads the fault.
        told: bool,
    },
    /// A thread touches pages one after the other, drawn by the step; the driver and the devices serve each touch at
    /// once.
    Burst {
        /// The first page.
        page: u16,
        /// The number.
        n: u16,
        /// The distance between two pages; 0: random.
        stride: i8,
    },
    /// A program renews pages: none of them is locked or pinned, they are discarded, and then each is written to with
    /// a value other than zero.
    Fresh {
        /// The first page.
        page: u16,
        /// The number.
        n: u16,
    },
    /// The driver executes one round, as the pager does: events, up to `faults` faults, completed I/Os.
    Round {
        /// Faults.
        faults: u8,
    },
    /// The driver reads one fault out of order.
    Fault,
    /// One I/O completes, whenever it is due.
    Complete,
    /// The driver reads an event.
    Event,
    /// The thread of a read event continues.
    Acknowledge,
    /// The pages of a discard vanish.
    Vanish,
    /// Shared pages become movable.
    Unshare,
    /// The core tries again what it must.
    Retry,
    /// The driver continues a fork and lets the core do its background work.
    Drive,
    /// MADV_DONTNEED.
    Discard {
        /// The first page.
        page: u16,
        /// The number.
        n: u16,
    },
    /// The kernel takes pages after MADV_FREE, without an event.
    Free {
        /// The first page.
        page: u16,
        /// The number.
        n: u16,
    },
    /// MADV_GUARD_INSTALL or MADV_GUARD_REMOVE; the driver makes the call.
    Guard {
        /// The first page.
        page: u16,
        /// The number.
        n: u16,
        /// Install.
        on: bool,
        /// The driver knows of it; a removal may bypass it.
        told: bool,
    },
    /// munmap.
    Unmap {
        /// The first page.
        page: u16,
        /// The number.
        n: u16,
    },
    /// mremap.
    Remap {
        /// The first page.
        page: u16,
        /// The number.
        n: u16,
        /// Its new place.
        to: u16,
    },
    /// mmap; the engine manages it from then on.
    Map {
        /// The first page.
        page: u16,
        /// The number.
        n: u16,
    },
    /// mmap of a file, where nothing is mapped.
    MapFile {
        /// The first page.
        page: u16,
        /// The number.
        n: u16,
        /// The page of the file.
        file: u16,
    },
    /// madvise.
    Advise {
        /// The first page.
        page: u16,
        /// The number.
        n: u16,
        /// The advice.
        says: Says,
    },
    /// mlock or munlock.
    Lock {
        /// The first page.
        page: u16,
        /// The number.
        n: u8,
        /// Lock.
        on: bool,
    },
    /// A device pins pages, or unpins them.
    Pin {
        /// The first page.
        page: u16,
        /// The number.
        n: u8,
        /// Pin.
        on: bool,
    },
    /// The limit changes to this number of pages.
    Limit {
        /// Pages.
        pages: u32,
    },
    /// Other processes need this many more pages.
    Pressure {
        /// Pages.
        pages: u8,
    },
    /// A fork begins.
    Fork,
    /// The program and its present children mostly only read, for this many touches each.
    Readers {
        /// Touches.
        touches: u32,
        /// It has removed its own write permission.
        protected: bool,
    },
    /// Load control lets the process wait.
    Turn {
        /// For so many rounds of its driver.
        rounds: u8,
    },
    /// The process dies.
    Die,
    /// Another user fills the areas, or goes.
    Fill,
    /// An area is added.
    Swapon {
        /// Its slots.
        slots: u16,
        /// Its place in the order.
        at: u8,
    },
    /// Begins to empty an area; if one is being emptied already, removes it once it is empty.
    Swapoff,
    /// Emptying is abandoned.
    Keep,
    /// An area's device is gone, or is back.
    Fail {
        /// It works.
        back: bool,
    },
    /// A slot becomes unreadable.
    BadSector,
    /// Time passes.
    Wait {
        /// Microseconds.
        us: u32,
    },
    /// The programs pause for this many rounds of the drivers; failures continue.
    Quiet {
        /// Rounds.
        rounds: u8,
    },
    /// No failures for a while, and every thread must get its page.
    Settle,
}

/// A step of a process, with its random draws.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The process, modulo their number.
    pub who: u8,
    /// The seed of its draws.
    pub salt: u32,
    /// The action.
    pub act: Act,
}
