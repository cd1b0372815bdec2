//! The file of a swap area as processes get it, and when the last of what one began there is over.
//!
//! Transfers may outlive their process, so each makes them through a description of its own, which tells (see
//! [`lease`]). Where there is none they end before the process does: in memory, and where `areas::backend` put threads
//! in the place of io_uring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use foreswap::ledger::{AreaId, Ledger, ProcId};
use foreswap_store::area::lease;

/// One of them.
#[derive(Debug)]
pub struct AreaFile {
    /// The area.
    pub number: AreaId,
    file: OwnedFd,
    leases: bool,
}

impl AreaFile {
    /// Of an area that is in the ledger.
    pub fn new(ledger: &Ledger, number: AreaId, file: OwnedFd) -> Self {
        let leases = !ledger.is_ram(number) && lease::try_out(file.as_fd()).is_ok();
        Self {
            number,
            file,
            leases,
        }
    }

    /// The description that the process of `record` makes its transfers through. `None`: no descriptor is left.
    pub fn own(&self, record: ProcId) -> Option<OwnedFd> {
        let own = match self.leases {
            true => lease::open(self.file.as_fd(), record.index()),
            false => rustix::io::dup(&self.file),
        };
        own.ok()
    }

    /// What is sent of the area to the process that `own` is for.
    pub fn descriptors<'a>(
        &'a self,
        ledger: &'a Ledger,
        own: &'a OwnedFd,
    ) -> impl Iterator<Item = BorrowedFd<'a>> {
        let tables = ledger.area_fd(self.number).into_iter();
        tables.chain([self.file.as_fd(), own.as_fd()])
    }

    /// Whether the process of `record`, which has ended, has begun transfers that are under way.
    pub fn has_transfers(&self, record: ProcId) -> bool {
        // Where it is not known, they may be.
        self.leases && lease::is_held(self.file.as_fd(), record.index()) != Ok(false)
    }
}
