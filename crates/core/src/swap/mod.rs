//! Where evicted pages go: the choice of slots, whose page is in one, bringing back all that is
//! on an area, and relieving one that fills up.

pub mod owners;
pub mod slots;
pub mod swapoff;
pub mod write_back;
