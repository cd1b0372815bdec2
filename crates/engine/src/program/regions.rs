//! The memory that a program has given to the engine, where the engine manages nothing else.
//!
//! A program that `foreswap run` did not start has no interposed calls: its other memory would come, move and change
//! kind unnoticed. The engine then manages *regions*, mappings that this table lists, and looks for no memory in the map
//! of the process.
//!
//! The table is private memory of the program: a forked child has a copy of it. A region is listed after it was mapped
//! and before it is touched, and struck off before it is unmapped: while a region is listed, no other memory is at its
//! address. It may be struck off at any time, so the engine looks again after it has registered a region
//! ([`Listed::is_still`], [`Regions::cover`]).

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// The most regions at a time: about as many mappings as a process may have (`vm.max_map_count`).
pub const MOST_REGIONS: usize = 1 << 16;
/// An entry that is being filled or struck off.
const CLAIMED: usize = 1;

/// One region, or none.
#[derive(Debug)]
struct Entry {
    /// The first byte; 0 if the entry is free, or [`CLAIMED`].
    start: AtomicUsize,
    /// Bytes, in whole pages.
    len: AtomicUsize,
    /// How many regions the entry has had: who reads it finds out whether start and length are of one.
    turn: AtomicUsize,
}

/// The regions of a process.
pub struct Regions {
    /// The address of the table; 0 where all private anonymous memory is managed.
    table: AtomicUsize,
    /// Entries from here on were never used.
    reach: AtomicUsize,
}

impl Regions {
    pub(super) const fn new() -> Self {
        Regions {
            table: AtomicUsize::new(0),
            reach: AtomicUsize::new(0),
        }
    }

    /// Manages regions and nothing else from here on. Called once, before the engine starts; fails without memory for
    /// the table.
    pub fn begin(&self) -> Result<(), Errno> {
        let bytes = MOST_REGIONS * size_of::<Entry>();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping where nothing is.
        let at = unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, access, flags) }?;
        self.table.store(at as usize, Release);
        Ok(())
    }

    /// Whether the engine manages regions and nothing else.
    pub fn are_all(&self) -> bool {
        self.table.load(Acquire) != 0
    }

    fn entries(&self) -> &[Entry] {
        let table = self.table.load(Acquire) as *mut Entry;
        NonNull::new(table).map_or(&[], |table| {
            // SAFETY: mapped by `begin` with that length, zeroed, which is a valid entry, and never unmapped.
            unsafe { core::slice::from_raw_parts(table.as_ptr(), MOST_REGIONS) }
        })
    }

    fn used(&self) -> &[Entry] {
        &self.entries()[..self.reach.load(Acquire)]
    }

    /// Lists `range`, which is mapped and untouched; its bounds are those of pages. False if there are
    /// [`MOST_REGIONS`].
    pub fn add(&self, range: &Range<usize>) -> bool {
        let entries = self.entries().iter().enumerate();
        let free = entries.filter(|(_, entry)| entry.start.load(Relaxed) == 0);
        for (index, entry) in free {
            let claimed = entry.start.compare_exchange(0, CLAIMED, Acquire, Relaxed);
            if claimed.is_ok() {
                entry.turn.fetch_add(1, Relaxed);
                // Whoever reads this length sees the new turn.
                entry.len.store(range.len(), Release);
                entry.start.store(range.start, Release);
                self.reach.fetch_max(index + 1, Release);
                // Either this thread sees that the engine is armed, and tells it of the region, or the engine, which
                // arms before it reads the table, sees the region.
                fence(SeqCst);
                return true;
            }
        }
        false
    }

    /// Strikes off the region that starts at `start`. Returns its bytes; `None` if there is no such region. Of several
    /// threads that strike off the same region, one gets its bytes.
    pub fn remove(&self, start: usize) -> Option<usize> {
        if start <= CLAIMED {
            return None;
        }
        let is_it = |entry: &&Entry| {
            let claimed = entry
                .start
                .compare_exchange(start, CLAIMED, Acquire, Relaxed);
            claimed.is_ok()
        };
        let entry = self.used().iter().find(is_it)?;
        let bytes = entry.len.load(Relaxed);
        entry.start.store(0, Release);
        Some(bytes)
    }

    /// All regions, in no order. Those that come or go meanwhile may be missed or shown.
    pub fn listed(&self) -> impl Iterator<Item = Listed<'_>> {
        self.used().iter().filter_map(|entry| {
            let turn = entry.turn.load(Acquire);
            let (start, len) = (entry.start.load(Acquire), entry.len.load(Acquire));
            let range = start..start + len;
            let is_whole = start > CLAIMED && entry.turn.load(Relaxed) == turn;
            is_whole.then_some(Listed { range, entry, turn })
        })
    }

    /// The addresses of [`Self::listed`].
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.listed().map(|region| region.range)
    }

    /// Whether all of `range` is in one region.
    pub fn have(&self, range: &Range<usize>) -> bool {
        let mut ranges = self.ranges();
        ranges.any(|region| region.start <= range.start && range.end <= region.end)
    }

    /// Whether all of `range` is in regions, one behind the other. For the engine: it allocates.
    pub fn cover(&self, range: &Range<usize>) -> bool {
        let regions = self.ranges();
        let mut inside: Vec<Range<usize>> = regions
            .filter(|region| region.start < range.end && range.start < region.end)
            .collect();
        inside.sort_unstable_by_key(|region| region.start);
        let mut at = range.start;
        for region in inside {
            if region.start > at {
                return false;
            }
            at = region.end;
        }
        at >= range.end
    }
}

/// A region that was listed.
#[derive(Debug)]
pub struct Listed<'a> {
    /// Its addresses.
    pub range: Range<usize>,
    entry: &'a Entry,
    turn: usize,
}

impl Listed<'_> {
    /// Whether it has been listed all the time since.
    pub fn is_still(&self) -> bool {
        self.entry.start.load(Acquire) == self.range.start
            && self.entry.turn.load(Relaxed) == self.turn
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_region_is_listed_until_it_is_struck_off_once() {
        let regions = Regions::new();
        assert!(!regions.are_all() && !regions.add(&(4096..8192)));
        regions.begin().expect("a table");
        assert!(regions.are_all() && regions.ranges().next().is_none());
        assert!(regions.add(&(4096..8192)) && regions.add(&(16384..65536)));
        assert_eq!(regions.ranges().count(), 2);
        assert!(regions.have(&(20480..65536)) && !regions.have(&(4096..12288)));
        assert_eq!(
            [4096, 4096, 0, 1, 8192].map(|at| regions.remove(at)),
            [Some(4096), None, None, None, None]
        );
        assert!(regions.ranges().eq(core::iter::once(16384..65536)));
        assert!(
            regions.add(&(8192..12288)),
            "the place of the first is free"
        );
        assert_eq!(regions.reach.load(Relaxed), 2);
    }

    #[test]
    fn a_region_that_was_listed_again_is_another() {
        let regions = Regions::new();
        regions.begin().expect("a table");
        assert!(regions.add(&(4096..8192)));
        let listed = regions.listed().next().expect("a region");
        assert!(listed.is_still());
        assert_eq!(regions.remove(4096), Some(4096));
        assert!(!listed.is_still());
        assert!(regions.add(&(4096..8192)));
        assert!(!listed.is_still());
    }

    #[test]
    fn regions_cover_what_is_in_them_without_a_gap() {
        let regions = Regions::new();
        regions.begin().expect("a table");
        for range in [8192..16384, 4096..8192, 20480..24576] {
            assert!(regions.add(&range));
        }
        assert!(regions.cover(&(4096..16384)) && regions.cover(&(8192..12288)));
        for range in [0..8192, 4096..20480, 12288..24576, 20480..28672] {
            assert!(!regions.cover(&range), "{range:?}");
        }
    }

    #[test]
    fn a_region_is_never_shown_with_the_length_of_another() {
        static DONE: AtomicBool = AtomicBool::new(false);
        let regions = Regions::new();
        regions.begin().expect("a table");
        let those = [4096..8192, 1 << 30..3 << 30];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for range in those.iter().cycle().take(2_000_000) {
                    assert!(regions.add(range));
                    assert_eq!(regions.remove(range.start), Some(range.len()));
                }
                DONE.store(true, Relaxed);
            });
            while !DONE.load(Relaxed) {
                for range in regions.ranges() {
                    assert!(those.contains(&range), "{range:x?}");
                }
            }
        });
    }

    #[test]
    fn the_table_is_bounded() {
        let regions = Regions::new();
        regions.begin().expect("a table");
        for page in 1..=MOST_REGIONS {
            assert!(regions.add(&(page << 12..(page + 1) << 12)));
        }
        assert!(!regions.add(&(1 << 40..(1 << 40) + 4096)));
        assert_eq!(regions.remove(4096), Some(4096));
        assert!(regions.add(&(1 << 40..(1 << 40) + 4096)));
    }
}
