//! The swap areas, as the thread of a guest reads them, and its record in the ledger.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use foreswap_core::units::{PAGE_SIZE, Slot};
use foreswap_store::ram::Reader;
use foreswap_store::seal::Cipher;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

use crate::digest::digest_of;
use crate::ledger::protocol::{self, AreaFiles, Message};
use crate::ledger::{AREA_FAR, AREA_SEALED, AreaId, Ledger, MAX_AREAS, ProcId, SlotIndex};
use crate::pager::far;
use crate::pager::files::MappedFile;

/// A record of the ledger, reserved for a guest and its own children. It is returned with the last of them.
pub(super) struct Reserved {
    pub(super) record: ProcId,
    pub(super) ledger: &'static Ledger,
    /// The parent's connection.
    pub(super) supervisor: OwnedFd,
    /// Slots that several of these memories lack, and the number of the others.
    pub(super) shared: Mutex<BTreeMap<u64, u32>>,
}

impl Reserved {
    /// A memory needs the slot no longer.
    pub(super) fn put(&self, slot: Slot) {
        if slot.is_file() {
            return;
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.get_mut(&slot.pack()) {
            Some(others) if *others > 1 => *others -= 1,
            Some(_) => _ = shared.remove(&slot.pack()),
            None => {
                let (area, index) = (AreaId(slot.area), SlotIndex(slot.index));
                self.ledger.slot_put(self.record, area, index);
            }
        }
    }

    /// Another memory needs the slot.
    pub(super) fn share(&self, slot: Slot) {
        if slot.is_file() {
            return;
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        *shared.entry(slot.pack()).or_default() += 1;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let (record, child) = (self.record, None);
        // Without a supervisor, the record does not matter.
        let _ = protocol::send(&self.supervisor, &Message::Reap { record, child }, &[]);
    }
}

/// The areas, as one thread reads them.
pub(super) struct Areas {
    pub(super) ledger: &'static Ledger,
    /// Their descriptors, and the channels of those on servers that were read.
    files: Vec<(AreaId, AreaFiles, Option<far::Reader>)>,
    /// The files that the parent maps.
    mapped: Vec<Arc<MappedFile>>,
    /// Of a run that encrypts.
    cipher: Option<&'static Cipher>,
    /// The readers of areas in memory.
    readers: [Option<Reader>; MAX_AREAS],
}

impl Areas {
    pub(super) fn open<'a>(
        ledger: &'static Ledger,
        files: impl Iterator<Item = (AreaId, &'a AreaFiles)>,
        mapped: Vec<Arc<MappedFile>>,
        cipher: Option<&'static Cipher>,
    ) -> Result<Self, Errno> {
        let copy = |files: &AreaFiles| {
            let (file, own) = (rustix::io::dup(&files.file)?, rustix::io::dup(&files.own)?);
            Ok(AreaFiles { file, own })
        };
        let files = files.map(|(area, files)| Ok((area, copy(files)?, None)));
        Ok(Areas {
            ledger,
            files: files.collect::<Result<_, Errno>>()?,
            mapped,
            cipher,
            readers: [const { None }; MAX_AREAS],
        })
    }

    pub(super) fn try_clone(&self) -> Result<Self, Errno> {
        let files = self.files.iter().map(|(area, files, _)| (*area, files));
        Self::open(self.ledger, files, self.mapped.clone(), self.cipher)
    }

    /// Reads slots from `first` on. Returns for how many the content is there, and is what was written.
    pub(super) fn read(&mut self, first: Slot, pages: &mut [Page]) -> usize {
        if first.is_file() {
            return self.read_mapped(first, pages).unwrap_or(0);
        }
        let area = AreaId(first.area);
        let got = match self.ledger.ram(area) {
            Some(ram) => {
                let reader = &mut self.readers[usize::from(first.area)];
                let reader = reader.get_or_insert_with(|| Reader::new(ram.method()));
                let mut slots = (first.index..).zip(&mut *pages);
                let is_read =
                    |(slot, page): (u32, &mut Page)| reader.read(ram, slot, &mut page.0).is_ok();
                slots
                    .by_ref()
                    .map(is_read)
                    .take_while(|is_read| *is_read)
                    .count()
            }
            None => self.read_file(first, pages).unwrap_or(0),
        };
        let digests = (first.index..).map(|slot| self.ledger.digest(area, SlotIndex(slot)));
        let read = pages[..got].iter().zip(digests);
        read.take_while(|(page, digest)| digest_of(&page.0).number() == *digest)
            .count()
    }

    fn read_file(&mut self, first: Slot, pages: &mut [Page]) -> Option<usize> {
        let area = AreaId(first.area);
        let mut known = self.files.iter_mut();
        let (_, files, channel) = known.find(|(known, ..)| *known == area)?;
        let info = self.ledger.area_info(area)?;
        let at = info.first_byte + u64::from(first.index) * PAGE_SIZE as u64;
        let read = if info.flags & AREA_FAR == 0 {
            read_pages(&files.own, at, pages)?
        } else {
            if channel.is_none() {
                *channel = far::Reader::open(files.file.as_fd(), files.own.as_fd()).ok();
            }
            channel.as_mut()?.read(at, bytes_of(pages))?;
            pages.len()
        };
        let cipher = self.cipher.filter(|_| info.flags & AREA_SEALED != 0);
        let Some(cipher) = cipher else {
            return Some(read);
        };
        let mut sealed = (first.index..).zip(&mut pages[..read]);
        let opens = |(slot, page): (u32, &mut Page)| {
            cipher.open(&self.ledger.seal(area, SlotIndex(slot)), &mut page.0)
        };
        Some(
            sealed
                .by_ref()
                .map(opens)
                .take_while(|opens| *opens)
                .count(),
        )
    }

    fn read_mapped(&self, first: Slot, pages: &mut [Page]) -> Option<usize> {
        let mut mapped = self.mapped.iter();
        let (file, at) = mapped.find_map(|file| Some((file, file.offset_of(first)?)))?;
        read_pages(&file.file, at, pages)
    }
}

/// Returns how many whole pages there are from byte `at` on.
fn read_pages(file: &OwnedFd, at: u64, pages: &mut [Page]) -> Option<usize> {
    Some(rustix::io::pread(file, bytes_of(pages), at).ok()? / PAGE_SIZE)
}

fn bytes_of(pages: &mut [Page]) -> &mut [u8] {
    // SAFETY: pages are plain bytes without gaps.
    unsafe { core::slice::from_raw_parts_mut(pages.as_mut_ptr().cast::<u8>(), size_of_val(pages)) }
}

/// A page to copy from, into which direct I/O may read.
#[derive(Clone)]
#[repr(C, align(4096))]
pub(super) struct Page(pub(super) [u8; PAGE_SIZE]);
