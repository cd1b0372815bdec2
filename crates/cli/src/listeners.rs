//! Where the engines of the run's processes reach the supervisor.
//!
//! By an abstract name, which is there in every mount namespace, and, for processes in a network namespace of their
//! own (build sandboxes, containers), where abstract names of others are not seen, by a socket in the file system. Both
//! are spelled alike, so that one variable says where they are.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use foreswap::ledger::protocol;

use crate::control::place;

/// The sockets; the one in the file system goes when this is dropped.
#[derive(Debug)]
pub struct Listeners {
    by_name: OwnedFd,
    by_path: Option<(OwnedFd, PathBuf)>,
}

impl Listeners {
    /// Listens. Returns what is to be told to the processes of the run as well.
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

    /// To be polled: there is always as many.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        let by_path = self.by_path.as_ref();
        [
            self.by_name.as_fd(),
            by_path.map_or(self.by_name.as_fd(), |(socket, _)| socket.as_fd()),
        ]
    }

    /// A copy of this process goes on listening: this one leaves the sockets alone.
    pub fn leave(&mut self) {
        self.by_path = None;
    }

    /// The last process of the run has ended.
    pub fn close(&mut self) {
        if let Some((_, path)) = self.by_path.take() {
            // Somebody may have swept the folder.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.close();
    }
}

/// Unguessable enough not to be taken by accident; who may connect is decided by credentials.
fn name() -> io::Result<String> {
    let mut random = [0_u8; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    let random = u64::from_ne_bytes(random);
    Ok(format!("foreswap-{}-{random:016x}", std::process::id()))
}
