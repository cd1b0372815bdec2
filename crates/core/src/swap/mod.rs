//! Where evicted pages go: the choice of slots.

pub mod slots;
