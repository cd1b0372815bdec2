//! Advice of the program for its memory (`madvise`).
//!
//! Advice for managed memory comes over the doorbell, after the kernel accepted it. Earlier hints, from before the
//! memory was managed, are in the kernel's map. Only a program that gave hints pays for reading the map's long form,
//! once.

use foreswap_core::units::{PAGE_SIZE, Vpn, len};
use foreswap_core::{Advice, Hint};
use std::sync::atomic::Ordering::SeqCst;

use super::{Pager, adopt};
use crate::sys::maps;

/// The meaning of a number of `madvise`, if it has one here.
fn meaning(number: u64) -> Option<Advice> {
    Some(match i32::try_from(number).ok()? {
        libc::MADV_NORMAL => Advice::Use(Hint::Normal),
        libc::MADV_RANDOM => Advice::Use(Hint::Random),
        libc::MADV_SEQUENTIAL => Advice::Use(Hint::Sequential),
        libc::MADV_WILLNEED => Advice::WillNeed,
        libc::MADV_COLD => Advice::Cold,
        libc::MADV_PAGEOUT => Advice::PageOut,
        _ => return None,
    })
}

impl Pager {
    /// The program advised `bytes` at `start`, and the kernel accepted it. Returns the number of managed pages.
    pub(crate) fn on_advice(&mut self, start: u64, bytes: u64, number: u64) -> u64 {
        let end = start.saturating_add(bytes) as usize;
        // The kernel refuses ranges that pass the end of memory; this thread must check that itself.
        let Some(end) = end.checked_next_multiple_of(PAGE_SIZE) else {
            return 0;
        };
        let range = adopt::pages(start as usize, end);
        match i32::try_from(number) {
            Ok(libc::MADV_DONTFORK) => self.w.on_fork_advice(&range, true),
            Ok(libc::MADV_DOFORK) => self.w.on_fork_advice(&range, false),
            _ => {}
        }
        if let Some(advice) = meaning(number) {
            self.mm.advise(&mut self.w, &range, advice);
        }
        self.mm.managed_in(&range).iter().map(len).sum()
    }

    /// Take over the program's hints from before its memory was managed.
    pub(crate) fn take_hints(&mut self) {
        if !self.program.hints.load(SeqCst) {
            return;
        }
        // Without the map the program loses its hints, not its memory.
        for (range, number) in maps::hints().unwrap_or_default() {
            self.on_advice(range.start as u64, range.len() as u64, u64::from(number));
        }
        self.w.find_own(&(Vpn(0)..Vpn(u64::MAX)));
    }
}
