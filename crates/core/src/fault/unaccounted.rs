//! Mapped pages that are not there.
//!
//! Two kinds can be gone rightly. A page that was there before we knew of it and was never moved since may have been freed
//! (MADV_FREE) before its memory was registered. And the kernel takes the pages of a discard away some time after its event
//! was read, also those that came in between. Both read as zeros, as they would without us ([`Resident::found`]). Any other
//! page had content that we brought, and nothing says where that is: it is lost, a touch raises SIGBUS, and the user is
//! told. Zeros there could be wrong bytes.

use alloc::collections::VecDeque;

use crate::fault::REFS_NEW;
use crate::mm::{Mm, Outcome, Pending};
use crate::space::page_table::{Entry, Resident};
use crate::units::{Nanos, PageRange, Slot, Vpn};
use crate::world::{Notice, Stop, World};

/// How long the kernel may take to discard, once its event was read: the thread may wait that long for a CPU.
const ZAP: Nanos = 10_000_000_000;
/// Most ranges that are told apart.
const RANGES: usize = 32;

/// Ranges that were discarded a short time ago, in order.
#[derive(Default)]
pub(crate) struct Discarded {
    ranges: VecDeque<(PageRange, Nanos)>,
}

impl Discarded {
    fn note(&mut self, range: &PageRange, now: Nanos) {
        self.ranges.push_back((range.clone(), now));
        if self.ranges.len() > RANGES
            && let (Some((first, _)), Some((second, _))) =
                (self.ranges.pop_front(), self.ranges.front_mut())
        {
            *second = first.start.min(second.start)..first.end.max(second.end);
        }
    }

    /// Whether `page` may still be taken away.
    fn has(&mut self, page: Vpn, now: Nanos) -> bool {
        while let Some((_, since)) = self.ranges.front()
            && now.saturating_sub(*since) > ZAP
        {
            self.ranges.pop_front();
        }
        self.ranges.iter().any(|(range, _)| range.contains(&page))
    }
}

impl Mm {
    /// The kernel will take the pages of `range` away, if it has not yet.
    pub(crate) fn note_discard(&mut self, range: &PageRange, now: Nanos) {
        self.discarded.note(range, now);
    }

    /// `page` was mapped, with `slot` holding the same bytes.
    pub(crate) fn set_mapped(
        &mut self,
        w: &mut impl World,
        page: Vpn,
        slot: Option<Slot>,
        refs: u8,
    ) {
        #[cfg(feature = "planted")]
        if self.has(crate::planted::Bug::HastyLoss) {
            self.discarded = Discarded::default();
        }
        let found = !self.discarded.ranges.is_empty() && self.discarded.has(page, w.now());
        let resident = Resident { slot, refs, found };
        self.table.set(page, Entry::Resident(resident));
    }

    /// A message about a page that is mapped, as far as is known: an old one, or the page is gone. An attempt to put
    /// something there tells which: it is refused where a page is.
    pub(crate) fn on_present(
        &mut self,
        w: &mut impl World,
        pending: Pending,
        resident: Resident,
    ) -> Outcome {
        let page = pending.page;
        let tried = if resident.found {
            w.zero_in(page, 1)
        } else {
            w.poison(page)
        };
        match tried.stop {
            Some(Stop::Again) => return self.again(pending),
            Some(_) => w.wake(page),
            None if resident.found => {
                self.put(w, resident.slot);
                self.set_mapped(w, page, None, REFS_NEW);
                self.stats.faults_zero += 1;
            }
            None => self.on_missing(w, page),
        }
        Outcome::Served
    }

    /// The mapped page is not there, and no event is on the way that would tell why.
    pub(crate) fn on_missing(&mut self, w: &mut impl World, page: Vpn) {
        let Entry::Resident(Resident { slot, found, .. }) = self.table.get(page) else {
            return;
        };
        self.put(w, slot);
        w.uncharge(1);
        if found {
            self.table.set(page, Entry::Unmapped);
        } else {
            self.table.set(page, Entry::Poisoned);
            w.notice(Notice::Unaccounted { page });
        }
    }
}
