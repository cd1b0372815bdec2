//! Swap slots: which slot a page gets, which page is in a slot, how swapoff empties an area, and how an area that fills
//! up is relieved.

pub(crate) mod drain;
pub(crate) mod owners;
pub(crate) mod slots;
pub(crate) mod write_back;

use alloc::vec::Vec;

use drain::Drain;
use owners::Owners;
use slots::Slots;
use write_back::WriteBack;

use crate::units::{Frame, Slot};

/// The swap areas, as far as this process uses them.
pub(crate) struct SwapSpace {
    pub slots: Slots,
    pub owners: Owners,
    /// The page of each slot must be known.
    pub by_slot: bool,
    /// The last try found no free slot.
    pub areas_full: bool,
    /// State of swapoff.
    pub drain: Drain,
    /// State of write-back: how cold pages leave an area that compresses.
    pub back: WriteBack,
    /// Slots that failed. They keep their reference, and no process uses them again.
    pub bad: Vec<Slot>,
    /// Buffers for lists that are built again each time.
    pub batch: Vec<(Slot, Frame)>,
    pub homeless: Vec<Frame>,
}

impl SwapSpace {
    /// Nothing is on an area. `by_slot`: the page of each slot must be known.
    pub fn new(by_slot: bool) -> Self {
        SwapSpace {
            slots: Slots::default(),
            owners: Owners::default(),
            by_slot,
            areas_full: false,
            drain: Drain::default(),
            back: WriteBack::default(),
            bad: Vec::new(),
            batch: Vec::new(),
            homeless: Vec::new(),
        }
    }
}
