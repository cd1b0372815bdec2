//! RAM areas in the ledger: their memory is mapped beside their tables, and freeing a slot frees its bytes.
//!
//! The memory is shared like the tables and follows the same rule: any process may be killed at any instant.
//! `foreswap_store::ram` defines its layout and use; this module attaches it and reports freed slots and dead
//! processes.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use foreswap_store::ram::{Backing, Ram, Usage};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::FallocateFlags;
use rustix::mm::{Advice, madvise};

use super::layout::AREA_RAM;
use super::mapping::{Ledger, LedgerError, system};
use super::tables::Memory;
use super::{AreaId, ProcId, SlotIndex};

// SAFETY: mapped for reading and writing as long as the value lives; the file is sealed against
// shrinking, and nobody but `Ram` gets at the bytes.
unsafe impl Backing for Memory {
    fn base(&self) -> NonNull<u8> {
        self.start()
    }

    fn bytes(&self) -> usize {
        self.address_range().len()
    }

    fn punch(&self, offset: u64, bytes: u64) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // The content is void; if it stays, only memory is lost.
        let _ = rustix::fs::fallocate(self.fd(), mode, offset, bytes);
    }

    fn populate(&self, offset: u64, bytes: u64) {
        let range = self.address_range();
        let start = range.start + offset as usize;
        if start + bytes as usize <= range.end {
            let at = std::ptr::without_provenance_mut(start);
            // SAFETY: gives our own mapping memory and changes nothing in it. If it is refused, the
            // memory comes page by page.
            let _ = unsafe { madvise(at, bytes as usize, Advice::LinuxPopulateWrite) };
        }
    }
}

impl Ledger {
    /// Whether an area is compressed memory.
    pub fn is_ram(&self, area: AreaId) -> bool {
        let words = self.area_words(area);
        words.is_some_and(|words| words.flags.load(Relaxed) & AREA_RAM != 0)
    }

    /// Maps the memory of a RAM area, whose tables are attached already. Returns its range; `None` if the area is of
    /// another kind.
    pub fn attach_ram(
        &self,
        area: AreaId,
        file: BorrowedFd<'_>,
    ) -> Result<Option<Range<usize>>, LedgerError> {
        if !self.is_ram(area) {
            return Ok(None);
        }
        let tables = self.tables(area).ok_or(LedgerError::Areas)?;
        let file: OwnedFd = rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(system("dup"))?;
        let memory = Memory::attach_whole(file)?;
        let range = memory.address_range();
        let mismatch = |_| LedgerError::Mismatch { what: "RAM area" };
        let ram = Ram::over(Box::new(memory)).map_err(mismatch)?;
        if ram.slots() != tables.slots {
            return Err(LedgerError::Mismatch {
                what: "slots of a RAM area",
            });
        }
        let first = tables.ram.set((Arc::new(ram), range.clone())).is_ok();
        first.then_some(Some(range)).ok_or(LedgerError::Areas)
    }

    /// The memory of a RAM area.
    pub fn ram(&self, area: AreaId) -> Option<&Arc<Ram>> {
        self.tables(area)?.ram.get().map(|(ram, _)| ram)
    }

    /// How full a RAM area is.
    pub fn ram_usage(&self, area: AreaId) -> Option<Usage> {
        self.ram(area).map(|ram| ram.usage())
    }

    /// Taken slots of an area. If the memory of a RAM area is fuller than its slots, this is the same share of its
    /// slots.
    pub fn area_filled(&self, area: AreaId) -> u64 {
        let used = self.area_used(area);
        match self.ram(area) {
            Some(ram) => used.max(u64::from(ram.filled_slots())),
            None => used,
        }
    }

    /// The free pages of an area; for a RAM area an estimate from the bytes of its pages so far.
    pub fn area_room(&self, area: AreaId) -> u64 {
        let free = u64::from(self.area_slots(area)).saturating_sub(self.area_used(area));
        match self.ram_usage(area) {
            Some(usage) => free.min(usage.room()),
            None => free,
        }
    }

    /// A slot of the area became free: free the bytes of its page.
    pub(super) fn free_bytes(&self, area: AreaId, slot: SlotIndex) {
        if let Some(ram) = self.ram(area) {
            ram.free(slot.0, || self.slot_count(area, slot) > 0);
        }
    }

    /// Close the chunk that a dead process was filling.
    pub(super) fn bury(&self, process: ProcId) {
        for area in self.areas() {
            if let Some(ram) = self.ram(area) {
                ram.bury(process.index() as u16);
            }
        }
    }
}
