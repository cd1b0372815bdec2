//! The core's operations on the machine's page tables.

use foreswap_core::units::{Frame, Vpn};
use foreswap_core::world::{Digest, Done, HugeMmu, Mmu, Stop};

use super::{ABSENT, GARBAGE, Memory, Step};
use crate::page_tables::{HUGE, Table};

impl Mmu for Memory {
    fn move_out(&mut self, page: Vpn, frame: Frame, n: u32) -> Done {
        let (from, to) = (self.table(page), self.clusters.get(frame));
        let whole = self.clusters.go_whole(page, frame, n, from, to);
        let done = self.each(n, |m, i| {
            let (page, frame) = (page.plus(i.into()), frame.plus(i));
            let place = m.place(page).ok_or(Stop::Gone)?;
            if *place == ABSENT {
                return Err(Stop::Absent);
            }
            let content = std::mem::replace(place, ABSENT);
            m.frames[frame.0 as usize] = content;
            if !whole {
                m.alone(Some(page), Some(frame));
            }
            m.went(page);
            Ok(())
        });
        let moves = if whole { 1 } else { done.pages };
        if whole {
            self.set_table(page, Table::None);
            self.clusters.set(frame, Table::Huge);
        }
        self.cpu(self.costs.unmap * u64::from(moves));
        self.leaving += moves;
        self.settle_locks();
        done
    }

    fn move_in(&mut self, frame: Frame, page: Vpn, n: u32) -> Done {
        let (from, to) = (self.clusters.get(frame), self.table(page));
        let whole = self.clusters.go_whole(page, frame, n, from, to);
        let done = self.each(n, |m, i| {
            let (page, frame) = (page.plus(i.into()), frame.plus(i));
            let content = m.frames[frame.0 as usize];
            *m.absent(page)? = content;
            m.frames[frame.0 as usize] = ABSENT;
            if !whole {
                m.alone(Some(page), Some(frame));
            }
            Ok(())
        });
        let moves = if whole { 1 } else { done.pages };
        if whole {
            self.set_table(page, Table::Huge);
            self.clusters.set(frame, Table::None);
        }
        self.cpu(self.costs.map * u64::from(moves));
        self.entries += moves;
        self.settle_locks();
        for i in 0..done.pages {
            self.came(page.plus(i.into()));
        }
        done
    }

    fn copy_in(&mut self, frame: Frame, page: Vpn) -> Done {
        let content = self.frames[frame.0 as usize];
        match self.absent(page) {
            Err(stop) => Done::stopped(0, stop),
            Ok(place) => {
                *place = content;
                self.alone(Some(page), None);
                self.cpu(self.costs.zero + self.costs.allocate + self.costs.map);
                self.came(page);
                Done::all(1)
            }
        }
    }

    fn zero_in(&mut self, page: Vpn, n: u32) -> Done {
        let done = self.each(n, |m, i| {
            *m.absent(page.plus(i.into()))? = 0;
            m.alone(Some(page.plus(i.into())), None);
            Ok(())
        });
        let each = self.costs.allocate + self.costs.zero + self.costs.map;
        self.cpu(each * u64::from(done.pages));
        for i in 0..done.pages {
            self.came(page.plus(i.into()));
        }
        done
    }

    /// The simulated programs do not lose pages; the notice that accompanies this ends the run.
    fn poison(&mut self, page: Vpn) -> Done {
        let done = self.each(1, |m, _| m.absent(page).map(drop));
        if done.pages > 0 {
            self.steps.push(Step::Wake(page));
        }
        done
    }

    fn wake(&mut self, page: Vpn) {
        self.steps.push(Step::Wake(page));
    }

    fn unshare(&mut self, _: Vpn, _: u32) {}

    fn fill(&mut self, frame: Frame, n: u32) -> Done {
        for i in 0..n {
            self.frames[frame.plus(i).0 as usize] = GARBAGE;
        }
        Done::all(n)
    }

    fn release(&mut self, frame: Frame, n: u32) {
        let huge = self.clusters.get(frame) == Table::Huge;
        if huge && self.clusters.are_one(frame, n) {
            self.clusters.set(frame, Table::None);
        } else {
            self.alone(None, Some(frame));
        }
        for i in 0..n {
            self.frames[frame.plus(i).0 as usize] = ABSENT;
        }
    }

    /// A recycled huge page is allocated once, like any other page.
    fn clear(&mut self, frame: Frame, n: u32) {
        self.fill_with(frame, n, 0);
    }

    /// No page here is same-filled.
    fn fill_with(&mut self, frame: Frame, n: u32, word: u64) {
        for frame in (0..n).map(|i| frame.plus(i)) {
            let huge = self.clusters.get(frame) == Table::Huge;
            if !huge || self.clusters.are_one(frame, HUGE) {
                self.cpu(self.costs.allocate);
            }
            self.cpu(self.costs.zero);
            self.frames[frame.0 as usize] = word;
        }
    }

    /// Free of charge: the modelled kernel has a dirty bit instead.
    fn digest_of(&mut self, frame: Frame) -> Digest {
        match self.frames[frame.0 as usize] {
            0 => Digest::Zero,
            content => Digest::Hash(content),
        }
    }
}

impl HugeMmu for Memory {
    /// One is always available: compaction is not modelled.
    fn fill_huge(&mut self, first: Frame) -> bool {
        self.cpu(self.costs.allocate + self.costs.zero * u64::from(HUGE));
        for i in 0..HUGE {
            self.frames[first.plus(i).0 as usize] = 0;
        }
        match self.clusters.get(first) {
            Table::None => self.clusters.set(first, Table::Huge),
            Table::Small | Table::Huge => self.alone(None, Some(first)),
        }
        true
    }

    fn is_huge(&mut self, first: Frame) -> bool {
        self.clusters.get(first) == Table::Huge
    }

    fn is_mapped_huge(&mut self, unit: Vpn) -> bool {
        self.table(unit) == Table::Huge
    }

    fn rebuild(&mut self, first: Frame) {
        self.cpu(self.costs.unmap);
        self.clusters.set(first, Table::None);
    }

    /// The pages are unmapped together, copied (twice the cost of filling, because they are read as well), and mapped
    /// together.
    fn collapse(&mut self, unit: Vpn) -> bool {
        let there = |m: &Self, i: u32| m.read(unit.plus(i.into())).is_some();
        if !(0..HUGE).all(|i| there(self, i)) {
            return false;
        }
        if self.table(unit) != Table::Huge {
            let copies = 2 * self.costs.zero * u64::from(HUGE);
            self.cpu(self.costs.unmap + self.costs.allocate + copies + self.costs.map);
            self.set_table(unit, Table::Huge);
        }
        true
    }
}
