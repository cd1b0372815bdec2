//! The messages between the supervisor and the relay: packets of JSON on a socket of type SEQPACKET.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest message.
const MOST_BYTES: usize = 16 << 10;
/// The most descriptors of one.
const MOST_FDS: usize = 8;

/// From the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Connect to a server and prepare its export. Answered by `Opened` or `Failed`.
    Open {
        /// The number that the other messages name the area by.
        area: u32,
        /// The address.
        address: String,
        /// The bytes to use; `None`: all.
        bytes: Option<u64>,
        /// The time after which a transfer has failed, in milliseconds.
        timeout_ms: u64,
    },
    /// The area is not needed any more: discard its contents. Answered by `Closed`.
    Close {
        /// The area.
        area: u32,
    },
}

/// From the relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The first message: the relay is there.
    Started {
        /// Its process.
        pid: u32,
    },
    /// The area can be used. Attached: the socket on which engines register channels.
    Opened {
        /// The area.
        area: u32,
        /// Its bytes, a multiple of 4 KiB.
        bytes: u64,
        /// Bytes at the front that no engine may write.
        reserved_bytes: u64,
    },
    /// It cannot.
    Failed {
        /// The area.
        area: u32,
        /// The reason, with a remedy.
        why: String,
    },
    /// The area is closed.
    Closed {
        /// The area.
        area: u32,
        /// Why its contents are still there, if they are.
        left: Option<String>,
    },
    /// For the user.
    Said {
        /// Something works worse than it should; otherwise it is information.
        is_warning: bool,
        /// One line.
        text: String,
    },
}

/// Sends a message.
pub fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MOST_BYTES {
        return Err(Errno::MSGSIZE.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE.into());
    }
    let parts = [IoSlice::new(&bytes)];
    rustix::io::retry_on_intr(|| sendmsg(&socket, &parts, &mut ancillary, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives the bytes of a message, and its descriptors. No bytes: the other side has gone.
pub fn receive_bytes(socket: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; MOST_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    bytes.truncate(got.bytes);
    Ok((bytes, fds))
}

/// Receives a message. `None`: the other side has gone.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let (bytes, fds) = receive_bytes(socket)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes)?, fds)))
}
