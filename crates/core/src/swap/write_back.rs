//! Write-back: when a compressing area fills up, its coldest pages move to another area.
//!
//! A hand walks the page table. Mapped pages release the slot that they kept on the area. Of the pages that are on it
//! only, those that were evicted longest ago are read into frames and written to the next area that does not compress.
//! The walk finds the age: it is halved after a round that found no page, and doubled when the area fills again. Pages
//! that a fork shares stay, since each process would write its own copy.

use crate::space::page_table::EVICTED_BITS;
use crate::units::Vpn;

/// When pages leave a compressing area, and how many at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// Write-back begins when this many sixteenths of the area are used, and ends at one less, so that it goes on for a
    /// while.
    pub begins: u64,
    /// Pages that one step moves: no fault waits for more.
    pub batch: u32,
    /// Pages that one step looks at.
    pub look: usize,
    /// Slots that must be free on the other areas; or this part of them if they are small.
    pub least_room: u64,
    pub least_part: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            begins: 14,
            batch: 32,
            look: 256,
            least_room: 1024,
            least_part: 64,
        }
    }
}

/// Slots of some areas, and how many of them are used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub slots: u64,
    pub used: u64,
}

/// Progress of write-back.
#[derive(Default)]
pub(crate) struct WriteBack {
    config: Config,
    active: bool,
    hand: Vpn,
    /// A page is cold if at least this many pages were evicted after it.
    age: u32,
    /// This round found a page.
    found: bool,
}

impl WriteBack {
    /// Whether pages are to leave the compressing area now; `others`: the areas that do not compress. `evictions` pages
    /// were evicted so far.
    pub fn is_due(&mut self, area: Usage, others: impl FnOnce() -> Usage, evictions: u64) -> bool {
        let bound = self.config.begins - u64::from(self.active);
        let due = area.used * 16 >= area.slots * bound && {
            let Usage { slots, used } = others();
            let least = self.config.least_room.min(slots / self.config.least_part);
            slots.saturating_sub(used) > least
        };
        if due && !self.active {
            let oldest = (evictions / 2).min(1 << (EVICTED_BITS - 1)) as u32;
            self.age = match self.age {
                0 => oldest,
                age => (age * 2).min(oldest),
            };
        }
        self.active = due;
        due
    }

    /// The other areas have no slot for this process.
    pub fn stop(&mut self) {
        self.active = false;
    }

    /// Pages that one step may move, of frames of which `writes` may be in writeback.
    pub fn batch(&self, writes: u32) -> u32 {
        self.config.batch.min(writes / 2)
    }

    /// Where the walk continues, and how many pages a step looks at.
    pub fn next_look(&self) -> (Vpn, usize) {
        (self.hand, self.config.look)
    }

    /// Whether a page is cold after which `later` pages were evicted.
    pub fn is_cold(&self, later: u32) -> bool {
        later >= self.age
    }

    /// A step is over. `worked`: it found a page. `next`: where the walk continues, unless the round is over.
    pub fn end_step(&mut self, worked: bool, next: Option<Vpn>) {
        self.found |= worked;
        if next.is_none() && !core::mem::take(&mut self.found) {
            self.age /= 2;
        }
        self.hand = next.unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Usage = Usage {
        slots: 100_000,
        used: 0,
    };

    fn used(used: u64) -> Usage {
        Usage { slots: 1600, used }
    }

    #[test]
    fn it_begins_late_and_ends_somewhat_later() {
        let mut back = WriteBack::default();
        let mut due = |n| back.is_due(used(n), || ROOM, 10_000);
        assert!(!due(1399));
        assert!(due(1400));
        assert!(due(1300));
        assert!(!due(1299));
        assert!(!due(1399));
    }

    #[test]
    fn without_room_elsewhere_nothing_moves() {
        let mut back = WriteBack::default();
        let full = Usage {
            slots: 100_000,
            used: 100_000 - 1024,
        };
        assert!(!back.is_due(used(1600), || full, 10_000));
        let small = Usage {
            slots: 64,
            used: 62,
        };
        assert!(back.is_due(used(1600), || small, 10_000));
    }

    #[test]
    fn the_walk_finds_the_age() {
        let mut back = WriteBack::default();
        assert!(back.is_due(used(1600), || ROOM, 10_000));
        assert!(back.is_cold(5000) && !back.is_cold(4999));
        back.end_step(false, Some(Vpn(7)));
        assert!(!back.is_cold(4999), "the round is not over");
        back.end_step(false, None);
        assert!(back.is_cold(2500));
        back.end_step(true, None);
        assert!(!back.is_cold(2499), "this round found a page");
        assert!(!back.is_due(used(0), || ROOM, 10_000));
        assert!(back.is_due(used(1600), || ROOM, 10_000));
        assert!(
            back.is_cold(5000) && !back.is_cold(4999),
            "the area fills again"
        );
    }
}
