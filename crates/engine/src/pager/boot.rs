//! How an engine starts in a process.
//!
//! A program thread that noticed growth, or that just became a fork child, starts the engine's process
//! (`sys/beside.rs`) and waits. Its first thread is the pager. The pager gives up the program's descriptors, folder
//! and process group, receives the supervisor's welcome, opens two userfaultfds, frames and a ring, and reports the
//! result.

use std::ffi::c_void;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

use foreswap_core::readahead::Policy;
use foreswap_core::units::{LEAF_PAGES, PAGE_SIZE, PageRange, Vpn};
use foreswap_core::{Config, Mm, Swapoff, Thp};
use foreswap_store::ring::{Helpers, Uring, WithRam};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::copying::Copying;
use super::frames::Arena;
use super::huge;
use super::lazy::{self, Early, Heard};
use super::record::Recorder;
use super::snapshot::Snapshot;
use super::space::Space;
use super::unshare::Unsharer;
use super::workers::{DEPTH, helpers_of, open_io};
use super::world::{Lent, Linux, Zeros};
use super::{Mode, Pager, guard, guests, handover, inherit, panic, watch};
use crate::digest::number_in_order;
use crate::ledger::protocol::{Client, ProtocolError, Severity, Welcome};
use crate::ledger::{Ledger, ProcId, ReadaheadPolicy, ThpMode};
use crate::program::{Program, say, state};
use crate::sys::cpu::Cpus;
use crate::sys::doorbell::{Doorbell, SlotIndex};
use crate::sys::handed::{self, Handed};
use crate::sys::host::Host;
use crate::sys::own_memory::{self, Kind};
use crate::sys::secret_page::SecretError;
use crate::sys::uffd::{Features, Uffd, UffdError};
use crate::sys::{beside, limits, maps, process};

/// The name of the engine's process. It differs from the command's: `pkill foreswap` is meant for the run.
const NAME: &core::ffi::CStr = c"fs-pager";
/// Stack of the pager.
const STACK: usize = 512 << 10;
/// Frames freed in one step.
const TRASH: u32 = 64;
/// The largest batch that is mapped or filled at once.
const ZERO_PAGES: u32 = 512;

/// Why the engine failed to start.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The supervisor cannot be reached or refuses.
    #[error("{0}")]
    Supervisor(#[from] ProtocolError),
    /// The kernel gives no userfaultfd.
    #[error("{0}")]
    Uffd(#[from] UffdError),
    /// Another system call failed.
    #[error("{what} failed: {errno}")]
    System {
        /// Its name.
        what: &'static str,
        /// The error.
        errno: Errno,
    },
    /// The swap area exceeds the file size limit.
    #[error(
        "it may write files of {most} bytes at the most (ulimit -f), less than the swap area, and cannot raise that \
         without privileges"
    )]
    FileSize {
        /// The limit.
        most: u64,
    },
    /// The engine's mappings would reduce the program's limit.
    #[error(
        "its address space is limited (ulimit -v or -d), and the limit cannot be raised by what foreswap needs \
         without privileges: {errno}"
    )]
    AddressSpace {
        /// The error.
        errno: Errno,
    },
    /// The parent's memory moved during the fork.
    #[error("other threads moved memory (mremap) too often while the process forked")]
    Spoilt,
    /// The key has no place.
    #[error("{0}")]
    Key(#[from] SecretError),
    /// Neither io_uring nor threads.
    #[error("no way to reach the swap areas: {0}")]
    Io(String),
}

impl BootError {
    /// The command that says what to do, where the system or a limit stands in the way.
    fn hint(&self) -> &'static str {
        match self {
            Self::Uffd(_) | Self::FileSize { .. } | Self::AddressSpace { .. } | Self::Io(_) => {
                "; `foreswap doctor` says more"
            }
            Self::Supervisor(_) | Self::System { .. } | Self::Key(_) | Self::Spoilt => "",
        }
    }
}

pub(super) fn system(what: &'static str) -> impl Fn(Errno) -> BootError {
    move |errno| BootError::System { what, errno }
}

static PROGRAM: AtomicPtr<Program> = AtomicPtr::new(core::ptr::null_mut());
/// The engine's starting point: [`FRESH`], [`NO_SNAPSHOT`], or the address of the parent's snapshot.
static ORIGIN: AtomicUsize = AtomicUsize::new(FRESH);
const FRESH: usize = 0;
const NO_SNAPSHOT: usize = 1;

/// The origin of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A new program.
    Fresh,
    /// A fork child, with the address of its parent's snapshot, or 0 if nothing was managed there.
    Forked(usize),
}

/// Start the engine of this process and wait until it is up, has failed, or is not needed yet. Runs on a thread of
/// the program.
pub fn start(program: &Program, origin: Origin) {
    // Called here, while nothing is managed; see `modules::loaded`.
    crate::sys::modules::loaded();
    let starting = program
        .state
        .compare_exchange(state::OFF, state::STARTING, SeqCst, SeqCst);
    if starting.is_err() {
        return program.await_start();
    }
    PROGRAM.store(core::ptr::from_ref(program).cast_mut(), Release);
    let origin = match origin {
        Origin::Fresh => FRESH,
        Origin::Forked(snapshot) => snapshot.max(NO_SNAPSHOT),
    };
    ORIGIN.store(origin, Release);
    // SAFETY: `enter` never unwinds and keeps to the rules for engine threads.
    let spawned = unsafe { beside::spawn(NAME, STACK, enter, core::ptr::null_mut()) };
    match spawned {
        Ok(engine) => program.await_engine(&engine),
        Err(_) => {
            say(b"foreswap: this process is not managed: no process could be started beside it\n");
            program.set_state(state::FAILED);
        }
    }
}

/// In a fork child: drop the parent's engine. Its threads are absent, its frames were not copied; its heap stays
/// until the snapshot has been read.
pub fn renounce_parent(program: &Program) {
    guests::forget_after_fork();
    own_memory::forget_after_fork();
    own_memory::drop_from_list(|own| {
        matches!(own.kind, Kind::Frames | Kind::Ledger | Kind::Secret)
    });
    // SAFETY: the threads did not follow, and nothing was mapped yet where their stacks were.
    unsafe { own_memory::unmap_inherited(|own| own.kind == Kind::Thread) };
    // SAFETY: this thread is alone, and nothing of the old heap is written any more.
    unsafe { program.heap.forget_after_fork() };
}

extern "C" fn enter(_: *mut c_void) {
    // SAFETY: `start` stored a reference to the process' static state before this thread began.
    let Some(program) = (unsafe { PROGRAM.load(SeqCst).as_ref() }) else {
        return;
    };
    // The file table is a copy of the program's and not needed.
    // SAFETY: no descriptor of this process' table is in use yet.
    let closed = unsafe { process::close_all_files() };
    // The engine must not keep the file system of its folder from being unmounted, nor be stopped or killed with the
    // program's process group. Neither call fails; a failure would cost only this.
    let _ = rustix::process::chdir(c"/");
    let _ = rustix::process::setpgid(None, None);
    limits::lift_own();
    handed::forget();
    panic::are_said(program);
    let origin = ORIGIN.swap(FRESH, SeqCst);
    let snapshot = if origin == NO_SNAPSHOT { 0 } else { origin };
    // SAFETY: the address is 0 or a snapshot that the parent wrote, which is still mapped.
    let mut inherited = unsafe { Snapshot::find(snapshot) };
    let mut early = None;
    let (mut host, mut has_pages, mut heard) = (None, false, Heard::default());
    // Its parent's engine waits for this one.
    let mut expecting = Some(program.board.load(Relaxed)).filter(|_| origin != FRESH);
    let booted = match closed {
        Ok(()) => {
            if origin != FRESH {
                early = lazy::begin(program, inherited.as_ref());
            }
            if let Some(early) = &mut early {
                // It is connected.
                if let Some(board) = expecting.take() {
                    handover::child_is_up(board);
                }
                early.await_need(program, inherited.as_mut());
                // The board served to ask the parent's engine.
                for board in [&program.board, &program.elder] {
                    board.store(0, SeqCst);
                }
                host = early.host.try_clone().ok();
                has_pages = inherited.as_ref().is_some_and(Snapshot::has_pages);
                heard = core::mem::take(&mut early.heard);
            }
            boot(program, origin != FRESH, inherited, early, &mut heard)
        }
        Err(errno) => Err(BootError::System {
            what: "close_range",
            errno,
        }),
    };
    if let Some(board) = expecting {
        handover::child_is_up(board);
    }
    // SAFETY: the snapshot has been read; nothing else points into the remains of the parent's engine.
    unsafe { own_memory::unmap_inherited(|_| true) };
    match booted {
        Ok(mut pager) => {
            program.set_state(if pager.mode == Mode::Armed {
                state::ARMED
            } else {
                state::BARE
            });
            pager.serve();
        }
        // A program that was killed meanwhile needs no report.
        Err(_) if host.as_ref().is_some_and(Host::has_ended) => {}
        Err(error) => {
            let pid = program.pid.load(Relaxed);
            let hint = error.hint();
            let text = format!("process {pid} is not managed: {error}{hint}");
            program.note_failure(&text);
            let told = Client::connect(&program.socket_name())
                .and_then(|client| client.log(Severity::Error, &text));
            // Without a supervisor there is no receiver.
            let _ = told;
            // Without the engine the program would lose its swapped pages.
            if let Some(host) = host.filter(|_| has_pages) {
                host.abort();
            }
            program.set_state(state::FAILED);
        }
    }
    guests::lose(program, heard);
    // Together with the threads that were already started.
    process::exit(0)
}

fn boot(
    program: &'static Program,
    forked: bool,
    inherited: Option<Snapshot>,
    early: Option<Early>,
    heard: &mut Heard,
) -> Result<Pager, BootError> {
    let is_early = early.is_some();
    let protection = early.as_ref().map(|early| early.protection);
    let copying = match &early {
        Some(early) => (early.copying.clone(), early.copied),
        None => (
            Copying::begin(program.pid.load(Relaxed), program.parent.load(Relaxed)),
            0,
        ),
    };
    let records = match &inherited {
        Some(snapshot) => (snapshot.parent(), snapshot.child()),
        None => (None, None),
    };
    let pid = program.pid.load(Relaxed);
    let opened = || program.heap.opened_bytes() as u64;
    let lift = || match limits::lift_program(pid, &program.lifted, opened()) {
        Err(errno) if !forked => Err(BootError::AddressSpace { errno }),
        _ => Ok(()),
    };
    lift()?;
    let (nest, client, office, welcome) = match early {
        Some(mut early) => {
            let welcome = early.client.hello(&early.host, records.0, records.1)?;
            let (nest, client) = Nest::grown(early)?;
            (nest, client, None, welcome)
        }
        None => {
            let host = Host::open(program.pid.load(Relaxed)).map_err(system("pidfd_open"))?;
            let (mut client, office, welcome) = join(program, &host, records)?;
            if !rustix::process::geteuid().is_root()
                && matches!(lazy::open_uffd(), Err(UffdError::NoPermission { .. }))
                && let Ok(device) = client.device()
            {
                // The program runs as another user than the supervisor.
                handed::hold(Handed::Userfaultfd, device);
            }
            (Nest::new(program, host)?, client, office, welcome)
        }
    };
    let Nest {
        host,
        uffd,
        quiet,
        doorbell,
        keeper,
        calls,
    } = nest;
    let ledger: &'static Ledger = Box::leak(Box::new(welcome.ledger));
    let me = welcome.record;
    crate::digest::set_key(ledger.digest_key());
    let options = ledger.options();
    for range in ledger.address_ranges() {
        hide(&range).map_err(system("hiding the ledger"))?;
    }

    if !forked && let Some(most) = limits::largest_file() {
        let size = |file: &OwnedFd| rustix::fs::fstat(file).map_or(0, |stat| stat.st_size as u64);
        let mut areas = welcome.areas.iter();
        // A RAM area is not written as a file.
        let is_file = |area| ledger.ram_usage(area).is_none();
        if areas.any(|(area, files)| is_file(*area) && size(&files.own) > most) {
            return Err(BootError::FileSize { most });
        }
    }

    // The limit may grow to this.
    let bound = ledger.bound_pages();
    let frames = (bound / 4)
        .clamp(512, 32768)
        .next_multiple_of(LEAF_PAGES as u64) as u32;
    let thp = match options.thp {
        ThpMode::Never => Thp::Never,
        ThpMode::Adaptive => Thp::Adaptive,
        ThpMode::Always => Thp::Always,
    };
    let clusters = match thp {
        Thp::Never => 0,
        Thp::Adaptive | Thp::Always => huge::clusters(bound),
    };
    let arena =
        Arena::new(frames + clusters * LEAF_PAGES as u32).map_err(system("mmap of the frames"))?;
    uffd.register_missing(arena.address(), arena.bytes())
        .map_err(system("UFFDIO_REGISTER of the frames"))?;
    let trash = Arena::new(TRASH).map_err(system("mmap of the trash"))?;
    quiet
        .register_missing(trash.address(), trash.bytes())
        .map_err(system("UFFDIO_REGISTER of the trash"))?;
    let zeros =
        own_memory::map(ZERO_PAGES as usize * PAGE_SIZE, Kind::Other).map_err(system("mmap"))?;
    let zeros = Zeros {
        start: zeros.as_ptr().cast_const().cast(),
        pages: ZERO_PAGES,
    };
    let bell = event().map_err(system("eventfd"))?;
    let unsharer = Unsharer::new(rustix::io::dup(&bell).map_err(system("dup"))?);
    let rings = || maps::read().map(|vmas| maps::rings(&vmas));
    let before = rings().map_err(system("reading maps"))?;
    let io = open_io(&options, &client, &[uffd.as_raw_fd(), quiet.as_raw_fd()])?;
    let after = rings().map_err(system("reading maps"))?;
    // The other ring belongs to the engine as well.
    let early = usize::from(keeper.is_some()).min(before);
    drop(keeper);
    let early = match early {
        0 => 0,
        _ => after.saturating_sub(rings().map_err(system("reading maps"))?),
    };
    let rings = after.saturating_sub(before);
    if before > early {
        program.about_to_lend();
    }
    let bell_of_helpers = rustix::io::dup(&bell).map_err(system("dup"))?;
    let helpers = Helpers::new(
        options.helpers as usize,
        number_in_order,
        bell_of_helpers,
        helpers_of(Cpus::now()),
    );
    let lent = Lent::new(&program.lends, arena.frames());
    let announced = guard::start(program, &host, &client).map_err(system("clone of the guard"))?;
    let huge = huge::Huge::new(&quiet).map_err(system("mmap for huge pages"))?;
    let mut w = Linux::new(
        uffd,
        quiet,
        arena,
        trash,
        lent,
        huge,
        WithRam::new(io, helpers),
        ledger,
        me,
        zeros,
        unsharer,
        client,
    );
    w.pid = host.pid();
    if let Some(key) = welcome.key {
        w.encrypt_with(crate::key::cipher(key)?)
            .map_err(system("mmap of the buffers"))?;
    }
    for (area, files) in &welcome.areas {
        w.open_area(*area, files, &bell)
            .map_err(system("opening a swap area"))?;
    }
    if let Some(ring) = welcome.ring {
        hide(&ring.address_range()).map_err(system("hiding the ring"))?;
        w.recorder = Some(Box::new(Recorder::new(ring)));
    }
    let max = options.max_window;
    let readahead = match options.readahead {
        ReadaheadPolicy::None => Policy::None,
        ReadaheadPolicy::Streams => Policy::Streams(max),
        // The maximum of the kernel.
        ReadaheadPolicy::Vma => Policy::Vma(max.min(32)),
        ReadaheadPolicy::Cluster => Policy::Cluster(max),
        ReadaheadPolicy::Trend => Policy::Trend(max),
    };
    let config = Config {
        frames,
        depth: DEPTH,
        readahead,
        reclaim: options.reclaim,
        full_timeout: options
            .full_timeout
            .as_nanos()
            .try_into()
            .unwrap_or(u64::MAX),
        first_touch: 256,
        swapoff: Swapoff::Stream,
        thp,
        clusters,
    };
    let space = Space::open(program, rings).map_err(system("opening /proc/self"))?;
    let mm = Mm::new(config, ledger.limit_pages());
    let mut pager = Pager::new(program, doorbell, mm, w, bell, welcome.areas, space);
    (pager.announced, pager.office) = (Some(announced), office);
    watch::start(&pager, host).map_err(system("clone of the watcher"))?;
    lift()?;
    // From here on the program depends on the engine.
    if let Some(client) = &pager.w.client {
        client.keep(&[pager.w.program.as_fd()])?;
    }
    pager.early_calls = calls;
    if forked {
        let (mut copying, copied) = copying;
        // A bare parent has copied nothing.
        let unasked = program.unasked.load(Relaxed);
        let family = program.family.load(Relaxed);
        let joined = copying.join(ledger, me, family);
        pager.join_family(if joined { family } else { 0 });
        pager.w.copying = copying;
        pager.w.account.begin_debt(copied, unasked);
        pager.w.set_protection(protection.unwrap_or_default());
    } else {
        pager.join_family(0);
    }
    match inherited.filter(Snapshot::has_regions) {
        Some(snapshot) => inherit::inherit(&mut pager, snapshot, heard, is_early)?,
        // The parent was bare; the child is too, if both fit.
        None if forked => _ = pager.extend_grant(),
        None => {
            pager.await_room();
            pager.extend_grant();
        }
    }
    if forked {
        if let Some(client) = &pager.w.client {
            // Without a supervisor there is nobody to know it.
            let _ = client.has_inherited();
        }
        let shared = pager.mm.shared();
        pager.w.begin_to_pay(shared);
    }
    pager.drain_as_ordered();
    Ok(pager)
}

/// The resources of an engine that waits to be needed, or its new ones.
struct Nest {
    host: Host,
    uffd: Uffd,
    quiet: Uffd,
    doorbell: Doorbell,
    keeper: Option<Uring>,
    calls: Vec<SlotIndex>,
}

impl Nest {
    fn grown(early: Early) -> Result<(Self, Client), BootError> {
        let nest = Nest {
            host: early.host,
            uffd: match early.program {
                Some(uffd) => uffd,
                None => lazy::open_uffd()?,
            },
            quiet: early.quiet,
            doorbell: early.doorbell,
            keeper: early.ring,
            calls: early.calls,
        };
        Ok((nest, early.client))
    }

    /// With descriptors from the parent's engine, if they are needed.
    fn new(program: &Program, host: Host) -> Result<Self, BootError> {
        let uffd = lazy::open_uffd()?;
        let quiet = Uffd::open(Features::MOVE)?;
        let doorbell = Doorbell::new(&quiet).map_err(system("mmap of the doorbell"))?;
        program.ring.store(doorbell.ring().to_address(), Release);
        Ok(Nest {
            host,
            uffd,
            quiet,
            doorbell,
            keeper: None,
            calls: Vec::new(),
        })
    }
}

/// Says hello to the supervisor, over a connection from the parent's engine if there is no other.
fn join(
    program: &Program,
    host: &Host,
    (parent, record): (Option<ProcId>, Option<ProcId>),
) -> Result<(Client, Option<Client>, Welcome), BootError> {
    let boards = [&program.board, &program.elder].map(|board| board.swap(0, SeqCst));
    if !handover::has_to_ask(boards) {
        match Client::connect(&program.socket_name()) {
            Ok(mut client) => {
                let welcome = client.hello(host, parent, record)?;
                return Ok((client, None, welcome));
            }
            // In another network namespace the socket has no such name.
            Err(_) if boards[0] != 0 => {}
            Err(error) => return Err(error.into()),
        }
    }
    match handover::ask(boards) {
        Some(given) => {
            program.elder.store(given.elder, Release);
            let (mut client, office) = (given.client, given.office);
            let welcome = client.hello(host, parent, record)?;
            Ok((client, Some(office), welcome))
        }
        None => Err(ProtocolError::Closed.into()),
    }
}

/// Keep a mapping of the ledger out of adoption and out of fork children, which attach it themselves.
pub(super) fn hide(range: &core::ops::Range<usize>) -> Result<(), Errno> {
    let at = range.start as *mut c_void;
    // SAFETY: the mapping stays as it is in this process.
    unsafe { madvise(at, range.len(), Advice::LinuxDontFork) }?;
    let listed = own_memory::list(range.start, range.len(), Kind::Ledger);
    listed.then_some(()).ok_or(Errno::NOMEM)
}

/// A range of pages in bytes.
pub fn bytes_of(range: &PageRange) -> core::ops::Range<usize> {
    range.start.address() as usize..range.end.address() as usize
}

/// A range of bytes in whole pages.
pub fn pages_of(range: &core::ops::Range<usize>) -> PageRange {
    Vpn::of(range.start as u64)..Vpn::of(range.end.next_multiple_of(PAGE_SIZE) as u64)
}

pub(super) fn event() -> Result<OwnedFd, Errno> {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}
