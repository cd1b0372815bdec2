//! The world as the core sees it: the traits that a driver implements.
//!
//! The Linux engine implements them with userfaultfd and io_uring, the lab and the tests with a model. Every call of
//! [`Mmu`] is done when it returns. [`Store`] is asynchronous: the driver reports completions through
//! [`crate::Mm::on_io`]. No method may call back into the core.

use crate::units::{Frame, Nanos, Slot, Vpn};

/// Why an MMU operation stopped before its last page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The address space is changing; an event waits to be read. Drain the events, then retry.
    Again,
    /// The destination page is present already.
    Exists,
    /// The source page is not present.
    Absent,
    /// The page is pinned or shared by fork; it may be movable later.
    Busy,
    /// The mapping does not allow it (locked, other protection, shared).
    Fixed,
    /// No managed mapping is there (any more).
    Gone,
    /// The system has no memory left.
    NoMemory,
}

/// How far an MMU operation came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Pages done, from the first one on.
    pub pages: u32,
    /// Why the next page was not done; `None` when all were.
    pub stop: Option<Stop>,
}

impl Done {
    /// All `pages` done.
    pub const fn all(pages: u32) -> Self {
        Done { pages, stop: None }
    }

    /// Stopped at page number `pages` because of `stop`.
    pub const fn stopped(pages: u32, stop: Stop) -> Self {
        Done {
            pages,
            stop: Some(stop),
        }
    }
}

/// The content of a page, as far as the core needs to know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Digest {
    /// Every byte is zero.
    Zero,
    /// Every aligned 8 bytes hold this number, in the machine's byte order; not 0.
    Filled(u64),
    /// A 64-bit hash of the bytes.
    Hash(u64),
}

/// Page mappings. Ranges of pages and frames are contiguous.
pub trait Mmu {
    /// Move `n` pages of the program into the empty frames from `frame` on, atomically per page.
    fn move_out(&mut self, page: Vpn, frame: Frame, n: u32) -> Done;
    /// Move `n` frames to the program's absent pages and wake the threads that wait for them.
    fn move_in(&mut self, frame: Frame, page: Vpn, n: u32) -> Done;
    /// Copy a frame to one absent page of the program (where it cannot be moved) and wake.
    fn copy_in(&mut self, frame: Frame, page: Vpn) -> Done;
    /// Map fresh zeroed memory at `n` absent pages of the program and wake.
    fn zero_in(&mut self, page: Vpn, n: u32) -> Done;
    /// Make every touch of an absent page of the program raise SIGBUS, and wake.
    fn poison(&mut self, page: Vpn) -> Done;
    /// Wake the threads that wait for a page. A thread that still finds it absent faults again.
    fn wake(&mut self, page: Vpn);
    /// Ask for pages that a fork shares to be made movable. This happens in the background.
    fn unshare(&mut self, page: Vpn, n: u32);
    /// The driver still works on an [`Mmu::unshare`]. A page of that run that is evicted now would come back.
    fn is_unsharing(&self) -> bool {
        false
    }
    /// Back `n` empty frames with fresh memory.
    fn fill(&mut self, frame: Frame, n: u32) -> Done;
    /// Give the memory of `n` frames back to the system: they are empty afterwards.
    fn release(&mut self, frame: Frame, n: u32);
    /// `n` frames with memory are about to be read into, in parts: whatever they need before that is cheaper at once.
    fn renew(&mut self, frame: Frame, n: u32) {
        let _ = (frame, n);
    }
    /// Overwrite `n` frames with zeros. Where the memory of one cannot be written for a moment, it stays as it is, and a
    /// [`Mmu::move_in`] of it answers [`Stop::Again`]; the same holds for [`Mmu::fill_with`].
    fn clear(&mut self, frame: Frame, n: u32);
    /// Overwrite each aligned 8 bytes of `n` frames with `word` ([`Digest::Filled`]).
    fn fill_with(&mut self, frame: Frame, n: u32, word: u64);
    /// Digest of a frame's bytes.
    fn digest_of(&mut self, frame: Frame) -> Digest;
    /// As [`Mmu::digest_of`], for a frame that a read has filled and nothing has changed since. The digest may be known
    /// already. Valid while the core handles the end of that read ([`crate::Mm::on_io`]) or of its digest
    /// ([`crate::Mm::on_digested`]).
    fn digest_read(&mut self, frame: Frame) -> Digest {
        self.digest_of(frame)
    }
}

/// Huge pages. A driver without them has none of these calls.
pub trait HugeMmu {
    /// Back the 512 empty frames of a cluster, from `first` on, with one huge page. False: the system has no huge page.
    fn fill_huge(&mut self, first: Frame) -> bool {
        let _ = first;
        false
    }
    /// Whether the memory behind the 512 frames of a cluster is one huge page.
    fn is_huge(&mut self, first: Frame) -> bool {
        let _ = first;
        false
    }
    /// Whether the 512 aligned pages from `unit` on, all mapped in the program, are one huge page. A huge page that
    /// moves to a place where small pages left their page table is split.
    fn is_mapped_huge(&mut self, unit: Vpn) -> bool {
        let _ = unit;
        false
    }
    /// The 512 frames of a cluster are empty: prepare them, so that a huge page can be moved there whole.
    fn rebuild(&mut self, first: Frame) {
        let _ = first;
    }
    /// Make the 512 aligned pages from `unit` on, all mapped in the program, one huge page. False: they stay as they
    /// are.
    fn collapse(&mut self, unit: Vpn) -> bool {
        let _ = unit;
        false
    }
}

impl Digest {
    /// The digest as one number. Zeros give 0, and different words give different numbers.
    pub const fn number(self) -> u64 {
        match self {
            Digest::Zero => 0,
            Digest::Filled(word) => scrambled(word),
            Digest::Hash(hash) => hash,
        }
    }
}

/// A bijection of numbers; 0 maps to 0. (The finalizer of Stafford's variant 13 of MurmurHash3, as in SplitMix64.)
pub const fn scrambled(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Names one I/O between its submission and its completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct IoId(pub u32);

/// A device or file system that pages are read from, as far as its latency and its bandwidth are its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StoreId(pub u64);

/// The swap areas' I/O.
pub trait Store {
    /// Where a slot is read from. Files may be on several file systems, which the core takes for one area.
    fn store_of(&self, slot: Slot) -> StoreId {
        StoreId(slot.area.into())
    }
    /// Start to read `frames.len()` slots from `slot` on. False: the queue is full; try again after a completion.
    fn read(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool;
    /// Start to write. As [`Store::read`]. An area that compresses may refuse pages.
    fn write(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool;
    /// As [`Store::write`]; pages that do not compress are taken as they are.
    fn write_uncompressed(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.write(io, slot, frames)
    }
    /// Begin to compute the digests of the 512 full frames of a cluster, from `first` on, beside the core's work.
    /// [`crate::Mm::on_digested`] reports the end; until then nothing changes these frames. False: no helper thread is
    /// available.
    fn begin_digest(&mut self, first: Frame) -> bool {
        let _ = first;
        false
    }
}

/// Pages of a write that the area did not accept. The other pages are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// A bit for each page, from the first.
    pub pages: [u64; 8],
    /// The area has no room; otherwise the pages do not compress.
    pub full: bool,
}

impl Refusal {
    /// Page number `n` of the write was refused.
    pub fn has(&self, n: u32) -> bool {
        let word = self.pages.get(n as usize / 64);
        word.is_some_and(|word| word >> (n % 64) & 1 != 0)
    }
}

/// How an I/O ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoResult {
    /// All bytes were transferred.
    Ok,
    /// Nothing is known about the bytes; the system's error number.
    Failed(i32),
    /// A write was accepted in part.
    Refused(Refusal),
}

/// The swap map: use count and digest of each slot. All processes of a run share it: another process can lower a
/// count, but never raise it from zero.
pub trait SwapMap {
    /// The `n`th of the areas that pages may be written to, in order of falling priority; `None` after the last.
    fn nth(&self, n: u8) -> Option<u8>;
    /// Slots of an area.
    fn slots(&self, area: u8) -> u32;
    /// Slots of an area that any process uses. Where room may run out before slots do, the number that corresponds to
    /// the room in use.
    fn used(&self, area: u8) -> u64;
    /// The area compresses pages, and may refuse some.
    fn compresses(&self, area: u8) -> bool {
        let _ = area;
        false
    }
    /// How far an area is: pages leave one that fills up for areas of higher tiers.
    fn tier(&self, area: u8) -> u8 {
        u8::from(!self.compresses(area))
    }
    /// Claim a slot cluster that no process allocates from and that has a free slot; the emptier the better.
    fn claim_cluster(&mut self, area: u8) -> Option<u32>;
    /// Claim a slot cluster that no process allocates from, of 512 slots that are all free.
    fn claim_empty_cluster(&mut self, area: u8) -> Option<u32>;
    /// Stop allocating from a cluster; its used slots stay used.
    fn release_cluster(&mut self, area: u8, cluster: u32);
    /// Use count of a slot.
    fn count(&self, slot: Slot) -> u32;
    /// Take the first reference to each of `n` free slots of one claimed cluster, from `first` on.
    fn get(&mut self, first: Slot, n: u32);
    /// Drop our reference.
    fn put(&mut self, slot: Slot);
    /// Take a reference to each of these slots, which we hold, on behalf of the child that is about to be forked.
    fn share(&mut self, slots: impl Iterator<Item = Slot>);
    /// Digest of the slot's content.
    fn digest(&self, slot: Slot) -> u64;
    /// Record the digest of the content that is about to be written.
    fn set_digest(&mut self, slot: Slot, digest: u64);
}

/// The memory that this process gets back when it evicts a page that others may share since a fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// The page: no other process waits to be charged for it.
    #[default]
    None,
    /// The page, but another process has to be charged for it then.
    Charged,
    /// Nothing: another process is charged for it.
    Owed,
}

/// The limit, shared by all processes of a run. Units are pages.
pub trait Limit {
    /// The limit.
    fn limit(&self) -> u64;
    /// Pages that could be charged now.
    fn available(&self) -> u64;
    /// Charge `n` pages if they fit under the limit. A refusal is reported to the other processes.
    fn try_charge(&mut self, n: u64) -> bool;
    /// Charge one page of the reserve for the worst case: memory and areas are full, and a page must be read. The read
    /// frees its slot, and another page can be evicted to it.
    fn try_charge_last(&mut self) -> bool {
        false
    }
    /// Charge pages that exist already, whatever the limit.
    fn charge_existing(&mut self, n: u64);
    /// Pages that are found in memory now are shared since a fork, and another process may be charged for them.
    fn shares_found(&self) -> bool {
        false
    }
    /// Uncharge pages.
    fn uncharge(&mut self, n: u64);
    /// `n` pages that were shared since a fork were copied: this process has one of its own of each.
    fn on_copied(&mut self, n: u64) {
        let _ = n;
    }
    /// `n` mapped pages that are shared since a fork are gone here; another process may still have them.
    fn let_go(&mut self, n: u64) {
        self.uncharge(n);
    }
    /// The memory that the eviction of a page gives back that is shared since a fork.
    fn sharing(&self) -> Sharing {
        Sharing::None
    }
    /// Pages that this process should give back to the others, or because the limit fell.
    fn excess(&self) -> u64;
}

/// Events that are reported to the user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// No slot is free on any area.
    AreasFull,
    /// A page could not be read back; it is poisoned.
    ReadFailed {
        /// Its slot.
        slot: Slot,
        /// The page.
        page: Vpn,
        /// The system's error number.
        error: i32,
    },
    /// The bytes of a page differ from those that were written; it is poisoned.
    Corrupt {
        /// Its slot.
        slot: Slot,
        /// The page.
        page: Vpn,
    },
    /// A write failed; the slot is not used again, the page stays in memory.
    WriteFailed {
        /// Its slot.
        slot: Slot,
        /// The system's error number.
        error: i32,
    },
    /// A fault found no memory in time; its page is poisoned.
    OutOfMemory {
        /// The page.
        page: Vpn,
    },
    /// A mapped page with known content is gone, and no event explains it; it is poisoned.
    Unaccounted {
        /// The page.
        page: Vpn,
    },
    /// No page can be evicted (locked, pinned), and the limit is exceeded.
    LimitPassed,
}

/// The I/O that the disk has, for all processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Disk {
    /// I/Os submitted so far.
    pub begun: u64,
    /// Of these, the ones that have not completed.
    pub left: u64,
}

/// The clock.
pub trait Clock {
    /// Nanoseconds since any fixed moment; never less than before.
    fn now(&self) -> Nanos;
}

/// Everything outside the core.
pub trait World: Mmu + HugeMmu + Store + SwapMap + Limit + Clock {
    /// Report an event to the user.
    fn notice(&mut self, notice: Notice);
    /// A fault was served `took` nanoseconds after it arrived.
    fn served(&mut self, took: Nanos);
    /// Readahead chose a window of `pages`.
    fn window(&mut self, pages: u64) {
        let _ = pages;
    }
    /// The disk as it is now. Work on bytes that were read (digests) does not count.
    fn disk(&self) -> Disk {
        Disk::default()
    }
    /// Tell the other processes on the same disk whether this one has random faults now. Whether others have.
    fn share_disk(&mut self, random_faults: bool) -> bool;
    /// An I/O has completed that a thread may wait for: other work is postponed. Cheap, as the core asks often.
    fn has_ended(&mut self) -> bool {
        false
    }
    /// During the hold of a fork: the page is about to be mapped again (see `mm::snapshot`).
    fn returns(&mut self, page: Vpn);
}
