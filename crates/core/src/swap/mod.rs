//! Swap slots: which slot a page gets, which page is in a slot, how swapoff empties an area, and how an area that fills
//! up is relieved.

pub mod owners;
pub mod slots;
pub mod swapoff;
pub mod write_back;
