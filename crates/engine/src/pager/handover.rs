//! Descriptors from the parent's engine for the engine of a forked child.
//!
//! A program may change its user, root directory or network before it forks. Its own engine is not affected. The
//! child's engine is created by the child and has the child's rights: it may be unable to reach the supervisor, be
//! refused there, find no /proc, or get no userfaultfd. The parent's engine still can.
//!
//! The two engines share no descriptor, because the program's table has none of the engine's. They share a page, the
//! *board*. The child's engine posts the number of its end of a socket pair there. The parent's engine copies that
//! descriptor (pidfd_getfd) and sends the missing descriptors over it.
//!
//! The child also sends a word over the other end, which identifies the socket. A process number that belongs to
//! another process, in another PID namespace for example, is therefore detected.
//!
//! The board also counts forks and the children's engines that are up. A parent that ends right after a fork could
//! otherwise be the last process that the supervisor knows, and the run end before the child's engine connects. So an
//! engine whose program has ended waits a moment for the engines of its children ([`await_children`]).
//!
//! An engine that got its own connection this way cannot create connections for its children. It has a second
//! connection to the supervisor, which creates them. It may also lack the right to look into its children's engines,
//! if they run as another user than at the start. Then they ask the *elder*, the last engine before it that needed no
//! help.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use foreswap_core::units::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg,
};
use rustix::process::{
    PTracer, Pid, PidfdFlags, PidfdGetfdFlags, geteuid, pidfd_getfd, pidfd_open,
};
use rustix::thread::futex;

use super::world::now;
use crate::ledger::protocol::Client;
use crate::program::{Program, own_pid};
use crate::sys::handed::{self, Handed};
use crate::sys::own_memory::{self, Kind};
use crate::sys::thread;

/// How long a child waits for its parent's engine.
const PATIENCE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(5);
/// How long after a fork an engine whose program has ended waits for the child's engine, and how often it looks.
const FOR_CHILD: Nanos = 2_000_000_000;
const LOOK: Duration = Duration::from_millis(1);
const PAGE: usize = 4096;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const POSTED: u32 = 2;

/// A page that a process shares with its children, with one request at a time.
#[repr(C)]
struct Board {
    state: AtomicU32,
    /// The requesting engine: its process, its descriptor, and the word that it sent.
    pid: AtomicU32,
    fd: AtomicU32,
    word: AtomicU32,
    /// The user of the parent's engine.
    user: AtomicU32,
    /// Forks so far, when the last one began, and children's engines that have come up.
    forks: AtomicU32,
    up: AtomicU32,
    forked_at: AtomicU64,
}

fn board_at(address: usize) -> Option<&'static Board> {
    // SAFETY: the address is 0 or that of a board, which is mapped as long as it is known.
    unsafe { (address as *const Board).as_ref() }
}

/// The process with this board forks now.
pub(super) fn expect_child(address: usize) {
    if let Some(board) = board_at(address) {
        board.forked_at.store(now(), SeqCst);
        board.forks.fetch_add(1, SeqCst);
    }
}

/// A child has its engine and is known to the supervisor, or there is no child that will have one. `address` is the
/// parent's board.
pub fn child_is_up(address: usize) {
    if let Some(board) = board_at(address) {
        board.up.fetch_add(1, SeqCst);
    }
}

/// Waits for the engines of all children, in an engine whose program has ended.
pub(super) fn await_children(address: usize) {
    let Some(board) = board_at(address) else {
        return;
    };
    let are_missing = || {
        let (forks, up) = (board.forks.load(SeqCst), board.up.load(SeqCst));
        forks.wrapping_sub(up).cast_signed() > 0
    };
    // A child that was killed before never has one.
    while are_missing() && now().saturating_sub(board.forked_at.load(SeqCst)) < FOR_CHILD {
        std::thread::sleep(LOOK);
    }
}

struct Desk {
    board: &'static Board,
    socket_name: String,
    /// The source of connections, if the supervisor cannot be reached by name.
    office: Option<Client>,
}

/// Creates the board of `program` and serves its children from now on.
pub(super) fn begin(program: &Program, office: Option<Client>) -> Result<(), Errno> {
    let flags = MapFlags::SHARED;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping where nothing is.
    let at = unsafe { mmap_anonymous(core::ptr::null_mut(), PAGE, access, flags) }?;
    if !own_memory::list(at as usize, PAGE, Kind::Other) {
        // SAFETY: mapped just above, not visible elsewhere.
        unsafe { munmap(at, PAGE) }?;
        return Err(Errno::NOMEM);
    }
    let Some(board) = board_at(at as usize) else {
        return Err(Errno::NOMEM);
    };
    board.user.store(geteuid().as_raw(), Relaxed);
    let desk = Desk {
        board,
        socket_name: program.socket_name(),
        office,
    };
    let argument = Box::into_raw(Box::new(desk)).cast::<c_void>();
    // SAFETY: `work` keeps to the rules for engine threads and gets its argument alone.
    unsafe { thread::spawn(c"fs-fork", 64 << 10, true, work, argument) }?;
    program.board.store(at as usize, Release);
    Ok(())
}

extern "C" fn work(argument: *mut c_void) {
    // SAFETY: `begin` made the pointer from a box and gave it to this thread alone.
    let mut desk = unsafe { Box::from_raw(argument.cast::<Desk>()) };
    loop {
        let state = desk.board.state.load(Acquire);
        if state == POSTED {
            // A child without help reports that itself.
            let _ = desk.serve();
            desk.board.state.store(FREE, Release);
            continue;
        }
        // Not a private futex: the wakers are other processes.
        let _ = futex::wait(&desk.board.state, futex::Flags::empty(), state, None);
    }
}

impl Desk {
    fn serve(&mut self) -> Result<(), Errno> {
        let asking = self.board.pid.load(Relaxed);
        let pid = i32::try_from(asking).ok().and_then(Pid::from_raw);
        let process = pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
        let fd = self.board.fd.load(Relaxed).cast_signed();
        let socket = pidfd_getfd(&process, fd, PidfdGetfdFlags::empty())?;
        let mut word = [0; 4];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let (got, _) = rustix::net::recv(&socket, &mut word, flags)?;
        if got != 4 || u32::from_ne_bytes(word) != self.board.word.load(Relaxed) {
            return Err(Errno::SRCH);
        }
        let connections = [self.connection()?, self.connection()?];
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = match handed::get(Handed::Proc) {
            Some(held) => rustix::io::dup(held)?,
            None => open(c"/proc", folder, Mode::empty())?,
        };
        let pagemap = format!("/proc/{asking}/pagemap");
        let pagemap = std::ffi::CString::new(pagemap).map_err(|_| Errno::INVAL)?;
        let pagemap = handed::open_in_proc(&pagemap);
        let device = match handed::get(Handed::Userfaultfd) {
            Some(held) => rustix::io::dup(held),
            None => {
                let flags = OFlags::RDWR | OFlags::CLOEXEC;
                open(c"/dev/userfaultfd", flags, Mode::empty())
            }
        };
        let mut fds: Vec<BorrowedFd<'_>> = connections.iter().map(AsFd::as_fd).collect();
        let mut which = 1_u8 << Handed::Proc as u8;
        fds.push(proc.as_fd());
        for (what, fd) in [(Handed::PageMap, &pagemap), (Handed::Userfaultfd, &device)] {
            if let Ok(fd) = fd {
                which |= 1 << what as u8;
                fds.push(fd.as_fd());
            }
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::INVAL);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&socket, &[IoSlice::new(&[which])], &mut ancillary, flags).map(drop)
    }

    /// A connection to the supervisor on which no hello was sent.
    fn connection(&mut self) -> Result<OwnedFd, Errno> {
        let made = match &mut self.office {
            None => Client::connect(&self.socket_name).map(Client::into_socket),
            Some(office) => office.another(),
        };
        // Without a supervisor there is nothing to hand over.
        made.map_err(|_| Errno::CONNREFUSED)
    }
}

/// The descriptors from the parent's engine: the connection, and the one that creates further ones.
pub(super) struct Given {
    pub client: Client,
    pub office: Client,
    /// The board to ask if the parent's engine cannot help.
    pub elder: usize,
}

/// Whether this process will have to ask; `boards` are its parent's and the elder's.
pub(super) fn has_to_ask([address, elder]: [usize; 2]) -> bool {
    let other_user = |board: &Board| board.user.load(Relaxed) != geteuid().as_raw();
    let blind = || crate::sys::maps::PageMap::open().is_err();
    elder != 0 || board_at(address).is_some_and(|board| other_user(board) || blind())
}

/// Asks the parent's engine, then the elder, and keeps the received descriptors.
pub(super) fn ask([address, elder]: [usize; 2]) -> Option<Given> {
    let (client, office) = ask_at(address).or_else(|| ask_at(elder))?;
    let elder = if elder == 0 { address } else { elder };
    // Owned by this engine from here on: it is not unmapped with the remains of the parent's engine.
    own_memory::unlist(elder);
    let kept = own_memory::list(elder, PAGE, Kind::Other);
    Some(Given {
        client,
        office,
        elder: if kept { elder } else { 0 },
    })
}

fn ask_at(address: usize) -> Option<(Client, Client)> {
    let board = board_at(address)?;
    let end = Instant::now() + PATIENCE;
    while board
        .state
        .compare_exchange(FREE, CLAIMED, SeqCst, SeqCst)
        .is_err()
    {
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(STEP / 50);
    }
    let given = ask_with(board, end);
    if given.is_none() {
        // No engine serves any more, or the request failed and the board is free already.
        let _ = board.state.compare_exchange(POSTED, FREE, SeqCst, SeqCst);
        let _ = board.state.compare_exchange(CLAIMED, FREE, SeqCst, SeqCst);
    }
    given
}

fn ask_with(board: &Board, end: Instant) -> Option<(Client, Client)> {
    // Where only ancestors may look into a process (Yama), the parent's engine is not one.
    let _ = rustix::process::set_ptracer(PTracer::Any);
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    let word = now() as u32 ^ own_pid().rotate_left(16);
    rustix::net::send(&ours, &word.to_ne_bytes(), SendFlags::NOSIGNAL).ok()?;
    board.pid.store(own_pid(), Relaxed);
    board.fd.store(theirs.as_raw_fd().cast_unsigned(), Relaxed);
    board.word.store(word, Relaxed);
    board.state.store(POSTED, SeqCst);
    let _ = futex::wake(&board.state, futex::Flags::empty(), 1);
    let mut is_free = false;
    loop {
        let mut fds = [PollFd::new(&ours, PollFlags::IN)];
        let step = Timespec {
            tv_sec: 0,
            tv_nsec: STEP.subsec_nanos().into(),
        };
        if poll(&mut fds, Some(&step)).is_ok_and(|ready| ready > 0) {
            return receive(&ours);
        }
        // The request was handled without success: a reply would have come before.
        if is_free || Instant::now() >= end {
            return None;
        }
        is_free = board.state.load(Acquire) != POSTED;
    }
}

fn receive(socket: &OwnedFd) -> Option<(Client, Client)> {
    let mut which = [0_u8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut which)];
    recvmsg(socket, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let mut fds = fds.into_iter();
    let (client, office) = (fds.next()?, fds.next()?);
    for what in [Handed::Proc, Handed::PageMap, Handed::Userfaultfd] {
        if which[0] & 1 << what as u8 != 0 {
            handed::hold(what, fds.next()?);
        }
    }
    Some((Client::of_socket(client), Client::of_socket(office)))
}
