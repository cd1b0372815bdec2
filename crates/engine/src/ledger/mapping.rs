//! The ledger as mapped by a process: the header, the records, and the tables of each area.
//!
//! The supervisor creates all of it; engines attach the descriptors that it passes. Areas are added and removed
//! during the run: their words in the header describe them and their permitted use.

use std::cmp::Reverse;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;

use super::layout::{
    self, AREA_FAR, AREA_NAME_BYTES, AREA_OBJECTS, AREA_RAM, AreaLayout, AreaWords, Header,
    LEDGER_BYTES, MAX_AREAS, MAX_PROCESSES, RECORDS, Record,
};
use super::options::Options;
use super::tables::{AreaTables, Memory};
use super::{AreaId, ProcId};

/// Why a ledger could not be created or attached.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A system call failed.
    #[error("{what} failed for the ledger: {errno}")]
    System {
        /// The call.
        what: &'static str,
        /// Its error.
        errno: Errno,
    },
    /// The descriptor is not a ledger, or one of another version.
    #[error(
        "the ledger does not match this build ({what}): supervisor and preload object are of different versions"
    )]
    Mismatch {
        /// The field that differs.
        what: &'static str,
    },
    /// The limit for files (`ulimit -f`) is below what is needed.
    #[error(
        "a file of {bytes} bytes in memory is needed, and the limit for files is {most} bytes; raise it with \
         `ulimit -f unlimited`"
    )]
    FileSize {
        /// Needed.
        bytes: u64,
        /// Allowed.
        most: u64,
    },
    /// More than eight areas, an area with no or too many slots, or one that exists already.
    #[error("swap areas out of bounds: up to 8 areas of 2 MiB to 1 TiB each, in whole 2 MiB")]
    Areas,
}

pub(super) fn system(what: &'static str) -> impl Fn(Errno) -> LedgerError {
    move |errno| LedgerError::System { what, errno }
}

/// The ledger's entry for one swap area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaInfo {
    /// Slots of 4 KiB; a multiple of 512.
    pub slots: u32,
    /// The highest is filled first.
    pub priority: i32,
    /// Defined by the engine (direct I/O and the like).
    pub flags: u32,
    /// The position of slot 0 in the file.
    pub first_byte: u64,
    /// For messages; cut to 192 bytes.
    pub name: String,
}

/// The permitted use of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaState {
    /// There is no such area.
    Absent,
    /// Some engines may lack it: no page is put there.
    Joining,
    /// Pages may go there.
    Usable,
    /// Its pages are moved away: no page is put there.
    Draining,
}

impl AreaState {
    fn from_word(word: u32) -> Self {
        match word {
            1 => Self::Joining,
            2 => Self::Usable,
            3 => Self::Draining,
            _ => Self::Absent,
        }
    }
}

/// The initial parameters of a run.
#[derive(Clone, Debug)]
pub struct LedgerSpec {
    /// The limit of resident pages, over all processes.
    pub limit_pages: u64,
    /// The user's choices.
    pub options: Options,
    /// The areas, all usable at once; area 0 comes first.
    pub areas: Vec<AreaInfo>,
}

/// A mapped ledger. Cheap to share by reference; unmapped when dropped.
#[derive(Debug)]
pub struct Ledger {
    memory: Memory,
    /// The tables mapped by this process, by area; each pointer is a box of this process or null.
    tables: [AtomicPtr<AreaTables>; MAX_AREAS],
}

impl Ledger {
    /// Creates the ledger of a new run.
    pub fn create(spec: &LedgerSpec) -> Result<Self, LedgerError> {
        let ledger = Self::of(Memory::create(LEDGER_BYTES)?);
        ledger.write_header(spec);
        for area in &spec.areas {
            ledger.add_area(area, AreaState::Usable)?;
        }
        Ok(ledger)
    }

    /// Maps the ledger passed by a supervisor, without the tables of areas: see [`Ledger::attach_area`].
    pub fn attach(fd: OwnedFd) -> Result<Self, LedgerError> {
        let ledger = Self::of(Memory::attach(fd, LEDGER_BYTES)?);
        ledger.validate()?;
        Ok(ledger)
    }

    fn of(memory: Memory) -> Self {
        Self {
            memory,
            tables: Default::default(),
        }
    }

    /// Supervisor: adds an area with its own tables, under the lowest free number.
    pub fn add_area(&self, info: &AreaInfo, state: AreaState) -> Result<AreaId, LedgerError> {
        let mut areas = (0..MAX_AREAS as u8).map(AreaId);
        let area = areas.find(|&area| self.area_state(area) == AreaState::Absent);
        let area = area.ok_or(LedgerError::Areas)?;
        let layout = layout::tables(info.slots).ok_or(LedgerError::Areas)?;
        let memory = Memory::create(layout.total)?;
        self.write_area(area, info);
        self.set_tables(area, memory, layout)?;
        self.set_area_state(area, state);
        Ok(area)
    }

    /// Engine: maps the tables of an area that the supervisor added. Returns their range.
    pub fn attach_area(
        &self,
        area: AreaId,
        fd: OwnedFd,
    ) -> Result<std::ops::Range<usize>, LedgerError> {
        let words = self.area_words(area).ok_or(LedgerError::Areas)?;
        let layout = layout::tables(words.slots.load(Relaxed)).ok_or(LedgerError::Mismatch {
            what: "slots of an area",
        })?;
        let memory = Memory::attach(fd, layout.total)?;
        let range = memory.address_range();
        self.set_tables(area, memory, layout)?;
        Ok(range)
    }

    fn set_tables(
        &self,
        area: AreaId,
        memory: Memory,
        layout: AreaLayout,
    ) -> Result<(), LedgerError> {
        let place = self.tables.get(usize::from(area.0));
        let place = place.ok_or(LedgerError::Areas)?;
        let tables = AreaTables {
            memory,
            layout,
            ram: OnceLock::new(),
        };
        let tables = Box::into_raw(Box::new(tables));
        let null = std::ptr::null_mut();
        if place
            .compare_exchange(null, tables, Release, Relaxed)
            .is_err()
        {
            // SAFETY: made just above and not published.
            drop(unsafe { Box::from_raw(tables) });
            return Err(LedgerError::Areas);
        }
        Ok(())
    }

    /// Unmaps the tables of an area in this process. Returns their range, and the range of the memory of a RAM area,
    /// which is unmapped when its last user drops it.
    ///
    /// # Safety
    /// No other thread is in a call of this ledger that concerns the area.
    pub unsafe fn detach_area(
        &self,
        area: AreaId,
    ) -> Option<(std::ops::Range<usize>, Option<std::ops::Range<usize>>)> {
        let place = self.tables.get(usize::from(area.0))?;
        let tables = place.swap(std::ptr::null_mut(), SeqCst);
        if tables.is_null() {
            return None;
        }
        // SAFETY: every pointer here is a box of ours; references to it live within calls, of which
        // the caller says that there is none.
        let tables = unsafe { Box::from_raw(tables) };
        let ram = tables.ram.get().map(|(_, range)| range.clone());
        Some((tables.memory.address_range(), ram))
    }

    /// Supervisor: sets the permitted use of an area.
    pub fn set_area_state(&self, area: AreaId, state: AreaState) {
        if let Some(words) = self.area_words(area) {
            words.state.store(state as u32, SeqCst);
        }
    }

    /// The permitted use of an area.
    pub fn area_state(&self, area: AreaId) -> AreaState {
        let words = self.area_words(area);
        words.map_or(AreaState::Absent, |words| {
            AreaState::from_word(words.state.load(SeqCst))
        })
    }

    /// The descriptor of an area's tables, for passing on.
    pub fn area_fd(&self, area: AreaId) -> Option<BorrowedFd<'_>> {
        self.tables(area).map(|tables| tables.memory.fd())
    }

    fn write_header(&self, spec: &LedgerSpec) {
        let header = self.header();
        header.version.store(layout::VERSION, Relaxed);
        header
            .header_bytes
            .store(size_of::<Header>() as u32, Relaxed);
        header
            .record_bytes
            .store(size_of::<Record>() as u32, Relaxed);
        header.max_processes.store(MAX_PROCESSES as u32, Relaxed);
        header.total_bytes.store(LEDGER_BYTES, Relaxed);
        header.start_ns.store(monotonic_ns(), Relaxed);
        header.limit_pages.store(spec.limit_pages, Relaxed);
        header.bound_pages.store(spec.limit_pages, Relaxed);
        header.options.store(&spec.options);
        for word in &header.digest_key {
            // A hasher of the standard library has random keys.
            word.store(RandomState::new().build_hasher().finish(), Relaxed);
        }
        header.magic.store(layout::MAGIC, Release);
    }

    fn write_area(&self, area: AreaId, info: &AreaInfo) {
        let Some(words) = self.area_words(area) else {
            return;
        };
        let mut name = [0u8; AREA_NAME_BYTES];
        let kept = info.name.floor_char_boundary(AREA_NAME_BYTES);
        name[..kept].copy_from_slice(&info.name.as_bytes()[..kept]);
        for (word, chunk) in words.name.iter().zip(name.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*chunk), Relaxed);
        }
        words.name_len.store(kept as u32, Relaxed);
        words.slots.store(info.slots, Relaxed);
        words.priority.store(info.priority.cast_unsigned(), Relaxed);
        words.flags.store(info.flags, Relaxed);
        words.cursor.store(0, Relaxed);
        words.reached.store(0, Relaxed);
        words.first_byte.store(info.first_byte, Relaxed);
    }

    fn validate(&self) -> Result<(), LedgerError> {
        let header = self.header();
        let check = |same: bool, what| {
            if same {
                Ok(())
            } else {
                Err(LedgerError::Mismatch { what })
            }
        };
        check(header.magic.load(Acquire) == layout::MAGIC, "magic")?;
        check(header.version.load(Relaxed) == layout::VERSION, "version")?;
        check(
            header.header_bytes.load(Relaxed) as usize == size_of::<Header>(),
            "header",
        )?;
        check(
            header.record_bytes.load(Relaxed) as usize == size_of::<Record>(),
            "record",
        )?;
        check(
            header.max_processes.load(Relaxed) as usize == MAX_PROCESSES,
            "processes",
        )?;
        check(
            header.total_bytes.load(Relaxed) == LEDGER_BYTES,
            "total size",
        )
    }

    /// The descriptor, for passing on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// The mapped range, for lists of memory that must not be adopted.
    fn address_range(&self) -> std::ops::Range<usize> {
        self.memory.address_range()
    }

    /// As `address_range`, with the areas' tables.
    pub fn address_ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let tables = self.areas().filter_map(|area| self.tables(area));
        let ranges = tables.flat_map(|tables| {
            let ram = tables.ram.get().map(|(_, range)| range.clone());
            std::iter::once(tables.memory.address_range()).chain(ram)
        });
        std::iter::once(self.address_range()).chain(ranges)
    }

    /// The user's choices.
    pub fn options(&self) -> Options {
        self.header().options.load()
    }

    /// The key of the run's digests.
    pub fn digest_key(&self) -> [u64; 2] {
        self.header()
            .digest_key
            .each_ref()
            .map(|word| word.load(Relaxed))
    }

    /// When the run started, ns of CLOCK_MONOTONIC.
    pub fn start_ns(&self) -> u64 {
        self.header().start_ns.load(Relaxed)
    }

    /// All areas that this process has, by number.
    pub fn areas(&self) -> impl Iterator<Item = AreaId> {
        (0..MAX_AREAS as u8)
            .map(AreaId)
            .filter(|&area| self.tables(area).is_some())
    }

    /// The areas that accept pages, in the order in which they are filled: by priority, then by number; object
    /// stores after all others.
    pub fn areas_in_order(&self) -> impl Iterator<Item = AreaId> {
        let mut order = [(false, i32::MIN, 0); MAX_AREAS];
        let mut count = 0;
        for area in self.areas() {
            if self.area_state(area) == AreaState::Usable
                && let Some(words) = self.area_words(area)
            {
                let priority = words.priority.load(Relaxed).cast_signed();
                let has_objects = words.flags.load(Relaxed) & AREA_OBJECTS != 0;
                order[count] = (has_objects, priority, area.0);
                count += 1;
            }
        }
        order[..count]
            .sort_unstable_by_key(|&(last, priority, area)| (last, Reverse(priority), area));
        let order = order.into_iter().take(count);
        order.map(|(_, _, area)| AreaId(area))
    }

    /// How far an area is: compressed memory, a disk, a server, an object store.
    pub fn area_tier(&self, area: AreaId) -> u8 {
        let words = self.area_words(area);
        match words.map_or(0, |words| words.flags.load(Relaxed)) {
            flags if flags & AREA_RAM != 0 => 0,
            flags if flags & AREA_OBJECTS != 0 => 3,
            flags if flags & AREA_FAR != 0 => 2,
            _ => 1,
        }
    }

    /// The entry of one area; `None` if there is no such area.
    pub fn area_info(&self, area: AreaId) -> Option<AreaInfo> {
        let slots = self.tables(area)?.slots;
        let words = self.area_words(area)?;
        let mut name = Vec::with_capacity(AREA_NAME_BYTES);
        for word in &words.name {
            name.extend_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        name.truncate(words.name_len.load(Relaxed) as usize);
        Some(AreaInfo {
            slots,
            priority: words.priority.load(Relaxed).cast_signed(),
            flags: words.flags.load(Relaxed),
            first_byte: words.first_byte.load(Relaxed),
            name: String::from_utf8_lossy(&name).into_owned(),
        })
    }

    pub(super) fn area_words(&self, area: AreaId) -> Option<&AreaWords> {
        self.header().area.get(usize::from(area.0))
    }

    pub(super) fn tables(&self, area: AreaId) -> Option<&AreaTables> {
        let place = self.tables.get(usize::from(area.0))?;
        // SAFETY: null or a box of ours, which `detach_area` and `drop` take only when nobody looks.
        unsafe { place.load(Acquire).as_ref() }
    }

    pub(super) fn header(&self) -> &Header {
        &self.memory.slice(0, 0, 1)[0]
    }

    pub(super) fn record(&self, process: ProcId) -> &Record {
        &self.memory.slice(RECORDS, process.index(), 1)[0]
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        for area in (0..MAX_AREAS as u8).map(AreaId) {
            // SAFETY: there is no other reference.
            unsafe { self.detach_area(area) };
        }
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
