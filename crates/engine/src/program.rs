//! The engine's code that program threads run.
//!
//! A program thread notices that memory grew, or is about to fork, and calls the pager. It must not allocate, take a
//! lock that the engine takes, or touch thread-local data of the engine: it may be anywhere in the program, in a
//! signal handler, on a stack that is itself managed. It therefore uses only a few atomics here, and the doorbell.

mod allowance;
mod forks;
mod regions;

use core::ffi::c_int;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

use foreswap_core::units::PAGE_SIZE;
use rustix::thread::futex::{self, Timespec};

use crate::sys::arena_alloc::EngineAlloc;
use crate::sys::doorbell::Ring;
use crate::sys::gate::{Gate, Inside};
use crate::sys::stacks::ControlBlocks;
use crate::sys::thread::Thread;
use allowance::Allowance;
pub use forks::Forks;
pub use regions::{Listed, MOST_REGIONS, Regions};

/// Values of [`Program::state`].
pub mod state {
    /// No engine: the program is small.
    pub const OFF: u32 = 0;
    /// The engine is starting; wait for it.
    pub const STARTING: u32 = 1;
    /// The engine watches, but all memory fits: nothing is registered.
    pub const BARE: u32 = 2;
    /// Memory is managed.
    pub const ARMED: u32 = 3;
    /// The engine could not start; the process runs unmanaged, which was reported.
    pub const FAILED: u32 = 4;
}

/// Requests over the doorbell: the number in word 0, arguments in the words after it.
pub mod request {
    /// Memory appeared at word 1, word 2 bytes of it, private and anonymous. If they are fewer than [`super::SMALL`],
    /// the memory is managed beside managed memory only.
    pub const GREW: u64 = 1;
    /// Unknown memory was seen at word 1.
    pub const SEEN: u64 = 2;
    /// About to fork: hold. Answer: one of [`super::hold`] in word 0, the snapshot in word 1.
    pub const HOLD: u64 = 3;
    /// The fork is over, in the parent. Answer: the fork's number in word 0.
    pub const RELEASE: u64 = 4;
    /// The program gave advice for the memory at word 1, word 2 bytes of it: word 3, a number of `madvise`. Answer:
    /// the number of its managed pages, in word 0.
    pub const ADVISE: u64 = 5;
    /// The result of the fork with the number in word 1: the child's process id in word 2, or 0 if there is none.
    pub const FORKED: u64 = 6;
    /// A thread is about to guard memory at word 1, word 2 bytes of it, or to remove guards: word 3, a number of
    /// `madvise`.
    pub const GUARD: u64 = 7;
    /// The program wants to serve the memory at word 1, word 2 bytes of it, itself (a userfaultfd of its own). It has
    /// touched all of it. Answer: whether it is no longer managed, in word 0.
    pub const LET_GO: u64 = 8;
    /// About to execute a file, which may fail: check whether the memory is still the program's.
    pub const EXECUTES: u64 = 9;
    /// The kernel refused to move the memory at word 1, word 2 bytes of it, as a whole. Answer: whether it is uniform
    /// now, in word 0.
    pub const JOIN: u64 = 10;
    /// A file is mapped at word 1, word 2 bytes of it; word 3: see [`super::FileMapping`]. Answer: whether the
    /// pager serves it from now on, in word 0.
    pub const MAP_FILE: u64 = 11;
    /// The program wants to map more behind the memory at word 1, word 2 bytes of it. Answer: whether it is of a file
    /// that the pager serves, in word 0.
    pub const IS_FILE: u64 = 12;
}

/// Answers to [`request::HOLD`].
pub mod hold {
    /// No page is swapped; the child starts anew, with the charge in the snapshot.
    pub const BARE: u64 = 1;
    /// The snapshot is ready.
    pub const READY: u64 = 2;
    /// A snapshot is impossible; a child would lose memory and must not run.
    pub const IMPOSSIBLE: u64 = 3;
}

/// Numbers of `madvise` that some C libraries' headers lack.
pub const MADV_GUARD_INSTALL: c_int = 102;
/// As [`MADV_GUARD_INSTALL`].
pub const MADV_GUARD_REMOVE: c_int = 103;

/// Mappings of fewer bytes are managed only beside managed memory ([`foreswap_core::Mm::takes_new`]).
pub const SMALL: usize = foreswap_core::SMALL as usize * PAGE_SIZE;

/// Bytes for the name of the supervisor's socket.
pub const SOCKET_BYTES: usize = 108;
/// Bytes for the reason of a failed start.
const FAILURE_BYTES: usize = 512;

/// State shared by the program's threads and the engine's. One per process, in static memory.
pub struct Program {
    /// See [`state`].
    pub state: AtomicU32,
    /// The process of this state; a vfork child differs.
    pub pid: AtomicU32,
    /// The process that forked it, if that was managed.
    pub parent: AtomicU32,
    /// The number of its family in the ledger, once it has an engine; of the parent's family in a child without one.
    pub family: AtomicU32,
    /// The family's count of unasked pages at the last fork: see `process::Debt` in the core.
    pub unasked: AtomicU64,
    /// The growth of a bare process before the engine must be asked.
    pub allowance: Allowance,
    /// Bytes that may still appear in a forked child before its engine comes up.
    pub spare: AtomicI64,
    /// Bytes that appeared before there was an engine.
    pub seen: AtomicU64,
    /// The size in bytes above which an engine is started.
    pub threshold: AtomicU64,
    /// The address of the doorbell; 0 before there is one.
    pub ring: AtomicUsize,
    /// Forks in progress.
    pub forks: Forks,
    /// The board over which the engine helps the engines of forked children; 0 before there is one.
    pub board: AtomicUsize,
    /// The board of the last process before this one whose engine needed no help.
    pub elder: AtomicUsize,
    /// The program, or an ancestor, has asked for memory to be wiped in children.
    pub wipes: AtomicBool,
    /// The program, or an ancestor, has given advice for some memory: the kernel's map keeps it, in case the memory
    /// becomes managed later.
    pub hints: AtomicBool,
    /// The program, or an ancestor, has refused huge pages for some memory.
    pub no_huge: AtomicBool,
    /// The program, or an ancestor, is about to lend memory to the kernel, or has (see `pager::world::lent`).
    pub lends: AtomicBool,
    /// Bytes by which the program's limits on address space and data were raised for the engine: see `sys::limits`.
    pub lifted: [AtomicU64; 2],
    /// The program, or an ancestor, has mapped a file that an engine serves.
    pub files: AtomicBool,
    /// Calls of the C library that unmap or replace memory, if the program has mapped such a file.
    pub gate: Gate,
    /// The program can map memory past the C library: see [`crate::lookout`].
    pub bypasses: AtomicBool,
    /// Calls of the C library that put memory in the place of other memory, and report it before they return.
    pub replacing: AtomicU32,
    /// Threads whose creation began, and threads that are created: in between, a stack is not recognisable.
    pub threads: [AtomicU32; 2],
    /// The C library's control blocks of the threads.
    pub control_blocks: ControlBlocks,
    /// The engine's allocator.
    pub heap: &'static EngineAlloc,
    /// The memory that is managed, if it is not all private anonymous memory.
    pub regions: Regions,
    /// Why there is no engine, zero-terminated.
    failure: [AtomicU8; FAILURE_BYTES],
    /// Name of the supervisor's socket, zero-terminated.
    pub socket: [AtomicU32; SOCKET_BYTES / 4],
}

impl Program {
    /// The initial state.
    pub const fn new(heap: &'static EngineAlloc) -> Self {
        Program {
            state: AtomicU32::new(state::OFF),
            pid: AtomicU32::new(0),
            parent: AtomicU32::new(0),
            family: AtomicU32::new(0),
            unasked: AtomicU64::new(0),
            allowance: Allowance::new(),
            spare: AtomicI64::new(0),
            seen: AtomicU64::new(0),
            threshold: AtomicU64::new(u64::MAX),
            ring: AtomicUsize::new(0),
            heap,
            forks: Forks::new(),
            board: AtomicUsize::new(0),
            elder: AtomicUsize::new(0),
            wipes: AtomicBool::new(false),
            hints: AtomicBool::new(false),
            no_huge: AtomicBool::new(false),
            lends: AtomicBool::new(false),
            files: AtomicBool::new(false),
            gate: Gate::new(),
            lifted: [const { AtomicU64::new(0) }; 2],
            bypasses: AtomicBool::new(false),
            replacing: AtomicU32::new(0),
            threads: [const { AtomicU32::new(0) }; 2],
            control_blocks: ControlBlocks::new(),
            regions: Regions::new(),
            failure: [const { AtomicU8::new(0) }; FAILURE_BYTES],
            socket: [const { AtomicU32::new(0) }; SOCKET_BYTES / 4],
        }
    }

    /// Called once, before `main`: the supervisor's socket and the size at which to start.
    pub fn configure(&self, socket: &[u8], threshold: u64) -> bool {
        if socket.is_empty() || socket.len() >= SOCKET_BYTES {
            return false;
        }
        for (i, word) in self.socket.iter().enumerate() {
            let mut bytes = [0; 4];
            for (j, byte) in bytes.iter_mut().enumerate() {
                *byte = socket.get(i * 4 + j).copied().unwrap_or(0);
            }
            word.store(u32::from_ne_bytes(bytes), Relaxed);
        }
        self.pid.store(own_pid(), Relaxed);
        self.threshold.store(threshold, Release);
        true
    }

    /// Name of the supervisor's socket.
    pub fn socket_name(&self) -> String {
        let bytes = self
            .socket
            .iter()
            .flat_map(|word| word.load(Relaxed).to_ne_bytes());
        let name: Vec<u8> = bytes.take_while(|&b| b != 0).collect();
        String::from_utf8_lossy(&name).into_owned()
    }

    /// `bytes` of private anonymous memory appeared at `address`.
    #[inline]
    pub fn grew(&self, address: usize, bytes: usize) {
        if self.absorbs(bytes) {
            return;
        }
        self.tell(request::GREW, address, bytes);
    }

    /// Memory of unknown extent was seen at `address`; at least `bytes` of it are new.
    #[inline]
    pub fn seen(&self, address: usize, bytes: usize) {
        if self.absorbs(bytes) {
            return;
        }
        self.tell(request::SEEN, address, bytes);
    }

    /// The program uses `bytes` more of memory that is managed once there is an engine, but that did not count before
    /// (a reserved arena that opens).
    pub fn used(&self, bytes: usize) {
        if self.state.load(Acquire) != state::ARMED && !self.absorbs(bytes) {
            self.tell(request::SEEN, 0, bytes);
        }
    }

    /// The program gave `advice` (a number of `madvise`) for `bytes` of memory at `address`. Returns whether some of
    /// it is managed.
    pub fn advised(&self, address: usize, bytes: usize, advice: i32) -> bool {
        // Bare memory is all resident; a lasting hint is in the kernel's map.
        self.state.load(SeqCst) == state::ARMED && {
            let words = [
                request::ADVISE,
                address as u64,
                bytes as u64,
                advice.cast_unsigned().into(),
            ];
            self.call(words)[0] > 0
        }
    }

    /// The program has mapped a file of those that are to be served, `bytes` at `address`. Whether the pager serves the
    /// mapping from now on; otherwise it is as the program made it. A process that is small gets an engine by it.
    pub fn maps_file(&self, address: usize, bytes: usize, file: FileMapping) -> bool {
        let Some(word) = file.word() else {
            return false;
        };
        loop {
            if self.pid.load(Relaxed) != own_pid() {
                // A vfork child has descriptors of its own.
                return false;
            }
            match self.state.load(Acquire) {
                state::OFF if self.threshold.load(Relaxed) != u64::MAX => {
                    crate::pager::start(self, crate::pager::Origin::Fresh);
                }
                state::STARTING => self.await_start(),
                state::BARE | state::ARMED => {
                    self.files.store(true, SeqCst);
                    let words = [request::MAP_FILE, address as u64, bytes as u64, word];
                    return self.call(words)[0] > 0;
                }
                _ => return false,
            }
        }
    }

    /// A thread is about to unmap or replace memory, until the answer is dropped.
    #[inline]
    pub fn replaces(&self) -> Option<Inside<'_>> {
        self.files.load(SeqCst).then(|| self.gate.enter())
    }

    /// Whether the memory at `address`, `bytes` of it, is of a file that the pager serves.
    pub fn is_file(&self, address: usize, bytes: usize) -> bool {
        self.files.load(SeqCst)
            && self.state.load(SeqCst) == state::ARMED
            && self.call([request::IS_FILE, address as u64, bytes as u64, 0])[0] > 0
    }

    /// The program is about to lend memory to the kernel.
    #[inline]
    pub fn about_to_lend(&self) {
        if !self.lends.load(Relaxed) {
            self.lends.store(true, SeqCst);
        }
    }

    /// Whether the memory at `address`, `bytes` of it, is no longer managed. All of it must be present.
    pub fn lets_go(&self, address: usize, bytes: usize) -> bool {
        self.state.load(SeqCst) != state::ARMED
            || self.call([request::LET_GO, address as u64, bytes as u64, 0])[0] > 0
    }

    /// The kernel did not accept the memory at `address`, `bytes` of it, as one mapping: the engine's registration in
    /// parts may be the cause, and is repaired.
    pub fn joins(&self, address: usize, bytes: usize) -> Joined {
        let [whole, start, end, _] = match self.state.load(SeqCst) {
            state::ARMED => self.call([request::JOIN, address as u64, bytes as u64, 0]),
            _ => [0; 4],
        };
        Joined {
            whole: whole > 0,
            next: start as usize..end as usize,
        }
    }

    /// The heap returned `bytes`. Matters only before there is an engine, which sees it itself.
    pub fn shrank(&self, bytes: usize) {
        if self.state.load(Relaxed) == state::OFF {
            let less = |seen: u64| Some(seen.saturating_sub(bytes as u64));
            let _ = self.seen.fetch_update(Relaxed, Relaxed, less);
        }
    }

    /// The thread is about to guard `bytes` of memory at `address`, or to remove guards, according to `advice` (a
    /// number of `madvise`). In managed memory the pager has done it when this returns.
    pub fn guards(&self, address: usize, bytes: usize, advice: i32) {
        let advice = advice.cast_unsigned().into();
        self.call([request::GUARD, address as u64, bytes as u64, advice]);
    }

    /// The number of threads created; `None` while one is being created.
    pub fn threads_made(&self) -> Option<u32> {
        let [begun, made] = &self.threads;
        let made = made.load(SeqCst);
        (begun.load(SeqCst) == made).then_some(made)
    }

    /// No call of the pager is needed yet.
    fn absorbs(&self, bytes: usize) -> bool {
        match self.state.load(Acquire) {
            state::OFF => {
                let seen = self.seen.fetch_add(bytes as u64, Relaxed) + bytes as u64;
                seen < self.threshold.load(Relaxed)
            }
            state::BARE => self.allowance.takes(bytes as u64),
            state::ARMED => {
                let bytes = bytes as i64;
                self.spare.load(Relaxed) >= bytes && self.spare.fetch_sub(bytes, Relaxed) >= bytes
            }
            state::FAILED => true,
            _ => false,
        }
    }

    #[cold]
    fn tell(&self, number: u64, address: usize, bytes: usize) {
        loop {
            match self.state.load(Acquire) {
                state::OFF => {
                    if self.pid.load(Relaxed) != own_pid() {
                        // A vfork child: it uses the parent's memory and ends soon.
                        return;
                    }
                    crate::pager::start(self, crate::pager::Origin::Fresh);
                }
                state::STARTING => self.await_start(),
                state::BARE | state::ARMED => {
                    self.call([number, address as u64, bytes as u64, 0]);
                    return;
                }
                _ => return,
            }
        }
    }

    /// Starts the engine now, however small the program is; returns when it is up. Fails with the reason, which the
    /// supervisor has printed as well.
    pub fn start(&self) -> Result<(), String> {
        crate::pager::start(self, crate::pager::Origin::Fresh);
        match self.state.load(Acquire) {
            state::BARE | state::ARMED => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// Why the engine could not start; empty if it was killed or no process could be started.
    pub fn failure(&self) -> String {
        let bytes = self.failure.iter().map(|byte| byte.load(Relaxed));
        let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The engine cannot start. Before the state says so.
    pub(crate) fn note_failure(&self, why: &str) {
        let bytes = why.bytes().chain([0]);
        for (at, byte) in self.failure[..FAILURE_BYTES - 1].iter().zip(bytes) {
            at.store(byte, Relaxed);
        }
    }

    /// Wait until the engine is up or has failed.
    pub fn await_start(&self) {
        while self.state.load(Acquire) == state::STARTING {
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, state::STARTING, None);
        }
    }

    /// As [`Self::await_start`], for the thread that started `engine`, which may be killed before it can answer.
    pub fn await_engine(&self, engine: &Thread) {
        while self.state.load(Acquire) == state::STARTING {
            if !engine.is_alive() {
                let (from, to) = (state::STARTING, state::FAILED);
                if self
                    .state
                    .compare_exchange(from, to, SeqCst, SeqCst)
                    .is_ok()
                {
                    say(b"foreswap: this process is not managed: its engine was killed\n");
                    self.set_state(to);
                }
                return;
            }
            let second = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            let flags = futex::Flags::PRIVATE;
            let _ = futex::wait(&self.state, flags, state::STARTING, Some(&second));
        }
    }

    /// This thread is about to execute another file. If it is the program's and succeeds, the memory has no owner any
    /// more, and the engine must notice soon.
    pub fn executes(&self) {
        let has_engine = matches!(self.state.load(Acquire), state::BARE | state::ARMED);
        if has_engine && self.pid.load(Relaxed) == own_pid() {
            self.call([request::EXECUTES, 0, 0, 0]);
        }
    }

    /// Publish a new state and wake its waiters.
    pub fn set_state(&self, state: u32) {
        self.state.store(state, SeqCst);
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    fn call(&self, words: [u64; 4]) -> [u64; 4] {
        let ring = self.ring.load(Acquire);
        // SAFETY: the ring is set before the state says that there is an engine, and lives until the
        // process ends; a fork child forgets it first.
        let ring = unsafe { Ring::from_address(ring) };
        let answer = ring.and_then(|ring| ring.call(words));
        if answer.is_none() && self.pid.load(Relaxed) != own_pid() {
            // The child of a fork past the C library: it has no engine.
            self.set_state(state::FAILED);
        }
        answer.unwrap_or([0; 4])
    }
}

/// A mapping of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMapping {
    /// The program's descriptor.
    pub fd: c_int,
    /// The first page of the file.
    pub first: u64,
    /// It shows what others write to the file.
    pub shared: bool,
}

impl FileMapping {
    /// As a word of a request; `None` if it does not fit.
    fn word(self) -> Option<u64> {
        let fd = u32::try_from(self.fd).ok()?;
        let first = u32::try_from(self.first).ok()?;
        Some(u64::from(first) << 32 | u64::from(fd) << 1 | u64::from(self.shared))
            .filter(|_| fd < 1 << 31)
    }

    /// From the word of a request.
    pub fn from_word(word: u64) -> Self {
        FileMapping {
            fd: (word as u32 >> 1).cast_signed(),
            first: word >> 32,
            shared: word & 1 != 0,
        }
    }
}

/// The answer of [`Program::joins`].
#[derive(Debug)]
pub struct Joined {
    /// All of it is managed, and may be one mapping to the program.
    pub whole: bool,
    /// The first mapping that ends behind the address; empty if there is none.
    pub next: core::ops::Range<usize>,
}

/// The id of this process, from the kernel (a vfork child must not get a cached one).
pub fn own_pid() -> u32 {
    rustix::process::getpid()
        .as_raw_nonzero()
        .get()
        .cast_unsigned()
}

/// Print a message on standard error from a program thread.
pub fn say(text: &[u8]) {
    // SAFETY: the descriptor is only borrowed for the call; if it is closed the call fails.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2 as c_int) };
    let _ = rustix::io::write(stderr, text);
}

fn end(status: i32) -> ! {
    crate::sys::process::exit(status)
}
