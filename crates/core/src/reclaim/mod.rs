//! Which pages are evicted, and when.
//!
//! Reclaim sweeps the page table in order of address, and a policy ([`policy::ReclaimPolicy`]) says which of the pages
//! are victims. Pages that a large scan has passed are evicted first (drop-behind): the scan would push out all other pages
//! and itself. An evicted page stays in its frame for a while. A touch there is cheap and serves as the reference bit.
//! The digest tells whether a page is clean, so nothing depends on write protection. Background reclaim keeps a reserve
//! of frames for faults; it runs while I/O is in flight and stops at the high mark.

pub(crate) mod any_policy;
pub mod auto_limit;
mod clock;
pub(crate) mod drop_behind;
mod generations;
pub mod linux_kswapd;
mod lru;
mod parts;
pub(crate) mod policy;
pub(crate) mod refault;
mod s3fifo;
pub(crate) mod unshare;
pub(crate) mod wake;
mod watermarks;

use crate::heuristics::Heuristics;
use crate::units::Vpn;
use any_policy::{AnyPolicy, Policy};
use policy::{Came, Rank, ReclaimPolicy as _};
use watermarks::Watermarks;

/// Passes that skip a leaf whose pages cannot be moved.
pub(crate) const REST: u8 = 8;
/// Most pages in one move.
pub(crate) const RUN: u32 = 64;
/// Pages evicted at a time while a thread waits for a read: a read that completes must not wait for a whole batch.
const BESIDE_READS: u32 = 16;

/// When reclaim runs, and how far it has come.
pub(crate) struct Reclaim {
    /// Frames for single pages.
    frames: u32,
    marks: Watermarks,
    policy: AnyPolicy,
    /// Position of the sweep.
    hand: Vpn,
    /// Background reclaim is awake.
    awake: bool,
    /// Pages evicted so far.
    evictions: u64,
    marginal: refault::Marginal,
    pass: Pass,
    heuristics: Heuristics,
}

/// A pass of the sweep over all pages: the counts at its begin.
#[derive(Default)]
struct Pass {
    evictions: u64,
    refaults: u64,
    takes_shared: bool,
}

impl Reclaim {
    /// Nothing was evicted yet. The process can count on `memory` pages.
    pub fn new(policy: Policy, memory: u64, frames: u32) -> Self {
        Reclaim {
            frames,
            marks: Watermarks::new(memory, frames),
            policy: AnyPolicy::new(policy),
            hand: Vpn(0),
            awake: false,
            evictions: 0,
            marginal: refault::Marginal::default(),
            pass: Pass::default(),
            heuristics: Heuristics::default(),
        }
    }

    /// Use only these heuristics.
    #[cfg(feature = "ablate")]
    pub fn set_heuristics(&mut self, heuristics: Heuristics) {
        self.heuristics = heuristics;
    }

    /// The order of eviction.
    pub fn policy(&self) -> &AnyPolicy {
        &self.policy
    }

    /// As [`Reclaim::policy`], to judge pages.
    pub fn policy_mut(&mut self) -> &mut AnyPolicy {
        &mut self.policy
    }

    /// A page is mapped; returns its rank. `resident` pages are.
    pub fn rank_mapped(&mut self, came: Came, resident: u64) -> Rank {
        let rank = self.policy.rank(came, resident);
        self.policy.on_mapped(rank, resident);
        rank
    }

    /// The sweep begins a pass; `refaults` pages were touched so far that had been evicted while in use, and `resident`
    /// are mapped.
    pub fn begin_pass(&mut self, refaults: u64, resident: u64) {
        self.hand = Vpn(0);
        let evicted = self.evictions - self.pass.evictions;
        let returned = refaults - self.pass.refaults;
        self.policy.begin_pass(evicted, resident);
        self.pass = Pass {
            evictions: self.evictions,
            refaults,
            takes_shared: 2 * returned >= evicted,
        };
    }

    /// Whether the pass takes pages that others share since a fork and would have to be charged for: that costs a copy,
    /// and frees nothing before the others evict the page as well. It does if the last pass found no other page, or if
    /// half of its pages came back soon: then the others are in use.
    pub fn takes_shared(&self) -> bool {
        self.pass.takes_shared
    }

    /// The memory that this process can count on has changed.
    pub fn set_memory(&mut self, pages: u64) {
        self.marks = Watermarks::of_part(pages, self.frames);
    }

    /// How much memory is kept ready.
    pub fn marks(&self) -> &Watermarks {
        &self.marks
    }

    /// Pages evicted in one go. `awaited`: a thread waits for a read.
    pub fn batch(&self, awaited: bool) -> u32 {
        match awaited {
            true => BESIDE_READS,
            false => self.marks.batch,
        }
    }

    /// Position of the sweep.
    pub fn hand(&self) -> Vpn {
        self.hand
    }

    /// The sweep continues at `page`.
    pub fn set_hand(&mut self, page: Vpn) {
        self.hand = page;
    }

    /// Pages evicted so far.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Pages were evicted.
    pub fn on_evicted(&mut self, pages: u32) {
        self.evictions += u64::from(pages);
    }
}
