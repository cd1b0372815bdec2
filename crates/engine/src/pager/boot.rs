//! How an engine comes up in a process.
//!
//! The program thread that noticed growth, or that just became a fork child, starts the engine's
//! process (`sys/beside.rs`) and waits. Its first thread is the pager, which gives up what it has of
//! the program's descriptors, folder and process group, gets itself the supervisor's welcome, two
//! userfaultfds, frames and a ring, and then says how it went.

use std::ffi::c_void;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

use foreswap_core::readahead::Policy;
use foreswap_core::units::{LEAF_PAGES, PAGE_SIZE, PageRange, Vpn, overlap};
use foreswap_core::world::{Limit, SwapMap};
use foreswap_core::{Config, Mm, Stored, Swapoff, Thp};
use foreswap_store::ring::{
    Helper, Helpers, Io, Pool, Spawn, SpawnRefused, Uring, WithRam, Worker,
};
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::frames::Arena;
use super::huge;
use super::record::Recorder;
use super::snapshot::{Fate, Snapshot};
use super::space::Space;
use super::unshare::Unsharer;
use super::world::{Lent, Linux, Zeros};
use super::{Fork, Mode, Pager, guard, handover, panic, watch};
use crate::digest::number_in_order;
use crate::ledger::protocol::{Client, ProtocolError, Severity, Welcome};
use crate::ledger::{IoBackend, Ledger, Options, ProcId, ReadaheadPolicy, SeenKind, ThpMode};
use crate::program::{Program, say, state};
use crate::sys::cpu::Cpus;
use crate::sys::doorbell::Doorbell;
use crate::sys::host::Host;
use crate::sys::own_memory::{self, Kind};
use crate::sys::uffd::{Features, Uffd, UffdError};
use crate::sys::{beside, handed, limits, maps, process, thread};

/// The name of the engine's process. Not the command's: `pkill foreswap` is meant for the run.
const NAME: &core::ffi::CStr = c"fs-pager";
/// Stack of the pager.
const STACK: usize = 512 << 10;
/// Stack of a helper: it hashes and compresses.
const HELPER_STACK: usize = 256 << 10;
/// I/Os in flight.
const DEPTH: u32 = 128;
/// Threads that stand in for io_uring.
const POOL_THREADS: usize = 4;
/// Frames that are given back in one go.
const TRASH: u32 = 64;
/// The largest batch that is mapped or filled at once.
const ZERO_PAGES: u32 = 512;

/// Why no engine came up.
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
        /// Which.
        what: &'static str,
        /// How.
        errno: Errno,
    },
    /// The swap area exceeds what may be written.
    #[error(
        "it may write files of {most} bytes at the most (ulimit -f), less than the swap area, and cannot raise that \
         without privileges"
    )]
    FileSize {
        /// The limit.
        most: u64,
    },
    /// The engine's mappings would take from what the program may have.
    #[error(
        "its address space is limited (ulimit -v or -d), and the limit cannot be raised by what foreswap needs \
         without privileges: {errno}"
    )]
    AddressSpace {
        /// How.
        errno: Errno,
    },
    /// The parent's memory moved during the fork.
    #[error("other threads moved memory (mremap) too often while the process forked")]
    Spoilt,
    /// Neither io_uring nor threads.
    #[error("no way to reach the swap areas: {0}")]
    Io(String),
}

fn system(what: &'static str) -> impl Fn(Errno) -> BootError {
    move |errno| BootError::System { what, errno }
}

static PROGRAM: AtomicPtr<Program> = AtomicPtr::new(core::ptr::null_mut());
static SNAPSHOT: AtomicUsize = AtomicUsize::new(0);

/// Start the engine of this process and wait until it is up or has failed. `snapshot` is the address
/// of the parent's in a fork child, 0 otherwise. Runs on a thread of the program.
pub fn start(program: &Program, snapshot: usize) {
    // Asked for here, while nothing is managed; see there.
    crate::sys::modules::loaded();
    let starting = program
        .state
        .compare_exchange(state::OFF, state::STARTING, SeqCst, SeqCst);
    if starting.is_err() {
        return program.await_start();
    }
    PROGRAM.store(core::ptr::from_ref(program).cast_mut(), Release);
    SNAPSHOT.store(snapshot, Release);
    // SAFETY: `enter` never unwinds and keeps to what engine threads may do.
    let spawned = unsafe { beside::spawn(NAME, STACK, enter, core::ptr::null_mut()) };
    match spawned {
        Ok(engine) => program.await_engine(&engine),
        Err(_) => {
            say(b"foreswap: this process is not managed: no process could be started beside it\n");
            program.set_state(state::FAILED);
        }
    }
}

/// In a fork child: the parent's engine is not ours. Its threads are not here, its frames were not
/// copied; its heap stays until the snapshot has been read.
pub fn renounce_parent(program: &Program) {
    own_memory::forget_after_fork();
    own_memory::drop_from_list(|own| matches!(own.kind, Kind::Frames | Kind::Ledger));
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
    // The file table is a copy of the program's: nothing of it concerns us.
    // SAFETY: no descriptor of this process' table is in use yet.
    let closed = unsafe { process::close_all_files() };
    // Nor must the file system of its folder be kept from being unmounted, or its process group
    // be stopped or killed with us in it. Neither fails; if one did, only that would be lost.
    let _ = rustix::process::chdir(c"/");
    let _ = rustix::process::setpgid(None, None);
    limits::lift_own();
    handed::forget();
    panic::are_said(program);
    let booted = match closed {
        Ok(()) => boot(program),
        Err(errno) => Err(BootError::System {
            what: "close_range",
            errno,
        }),
    };
    // SAFETY: the snapshot has been read; nothing else points into what the parent's engine left.
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
        Err(error) => {
            let pid = program.pid.load(Relaxed);
            let text = format!("process {pid} is not managed: {error}");
            let told = Client::connect(&program.socket_name())
                .and_then(|client| client.log(Severity::Error, &text));
            // Without a supervisor there is nobody left to tell.
            let _ = told;
            program.set_state(state::FAILED);
        }
    }
    // With the threads that were started already.
    process::exit(0)
}

fn boot(program: &'static Program) -> Result<Pager, BootError> {
    let at = SNAPSHOT.swap(0, SeqCst);
    // SAFETY: the address is 0 or a snapshot that the parent wrote, which is still mapped.
    let inherited = unsafe { Snapshot::find(at) };
    let host = Host::open(program.pid.load(Relaxed)).map_err(system("pidfd_open"))?;
    let reserved = inherited
        .as_ref()
        .and_then(|s| Some((s.parent()?, s.child())));
    let (pid, is_first) = (host.pid(), inherited.is_none());
    let opened = || program.heap.opened_bytes() as u64;
    let lift = || match limits::lift_program(pid, &program.lifted, opened()) {
        Err(errno) if is_first => Err(BootError::AddressSpace { errno }),
        _ => Ok(()),
    };
    lift()?;
    let (client, office, welcome) = join(program, &host, reserved)?;
    let ledger: &'static Ledger = Box::leak(Box::new(welcome.ledger));
    let me = welcome.record;
    crate::digest::set_key(ledger.digest_key());
    let options = ledger.options();
    for range in ledger.address_ranges() {
        hide(&range).map_err(system("hiding the ledger"))?;
    }

    if inherited.is_none()
        && let Some(most) = limits::largest_file()
    {
        let size = |file: &OwnedFd| rustix::fs::fstat(file).map_or(0, |stat| stat.st_size as u64);
        let mut areas = welcome.areas.iter();
        // What is in memory is not written to as a file.
        let is_file = |area| ledger.ram_usage(area).is_none();
        if areas.any(|(area, files)| is_file(*area) && size(&files.own) > most) {
            return Err(BootError::FileSize { most });
        }
    }

    let uffd = Uffd::open(Features::NEEDED)?;
    let quiet = Uffd::open(Features::MOVE)?;
    let limit = ledger.limit_pages();
    let frames = (limit / 4)
        .clamp(512, 32768)
        .next_multiple_of(LEAF_PAGES as u64) as u32;
    let thp = match options.thp {
        ThpMode::Never => Thp::Never,
        ThpMode::Adaptive => Thp::Adaptive,
        ThpMode::Always => Thp::Always,
    };
    let clusters = match thp {
        Thp::Never => 0,
        Thp::Adaptive | Thp::Always => huge::clusters(limit),
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
    let mut io = open_io(&options, &client, &[uffd.as_raw_fd(), quiet.as_raw_fd()])?;
    let rings = rings()
        .map_err(system("reading maps"))?
        .saturating_sub(before);
    if before > 0 {
        program.about_to_lend();
    }
    let bell_of_helpers = rustix::io::dup(&bell).map_err(system("dup"))?;
    let helpers = Helpers::new(
        options.helpers as usize,
        number_in_order,
        bell_of_helpers,
        helpers_of(Cpus::now()),
    );
    for (area, files) in &welcome.areas {
        io.set_area(area.0.into(), Some(files.own.as_raw_fd()));
    }
    let areas: Vec<_> = welcome.areas.iter().map(|(area, _)| *area).collect();
    let doorbell = Doorbell::new(&quiet).map_err(system("mmap of the doorbell"))?;
    program.ring.store(doorbell.ring().to_address(), Release);

    let lent = Lent::new(&program.lends, arena.frames());
    let announced = guard::start(&host, &client).map_err(system("clone of the guard"))?;
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
    areas.into_iter().for_each(|area| w.open_ram(area));
    if let Some(ring) = welcome.ring {
        hide(&ring.address_range()).map_err(system("hiding the ring"))?;
        w.recorder = Some(Box::new(Recorder::new(ring)));
    }
    let max = options.max_window;
    let readahead = match options.readahead {
        ReadaheadPolicy::None => Policy::None,
        ReadaheadPolicy::Streams => Policy::Streams(max),
        // The ceiling of the kernel's.
        ReadaheadPolicy::Vma => Policy::Vma(max.min(32)),
        ReadaheadPolicy::Cluster => Policy::Cluster(max),
        ReadaheadPolicy::Trend => Policy::Trend(max),
    };
    let config = Config {
        frames,
        depth: DEPTH,
        readahead,
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
    let mm = Mm::new(config, limit);
    let mut pager = Pager::new(program, doorbell, mm, w, bell, welcome.areas, space);
    (pager.announced, pager.office) = (Some(announced), office);
    watch::start(&pager, host).map_err(system("clone of the watcher"))?;
    lift()?;
    // From here on the program depends on us.
    if let Some(client) = &pager.w.client {
        client.keep(&[pager.w.program.as_fd()])?;
    }
    match inherited {
        Some(snapshot) => inherit(&mut pager, &snapshot)?,
        None => {
            pager.await_room();
            pager.grant();
        }
    }
    pager.drain_as_ordered();
    Ok(pager)
}

/// Says hello to the supervisor, over what the parent's engine gives if there is no other way.
fn join(
    program: &Program,
    host: &Host,
    reserved: Option<(ProcId, ProcId)>,
) -> Result<(Client, Option<Client>, Welcome), BootError> {
    let boards = [&program.board, &program.elder].map(|board| board.swap(0, SeqCst));
    if !handover::has_to_ask(boards) {
        match Client::connect(&program.socket_name()) {
            Ok(mut client) => {
                let welcome = client.hello(host, reserved)?;
                return Ok((client, None, welcome));
            }
            // In another network it has no such name.
            Err(_) if boards[0] != 0 => {}
            Err(error) => return Err(error.into()),
        }
    }
    match handover::ask(boards) {
        Some(given) => {
            program.elder.store(given.elder, Release);
            let (mut client, office) = (given.client, given.office);
            let welcome = client.hello(host, reserved)?;
            Ok((client, Some(office), welcome))
        }
        None => Err(ProtocolError::Closed.into()),
    }
}

/// Keep a mapping of the ledger from adoption and from fork children, who attach for themselves.
pub(super) fn hide(range: &core::ops::Range<usize>) -> Result<(), Errno> {
    let at = range.start as *mut c_void;
    // SAFETY: the mapping stays as it is in this process.
    unsafe { madvise(at, range.len(), Advice::LinuxDontFork) }?;
    let listed = own_memory::list(range.start, range.len(), Kind::Ledger);
    listed.then_some(()).ok_or(Errno::NOMEM)
}

/// Take over the parent's memory: register it all, then find each page on an area or in memory.
fn inherit(pager: &mut Pager, snapshot: &Snapshot) -> Result<(), BootError> {
    if !snapshot.has_regions() {
        // The parent was bare; so is the child, for as long as both fit.
        pager.granted = snapshot.charged();
        pager.await_room();
        pager.grant();
        return Ok(());
    }
    if snapshot.is_spoilt() {
        return Err(BootError::Spoilt);
    }
    pager.mode = Mode::Armed;
    pager.fork = Fork::None;
    let w = &mut pager.w;
    w.prepaid = snapshot.charged();
    // A region that another thread of the parent unmapped or moved in the last moment is not there,
    // is cut, or has made place for something else: what is left of it is found in the maps.
    let vmas = pager.space.anonymous().map_err(system("reading maps"))?;
    let mut regions: Vec<PageRange> = Vec::new();
    for (region, _) in snapshot.regions() {
        for vma in &vmas {
            let part = overlap(&region, &pages_of(vma));
            let bytes = bytes_of(&part);
            if bytes.is_empty() {
                continue;
            }
            match w.program.register_missing(bytes.start, bytes.len()) {
                Ok(()) => regions.push(part),
                // Of a kind that was never managed.
                Err(Errno::INVAL) => {}
                Err(errno) => return Err(system("UFFDIO_REGISTER")(errno)),
            }
        }
    }
    for region in &regions {
        w.record(|to| to.change(SeenKind::Map, region));
        pager.mm.adopt(w, region.clone(), &[]);
    }
    for (region, hint) in snapshot.regions() {
        pager
            .mm
            .advise(w, &region, foreswap_core::Advice::Use(hint));
    }
    let wiped = if pager.program.wipes.load(Relaxed) {
        let found = maps::wiped_on_fork().map_err(system("reading smaps"))?;
        found.iter().map(pages_of).collect()
    } else {
        Vec::new()
    };
    for (page, stored, fate) in snapshot.pages() {
        let is_wiped = wiped.iter().any(|range| range.contains(&page));
        if fate == Fate::Forgotten || is_wiped || !pager.mm.manages(page) {
            if let Stored::In(slot) = stored {
                pager.w.put(slot);
            }
            continue;
        }
        let found = pager.space.present(&(page..page.plus(1)));
        let present = !found.map_err(system("reading pagemap"))?.is_empty();
        let came_back = fate == Fate::CameBack;
        if present && !came_back {
            // A stray: something between the fork and now wrote to it while it was not ours yet.
            // What the page held is known.
            drop_page(pager, page)?;
        }
        pager
            .mm
            .inherit(&mut pager.w, page, stored, present && came_back);
    }
    for region in regions {
        let found = pager.space.look(&region);
        let (present, guards) = found.map_err(system("reading pagemap"))?;
        pager.mm.adopt(&mut pager.w, region, &present);
        for guarded in guards {
            pager.mm.guard(&mut pager.w, &guarded);
        }
    }
    let unused = std::mem::take(&mut pager.w.prepaid);
    pager.w.uncharge(unused);
    debug_assert!(pager.w.available() <= pager.w.limit());
    Ok(())
}

/// Drop one page of the program; the event that this raises is read here, as nobody else can.
fn drop_page(pager: &Pager, page: Vpn) -> Result<(), BootError> {
    let at = page.address() as usize;
    let uffd = &pager.w.program;
    uffd.unregister(at, PAGE_SIZE)
        .map_err(system("UFFDIO_UNREGISTER"))?;
    // SAFETY: the page's content is void, and its only thread waits for us.
    unsafe { madvise(at as *mut c_void, PAGE_SIZE, Advice::LinuxDontNeed) }
        .map_err(system("madvise(DONTNEED)"))?;
    uffd.register_missing(at, PAGE_SIZE)
        .map_err(system("UFFDIO_REGISTER"))
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

/// Opens what does the I/O, and keeps `descriptors` open in the program's memory itself, as [`Uring::keep`] says.
fn open_io(
    options: &Options,
    client: &Client,
    descriptors: &[RawFd],
) -> Result<Box<dyn Io>, BootError> {
    let refused = match options.io {
        IoBackend::Threads => None,
        IoBackend::Auto | IoBackend::Uring => match Uring::new(&[], DEPTH) {
            Ok(ring) => {
                // Where it is refused the supervisor alone keeps them.
                let _ = ring.keep(descriptors);
                return Ok(Box::new(ring));
            }
            Err(why) => Some(why.to_string()),
        },
    };
    if let Some(why) = refused {
        if options.io == IoBackend::Uring {
            return Err(BootError::Io(why));
        }
        let text = format!("io_uring is not available ({why}); {POOL_THREADS} threads do the I/O");
        // The supervisor says it once for all processes; if it is gone there is nobody to tell.
        let _ = client.log(Severity::Note, &text);
    }
    if let Ok(ring) = Uring::new(&[], 1) {
        // For this alone, and as long as the memory lives.
        let _ = ring.keep(descriptors);
        core::mem::forget(ring);
    }
    let spawn = |worker: Worker| {
        let (_, argument) = worker.into_raw();
        // SAFETY: a worker keeps to what engine threads may do and gets its argument alone.
        let spawned = unsafe { thread::spawn(c"fs-io", 64 << 10, true, work, argument) };
        spawned.map(drop).map_err(|errno| {
            // SAFETY: the thread did not start, so the argument was not used.
            drop(unsafe { Worker::from_raw(argument) });
            SpawnRefused(errno.raw_os_error())
        })
    };
    match Pool::new(&[], DEPTH, POOL_THREADS, spawn) {
        Ok(pool) => Ok(Box::new(pool)),
        Err(why) => Err(BootError::Io(why.to_string())),
    }
}

/// Starts a helper, which may run on `cpus`.
fn helpers_of(cpus: Cpus) -> Spawn {
    Box::new(move |helper: Helper| {
        let argument = helper.into_raw();
        // SAFETY: a helper keeps to what engine threads may do and gets its argument alone.
        let spawned =
            unsafe { thread::spawn(c"fs-help", HELPER_STACK, true, run_helper, argument) };
        spawned
            .map(|thread| cpus.free(thread.tid()))
            .map_err(|errno| {
                // SAFETY: the thread did not start, so the argument was not used.
                drop(unsafe { Helper::from_raw(argument) });
                SpawnRefused(errno.raw_os_error())
            })
    })
}

extern "C" fn run_helper(argument: *mut c_void) {
    // SAFETY: `helpers_of` made the argument from a helper and gave it to this thread alone.
    unsafe { Helper::from_raw(argument) }.run();
}

extern "C" fn work(argument: *mut c_void) {
    // SAFETY: `open_io` made the argument from a worker and gave it to this thread alone.
    unsafe { Worker::from_raw(argument) }.run();
}
