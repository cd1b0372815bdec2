//! Write-back: when an area fills up, its coldest pages move to one of a higher tier.
//!
//! A hand walks the page table. Mapped pages release the slot that they kept on the area. Of the pages that are on it
//! only, those that were evicted longest ago are read into frames and written to the next area beyond it.
//! The walk finds the age: it is halved after a round that found no page, and doubled when the area fills again. Pages
//! that a fork shares stay, since each process would write its own copy.

use crate::space::page_table::EVICTED_BITS;
use crate::swap::tiers::Usage;
use crate::units::Vpn;

/// Pages whose coldness is an estimate of that of all.
const MET: u32 = 4096;

/// When pages leave an area, and how many at a time.
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
    /// Pages of the area that the walk has met lately, and those of them that were cold.
    met: u32,
    cold: u32,
}

impl WriteBack {
    /// Whether pages are to leave an area now; `beyond`: the areas of higher tiers. `evictions` pages were evicted so far.
    pub fn is_due(&mut self, area: Usage, beyond: Usage, evictions: u64) -> bool {
        let bound = self.config.begins - u64::from(self.active);
        let due = area.used * 16 >= area.slots * bound && {
            let Usage { slots, used, .. } = beyond;
            let least = self.config.least_room.min(slots / self.config.least_part);
            slots.saturating_sub(used) > least
        };
        if due && !self.active {
            let oldest = (evictions / 2).min(1 << (EVICTED_BITS - 1)) as u32;
            self.set_age(match self.age {
                0 => oldest,
                age => (age * 2).min(oldest),
            });
        }
        self.active = due;
        due
    }

    /// What was met is known by its old age.
    fn set_age(&mut self, age: u32) {
        if self.age != age {
            (self.age, self.met, self.cold) = (age, 0, 0);
        }
    }

    /// Whether an area has room for pages that come from beyond, and for so many others.
    pub fn has_room(area: Usage, others: u64) -> bool {
        (area.used + others) * 16 < area.slots * Config::default().begins
    }

    /// The areas beyond have no slot for this process.
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

    /// As [`WriteBack::is_cold`], for a page that the walk has met.
    pub fn meets_cold(&mut self, later: u32) -> bool {
        let is_cold = self.is_cold(later);
        (self.met, self.cold) = (self.met + 1, self.cold + u32::from(is_cold));
        if self.met >= 2 * MET {
            (self.met, self.cold) = (self.met / 2, self.cold / 2);
        }
        is_cold
    }

    /// Of `used` pages so many are cold, by what the walk has met.
    pub fn cold_of(&self, used: u64) -> u64 {
        match self.age {
            0 => used,
            // Half of them, until the walk has met some.
            _ => used * u64::from(self.cold + MET / 16) / u64::from(self.met + MET / 8),
        }
    }

    /// A step is over. `worked`: it found a page. `next`: where the walk continues, unless the round is over.
    pub fn end_step(&mut self, worked: bool, next: Option<Vpn>) {
        self.found |= worked;
        if next.is_none() && !core::mem::take(&mut self.found) {
            self.set_age(self.age / 2);
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
        reads: 0,
    };

    fn used(used: u64) -> Usage {
        let (slots, reads) = (1600, 0);
        Usage { slots, used, reads }
    }

    #[test]
    fn it_begins_late_and_ends_somewhat_later() {
        let mut back = WriteBack::default();
        let mut due = |n| back.is_due(used(n), ROOM, 10_000);
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
            used: 100_000 - 1024,
            ..ROOM
        };
        assert!(!back.is_due(used(1600), full, 10_000));
        let small = Usage {
            slots: 64,
            used: 62,
            reads: 0,
        };
        assert!(back.is_due(used(1600), small, 10_000));
    }

    #[test]
    fn the_walk_finds_the_age() {
        let mut back = WriteBack::default();
        assert!(back.is_due(used(1600), ROOM, 10_000));
        assert!(back.is_cold(5000) && !back.is_cold(4999));
        back.end_step(false, Some(Vpn(7)));
        assert!(!back.is_cold(4999), "the round is not over");
        back.end_step(false, None);
        assert!(back.is_cold(2500));
        back.end_step(true, None);
        assert!(!back.is_cold(2499), "this round found a page");
        assert!(!back.is_due(used(0), ROOM, 10_000));
        assert!(back.is_due(used(1600), ROOM, 10_000));
        assert!(
            back.is_cold(5000) && !back.is_cold(4999),
            "the area fills again"
        );
    }
}
