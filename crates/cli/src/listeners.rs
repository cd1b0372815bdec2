//! The sockets on which engines reach the supervisor.
//!
//! An abstract name works in every mount namespace. A socket in the file system serves processes in another network
//! namespace (build sandboxes, containers), which do not see abstract names of this one. Both have the same spelling,
//! and one variable names both.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use foreswap::ledger::protocol;

use crate::control::place;

/// The sockets; the one in the file system is removed when this is dropped.
#[derive(Debug)]
pub struct Listeners {
    by_name: OwnedFd,
    by_path: Option<(OwnedFd, PathBuf)>,
}

impl Listeners {
    /// Listens. Also returns the name for the processes of the run.
    pub fn open() -> anyhow::Result<(Self, String)> {
        let name = name()?;
        // The path of a folder may be too long for a socket's.
        let by_path = place::usable_folders().find_map(|folder| {
            let path = folder.join(&name);
            let socket = protocol::listen_at(&path).ok()?;
            Some((socket, path))
        });
        let path = by_path.as_ref().and_then(|(_, path)| path.to_str());
        let name = path.map_or(name, str::to_owned);
        let by_name = protocol::listen(&name)?;
        Ok((Self { by_name, by_path }, name))
    }

    /// The descriptors to poll, always the same number.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        let by_path = self.by_path.as_ref();
        [
            self.by_name.as_fd(),
            by_path.map_or(self.by_name.as_fd(), |(socket, _)| socket.as_fd()),
        ]
    }

    /// A copy of this process continues to listen: this one leaves the sockets alone.
    pub fn leave(&mut self) {
        self.by_path = None;
    }

    /// The last process of the run has ended.
    pub fn close(&mut self) {
        if let Some((_, path)) = self.by_path.take() {
            // Another process may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.close();
    }
}

/// Random enough to prevent accidental use; credentials decide on access.
fn name() -> io::Result<String> {
    let mut random = [0_u8; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    let random = u64::from_ne_bytes(random);
    Ok(format!("foreswap-{}-{random:016x}", std::process::id()))
}
