//! The I/O of areas: what has to be there before a page goes to one, by the kind of the area.

use std::sync::Arc;

use foreswap_store::ring::{BUFFER_PAGES, Io, RamHandle};
use foreswap_store::seal::{Cipher, SealedArea};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;

use foreswap_core::units::Frame;

use super::Linux;
use crate::ledger::protocol::AreaFiles;
use crate::ledger::{AREA_FAR, AREA_SEALED, AreaId, AreaSeals, SlotIndex};
use crate::pager::far;
use crate::pager::frames::Arena;
use crate::sys::own_memory;

impl Linux {
    /// Whether what is put on an area is encrypted.
    pub fn is_sealed(&self, area: AreaId) -> bool {
        let info = self.ledger.area_info(area);
        info.is_some_and(|info| info.flags & AREA_SEALED != 0)
    }

    /// Have what encrypts for the areas that are opened from now on.
    pub fn encrypt_with(&mut self, cipher: &'static Cipher) -> Result<(), Errno> {
        let buffers = Arena::new(BUFFER_PAGES)?;
        if let Some(memory) = core::ptr::NonNull::new(buffers.pointer(Frame(0))) {
            // SAFETY: an arena is never unmapped, and nobody else knows this one.
            unsafe { self.io.lend_buffers(memory) };
        }
        self.cipher = Some(cipher);
        Ok(())
    }

    /// Prepare the I/O of an attached area: open the memory of a RAM area, the channel of a far one, encrypt. `bell` is rung
    /// when a transfer of a far area has ended.
    pub fn open_area(
        &mut self,
        area: AreaId,
        files: &AreaFiles,
        bell: &OwnedFd,
    ) -> Result<(), Errno> {
        let (ledger, owner) = (self.ledger, self.me.index() as u16);
        let Some(info) = ledger.area_info(area) else {
            return Err(Errno::NODEV);
        };
        self.io.set_area(area.0.into(), Some(files.own.as_raw_fd()));
        if let Some(ram) = ledger.ram(area) {
            let is_used = Box::new(move |slot| ledger.slot_count(area, SlotIndex(slot)) > 0);
            let handle = RamHandle::new(ram.clone(), owner, is_used);
            self.io.set_ram(area.0.into(), Some(handle));
            return Ok(());
        }
        if info.flags & AREA_FAR != 0 {
            let (client, range) = far::open(files.file.as_fd(), files.own.as_fd(), bell)?;
            self.far_memory.push((area, range));
            self.io.set_far(area.0.into(), Some(client));
        }
        if let (true, Some(cipher)) = (info.flags & AREA_SEALED != 0, self.cipher) {
            let seals = Box::new(AreaSeals { ledger, area });
            let sealed = SealedArea::new(cipher, info.first_byte, seals);
            self.io.set_sealed(area.0.into(), Some(Arc::new(sealed)));
        }
        Ok(())
    }

    /// The area is not used any more: give up its channel, if it has one.
    pub fn close_far(&mut self, area: AreaId) {
        self.io.set_far(area.0.into(), None);
        for (_, range) in self.far_memory.extract_if(.., |(its, _)| *its == area) {
            own_memory::unlist(range.start);
        }
    }
}
