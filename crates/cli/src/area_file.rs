//! The file of a swap area as passed to processes, and the end of a process' last transfer on it.
//!
//! Transfers may outlive their process. Each process therefore makes them through an open file description of its
//! own, which shows their end (see [`lease`]). Without one, they end before the process does: in memory, and where
//! `areas::backend` uses threads instead of io_uring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use foreswap::ledger::{AreaId, Ledger, ProcId};
use foreswap_store::area::{Far, OpenArea, lease};

/// What processes get of an area.
#[derive(Debug)]
pub struct Descriptors {
    file: OwnedFd,
    register: Option<OwnedFd>,
}

impl Descriptors {
    /// Copies of those of an open area.
    pub fn of(area: &OpenArea) -> io::Result<Self> {
        let copy = |far: &Far| far.register.try_clone();
        Ok(Self {
            file: area.file.try_clone()?.into(),
            register: area.far.as_ref().map(copy).transpose()?,
        })
    }
}

#[cfg(test)]
impl Descriptors {
    /// Those of a file.
    pub fn of_file(file: std::fs::File) -> Self {
        Self {
            file: file.into(),
            register: None,
        }
    }
}

/// The file of one area.
#[derive(Debug)]
pub struct AreaFile {
    /// The area.
    pub number: AreaId,
    file: OwnedFd,
    /// Of a far area: the socket on which engines register their channels.
    register: Option<OwnedFd>,
    leases: bool,
}

impl AreaFile {
    /// For an area that is in the ledger.
    pub fn new(ledger: &Ledger, number: AreaId, descriptors: Descriptors) -> Self {
        let Descriptors { file, register } = descriptors;
        let leases = !ledger.is_ram(number) && lease::try_out(file.as_fd()).is_ok();
        Self {
            number,
            file,
            register,
            leases,
        }
    }

    /// The description for the transfers of the process with `record`. `None`: no descriptor is left.
    pub fn own(&self, record: ProcId) -> Option<OwnedFd> {
        let own = match self.leases {
            true => lease::open(self.file.as_fd(), record.index()),
            false => rustix::io::dup(&self.file),
        };
        own.ok()
    }

    /// The descriptors of the area for the process that owns `own`.
    pub fn descriptors<'a>(
        &'a self,
        ledger: &'a Ledger,
        own: &'a OwnedFd,
    ) -> impl Iterator<Item = BorrowedFd<'a>> {
        let tables = ledger.area_fd(self.number).into_iter();
        let shared = self.register.as_ref().unwrap_or(&self.file);
        tables.chain([shared.as_fd(), own.as_fd()])
    }

    /// Whether the process with `record`, which has ended, has transfers in progress.
    pub fn has_transfers(&self, record: ProcId) -> bool {
        // If unknown, there may be some.
        self.leases && lease::is_held(self.file.as_fd(), record.index()) != Ok(false)
    }
}
