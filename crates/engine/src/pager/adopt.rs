//! Which of the program's memory is managed, and when.
//!
//! While everything the program could touch fits what the ledger granted, nothing is registered and
//! the engine costs nothing (*bare*). The first growth that does not fit arms it: all adoptable
//! VMAs are registered, and the pages that are there already are found through pagemap. From then
//! on each growth is registered before the program can touch it, and a look at the maps a few times
//! a second finds what came another way.

use foreswap_core::Outcome;
use foreswap_core::units::{PAGE_SIZE, PageRange, Vpn, len};
use foreswap_core::world::{Limit, Mmu};

use super::boot::pages_of;
use super::world::now;
use super::{Mode, Pager, SOON};
use crate::program::state;
use crate::sys::maps::Vma;

/// The smallest VMA that a look at the maps adopts, in bytes.
const SMALLEST: usize = 128 << 10;
/// Looks, 5 ms apart, for which a starting engine waits until others have made room.
const START_LOOKS: u32 = 200;
/// Looks, 5 ms apart, for which memory that came unnoticed waits for room under the limit.
const ROOM_LOOKS: u32 = 40;
/// Pages granted beyond the need, so that not each growth asks.
const AHEAD: u64 = 2048;

/// The pages of `start..end`.
pub(crate) fn pages(start: usize, end: usize) -> PageRange {
    pages_of(&(start..end))
}

impl Pager {
    /// The first look: bare if all fits, armed otherwise.
    pub(crate) fn grant(&mut self) {
        let Ok(vmas) = self.space.adoptable(SMALLEST) else {
            return;
        };
        let need: u64 = vmas
            .iter()
            .map(|vma| ((vma.end - vma.start) / PAGE_SIZE) as u64)
            .sum();
        let more = need.saturating_sub(self.granted);
        let ahead = (need / 4).min(AHEAD);
        let fits = [ahead, 0]
            .into_iter()
            .find(|ahead| self.w.try_charge(more + ahead));
        if let Some(ahead) = fits {
            self.granted += more + ahead;
            let allowance = (self.granted - need) * PAGE_SIZE as u64;
            let program = self.program;
            program
                .allowance
                .store(allowance as i64, std::sync::atomic::Ordering::Relaxed);
            return;
        }
        if self.fork.is_held() {
            // Nothing may change under a fork: the growth is let pass now and looked at after it.
            self.w.charge_existing(more);
            self.granted += more;
            return;
        }
        self.arm(&vmas);
    }

    /// What the program has touched before its engine came up counts from now on. If it does not
    /// fit, the other processes are asked to make room first; not for long, as the program waits.
    pub(crate) fn await_room(&mut self) {
        let Ok(vmas) = self.space.adoptable(SMALLEST) else {
            return;
        };
        let mut touched = 0;
        for vma in vmas {
            let present = self.space.present(&pages(vma.start, vma.end));
            touched += present.iter().flatten().map(len).sum::<u64>();
        }
        for _ in 0..START_LOOKS {
            if touched <= self.w.available() {
                break;
            }
            self.w.ledger.set_wanted(self.w.me, touched);
            std::thread::sleep(std::time::Duration::from_nanos(SOON));
        }
        self.w.ledger.set_wanted(self.w.me, 0);
    }

    /// Manage all memory from now on, also if it would fit.
    pub(crate) fn arm_all(&mut self) {
        if let Ok(vmas) = self.space.adoptable(SMALLEST) {
            self.arm(&vmas);
        }
    }

    fn arm(&mut self, vmas: &[Vma]) {
        // The grant pays for the pages that are there. Given back before, it could be granted to
        // another process in between, and both would hold it.
        self.w.prepaid += std::mem::take(&mut self.granted);
        self.mode = Mode::Armed;
        self.program.set_state(state::ARMED);
        for vma in vmas {
            self.adopt(vma.start..vma.end);
        }
        self.take_hints();
        let unused = std::mem::take(&mut self.w.prepaid);
        self.w.uncharge(unused);
    }

    /// Register `range` and manage it. What cannot be registered is left alone.
    fn adopt(&mut self, range: std::ops::Range<usize>) {
        if self
            .w
            .program
            .register_missing(range.start, range.end - range.start)
            .is_ok()
        {
            self.manage(&range);
        }
    }

    /// The program's memory grew by `bytes` at `address`.
    pub(crate) fn on_grew(&mut self, address: usize, bytes: usize) {
        if self.mode == Mode::Bare {
            return self.grant();
        }
        let start = address / PAGE_SIZE * PAGE_SIZE;
        self.adopt(start..(address + bytes).next_multiple_of(PAGE_SIZE));
    }

    /// The program uses memory at `address` of which nothing is known.
    pub(crate) fn on_seen(&mut self, address: usize) {
        if self.mode == Mode::Bare {
            return self.grant();
        }
        self.adopt_around(address);
    }

    /// Adopt what is not managed yet of the VMA at `address`. Returns whether it is managed now.
    fn adopt_around(&mut self, address: usize) -> bool {
        let Ok(vmas) = self.space.adoptable(PAGE_SIZE) else {
            return false;
        };
        let Some(vma) = vmas
            .iter()
            .find(|vma| (vma.start..vma.end).contains(&address))
        else {
            return false;
        };
        self.adopt(vma.start..vma.end);
        self.mm.manages(Vpn::of(address as u64))
    }

    /// A registered page that the core knows nothing of: a mapping grew in place, or its event is
    /// still on the way.
    pub(crate) fn on_unmanaged(&mut self, page: Vpn) {
        let managed = self.adopt_around(page.address() as usize);
        if !managed || self.mm.on_fault(&mut self.w, page) == Outcome::Unmanaged {
            self.w.wake(page);
        }
    }

    /// A few times a second: has memory come in a way that nobody noticed?
    pub(crate) fn on_tick(&mut self) {
        self.expire_children();
        let data = self.space.data_pages().unwrap_or(self.data_pages);
        let unchanged = data == self.data_pages && self.room_wanted == 0;
        if unchanged || self.fork.is_held() || self.fork.is_under_way() {
            return;
        }
        self.data_pages = data;
        if self.mode == Mode::Bare {
            return self.grant();
        }
        let Ok(vmas) = self.space.adoptable(SMALLEST) else {
            return;
        };
        for vma in vmas {
            let range = pages(vma.start, vma.end);
            let known: u64 = self.mm.managed_in(&range).iter().map(len).sum();
            if known < len(&range) && self.has_room_for(&range) {
                self.adopt(vma.start..vma.end);
            }
        }
    }

    /// Whether what is there already of `range` fits under the limit. If not, reclaim makes room for
    /// it and the next look comes soon; after some looks it is adopted anyway.
    fn has_room_for(&mut self, range: &PageRange) -> bool {
        let present = self.space.present(range).unwrap_or_default();
        let known = self.mm.usage(range).0;
        let new = present.iter().map(len).sum::<u64>().saturating_sub(known);
        let available = self.w.available();
        if new <= available || self.room_wanted >= ROOM_LOOKS {
            self.room_wanted = 0;
            self.w.shrink_to = None;
            return true;
        }
        self.room_wanted += 1;
        let mine = self.w.ledger.process_charged(self.w.me);
        self.w.shrink_to = Some(mine.saturating_sub(new - available));
        self.next_look = now() + SOON;
        false
    }

    /// Tell the core of a registered range and of what is there already.
    fn manage(&mut self, range: &std::ops::Range<usize>) {
        let all = pages_of(range);
        let mut present = Vec::new();
        let mut at = all.start;
        // Only what was not managed before can have pages that we do not know.
        for known in self
            .mm
            .managed_in(&all)
            .into_iter()
            .chain([all.end..all.end])
        {
            if at < known.start
                && let Ok(found) = self.space.present(&(at..known.start))
            {
                present.extend(found);
            }
            at = known.end;
        }
        self.mm.adopt(&mut self.w, all, &present);
        let managed = self.mm.managed() * PAGE_SIZE as u64;
        self.w.ledger.stats(self.w.me).set_managed(managed);
    }
}
