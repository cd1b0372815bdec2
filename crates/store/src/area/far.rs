//! An area on a server, as the supervisor has it: the relay has opened and looked at it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::MemfdFlags;

use super::{AreaError, OpenArea, memory_file};

/// How an area on a server is reached.
#[derive(Debug)]
pub struct Far {
    /// The socket on which engines register their channels ([`crate::far::Client::open`]).
    pub register: OwnedFd,
    /// The relay's number of the area.
    pub number: u32,
    /// It is in an object store, where a request takes tens of milliseconds.
    pub has_objects: bool,
}

impl OpenArea {
    /// An area on a server, of `bytes` bytes. Its file has no contents: it shows whose transfers are in progress
    /// ([`super::lease`]).
    ///
    /// # Errors
    /// The system has no memory or descriptor for the file.
    pub fn far(name: &str, bytes: u64, reserved_bytes: u64, far: Far) -> Result<Self, AreaError> {
        let path = PathBuf::from(name);
        let file = memory_file(c"foreswap-far", MemfdFlags::CLOEXEC)
            .map_err(|errno| AreaError::on_io(&path, errno.into()))?;
        Ok(Self {
            file: File::from(file),
            path,
            bytes,
            reserved_bytes,
            direct: false,
            notes: Vec::new(),
            is_ram: false,
            far: Some(far),
            named: false,
        })
    }
}
