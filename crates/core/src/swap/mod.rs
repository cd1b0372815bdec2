//! Where evicted pages go: the choice of slots, and whose page is in one.

pub mod owners;
pub mod slots;
