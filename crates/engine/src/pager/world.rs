//! The core's world on Linux: userfaultfd, the ring, the ledger and the monotonic clock.
//!
//! This module translates the core's calls. Its only decisions concern the memory of lent frames (`lent`).

mod areas;
pub(super) mod kept;
mod lent;
mod mmu;
mod protection;
mod seat;
mod shared;

use core::ops::Range;
use std::ffi::c_void;

use foreswap_core::process::Account;
use foreswap_core::units::{Frame, LEAF_PAGES, Nanos, PAGE_SIZE, PageRange, Slot, Vpn};
use foreswap_core::world::{Clock, Disk, Done, IoId, Notice, Store, StoreId, World};
use foreswap_store::ring::{Io, IoVec, QueueError, WithRam};
use foreswap_store::seal::Cipher;
use rustix::time::{ClockId, clock_gettime};

use super::copies::Protection;
use super::copying::Copying;
use super::files::Files;
use super::frames::Arena;
use super::huge::Huge;
use super::moves::Move;
use super::record::Recorder;
use super::snapshot::Snapshot;
use super::tell::Told;
use super::unshare::Unsharer;
use crate::ledger::protocol::Client;
use crate::ledger::{AreaId, Ledger, MAX_AREAS, ProcId, ProcessMap};
use crate::sys::uffd::Uffd;
pub use kept::Kept;
pub use lent::Lent;
use protection::Unusual;

/// How often other processes are told of random faults, and how long they heed it.
const TOLD_EVERY: Nanos = 1_000_000;
const OTHERS_AT_RANDOM: Nanos = 50_000_000;

/// Everything outside the core, for one process.
pub struct Linux {
    /// Faults and events of the program's memory. The frames are registered on it too: the kernel refuses moves in
    /// both directions while an unmapping is in progress. Otherwise a page of a new mapping could be taken for one of
    /// the mapping that it replaced.
    pub program: Uffd,
    /// A userfaultfd without events, for memory that the engine itself discards: trash and doorbells.
    pub quiet: Uffd,
    /// The destination of frames whose memory is freed: discarding them in the arena would raise an event that only
    /// the pager could read.
    pub trash: Arena,
    /// The frames.
    pub arena: Arena,
    /// The frames whose memory may be lent to the kernel.
    pub lent: Lent,
    /// The memory that is kept from children.
    pub kept: Kept,
    /// The source and destination of huge pages.
    pub huge: Huge,
    /// The ring or the pool, the RAM areas and the far ones.
    pub io: WithRam,
    /// The cipher of a run that encrypts.
    pub cipher: Option<&'static Cipher>,
    /// Where the channels of far areas are.
    far_memory: Vec<(AreaId, Range<usize>)>,
    /// The memory that all processes of the run share.
    pub ledger: &'static Ledger,
    /// This process' record in it.
    pub me: ProcId,
    /// The program's process id.
    pub pid: u32,
    /// Zeros to copy from.
    pub zeros: Zeros,
    /// Makes shared pages movable again after a fork.
    pub unsharer: Unsharer,
    /// The fork being held.
    pub snapshot: Option<Snapshot>,
    /// Pages that came back during it, since the first report of a fork.
    pub came_back: Vec<Vpn>,
    /// The connection to the supervisor; `None` once it has closed.
    pub client: Option<Client>,
    /// The recorder, if the run is traced.
    pub recorder: Option<Box<Recorder>>,
    /// Messages sent to the user.
    pub told: Told,
    /// The charges and debts of this process.
    pub account: Account<ProcId>,
    /// In a forked child: the copies of the pages that it shares with its parent.
    pub copying: Copying,
    /// The write protection of pages that forks share.
    pub protection: Protection,
    /// Memory was registered for write protection.
    was_protected: bool,
    /// The slots of the run's areas.
    pub map: ProcessMap<'static>,
    /// Where slot 0 of each area begins, in bytes.
    first_bytes: [u64; MAX_AREAS],
    iovecs: Vec<IoVec>,
    /// When the others were last told of this process' misses.
    misses_told: Nanos,
    /// The frame that was hashed last.
    hashed: Option<Frame>,
    unusual: Unusual,
    /// The files that the program maps.
    pub files: Files,
    /// The first frame of the completed read, and the digests that a helper took of it.
    read_from: Frame,
    read_hashes: Vec<u64>,
}

/// Tokens of hashing requests have this bit, and the first frame below it; other tokens are the numbers of I/Os.
pub const DIGEST: u64 = 1 << 32;

/// An operation on slots.
#[derive(Clone, Copy)]
enum Transfer {
    Read,
    Write,
    WriteAsItIs,
}

/// Read-only zero pages.
#[derive(Clone, Copy)]
pub struct Zeros {
    /// First byte.
    pub start: *const c_void,
    /// How many pages.
    pub pages: u32,
}

impl Linux {
    /// A world from its parts.
    #[expect(
        clippy::too_many_arguments,
        reason = "one value for each part of the world"
    )]
    pub fn new(
        program: Uffd,
        quiet: Uffd,
        arena: Arena,
        trash: Arena,
        lent: Lent,
        huge: Huge,
        io: WithRam,
        ledger: &'static Ledger,
        me: ProcId,
        zeros: Zeros,
        unsharer: Unsharer,
        client: Client,
    ) -> Self {
        let mut world = Linux {
            program,
            quiet,
            arena,
            trash,
            lent,
            kept: Kept::default(),
            huge,
            io,
            cipher: None,
            far_memory: Vec::new(),
            ledger,
            me,
            pid: 0,
            zeros,
            unsharer,
            snapshot: None,
            came_back: Vec::new(),
            client: Some(client),
            recorder: None,
            told: Told::default(),
            account: Account::default(),
            copying: Copying::default(),
            protection: Protection::None,
            was_protected: false,
            map: ProcessMap::new(ledger, me),
            first_bytes: [0; MAX_AREAS],
            iovecs: Vec::with_capacity(foreswap_core::SLOTS_PER_IO),
            misses_told: 0,
            hashed: None,
            unusual: Unusual::default(),
            files: Files::default(),
            read_from: Frame(0),
            read_hashes: Vec::with_capacity(LEAF_PAGES),
        };
        world.look_at_areas();
        world.refresh();
        world
    }

    /// An I/O is about to be completed: fetch the digests that helpers took of its pages.
    pub fn look_at_read(&mut self, token: u64) {
        self.read_hashes.clear();
        if let Some((first, hashes)) = self.io.hashes(token) {
            let bytes = first as usize - self.arena.address();
            self.read_from = Frame((bytes / PAGE_SIZE) as u32);
            self.read_hashes.extend_from_slice(hashes);
        }
    }

    /// The I/O is completed: its frames may change from now on.
    pub fn forget_read(&mut self) {
        self.read_hashes.clear();
    }

    /// An area was added, changed or removed.
    pub fn look_at_areas(&mut self) {
        self.map.look_at_areas();
        for area in self.ledger.areas() {
            let info = self.ledger.area_info(area);
            self.first_bytes[usize::from(area.0)] = info.map_or(0, |info| info.first_byte);
        }
    }

    /// Refresh values that cost too much to query each time: the needs of others, the fill of the areas.
    pub fn refresh(&mut self) {
        self.account.refresh(&self.seat());
        self.map.look_at_filling();
    }

    /// Record an event, if the run is traced.
    pub fn record(&mut self, seen: impl FnOnce(&mut Recorder)) {
        if let Some(recorder) = &mut self.recorder {
            seen(recorder);
        }
    }

    /// Pages came in.
    fn mapped(&mut self, page: Vpn, done: Done) -> Done {
        if done.pages > 0 {
            self.record(|to| to.mapped(page, done.pages));
        }
        done
    }

    /// Memory that the program discards while a fork is held is not the child's either.
    pub fn forget_in_snapshot(&mut self, range: &PageRange) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.forget(range);
        }
    }

    /// Memory that the program moves while a fork is held is at its new place in the child.
    pub fn move_in_snapshot(&mut self, moved: &Move) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.moves_to(moved);
        }
    }

    fn submit(&mut self, what: Transfer, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.iovecs.clear();
        for run in frames.chunk_by(|a, b| a.plus(1) == *b) {
            if matches!(what, Transfer::Read) && !self.own(run[0], run.len() as u32) {
                return false;
            }
            let ptr = self.arena.pointer(run[0]);
            self.iovecs.push(IoVec {
                ptr,
                len: run.len() * PAGE_SIZE,
            });
        }
        let token = io.0.into();
        let (area, offset) = match slot.is_file() {
            true => self.files.place(slot),
            false => {
                let first = self.first_bytes[usize::from(slot.area)];
                let offset = first + u64::from(slot.index) * PAGE_SIZE as u64;
                (slot.area.into(), offset)
            }
        };
        // SAFETY: the core leaves frames alone while they are in flight, and the arena lives as
        // long as the ring.
        let queued = unsafe {
            match what {
                Transfer::Read => self.io.read(token, area, offset, &self.iovecs),
                Transfer::Write => self.io.write(token, area, offset, &self.iovecs),
                Transfer::WriteAsItIs => {
                    self.io
                        .write_uncompressed(token, area, offset, &self.iovecs)
                }
            }
        };
        debug_assert!(
            matches!(queued, Ok(()) | Err(QueueError::Full)),
            "{queued:?}"
        );
        queued.is_ok()
    }
}

impl Store for Linux {
    fn store_of(&self, slot: Slot) -> StoreId {
        match slot.is_file() {
            true => self.files.store(slot),
            false => StoreId(slot.area.into()),
        }
    }

    fn read(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.submit(Transfer::Read, io, slot, frames)
    }

    fn write(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.submit(Transfer::Write, io, slot, frames)
    }

    fn write_uncompressed(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.submit(Transfer::WriteAsItIs, io, slot, frames)
    }

    fn begin_digest(&mut self, first: Frame) -> bool {
        let memory = self.arena.pointer(first).cast();
        // SAFETY: the 512 frames exist, the core leaves them alone until it is told the end, and the arena outlives
        // the helpers.
        unsafe {
            self.io
                .begin_hashing(DIGEST | u64::from(first.0), memory, LEAF_PAGES)
        }
    }
}

impl World for Linux {
    fn notice(&mut self, notice: Notice) {
        self.tell(notice);
    }

    fn served(&mut self, took: Nanos) {
        self.ledger.stats(self.me).on_fault_served(took);
    }

    fn window(&mut self, pages: u64) {
        self.ledger
            .stats(self.me)
            .on_window(pages.min(u64::from(u32::MAX)) as u32);
    }

    fn disk(&self) -> Disk {
        let (begun, left) = self.io.disk();
        Disk {
            begun,
            left: left as u64,
        }
    }

    fn share_disk(&mut self, random_faults: bool) -> bool {
        let now = now();
        if random_faults && now - self.misses_told > TOLD_EVERY {
            self.misses_told = now;
            self.ledger.set_missed(self.me, now);
        }
        let at = self.ledger.others_missed_at(self.me);
        at > 0 && now.saturating_sub(at) < OTHERS_AT_RANDOM
    }

    fn has_ended(&mut self) -> bool {
        self.io.has_ended()
    }

    fn returns(&mut self, page: Vpn) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.returns(page);
            self.came_back.push(page);
        }
    }
}

impl Clock for Linux {
    fn now(&self) -> Nanos {
        now()
    }
}

/// Let the kernel finish its work.
fn pause() {
    let moment = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 20_000,
    };
    // Never interrupted: engine threads take no signals.
    let _ = rustix::thread::nanosleep(&moment);
}

/// Nanoseconds of the monotonic clock.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
