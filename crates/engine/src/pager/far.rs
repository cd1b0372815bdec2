//! Channels to the relay, which carries the transfers of areas on servers.

use core::ops::Range;

use foreswap_store::far::{BYTES, Client};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use super::boot::hide;
use crate::ledger::SharedMemory;
use crate::sys::own_memory;

/// Opens a channel of an area, whose relay rings `bell` when a transfer has ended. Returns where its memory is listed as the
/// engine's own: for [`own_memory::unlist`] after its end.
pub(super) fn open(
    register: BorrowedFd<'_>,
    own: BorrowedFd<'_>,
    bell: &OwnedFd,
) -> Result<(Client, Range<usize>), Errno> {
    let memory = SharedMemory::create(BYTES).map_err(|_| Errno::NOMEM)?;
    let range = memory.range();
    hide(&range)?;
    let file = rustix::io::dup(memory.fd())?;
    let client = Client::open(
        memory.into_backing(),
        file.as_fd(),
        register,
        own,
        bell.as_fd(),
    );
    if client.is_err() {
        own_memory::unlist(range.start);
    }
    Ok((client?, range))
}

/// The channel of a thread that reads one thing at a time.
pub(super) struct Reader {
    client: Client,
    bell: OwnedFd,
    range: Range<usize>,
}

impl Reader {
    pub(super) fn open(register: BorrowedFd<'_>, own: BorrowedFd<'_>) -> Result<Self, Errno> {
        let bell = super::boot::event()?;
        let (client, range) = open(register, own, &bell)?;
        Ok(Self {
            client,
            bell,
            range,
        })
    }

    /// Reads whole pages from byte `at` of the area on.
    pub(super) fn read(&mut self, at: u64, bytes: &mut [u8]) -> Option<()> {
        self.client.read_at(self.bell.as_fd(), at, bytes).ok()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        own_memory::unlist(self.range.start);
    }
}
