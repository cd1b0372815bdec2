//! Invariants of a process.
//!
//! Checking all tables of a large machine takes longer than everything else. They are checked after every few calls of
//! the core, those of a small machine after each. The charge and the limit are checked after every call.

use foreswap_core::Entry;

use super::mmu::View;
use super::process::Process;
use super::space::Mapping;
use super::system::System;

/// Up to this many pages, the tables are checked after every call of the core.
const CHECKED_AT_ONCE: u64 = 1_024;

impl Process {
    /// The core was called.
    pub(super) fn check(&mut self, sys: &mut System) {
        let over = sys.charged.saturating_sub(sys.limit);
        assert!(
            over <= sys.excused,
            "the limit is passed by {over} without a reason"
        );
        sys.excused = over;
        let charged = self.space.charged;
        self.calls += 1;
        let each = 1 + self.cells.len() as u64 / CHECKED_AT_ONCE;
        if !self.calls.is_multiple_of(each) {
            assert_eq!(charged, self.mm.resident(), "the charge is wrong");
            return;
        }
        let view = View {
            sys,
            space: &mut self.space,
        };
        if let Err(what) = self.mm.check(&view, charged) {
            panic!("{what}");
        }
        if self.settled() {
            assert!(self.space.physical() <= charged, "memory is not charged");
        }
        if self.calls.is_multiple_of(8 * each) {
            self.check_references();
            self.check_presence();
            self.check_hints();
        }
    }

    /// Each page's region has the hint that was given for it, and regions differ where they meet.
    fn check_hints(&self) {
        let mut before: Option<&foreswap_core::Vma> = None;
        for vma in self.mm.regions() {
            for page in foreswap_core::units::pages(&vma.range) {
                assert_eq!(
                    vma.hint,
                    self.hints[self.space.at(page)],
                    "hint of {page:?}"
                );
            }
            let meets = before.filter(|before| before.range.end == vma.range.start);
            assert!(meets.is_none_or(|before| before.hint != vma.hint));
            before = Some(vma);
        }
    }

    /// Each reference that was taken is known to the core, or was given up with a bad slot.
    pub fn check_references(&mut self) {
        self.references.clear();
        self.mm.references(&mut self.references);
        for &slot in &self.references {
            let refs = &mut self.space.refs[usize::from(slot.area)][slot.index as usize];
            assert!(*refs > 0, "{slot:?} is used without a reference");
            *refs -= 1;
        }
        assert!(self.space.refs == self.space.bad, "references have leaked");
        for &slot in &self.references {
            *self.space.refs_mut(slot) += 1;
        }
    }

    /// Pages that the core believes to be absent are absent.
    fn check_presence(&self) {
        for (at, page) in self.space.pages.iter().enumerate() {
            if page.mapping == Mapping::Managed
                && self.cells[at].changing == 0
                && page.present.is_some()
            {
                let entry = self.mm.entry(self.space.vpn(at));
                assert!(
                    matches!(entry, Entry::Resident(_)),
                    "page {at} is mapped, the core has {entry:?}"
                );
            }
        }
    }

    /// The state to print when it hangs.
    pub fn state(&self, sys: &System) -> String {
        let (mut mapped, mut cached, mut swapped, mut poisoned) = (0, 0, 0, 0);
        for at in 0..self.cells.len() {
            match self.mm.entry(self.space.vpn(at)) {
                Entry::Resident(_) => mapped += 1,
                Entry::Cached(_) => cached += 1,
                Entry::Swapped { .. } => swapped += 1,
                Entry::Poisoned => poisoned += 1,
                Entry::Unmapped | Entry::SameFilled(_) | Entry::Guarded => {}
            }
        }
        let used: Vec<_> = sys.areas.iter().map(|area| area.used).collect();
        let full = self.space.frames.iter().flatten().count();
        let waits: Vec<_> = self.threads.iter().flatten().map(|wait| wait.at).collect();
        format!(
            "limit {}, charged {} of {}, {mapped} mapped, {cached} cached, {swapped} swapped, \
             {poisoned} poisoned, {full} of {} frames full, slots used {used:?}, waiting for {waits:?}, \
             notices {:?}",
            sys.limit,
            self.space.charged,
            sys.charged,
            self.space.frames.len(),
            &sys.told[sys.told.len().saturating_sub(3)..],
        )
    }
}
