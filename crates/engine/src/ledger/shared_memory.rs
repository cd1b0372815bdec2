//! Memory of an engine that another process of the run maps as well, by a descriptor.

use std::ops::Range;

use foreswap_store::ram::Backing;
use rustix::fd::BorrowedFd;

use super::LedgerError;
use super::tables::Memory;

/// Memory that this process shares with others by a descriptor.
pub struct SharedMemory(Memory);

impl SharedMemory {
    /// New memory, all zeros, whose size nobody can change.
    pub fn create(bytes: u64) -> Result<Self, LedgerError> {
        Memory::create(bytes).map(Self)
    }

    /// Where it is mapped.
    pub fn range(&self) -> Range<usize> {
        self.0.address_range()
    }

    /// Its descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// For the store, which keeps it mapped.
    pub fn into_backing(self) -> Box<dyn Backing> {
        Box::new(self.0)
    }
}
