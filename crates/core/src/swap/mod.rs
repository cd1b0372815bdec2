//! Swap slots: which slot a page gets, which page is in a slot, how swapoff empties an area, and how an area that fills
//! up is relieved, and which pages are near.

pub(crate) mod drain;
pub(crate) mod files;
pub(crate) mod owners;
pub(crate) mod slots;
pub(crate) mod tiers;
pub(crate) mod write_back;
