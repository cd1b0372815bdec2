//! The program's address space as the kernel shows it: what could be managed, what is there.

use foreswap_core::units::PageRange;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::boot::{bytes_of, pages_of};
use crate::sys::maps::{self, PageMap, Vma};
use crate::sys::own_memory;

/// A view of the calling process, for the pager.
pub(crate) struct Space {
    pagemap: PageMap,
    statm: rustix::fd::OwnedFd,
}

impl Space {
    /// Open it, on the pager's thread.
    pub(crate) fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let statm = open(c"/proc/thread-self/statm", flags, Mode::empty())?;
        Ok(Space {
            pagemap: PageMap::open()?,
            statm,
        })
    }

    /// The program's private anonymous memory in pieces of at least `smallest` bytes, ours left out.
    pub(crate) fn adoptable(&self, smallest: usize) -> Result<Vec<Vma>, Errno> {
        let ours: Vec<_> = own_memory::ranges()
            .map(|own| own.start..own.start + own.len)
            .collect();
        Ok(maps::adoptable(&maps::read()?, smallest, &ours))
    }

    /// The pages of `range` that exist.
    pub(crate) fn present(&mut self, range: &PageRange) -> Result<Vec<PageRange>, Errno> {
        let bytes = bytes_of(range);
        let mut runs = Vec::new();
        self.pagemap.runs(bytes.start, bytes.end, &mut runs)?;
        Ok(runs
            .iter()
            .map(|run| pages_of(&(run.start..run.end)))
            .collect())
    }

    /// Pages of data and stack that are mapped: changes when memory appears or goes.
    pub(crate) fn data_pages(&self) -> Option<u64> {
        let mut text = [0; 128];
        let n = rustix::io::pread(&self.statm, &mut text, 0).ok()?;
        let field = text[..n].split(|&b| b == b' ').nth(5)?;
        core::str::from_utf8(field).ok()?.trim_ascii().parse().ok()
    }
}
