//! The page table: where the content of each managed page is.
//!
//! One 64-bit entry per page, in leaves of 512 that exist only where something was ever touched: a reserved but unused
//! terabyte costs nothing. Reclaim sweeps these leaves, and skips those whose counts show no resident
//! page.

mod bits;
mod directory;
mod fills;
mod shared;

use bits::Bits;
use directory::Directory;
pub use fills::Fill;
use fills::Fills;

use crate::units::{Frame, LEAF_PAGES, PageRange, Slot, Vpn};

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Never touched, or discarded: reads as zeros. No page of a mapped file has this entry.
    Unmapped,
    /// Mapped in the program.
    Resident(Resident),
    /// In a frame of the engine: being read, kept for a second chance, or waiting to be written.
    Cached(Frame),
    /// On a swap area only, or in a mapped file only.
    Swapped {
        /// Its slot.
        slot: Slot,
        /// Low bits of the eviction counter when it was evicted (refault distance).
        evicted: u32,
    },
    /// Nowhere: all its words are the same, and the entry names that word.
    SameFilled(Fill),
    /// Lost: a touch raises SIGBUS until the range is discarded.
    Poisoned,
    /// A guard of the kernel (MADV_GUARD_INSTALL): a touch raises SIGSEGV. Once the guard is removed, the page reads as
    /// zeros. Nothing is mapped there, as that would replace the guard.
    Guarded,
}

/// A mapped page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resident {
    /// A slot with the content that was read; still good if the digest says so.
    pub slot: Option<Slot>,
    /// How the reclaim policy ranks the page; 0: it is a victim at once.
    pub rank: u16,
    /// The page may be missing for a good reason (see `mm::unaccounted`): it is older than the registration, or a discard
    /// is under way.
    pub found: bool,
}

/// Bits of the eviction counter that an entry keeps.
pub const EVICTED_BITS: u32 = 24;

const LEAF: u64 = LEAF_PAGES as u64;
/// Leaves that one call of [`PageTable::on_area`] looks at, so that it stays short.
const LEAVES_PER_LOOK: usize = 512;
const TAG_RESIDENT: u64 = 1;
const TAG_CACHED: u64 = 2;
const TAG_SWAPPED: u64 = 3;
const TAG_POISONED: u64 = 4;
const TAG_FILLED: u64 = 5;
const TAG_GUARDED: u64 = 6;
/// Mapped, and found.
const TAG_FOUND: u64 = 7;
const PAYLOAD: u32 = 4;
const SLOT_BITS: u32 = 36;
const RANK_AT: u32 = PAYLOAD + SLOT_BITS;

/// An entry packed in a word: tag in bits 0-2, "has a slot" in bit 3, slot, frame or fill from bit 4 on, rank or eviction
/// counter from bit 40 on.
fn pack(entry: Entry) -> u64 {
    match entry {
        Entry::Unmapped => 0,
        Entry::Resident(Resident { slot, rank, found }) => {
            let slot = slot.map_or(0, |s| 8 | s.pack() << PAYLOAD);
            let tag = if found { TAG_FOUND } else { TAG_RESIDENT };
            tag | slot | u64::from(rank) << RANK_AT
        }
        Entry::Cached(frame) => TAG_CACHED | u64::from(frame.0) << PAYLOAD,
        Entry::Swapped { slot, evicted } => {
            TAG_SWAPPED | slot.pack() << PAYLOAD | u64::from(evicted) << (PAYLOAD + SLOT_BITS)
        }
        Entry::SameFilled(fill) => TAG_FILLED | u64::from(fill.0) << PAYLOAD,
        Entry::Poisoned => TAG_POISONED,
        Entry::Guarded => TAG_GUARDED,
    }
}

fn unpack(word: u64) -> Entry {
    let slot = || Slot::unpack(word >> PAYLOAD & ((1 << SLOT_BITS) - 1));
    let high = (word >> (PAYLOAD + SLOT_BITS)) as u32;
    match word & 7 {
        TAG_RESIDENT | TAG_FOUND => {
            let slot = (word & 8 != 0).then(slot);
            Entry::Resident(Resident {
                slot,
                rank: high as u16,
                found: word & 7 == TAG_FOUND,
            })
        }
        TAG_CACHED => Entry::Cached(Frame((word >> PAYLOAD) as u32)),
        TAG_SWAPPED => Entry::Swapped {
            slot: slot(),
            evicted: high,
        },
        TAG_FILLED => Entry::SameFilled(Fill((word >> PAYLOAD) as u32)),
        TAG_POISONED => Entry::Poisoned,
        TAG_GUARDED => Entry::Guarded,
        _ => Entry::Unmapped,
    }
}

/// Whether a page is in a frame of the engine or has a slot.
const fn is_stored(entry: Entry) -> bool {
    match entry {
        Entry::Unmapped | Entry::SameFilled(_) | Entry::Poisoned | Entry::Guarded => false,
        Entry::Resident(resident) => resident.slot.is_some(),
        Entry::Cached(_) | Entry::Swapped { .. } => true,
    }
}

struct Leaf {
    words: [u64; LEAF_PAGES],
    /// Which pages are mapped, and which are in a frame or have a slot.
    mapped: Bits,
    stored: Bits,
    /// Mapped pages that another process may share since a fork.
    shared: Bits,
    resident: u16,
    used: u16,
    /// Pages that are on an area only.
    swapped: u16,
    guarded: u16,
    /// All pages are mapped, by one huge page as far as is known: they are evicted together.
    huge: bool,
    /// The rank of a huge page; its pages' own ranks count once it is split.
    rank: u16,
    /// Passes of reclaim that skip this leaf, as its pages could not be moved.
    rest: u8,
}

impl Default for Leaf {
    fn default() -> Self {
        Leaf {
            words: [0; LEAF_PAGES],
            mapped: Bits::default(),
            stored: Bits::default(),
            shared: Bits::default(),
            resident: 0,
            used: 0,
            swapped: 0,
            guarded: 0,
            huge: false,
            rank: 0,
            rest: 0,
        }
    }
}

impl Leaf {
    fn count(&mut self, entry: Entry, n: i16) {
        let add = |count: &mut u16| *count = count.wrapping_add_signed(n);
        match entry {
            Entry::Unmapped => return,
            Entry::Resident(_) => add(&mut self.resident),
            Entry::Swapped { .. } => add(&mut self.swapped),
            Entry::Guarded => add(&mut self.guarded),
            Entry::Cached(_) | Entry::SameFilled(_) | Entry::Poisoned => {}
        }
        add(&mut self.used);
    }

    /// Its pages that are not `Unmapped`, in order; `key` is its own.
    fn entries(&self, key: u64) -> impl Iterator<Item = (Vpn, Entry)> {
        let used = (0..).zip(&self.words).filter(|(_, word)| **word != 0);
        used.map(move |(i, &word)| (Vpn(key * LEAF + i), unpack(word)))
    }
}

/// The page table of one process.
#[derive(Default)]
pub struct PageTable {
    leaves: Directory<Leaf>,
    resident: u64,
    keeping: u64,
    /// Pages that are on an area only.
    swapped: u64,
    /// Leaves that are huge pages.
    huge: u64,
    /// Mapped pages that another process may share.
    shared: u64,
    fills: Fills,
}

const fn split(page: Vpn) -> (u64, usize) {
    (
        page.0 / LEAF_PAGES as u64,
        (page.0 % LEAF_PAGES as u64) as usize,
    )
}

impl PageTable {
    /// Pages that are mapped in the program.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// Mapped pages that keep a slot of an area.
    pub fn keeping(&self) -> u64 {
        self.keeping
    }

    /// Pages that are on an area only.
    pub fn swapped(&self) -> u64 {
        self.swapped
    }

    /// Bytes of memory that the table takes.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.leaves.bytes()
    }

    /// Where `page` is.
    pub fn get(&self, page: Vpn) -> Entry {
        let (leaf, index) = split(page);
        self.leaves
            .get(leaf)
            .map_or(Entry::Unmapped, |leaf| unpack(leaf.words[index]))
    }

    /// The fill for pages of which each word is `word`, for an [`Entry::SameFilled`] that is set before the next call.
    /// `None`: too many words are in use.
    pub fn fill_of(&mut self, word: u64) -> Option<Fill> {
        self.fills.of(word)
    }

    /// The word that fills a page of this table.
    pub fn word_of(&self, fill: Fill) -> u64 {
        self.fills.word(fill)
    }

    /// Record where `page` is; returns the previous entry.
    pub fn set(&mut self, page: Vpn, entry: Entry) -> Entry {
        let (key, index) = split(page);
        let leaf = if entry == Entry::Unmapped {
            let Some(leaf) = self.leaves.get_mut(key) else {
                return Entry::Unmapped;
            };
            leaf
        } else {
            self.leaves.get_or_default(key)
        };
        let old = unpack(leaf.words[index]);
        leaf.words[index] = pack(entry);
        let is_mapped = matches!(entry, Entry::Resident(_));
        leaf.mapped.set(index, is_mapped);
        debug_assert!(is_mapped || !leaf.shared.has(index));
        leaf.stored.set(index, is_stored(entry));
        leaf.count(old, -1);
        leaf.count(entry, 1);
        let counted = |entry| match entry {
            Entry::Resident(Resident { slot, .. }) => {
                (1, u64::from(slot.is_some_and(|slot| !slot.is_file())))
            }
            _ => (0, 0),
        };
        let (before, after) = (counted(old), counted(entry));
        if let Entry::SameFilled(fill) = entry {
            self.fills.came(fill);
        }
        if let Entry::SameFilled(fill) = old {
            self.fills.left(fill);
        }
        self.resident = self.resident + after.0 - before.0;
        self.keeping = self.keeping + after.1 - before.1;
        let swapped =
            |entry| u64::from(matches!(entry, Entry::Swapped { slot, .. } if !slot.is_file()));
        self.swapped = self.swapped + swapped(entry) - swapped(old);
        if after.0 == 0 {
            self.huge -= u64::from(core::mem::take(&mut leaf.huge));
        }
        if leaf.used == 0 {
            self.leaves.remove(key);
        }
        old
    }

    /// The whole leaf that begins with `unit` is one huge page in the program from now on, with this rank. All its
    /// pages are resident.
    pub fn make_huge(&mut self, unit: Vpn, rank: u16) {
        if let Some(leaf) = self.leaves.get_mut(split(unit).0)
            && usize::from(leaf.resident) == LEAF_PAGES
        {
            self.huge += u64::from(!core::mem::replace(&mut leaf.huge, true));
            leaf.rank = rank;
        }
    }

    /// The leaf of `page` is no longer a huge page. Returns whether it was one.
    pub fn split_mapping(&mut self, page: Vpn) -> bool {
        let leaf = self.leaves.get_mut(split(page).0);
        let was = leaf.is_some_and(|leaf| core::mem::take(&mut leaf.huge));
        self.huge -= u64::from(was);
        was
    }

    /// Whether `page` is part of a huge page.
    pub fn is_huge(&self, page: Vpn) -> bool {
        self.leaves.get(split(page).0).is_some_and(|leaf| leaf.huge)
    }

    /// The rank of the huge page of `page`.
    pub fn huge_rank(&self, page: Vpn) -> u16 {
        let leaf = self.leaves.get(split(page).0);
        leaf.map_or(0, |leaf| leaf.rank)
    }

    /// Reclaim has come to a huge page. It is a victim, which is returned, or `judge` gives it a new rank.
    pub fn judge_huge(&mut self, unit: Vpn, judge: impl FnOnce(u16) -> Option<u16>) -> bool {
        let Some(leaf) = self.leaves.get_mut(split(unit).0) else {
            return false;
        };
        match judge(leaf.rank) {
            None => return true,
            Some(rank) => leaf.rank = rank,
        }
        false
    }

    /// Check the invariants; for tests. Returns a description of the first violation.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let leaves = || self.leaves.range(0..u64::MAX).map(|(_, leaf)| leaf);
        let huge = || leaves().filter(|leaf| leaf.huge);
        if huge().count() as u64 != self.huge {
            return Err("the huge pages are not as many as are counted");
        }
        if huge().any(|leaf| usize::from(leaf.resident) < LEAF_PAGES) {
            return Err("a huge page is not mapped whole");
        }
        let filled = self
            .iter()
            .filter(|(_, entry)| matches!(entry, Entry::SameFilled(_)));
        if filled.count() as u64 != self.fills.pages() {
            return Err("the filled pages are not as many as are counted");
        }
        let shared: u32 = leaves().map(|leaf| leaf.shared.count()).sum();
        if u64::from(shared) != self.shared {
            return Err("the shared pages are not as many as are counted");
        }
        if leaves().any(|leaf| {
            leaf.shared
                .within(0..LEAF_PAGES)
                .any(|i| !leaf.mapped.has(i))
        }) {
            return Err("a page is shared that is not mapped");
        }
        if leaves().any(|leaf| leaf.mapped.count() != u32::from(leaf.resident)) {
            return Err("the mapped pages of a leaf are not as many as are counted");
        }
        Ok(())
    }

    /// Whether every page of the leaf of `page` is mapped.
    pub fn is_full(&self, page: Vpn) -> bool {
        let leaf = self.leaves.get(split(page).0);
        leaf.is_some_and(|leaf| usize::from(leaf.resident) == LEAF_PAGES)
    }

    /// The ranks of the pages of the leaf of `page`, if all of them are mapped.
    pub fn ranks(&self, page: Vpn) -> impl Iterator<Item = u16> {
        let leaf = self.leaves.get(split(page).0);
        let full = leaf.filter(|leaf| usize::from(leaf.resident) == LEAF_PAGES);
        let words = full.into_iter().flat_map(|leaf| &leaf.words);
        words.map(|word| (word >> RANK_AT) as u16)
    }

    /// Whether the same word fills every page of the leaf of `page`.
    pub fn is_filled(&self, page: Vpn, fill: Fill) -> bool {
        let leaf = self.leaves.get(split(page).0);
        leaf.is_some_and(|leaf| {
            leaf.words
                .iter()
                .all(|&word| word == pack(Entry::SameFilled(fill)))
        })
    }

    /// Whether every page of the leaf of `page` is on an area, and nowhere else.
    pub fn is_away(&self, page: Vpn) -> bool {
        let leaf = self.leaves.get(split(page).0);
        leaf.is_some_and(|leaf| usize::from(leaf.swapped) == LEAF_PAGES)
    }

    /// Pages of `range` that are mapped, and pages that are elsewhere. The cost is one look per leaf, not per page.
    pub fn usage(&self, range: &PageRange) -> (u64, u64) {
        let (first, last) = (range.start.0 / LEAF, range.end.0.div_ceil(LEAF));
        let (mut resident, mut elsewhere) = (0, 0);
        for (key, leaf) in self.leaves.range(first..last.max(first)) {
            let whole = key * LEAF >= range.start.0 && (key + 1) * LEAF <= range.end.0;
            if whole {
                resident += u64::from(leaf.resident);
                elsewhere += u64::from(leaf.used - leaf.resident - leaf.guarded);
                continue;
            }
            for (i, word) in (0..).zip(&leaf.words) {
                if !(range.start.0..range.end.0).contains(&(key * LEAF + i)) {
                    continue;
                }
                resident += u64::from(matches!(word & 7, TAG_RESIDENT | TAG_FOUND));
                elsewhere += u64::from(!matches!(
                    word & 7,
                    0 | TAG_RESIDENT | TAG_FOUND | TAG_GUARDED
                ));
            }
        }
        (resident, elsewhere)
    }

    /// Append up to `max` pages of `range` whose entry is `wanted` to `found`, in order. Returns the page after the
    /// last one looked at.
    pub fn search(
        &self,
        range: &PageRange,
        max: usize,
        wanted: impl Fn(Entry) -> bool,
        found: &mut alloc::vec::Vec<Vpn>,
    ) -> Vpn {
        let (first, last) = (range.start.0 / LEAF, range.end.0.div_ceil(LEAF));
        for (key, leaf) in self.leaves.range(first..last.max(first)) {
            for (i, &word) in (0..).zip(&leaf.words) {
                let page = Vpn(key * LEAF + i);
                if word == 0 || !range.contains(&page) || !wanted(unpack(word)) {
                    continue;
                }
                found.push(page);
                if found.len() == max {
                    return page.plus(1);
                }
            }
        }
        range.end
    }

    /// The resident pages of `range` have rank 0.
    pub fn chill(&mut self, range: &PageRange) {
        let (first, last) = (range.start.0 / LEAF, range.end.0.div_ceil(LEAF));
        for (key, leaf) in self.leaves.range_mut(first..last.max(first)) {
            leaf.rank = 0;
            let from = range.start.0.max(key * LEAF) - key * LEAF;
            let end = range.end.0.min((key + 1) * LEAF) - key * LEAF;
            for i in leaf.mapped.within(from as usize..end as usize) {
                leaf.words[i] &= (1 << RANK_AT) - 1;
            }
        }
    }

    /// The first page at or after `from` and before `end` that is not `Unmapped`.
    pub fn next_used(&self, from: Vpn, end: Vpn) -> Option<(Vpn, Entry)> {
        let (first, mut index) = split(from);
        let last = end.0.div_ceil(LEAF).max(first);
        for (key, leaf) in self.leaves.range(first..last) {
            if key > first {
                index = 0;
            }
            for (i, &word) in leaf.words.iter().enumerate().skip(index) {
                let page = Vpn(key * LEAF_PAGES as u64 + i as u64);
                if page >= end {
                    return None;
                }
                if word != 0 {
                    return Some((page, unpack(word)));
                }
            }
        }
        None
    }

    /// All pages that are not `Unmapped`, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Vpn, Entry)> {
        let leaves = self.leaves.range(0..u64::MAX);
        leaves.flat_map(|(key, leaf)| leaf.entries(key))
    }

    /// As [`PageTable::iter`], without looking at leaves whose pages are all mapped or guarded.
    pub fn elsewhere(&self) -> impl Iterator<Item = (Vpn, Entry)> {
        let leaves = self.leaves.range(0..u64::MAX);
        let some = leaves.filter(|(_, leaf)| leaf.used > leaf.resident + leaf.guarded);
        some.flat_map(|(key, leaf)| leaf.entries(key))
    }

    /// Append to `found`, in order, up to `max` pages at or after `from` that are on `area` only, mapped with a slot on
    /// it, or in a frame (with its slot anywhere). A leaf that is swapped out whole is returned alone. Looks at some
    /// leaves and returns where to continue; `None` at the end of the table.
    pub fn on_area(
        &self,
        area: u8,
        from: Vpn,
        max: usize,
        found: &mut alloc::vec::Vec<(Vpn, Entry)>,
    ) -> Option<Vpn> {
        let (first, mut index) = split(from);
        for (looked, (key, leaf)) in self.leaves.range(first..u64::MAX).enumerate() {
            let whole = usize::from(leaf.swapped) == LEAF_PAGES;
            if looked == LEAVES_PER_LOOK || whole && !found.is_empty() {
                return Some(Vpn(key * LEAF));
            }
            if key > first {
                index = 0;
            }
            for i in leaf.stored.within(index..LEAF_PAGES) {
                let word = leaf.words[i];
                if word & 7 == TAG_CACHED || word >> (PAYLOAD + 32) & 15 == u64::from(area) {
                    let page = Vpn(key * LEAF + i as u64);
                    found.push((page, unpack(word)));
                    if found.len() >= max {
                        return Some(page.plus(1));
                    }
                }
            }
        }
        None
    }

    /// The first leaf at or after `from` that holds resident pages and is not resting, as a range of pages. Each
    /// resting leaf on the way has one rest less.
    pub fn next_resident_leaf(&mut self, from: Vpn) -> Option<PageRange> {
        let (first, _) = split(from);
        for (key, leaf) in self.leaves.range_mut(first..u64::MAX) {
            if leaf.resident == 0 {
                continue;
            }
            if leaf.rest > 0 {
                leaf.rest -= 1;
                continue;
            }
            let start = Vpn(key * LEAF_PAGES as u64);
            return Some(start.max(from)..start.plus(LEAF_PAGES as u64));
        }
        None
    }

    /// Let reclaim skip the leaf of `page` for some passes.
    pub fn rest(&mut self, page: Vpn, passes: u8) {
        if let Some(leaf) = self.leaves.get_mut(split(page).0) {
            leaf.rest = passes;
        }
    }

    /// Reclaim has come to `range`, within one leaf: `judge` gives each resident page a new rank, or it is a victim.
    /// Appends at most `max` victims to `victims`, in order; pages that a fork shares only if `shared_too`. Returns the
    /// page after the last one looked at.
    pub fn sweep(
        &mut self,
        range: &PageRange,
        max: usize,
        shared_too: bool,
        mut judge: impl FnMut(u16) -> Option<u16>,
        victims: &mut alloc::vec::Vec<Vpn>,
    ) -> Vpn {
        let (key, index) = split(range.start);
        let last = if range.end.0 / LEAF_PAGES as u64 > key {
            LEAF_PAGES
        } else {
            split(range.end).1
        };
        let Some(leaf) = self.leaves.get_mut(key) else {
            return range.end;
        };
        let mut found = 0;
        for i in leaf.mapped.within(index..last) {
            let word = &mut leaf.words[i];
            let (rank, low) = ((*word >> RANK_AT) as u16, *word & ((1 << RANK_AT) - 1));
            if let Some(rank) = judge(rank) {
                *word = low | u64::from(rank) << RANK_AT;
                continue;
            }
            if !shared_too && leaf.shared.has(i) {
                continue;
            }
            victims.push(Vpn(key * LEAF_PAGES as u64 + i as u64));
            found += 1;
            if found == max {
                return Vpn(key * LEAF_PAGES as u64 + i as u64 + 1);
            }
        }
        range.end
    }
}

#[cfg(test)]
mod tests;
