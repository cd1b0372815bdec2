//! The messages between engines and the supervisor.
//!
//! A unix socket of type SEQPACKET, under an abstract name and at a path. Each packet is one message, a fixed
//! `repr(C)` struct. An engine connects, says hello and receives its record and the descriptors of the ledger and the
//! areas. The connection stays open, because its end tells the supervisor that the process is gone. The `client`
//! module runs on engine threads: system calls by rustix only, no printing, no panics, and every wait ends when the
//! supervisor does.

mod client;
mod packet;

use std::mem::MaybeUninit;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::layout::{MAX_AREAS, MAX_PROCESSES, VERSION};
use super::{AreaId, LedgerError, ProcId};

use packet::{PACKET_BYTES, PACKET_HEAD, Packet};

pub use client::{Client, FileNumbers, Sharing, Welcome};

/// The environment variable that names the socket (without the leading NUL).
pub const SOCKET_VARIABLE: &str = "FORESWAP_SOCKET";
/// The environment variable with the number of anonymous bytes from which a process connects
/// ([`super::Options::adopt_threshold`], decimal).
pub const THRESHOLD_VARIABLE: &str = "FORESWAP_THRESHOLD";
/// The environment variable with the patterns of the files whose mappings are served, a line each.
pub const MAP_FILES_VARIABLE: &str = "FORESWAP_MAP_FILES";
/// The most bytes of these patterns.
pub const MOST_PATTERNS: usize = 4096;
/// Longest text of one log message; longer ones are cut.
pub const LOG_BYTES: usize = 1000;
/// The ledger, three descriptors per area (tables and the file twice), the key and a ring.
const MAX_FDS: usize = 3 * MAX_AREAS + 3;

/// Severity of a log message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Information; suppressed by `--quiet`.
    Note,
    /// Something works worse than it should; suppressed by `--quiet`.
    Warning,
    /// Something the user must know.
    Error,
}

/// The descriptors of an area's file for an engine.
#[derive(Debug)]
pub struct AreaFiles {
    /// The supervisor's open file: the area belongs to this run while it is open. Of a far area: the socket on which the
    /// engine registers its channel.
    pub file: OwnedFd,
    /// The process' own open file, used by all its transfers: see `foreswap_store::area::lease`.
    pub own: OwnedFd,
}

/// A message, in either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Engine: I serve process `pid`, whose pidfd is attached; `record` was reserved for it when `parent` forked.
    Hello {
        /// The pid as the process sees itself; the supervisor relies on the pidfd.
        pid: u32,
        /// The record of the process that forked this one.
        parent: Option<ProcId>,
        /// The record that was reserved.
        record: Option<ProcId>,
    },
    /// Supervisor: this is your record. Attached: the ledger, for each area its tables and [`AreaFiles`], then the
    /// key of a run that encrypts, then the ring of a traced run.
    Welcome {
        /// The record.
        record: ProcId,
        /// A bit per area, by number.
        areas: u32,
        /// A key is attached.
        encrypted: bool,
        /// A ring is attached.
        traced: bool,
    },
    /// Supervisor: no.
    Refused(Refusal),
    /// Engine: a message for the user.
    Log {
        /// Its severity.
        severity: Severity,
        /// One line.
        text: String,
    },
    /// Engine: I am about to fork.
    Reserve,
    /// Supervisor: this record is reserved for the child.
    Reserved {
        /// The record.
        record: ProcId,
    },
    /// Engine: the fork is done; without a pid it failed, and the record is free.
    Reap {
        /// The reserved record.
        record: ProcId,
        /// The child.
        child: Option<u32>,
    },
    /// Engine, before a hello: the fork child for which `record` was reserved when `parent` forked has executed
    /// another file; the record is free.
    Unused {
        /// The record of the process that forked.
        parent: ProcId,
        /// The reserved record.
        record: ProcId,
    },
    /// Engine: I stop managing; clean up after me.
    Bye,
    /// Supervisor: an area is added, changed or removed. Engines answer each order with `AreaDone`.
    Area(AreaOrder),
    /// Engine: done, or (not `ok`) impossible.
    AreaDone {
        /// The order.
        order: AreaOrder,
        /// Whether it was done.
        ok: bool,
    },
    /// Engine: from here on the process must not run without me. My userfaultfd is attached: while it is open in some
    /// process, absent pages do not become zeros.
    Keep,
    /// Engine: the userfaultfd of a guest of mine is attached: if I am killed, poison the pages that it lacks. Without a
    /// descriptor: no guest needs me any more.
    Guest,
    /// Engine: my program maps this file, which is attached, open for reading; its first `pages` pages need numbers. Pages
    /// of a `shared` mapping have others than those of a private one.
    MapFile {
        /// Whole pages of the file.
        pages: u32,
        /// The mapping is shared.
        shared: bool,
    },
    /// Engine: which file has this number among its pages?
    File {
        /// The number.
        page: u32,
    },
    /// Supervisor: the file's pages have these numbers. Attached, to the answer of `File`: the file.
    FileAt {
        /// The number of its first page.
        first: u32,
        /// Pages.
        pages: u32,
        /// How it is mapped.
        sharing: Sharing,
    },
    /// Engine of a forked child: I have asked for all files that my program has inherited.
    Inherited,
    /// Engine: I map this file no longer.
    DropFile {
        /// The number of its first page.
        first: u32,
    },
    /// Engine: I need a connection for the engine of a child that cannot reach you.
    Connect,
    /// Supervisor: it is attached.
    Connected,
    /// Engine: I may not open /dev/userfaultfd, as my program runs as another user.
    Device,
    /// Supervisor: it is attached, open.
    DeviceOpen,
    /// Engine: while this area is drained, a fault finds no memory, and no other area has room.
    Starved {
        /// The area.
        area: AreaId,
    },
}

/// An order about an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaOrder {
    /// The area.
    pub area: AreaId,
    /// The step.
    pub step: AreaStep,
    /// Distinguishes the answers to this order from late answers to another.
    pub round: u32,
}

/// The states of an area in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaStep {
    /// Map its tables and open its file, which are attached, with the key if the area is encrypted; put no page there
    /// yet.
    Attach,
    /// Pages may go there (again).
    Use,
    /// Put no page there any more, and move its pages away.
    Drain,
    /// No page is there any more: close it.
    Detach,
}

impl AreaStep {
    fn from_word(word: u32) -> Option<Self> {
        Some(match word {
            0 => Self::Attach,
            1 => Self::Use,
            2 => Self::Drain,
            3 => Self::Detach,
            _ => return None,
        })
    }
}

impl AreaOrder {
    fn words(&self, third: u32) -> [u32; 3] {
        let step = (self.step as u32) << 8;
        [u32::from(self.area.0) | step, self.round, third]
    }

    fn from_words(first: u32, round: u32) -> Option<Self> {
        let area = (first & 0xff) as u8;
        Some(Self {
            area: (usize::from(area) < MAX_AREAS).then_some(AreaId(area))?,
            step: AreaStep::from_word(first >> 8)?,
            round,
        })
    }
}

/// Why the supervisor refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The engine speaks another version.
    #[error("supervisor and preload object are of different versions")]
    Version,
    /// All records are in use.
    #[error("{MAX_PROCESSES} processes are managed already; run fewer at a time")]
    TooManyProcesses,
    /// The supervisor has no descriptors for another process.
    #[error("the supervisor has too few descriptors for another process; raise `ulimit -n`")]
    TooFewDescriptors,
    /// The reserved record does not exist (any more).
    #[error("no record is reserved for this process")]
    NotReserved,
    /// The process may not use the device.
    #[error("/dev/userfaultfd is not for this process")]
    NoDevice,
    /// There are no numbers or descriptors for the file, or no file has the number.
    #[error("no numbers are left for the pages of files, or no file has this one")]
    NoFile,
}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The socket's name is too long or its system call failed.
    #[error("{what} failed on the supervisor's socket: {errno}")]
    System {
        /// The call.
        what: &'static str,
        /// Its error.
        errno: Errno,
    },
    /// The other side is gone.
    #[error("the supervisor has ended")]
    Closed,
    /// No answer in time.
    #[error("the supervisor does not answer")]
    Timeout,
    /// Not a valid message.
    #[error("a malformed message from the supervisor")]
    Malformed,
    /// The supervisor refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The received ledger is not usable.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

fn system(what: &'static str) -> impl Fn(Errno) -> ProtocolError {
    move |errno| match errno {
        Errno::PIPE | Errno::CONNRESET | Errno::CONNREFUSED => ProtocolError::Closed,
        Errno::AGAIN => ProtocolError::Timeout,
        errno => ProtocolError::System { what, errno },
    }
}

/// A message with its attached descriptors.
#[derive(Debug)]
pub struct Received {
    /// The message.
    pub message: Message,
    /// Whether its sender is of this version.
    pub same_version: bool,
    /// Descriptors, all close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// The address of a socket name.
fn address(name: &str) -> Result<SocketAddrUnix, ProtocolError> {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(system("abstract name"))
}

/// Supervisor: a socket that listens under `name`, non-blocking.
pub fn listen(name: &str) -> Result<OwnedFd, ProtocolError> {
    listen_on(&address(name)?)
}

/// Supervisor: a socket in the file system that listens, non-blocking, for the same user's processes. Its path can also
/// be given to [`listen`]: a path without a NUL may have 108 bytes, an abstract name 107.
pub fn listen_at(path: &Path) -> Result<OwnedFd, ProtocolError> {
    SocketAddrUnix::new_abstract_name(path.as_os_str().as_bytes())
        .and_then(|_| SocketAddrUnix::new(path))
        .map_err(system("the name of a socket"))
        .and_then(|address| listen_on(&address))
}

fn listen_on(address: &SocketAddrUnix) -> Result<OwnedFd, ProtocolError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system("socket"))?;
    rustix::net::bind(&socket, address).map_err(system("bind"))?;
    rustix::net::listen(&socket, 1024).map_err(system("listen"))?;
    Ok(socket)
}

/// Whether the process that created the socket at `path` has closed it. The listener does not notice the question: a
/// connection would be one of the run, and a datagram socket cannot connect to a socket of another type.
pub fn is_forsaken(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
    let connected = socket.and_then(|socket| {
        let address = SocketAddrUnix::new(path)?;
        rustix::net::connect(&socket, &address)
    });
    // A socket that exists, whether it listens yet or not, refuses by its type.
    connected == Err(Errno::CONNREFUSED)
}

/// Connects to the supervisor at `name`: an abstract name or, in another network namespace, a path.
pub fn connect(socket: impl AsFd, name: &[u8]) -> Result<(), Errno> {
    let to = |address: &SocketAddrUnix| {
        rustix::io::retry_on_intr(|| rustix::net::connect(&socket, address))
    };
    match to(&SocketAddrUnix::new_abstract_name(name)?) {
        Err(Errno::CONNREFUSED) if name.first() == Some(&b'/') => {
            let path = core::str::from_utf8(name).map_err(|_| Errno::CONNREFUSED)?;
            to(&SocketAddrUnix::new(path)?)
        }
        other => other,
    }
}

/// Sends one message with descriptors. Blocks no longer than the socket does.
pub fn send(
    socket: impl AsFd,
    message: &Message,
    fds: &[BorrowedFd<'_>],
) -> Result<(), ProtocolError> {
    send_with(socket, message, fds, SendFlags::NOSIGNAL)
}

fn send_with(
    socket: impl AsFd,
    message: &Message,
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), ProtocolError> {
    let bytes = Packet::of(message).to_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ProtocolError::Malformed);
    }
    loop {
        match rustix::net::sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(system("sendmsg")(errno)),
        }
    }
}

/// Receives one message; on a non-blocking socket, `Timeout` means that there is none.
pub fn receive(socket: impl AsFd) -> Result<Received, ProtocolError> {
    receive_with(socket, RecvFlags::empty())
}

fn receive_with(socket: impl AsFd, flags: RecvFlags) -> Result<Received, ProtocolError> {
    let mut bytes = [0u8; PACKET_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let length = loop {
        match rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC | flags,
        ) {
            Ok(got) => break got.bytes,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(system("recvmsg")(errno)),
        }
    };
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if length == 0 {
        return Err(ProtocolError::Closed);
    }
    let packet = Packet::from_bytes(&bytes[..length]).ok_or(ProtocolError::Malformed)?;
    let message = packet.message().ok_or(ProtocolError::Malformed)?;
    Ok(Received {
        message,
        same_version: packet.version == VERSION,
        fds,
    })
}

/// The most parts of a text given to [`notify`].
pub const NOTICE_PARTS: usize = 4;

/// Sends a message to the user from a thread of the program, which has no [`Client`]: connects to the socket `name`,
/// sends the `parts` as one log message, closes. Does not allocate, nor touch errno or thread-local data: it may run
/// between a fork and an exec.
pub fn notify(name: &[u8], severity: Severity, parts: &[&[u8]]) -> Result<(), Errno> {
    let mut slices = [(); NOTICE_PARTS + 1].map(|()| IoSlice::new(&[]));
    let mut room = LOG_BYTES;
    for (slice, part) in slices[1..].iter_mut().zip(parts) {
        let kept = &part[..part.len().min(room)];
        room -= kept.len();
        *slice = IoSlice::new(kept);
    }
    let mut head = [0; PACKET_HEAD];
    let text_bytes = (LOG_BYTES - room) as u32;
    let words = [4, VERSION, severity as u32, 0, 0, text_bytes];
    for (bytes, word) in head.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_ne_bytes();
    }
    slices[0] = IoSlice::new(&head);

    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let sent = connect(&socket, name).and_then(|()| {
        let mut nothing = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL;
        rustix::io::retry_on_intr(|| rustix::net::sendmsg(&socket, &slices, &mut nothing, flags))
    });
    // SAFETY: it is closed once, here; dropping it would go through the C library.
    unsafe { rustix::io::close(socket.into_raw_fd()) };
    sent.map(drop)
}
