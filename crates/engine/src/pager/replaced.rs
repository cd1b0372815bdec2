//! Managed memory that was unmapped because other memory took its place.
//!
//! Allocators of sanitizers and language runtimes reserve addresses and map parts of them with MAP_FIXED, past the C
//! library. The kernel reports the end of the old memory when the new one is there, and the call waits until the
//! report is read. The pager therefore registers the new memory before the program has touched more than a few of its
//! pages. A look at the map (`unnoticed`) would come too late: such programs touch a gigabyte a second.

use std::sync::atomic::Ordering::Relaxed;

use foreswap_core::units::{PAGE_SIZE, PageRange, overlap};

use super::Pager;
use super::adopt::pages;
use super::boot::{bytes_of, pages_of};
use super::world::now;
use crate::sys::mapping_at::MappingAt;
use crate::sys::own_memory;

/// With more mappings, memory is left to the next look at the map. A page that the program touched before its memory was
/// registered keeps the kernel from joining that memory with its neighbour: at full speed, each piece is a mapping. What
/// comes between two looks is one. The kernel's bound is 65,530 by default.
const MAPPINGS: usize = 16 << 10;

/// The memory that was registered in the place of other memory.
#[derive(Default)]
pub(super) struct Replaced {
    /// The core has not heard of it yet.
    registered: Vec<PageRange>,
    mapping_at: MappingAt,
}

impl Replaced {
    /// The private memory that is at the start of `range` now, as far as it is in `range`.
    fn memory_in(&mut self, range: &PageRange) -> Option<PageRange> {
        let mapping = self.mapping_at.find(bytes_of(range).start)?;
        let mut engines = own_memory::ranges();
        let ours = |own: own_memory::Own| {
            let own = pages(own.start, (own.start + own.len).next_multiple_of(PAGE_SIZE));
            !overlap(&own, range).is_empty()
        };
        let found = overlap(&pages_of(&mapping.range), range);
        (mapping.anonymous && !engines.any(ours)).then_some(found)
    }
}

impl Pager {
    /// `range` was unmapped: register the memory that is there now, if there is any, at once, as the thread that mapped
    /// it runs again. [`Pager::adopt_replaced`] reports it to the core, which has not heard of the end of the old
    /// memory yet.
    pub(super) fn register_replaced(&mut self, range: &PageRange) {
        // Nothing may be registered during a fork, a new thread's stack is not recognised yet, the C library's calls
        // report what they map, and a program that names regions has no other managed memory. A later look at the map
        // finds what is left.
        let is_reported = self.program.replacing.load(Relaxed) != 0;
        let may_be_stack = self.program.threads_made().is_none();
        let many = self.space.mappings >= MAPPINGS;
        let is_named = self.program.regions.are_all();
        if !self.hold.is_none() || may_be_stack || is_reported || is_named || many {
            return;
        }
        let Some(found) = self.replaced.memory_in(range) else {
            return;
        };
        let bytes = bytes_of(&found);
        // Registered memory has moved here: its pages are known at their old place, until the event of the move is read.
        if self.is_let_go(&found) || self.w.quiet.is_registered(bytes.start) == Some(true) {
            return;
        }
        if self.w.register(bytes.start, bytes.len()).is_ok() {
            self.replaced.registered.push(found);
            self.space.mappings += 1;
        }
    }

    /// Report what was registered to the core. Its pages wait for room, as they came unnoticed.
    pub(super) fn adopt_replaced(&mut self) {
        if self.replaced.registered.is_empty() {
            return;
        }
        self.w.account.open_found(now());
        for range in core::mem::take(&mut self.replaced.registered) {
            self.on_registered(&bytes_of(&range));
        }
        self.w.account.close_found();
        self.pay_for_found();
    }
}
