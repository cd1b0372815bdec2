//! Where evicted pages go: the choice of slots, whose page is in one, and bringing back all that is
//! on an area.

pub mod owners;
pub mod slots;
pub mod swapoff;
