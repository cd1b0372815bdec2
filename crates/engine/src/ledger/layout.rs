//! The layout of the ledger's memory.
//!
//! The supervisor and the engines are different builds only by mistake. The header therefore carries a magic, a
//! version and the sizes of all structures, and an attaching process compares them all. All words are atomics: any
//! word may change at any instant, and any process may be killed between two stores. Untouched parts cost no memory
//! (the file is sparse), which allows per-process bitmaps of worst-case size.

use std::sync::atomic::{AtomicU32, AtomicU64};

use super::options::OptionWords;
use super::process_set::ProcessSet;
use super::seals::SEAL_WORDS;
use super::stats::StatsRecord;
use super::turns::TurnWords;

/// Processes that can be managed at a time. All tables that it sizes are sparse, and no loop visits all of it.
pub const MAX_PROCESSES: usize = 4096;
/// Swap areas of a run.
pub const MAX_AREAS: usize = 8;
/// Slots per cluster.
pub const CLUSTER_SLOTS: u32 = 512;
/// Slots of the largest area: 1 TiB.
pub const MAX_AREA_SLOTS: u32 = 1 << 28;
/// Bit of an area's flags: its file was opened with O_DIRECT.
pub const AREA_DIRECT: u32 = 1;
/// Bit of an area's flags: it is compressed memory.
pub const AREA_RAM: u32 = 2;
/// Bit of an area's flags: it is on a server, and reached through the relay.
pub const AREA_FAR: u32 = 4;
/// Bit of an area's flags: what is put there is encrypted.
pub const AREA_SEALED: u32 = 8;
/// Bit of an area's flags: it is in an object store, and is filled after all others.
pub const AREA_OBJECTS: u32 = 16;
/// Bytes kept of an area's name.
pub const AREA_NAME_BYTES: usize = 192;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"foreswap");
pub(super) const VERSION: u32 = 21;
const PAGE: u64 = 4096;

/// The first bytes of the ledger.
#[repr(C)]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU32,
    pub(super) header_bytes: AtomicU32,
    pub(super) record_bytes: AtomicU32,
    pub(super) max_processes: AtomicU32,
    pub(super) total_bytes: AtomicU64,
    pub(super) start_ns: AtomicU64,
    pub(super) limit_pages: AtomicU64,
    /// The most that the limit becomes without a request of the user.
    pub(super) bound_pages: AtomicU64,
    /// The key of the run's digests.
    pub(super) digest_key: [AtomicU64; 2],
    /// Pages that were encrypted so far, or were about to be.
    pub(super) sealed: AtomicU64,
    pub(super) options: OptionWords,
    pub(super) live: AtomicU32,
    /// Families so far, and pages that nobody was asked to pay for, by family: see `debts`.
    pub(super) families: AtomicU32,
    pub(super) unasked: [AtomicU64; 64],
    /// The records that are not free.
    pub(super) in_use: ProcessSet,
    /// At least the processes that lack pages, and those that have not paid for all that they share.
    pub(super) wanting: ProcessSet,
    pub(super) owing: ProcessSet,
    pub(super) area: [AreaWords; MAX_AREAS],
    pub(super) charge: ChargeWords,
}

/// The words that every fault may touch, apart from the constant ones.
#[repr(C, align(128))]
pub(super) struct ChargeWords {
    /// Version (24 bits) and pages (40 bits), see `charge`.
    pub(super) charged: AtomicU64,
    pub(super) peak: AtomicU64,
    pub(super) pressure: AtomicU32,
    pub(super) waiters: AtomicU32,
    /// When a process last had random faults, in nanoseconds, and which process.
    pub(super) missed_at: AtomicU64,
    pub(super) missed_by: AtomicU32,
    /// The maximum excess of the sum over the limit, for a fork child, for pages that are resident anyway, and with
    /// pages that came unnoticed and are not in the sum.
    pub(super) over_for_forks: AtomicU64,
    pub(super) over_for_present: AtomicU64,
    pub(super) over_for_found: AtomicU64,
}

/// One swap area.
#[repr(C)]
pub(super) struct AreaWords {
    pub(super) slots: AtomicU32,
    pub(super) priority: AtomicU32,
    /// Defined by the engine; the ledger only stores it.
    pub(super) flags: AtomicU32,
    /// Where the search for a free cluster continues.
    pub(super) cursor: AtomicU32,
    pub(super) first_byte: AtomicU64,
    pub(super) name_len: AtomicU32,
    /// No cluster from this one on was ever claimed.
    pub(super) reached: AtomicU32,
    pub(super) unused: AtomicU32,
    /// An [`super::AreaState`].
    pub(super) state: AtomicU32,
    pub(super) name: [AtomicU64; AREA_NAME_BYTES / 8],
}

/// One process.
#[repr(C, align(4096))]
pub(super) struct Record {
    pub(super) state: AtomicU32,
    pub(super) pid: AtomicU32,
    pub(super) parent: AtomicU32,
    /// Charges in progress: not zero in a dead process means that the global sum is uncertain.
    pub(super) charging: AtomicU32,
    pub(super) charged: AtomicU64,
    pub(super) peak_charged: AtomicU64,
    pub(super) wanted: AtomicU64,
    /// The slot operation in progress, see `slots`.
    pub(super) intent: AtomicU64,
    /// Load control, see `turns`.
    pub(super) turn: TurnWords,
    pub(super) stats: StatsRecord,
}

const _: () = assert!(size_of::<AreaWords>() == 40 + AREA_NAME_BYTES);
const _: () = assert!(size_of::<ChargeWords>() == 128);
const _: () = assert!(size_of::<Header>() <= RECORDS as usize);
const _: () = assert!(size_of::<Record>() == 3 * PAGE as usize);
const _: () = assert!(AREA_NAME_BYTES.is_multiple_of(8));

/// Offset of the process records; the header is before them.
pub(super) const RECORDS: u64 = 2 * PAGE;
/// Bytes of the ledger itself. Each area has tables in a file of its own: areas can be added and removed during the
/// run.
pub(super) const LEDGER_BYTES: u64 = RECORDS + (MAX_PROCESSES * size_of::<Record>()) as u64;

/// Offsets in the tables of one area, all page aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AreaLayout {
    pub(super) slots: u32,
    pub(super) clusters: u32,
    pub(super) owners: u64,
    pub(super) used: u64,
    pub(super) uses: u64,
    pub(super) digests: u64,
    /// See `seals`. Without `--encrypt` nobody touches them.
    pub(super) seals: u64,
    /// One bit per cluster, per process.
    pub(super) touched: u64,
    pub(super) touched_words: u64,
    /// One bit per slot, per process.
    pub(super) references: u64,
    pub(super) reference_words: u64,
    /// Bytes in total.
    pub(super) total: u64,
}

/// The tables of an area with this number of slots; `None` if it is out of bounds.
pub(super) fn tables(slots: u32) -> Option<AreaLayout> {
    if slots == 0 || slots > MAX_AREA_SLOTS || !slots.is_multiple_of(CLUSTER_SLOTS) {
        return None;
    }
    let mut total = 0;
    let mut take = |bytes: u64| {
        let at = total;
        total += bytes.next_multiple_of(PAGE);
        at
    };
    let clusters = slots / CLUSTER_SLOTS;
    let processes = MAX_PROCESSES as u64;
    let touched_words = u64::from(clusters).div_ceil(64).next_multiple_of(8);
    let reference_words = u64::from(slots).div_ceil(64).next_multiple_of(PAGE / 8);
    let layout = AreaLayout {
        slots,
        clusters,
        owners: take(u64::from(clusters) * 4),
        used: take(u64::from(clusters) * 4),
        uses: take(u64::from(slots) * 4),
        digests: take(u64::from(slots) * 8),
        seals: take(u64::from(slots) * 8 * SEAL_WORDS),
        touched: take(processes * touched_words * 8),
        touched_words,
        references: take(processes * reference_words * 8),
        reference_words,
        total: 0,
    };
    Some(AreaLayout { total, ..layout })
}
