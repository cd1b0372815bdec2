//! Memory that the program wants to serve itself, by its own userfaultfd.
//!
//! The kernel registers memory with one userfaultfd only. The program's thread therefore touches the memory that it
//! is going to register, and the pager releases it: present pages stay, unmanaged from then on. While it is
//! registered elsewhere, the kernel refuses it to the pager; until then the pager leaves it alone for a moment.

use foreswap_core::units::{Nanos, len, overlap};

use super::adopt::pages;
use super::boot::bytes_of;
use super::world::now;
use super::{Mode, Pager};
use crate::ledger::SeenKind;

/// How long the program may take to register released memory.
const MOMENT: Nanos = 1_000_000_000;

impl Pager {
    /// Release `bytes` at `address`. False: not now, because a part of it was evicted again, or a fork is in
    /// progress, whose child is told of the managed memory.
    pub(super) fn on_let_go(&mut self, address: usize, bytes: usize) -> bool {
        let range = pages(address, address + bytes);
        self.wait_longer();
        if self.mode == Mode::Bare {
            self.let_go.push((range, now() + MOMENT));
            return true;
        }
        if !self.hold.is_none() {
            return false;
        }
        let managed = self.mm.managed_in(&range);
        for part in &managed {
            let present = self.space.present(part).unwrap_or_default();
            if present.iter().map(len).sum::<u64>() < len(part) {
                return false;
            }
        }
        self.let_go.push((range, now() + MOMENT));
        for part in managed {
            let at = bytes_of(&part);
            if self.w.program.unregister(at.start, at.len()).is_err() {
                return false;
            }
            self.w.let_children_have(&part);
            self.w.record(|to| to.change(SeenKind::Unmap, &part));
            self.mm.unmap(&mut self.w, &part);
        }
        true
    }

    /// A large range is released in pieces; earlier pieces wait for the last.
    fn wait_longer(&mut self) {
        let now = now();
        self.let_go.retain(|(_, until)| now < *until);
        for (_, until) in &mut self.let_go {
            *until = now + MOMENT;
        }
    }

    /// Whether a part of `range` was just released.
    pub(super) fn is_let_go(&mut self, range: &foreswap_core::units::PageRange) -> bool {
        let now = now();
        self.let_go.retain(|(_, until)| now < *until);
        let mut let_go = self.let_go.iter();
        let_go.any(|(gone, _)| len(&overlap(gone, range)) > 0)
    }
}
