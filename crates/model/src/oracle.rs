//! The rules for a process: cheap checks after every call of the core, and full checks from time to time.

use foreswap_core::{Entry, Place, Stored};

use crate::process::Process;
use crate::space::Mapping;
use crate::system::System;
use crate::view::View;

impl Process {
    /// The limit holds, and the charge equals the core's count of pages in memory.
    pub fn check_limit(&self, sys: &mut System) {
        let over = sys.charged.saturating_sub(sys.limit);
        assert!(
            over <= sys.excused,
            "the limit is passed by {over} pages without a reason"
        );
        sys.excused = over;
        assert_eq!(
            self.space.charged + self.space.account.debt().owed() - self.granted(),
            self.mm.resident(),
            "pages charged are not those resident"
        );
    }

    /// All rules.
    pub fn check(&mut self, sys: &mut System) {
        let charged = self.space.charged + self.space.account.debt().owed() - self.granted();
        let view = View {
            sys,
            space: &mut self.space,
        };
        if let Err(what) = self.mm.check(&view, charged) {
            panic!("{what}");
        }
        if self.settled() {
            let there = self.space.physical();
            assert!(
                there <= charged,
                "{there} pages are in memory, {charged} are charged"
            );
        }
        self.check_references();
        self.check_presence();
        self.check_places(sys);
        self.check_hints();
    }

    /// The core knows each reference taken, or gave it up with a bad slot.
    pub fn check_references(&mut self) {
        self.references.clear();
        self.mm.references(&mut self.references);
        for &slot in &self.references {
            let refs = &mut self.space.refs[usize::from(slot.area)][slot.index as usize];
            assert!(*refs > 0, "{slot:?} is used without a reference");
            *refs -= 1;
        }
        if self.space.refs != self.space.bad {
            let leaked = (self.space.refs.iter().zip(&self.space.bad).enumerate())
                .flat_map(|(area, (refs, bad))| {
                    let pairs = refs.iter().zip(bad).enumerate();
                    pairs
                        .filter(|(_, (refs, bad))| refs != bad)
                        .map(move |(slot, _)| (area, slot))
                })
                .next();
            panic!("a reference has leaked: (area, slot) {leaked:?}");
        }
        for &slot in &self.references {
            *self.space.refs_mut(slot) += 1;
        }
    }

    /// Pages that the core takes for absent are absent.
    fn check_presence(&self) {
        for (at, page) in self.space.pages.iter().enumerate() {
            if page.mapping == Mapping::Managed
                && page.present.is_some()
                && self.cells[at].changing == 0
            {
                let entry = self.mm.entry(self.space.vpn(at));
                assert!(
                    matches!(entry, Entry::Resident(_)),
                    "page {at} is mapped, the core has {entry:?}"
                );
            }
        }
    }

    /// A process that forks at this moment, without notice, finds the content of each absent page where the core says.
    fn check_places(&self, sys: &System) {
        for (page, place) in self.mm.places() {
            let cell = &self.cells[self.space.at(page)];
            let content = match place {
                Place::Stored(Stored::In(slot)) if slot.is_file() => {
                    Some(System::file_content(slot.index))
                }
                Place::Stored(Stored::In(slot)) => {
                    let (area, slot) = (&sys.areas[usize::from(slot.area)], slot.index as usize);
                    let content = area.content[slot];
                    // The device has damaged it, which a reader notices.
                    (System::digest(content, sys.ordinary).number() == area.digests[slot])
                        .then_some(content)
                }
                Place::Stored(Stored::Filled(word)) => Some(word),
                Place::Frame(frame) => self.space.frames[frame.0 as usize],
                Place::Nowhere => None,
            };
            let is_certain = !cell.lost
                && !cell.maybe_zero
                && !cell.discarding
                && !cell.taken
                && cell.changing == 0;
            if let Some(content) = content.filter(|_| is_certain) {
                assert_eq!(content, cell.value, "{page:?} is said to be in {place:?}");
            }
        }
    }

    /// Each page's region has the hint given for it, and adjacent regions differ.
    fn check_hints(&self) {
        let mut before: Option<&foreswap_core::Vma> = None;
        for vma in self.mm.regions() {
            let (start, end) = (self.space.at(vma.range.start), self.space.at(vma.range.end));
            let wrong = (start..end).find(|&at| self.hints[at] != vma.hint);
            assert_eq!(wrong, None, "this page's region has a wrong hint");
            let is_file = |vma: &foreswap_core::Vma| vma.backing().is_some();
            let meets = before.filter(|before| {
                before.range.end == vma.range.start && !is_file(before) && !is_file(vma)
            });
            assert!(
                meets.is_none_or(|before| before.hint != vma.hint),
                "two regions meet at {:?} and are not one",
                vma.range.start
            );
            before = Some(vma);
        }
    }

    /// Everything was unmapped: nothing may be left. Without a limit, free frames are freed; a lost one remains.
    pub fn check_empty(&mut self, sys: &mut System) {
        let limit = std::mem::replace(&mut sys.limit, 0);
        sys.excuse();
        for _ in 0..4 {
            self.run(sys);
        }
        sys.limit = limit;
        assert_eq!(
            self.mm.resident(),
            0,
            "memory is held after everything was unmapped"
        );
        let backed = self.space.frames.iter().flatten().count() as u64;
        assert_eq!(
            self.space.charged - self.granted(),
            backed,
            "memory is charged that no frame holds, after everything was unmapped"
        );
        self.check_references();
        assert!(
            self.space.refs == self.space.bad,
            "slots are held after everything was unmapped"
        );
    }

    /// The state for a report of a hang.
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
            "limit {}, charged {} of {}, pages: {mapped} mapped, {cached} cached, {swapped} swapped, \
             {poisoned} lost; {full} of {} frames full, slots used {used:?}, waiting for pages {waits:?}, \
             {} messages, {} I/Os, retry {}, stalled {}, last notices {:?}",
            sys.limit,
            self.space.charged,
            sys.charged,
            self.space.frames.len(),
            self.messages.len(),
            self.space.flights.len(),
            self.mm.must_retry(),
            self.mm.is_stalled(),
            sys.told.range(sys.told.len().saturating_sub(8)..),
        )
    }
}
