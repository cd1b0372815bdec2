//! The simulated machine as the core's world. The clock is the engine's: each call of the core has the cost of the
//! thread that serves faults.
//!
//! Huge pages move whole or are split by [`crate::page_tables`]. One is always available.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foreswap_core::units::{Frame, Nanos, Slot, Vpn};
use foreswap_core::world::{
    Clock, Digest, Disk, Done, HugeMmu, IoId, IoResult, Limit, Mmu, Notice, Stop, Store, SwapMap,
    World,
};

use super::area::{Area, SLOTS};
use super::device::{COSTS, Device, Kind, Queue};
use super::elsewhere::Elsewhere;
use super::machine::SPACE_SHIFT;
use super::pages::Pages;
use crate::page_tables::{Clusters, HUGE, Table};

/// What the system below has or lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct System {
    /// The first pages of each address space cannot be moved.
    pub locked: u64,
    /// There are no huge pages.
    pub fragmented: bool,
}

/// A frame without memory.
const EMPTY: u64 = u64::MAX;

#[derive(Clone, Default)]
pub(super) struct Flight {
    write: bool,
    slot: Option<Slot>,
    frames: Vec<Frame>,
    data: Vec<u64>,
    /// The errno with which it ended; 0: none.
    pub(super) errno: i32,
}

/// The world of one run.
pub struct Simulated {
    /// The engine's clock.
    pub now: Nanos,
    /// The pages of the programs.
    pub pages: Pages,
    /// Pages whose threads were woken, and when.
    pub woken: Vec<(Vpn, Nanos)>,
    /// The first violation.
    pub problem: Option<String>,
    /// Sum of the sizes of readahead windows.
    pub windows: u64,
    limit: u64,
    charged: u64,
    /// The maximum charge.
    pub peak: u64,
    frames: Vec<u64>,
    clusters: Clusters,
    area: Area,
    device: Device,
    system: System,
    queue: Queue,
    pub(super) flights: Vec<Flight>,
    pub(super) ends: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    submitted: u64,
    /// The area is on servers, which somebody else simulates; `None`: on the device.
    pub(super) elsewhere: Option<Elsewhere>,
}

impl Simulated {
    /// An empty machine with `limit` pages, `frames` for single pages and `clusters` for huge ones.
    pub fn new(limit: u64, frames: u32, clusters: u32, device: Device, system: System) -> Self {
        let clusters = Clusters::new(frames, clusters);
        Simulated {
            now: 0,
            pages: Pages::default(),
            woken: Vec::new(),
            problem: None,
            windows: 0,
            limit,
            charged: 0,
            peak: 0,
            frames: vec![EMPTY; clusters.frames()],
            clusters,
            area: Area::default(),
            device,
            system,
            queue: Queue::new(device),
            flights: Vec::new(),
            ends: BinaryHeap::new(),
            submitted: 0,
            elsewhere: None,
        }
    }

    /// When the next I/O ends.
    pub fn next_end(&self) -> Option<Nanos> {
        let first = self.ends.peek().map(|Reverse((at, _, _))| *at);
        first.map(|at| match self.device.batches {
            true => self.queue.last_end(),
            false => at,
        })
    }

    /// The next completed I/O.
    pub fn ended(&mut self) -> Option<(IoId, IoResult)> {
        self.next_end().filter(|&at| at <= self.now)?;
        let Reverse((_, _, io)) = self.ends.pop()?;
        self.now += COSTS.io;
        let flight = std::mem::take(&mut self.flights[io as usize]);
        let slot = flight.slot?;
        if flight.errno != 0 {
            return Some((IoId(io), IoResult::Failed(flight.errno)));
        }
        for (i, &frame) in (0..).zip(&flight.frames) {
            if flight.write {
                self.area.set_content(slot.plus(i), flight.data[i as usize]);
            } else {
                self.frames[frame.0 as usize] = self.area.content(slot.plus(i));
            }
        }
        Some((IoId(io), IoResult::Ok))
    }

    fn complain(&mut self, text: String) {
        self.problem.get_or_insert(text);
    }

    fn frame(&mut self, frame: Frame) -> &mut u64 {
        &mut self.frames[frame.0 as usize]
    }

    /// An operation on `frame` alone: a huge page that contains it is split.
    fn alone(&mut self, frame: Frame) {
        let split = self.clusters.get(frame) == Table::Huge;
        self.clusters.set(frame, Table::Small);
        self.now += COSTS.split * Nanos::from(split);
    }

    /// As [`Simulated::alone`], for a page of the program.
    fn page_alone(&mut self, page: Vpn) {
        match self.pages.table(page) {
            Table::Small => {}
            Table::None => self.pages.set_table(page, Table::Small),
            Table::Huge => {
                self.now += COSTS.split;
                self.pages.set_table(page, Table::Small);
            }
        }
    }

    /// Whether `page` cannot be moved.
    fn is_locked(&self, page: Vpn) -> bool {
        page.0 % (1 << SPACE_SHIFT) < self.system.locked
    }

    /// Slots in use.
    pub fn used_slots(&self) -> u64 {
        self.area.used
    }

    fn spend(&mut self, n: u32, first: Nanos, more: Nanos) {
        self.now += first + more * Nanos::from(n.saturating_sub(1));
    }

    /// Map a page with the expected `content`.
    fn map(&mut self, page: Vpn, content: u64) -> Result<(), Stop> {
        if self.pages.mapped(page).is_some() {
            return Err(Stop::Exists);
        }
        let expected = self.pages.content(page);
        if content != expected {
            self.complain(format!(
                "{page:?} reads {content}, where {expected} was written"
            ));
        }
        self.page_alone(page);
        self.pages.map(page);
        self.woken.push((page, self.now));
        Ok(())
    }

    fn each(&mut self, n: u32, mut one: impl FnMut(&mut Self, u32) -> Result<(), Stop>) -> Done {
        for i in 0..n {
            if let Err(stop) = one(self, i) {
                return Done::stopped(i, stop);
            }
        }
        Done::all(n)
    }

    fn submit(&mut self, io: IoId, slot: Slot, frames: &[Frame], write: bool) -> bool {
        self.now += COSTS.io;
        let at = io.0 as usize;
        if self.flights.len() <= at {
            self.flights.resize(at + 1, Flight::default());
        }
        let data = match write {
            true => frames
                .iter()
                .map(|frame| self.frames[frame.0 as usize])
                .collect(),
            false => Vec::new(),
        };
        self.flights[at] = Flight {
            write,
            slot: Some(slot),
            frames: frames.to_vec(),
            data,
            errno: 0,
        };
        self.submitted += 1;
        if let Some(elsewhere) = &mut self.elsewhere {
            elsewhere.submit(self.now, io, slot, frames.len(), write);
            return true;
        }
        let (first, pages) = (u64::from(slot.index), frames.len() as u64);
        let end = self.queue.submit(self.now, write, first, pages);
        self.ends.push(Reverse((end, self.submitted, io.0)));
        true
    }
}

impl Mmu for Simulated {
    fn move_out(&mut self, page: Vpn, frame: Frame, n: u32) -> Done {
        let (from, to) = (self.pages.table(page), self.clusters.get(frame));
        if !self.is_locked(page) && self.clusters.go_whole(page, frame, n, from, to) {
            self.now += COSTS.move_huge;
            for i in 0..n {
                let page = page.plus(i.into());
                *self.frame(frame.plus(i)) = self.pages.content(page);
                self.pages.unmap(page);
            }
            self.pages.set_table(page, Table::None);
            self.clusters.set(frame, Table::Huge);
            return Done::all(n);
        }
        self.spend(n, COSTS.map, COSTS.map_more);
        self.each(n, |w, i| {
            let (page, frame) = (page.plus(i.into()), frame.plus(i));
            let content = w.pages.mapped(page).ok_or(Stop::Absent)?;
            if w.is_locked(page) {
                return Err(Stop::Fixed);
            }
            w.page_alone(page);
            w.alone(frame);
            w.pages.unmap(page);
            *w.frame(frame) = content;
            Ok(())
        })
    }

    fn move_in(&mut self, frame: Frame, page: Vpn, n: u32) -> Done {
        let (from, to) = (self.clusters.get(frame), self.pages.table(page));
        let whole = self.clusters.go_whole(page, frame, n, from, to);
        if whole {
            self.now += COSTS.move_huge;
        } else {
            self.spend(n, COSTS.map, COSTS.map_more);
        }
        let done = self.each(n, |w, i| {
            let (page, frame) = (page.plus(i.into()), frame.plus(i));
            if !whole {
                w.alone(frame);
            }
            let content = *w.frame(frame);
            w.map(page, content)?;
            *w.frame(frame) = EMPTY;
            Ok(())
        });
        if whole {
            self.pages.set_table(page, Table::Huge);
            self.clusters.set(frame, Table::None);
        }
        done
    }

    fn copy_in(&mut self, frame: Frame, page: Vpn) -> Done {
        self.spend(1, COSTS.map + COSTS.copy, 0);
        self.each(1, |w, _| {
            let content = *w.frame(frame);
            w.map(page, content)
        })
    }

    fn zero_in(&mut self, page: Vpn, n: u32) -> Done {
        self.spend(n, COSTS.map + COSTS.copy, COSTS.copy);
        self.each(n, |w, i| w.map(page.plus(i.into()), 0))
    }

    fn poison(&mut self, page: Vpn) -> Done {
        if self.pages.mapped(page).is_some() {
            return Done::stopped(0, Stop::Exists);
        }
        match &mut self.elsewhere {
            Some(elsewhere) => elsewhere.lose(page),
            None => self.complain(format!("{page:?} is lost")),
        }
        self.woken.push((page, self.now));
        Done::all(1)
    }

    fn wake(&mut self, page: Vpn) {
        self.woken.push((page, self.now));
    }

    fn unshare(&mut self, _: Vpn, _: u32) {}

    fn fill(&mut self, frame: Frame, n: u32) -> Done {
        self.spend(n, COSTS.map + COSTS.copy, COSTS.copy);
        self.each(n, |w, i| {
            *w.frame(frame.plus(i)) = 0;
            Ok(())
        })
    }

    fn release(&mut self, frame: Frame, n: u32) {
        let huge = self.clusters.get(frame) == Table::Huge;
        if huge && self.clusters.are_one(frame, n) {
            self.clusters.set(frame, Table::None);
            self.now += COSTS.move_huge;
        } else {
            self.spend(n, COSTS.map, COSTS.map_more);
            self.alone(frame);
        }
        for i in 0..n {
            *self.frame(frame.plus(i)) = EMPTY;
        }
    }

    fn clear(&mut self, frame: Frame, n: u32) {
        self.fill_with(frame, n, 0);
    }

    /// No page here is same-filled.
    fn fill_with(&mut self, frame: Frame, n: u32, word: u64) {
        for frame in (0..n).map(|i| frame.plus(i)) {
            self.now += COSTS.copy;
            *self.frame(frame) = word;
        }
    }

    fn digest_of(&mut self, frame: Frame) -> Digest {
        self.now += COSTS.digest;
        match *self.frame(frame) {
            0 => Digest::Zero,
            content => Digest::Hash(content),
        }
    }
}

impl HugeMmu for Simulated {
    fn fill_huge(&mut self, first: Frame) -> bool {
        if self.system.fragmented {
            self.now += COSTS.map;
            return false;
        }
        self.now += COSTS.fill_huge + COSTS.move_huge;
        for i in 0..HUGE {
            if *self.frame(first.plus(i)) != EMPTY {
                self.complain(format!("{:?} has memory already", first.plus(i)));
            }
            *self.frame(first.plus(i)) = 0;
        }
        match self.clusters.get(first) {
            Table::None => self.clusters.set(first, Table::Huge),
            Table::Small | Table::Huge => self.now += COSTS.split,
        }
        true
    }

    fn is_huge(&mut self, first: Frame) -> bool {
        self.now += COSTS.map;
        self.clusters.get(first) == Table::Huge
    }

    fn is_mapped_huge(&mut self, unit: Vpn) -> bool {
        self.now += COSTS.map;
        self.pages.table(unit) == Table::Huge
    }

    fn rebuild(&mut self, first: Frame) {
        self.now += COSTS.mend;
        if (0..HUGE).any(|i| self.frames[first.plus(i).0 as usize] != EMPTY) {
            self.complain(format!("{first:?} is mended with memory in it"));
        }
        self.clusters.set(first, Table::None);
    }

    fn collapse(&mut self, unit: Vpn) -> bool {
        if !self.pages.is_full(unit) {
            return false;
        }
        if self.system.fragmented {
            self.now += COSTS.map;
            return false;
        }
        self.now += match self.pages.table(unit) {
            Table::Huge => COSTS.map,
            Table::None | Table::Small => COSTS.collapse,
        };
        self.pages.set_table(unit, Table::Huge);
        true
    }
}

impl Store for Simulated {
    fn read(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.submit(io, slot, frames, false)
    }

    fn write(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.submit(io, slot, frames, true)
    }
}

impl SwapMap for Simulated {
    fn nth(&self, n: u8) -> Option<u8> {
        (n == 0).then_some(0)
    }

    fn slots(&self, _: u8) -> u32 {
        SLOTS
    }

    fn used(&self, _: u8) -> u64 {
        self.area.used
    }

    fn compresses(&self, _: u8) -> bool {
        self.device.kind == Kind::Ram
    }

    fn claim_cluster(&mut self, _: u8) -> Option<u32> {
        self.area.claim()
    }

    fn claim_empty_cluster(&mut self, _: u8) -> Option<u32> {
        self.area.claim_empty()
    }

    fn release_cluster(&mut self, _: u8, cluster: u32) {
        self.area.release(cluster);
    }

    fn count(&self, slot: Slot) -> u32 {
        self.area.count(slot)
    }

    fn get(&mut self, first: Slot, n: u32) {
        for i in 0..n {
            self.area.get(first.plus(i));
        }
    }

    fn put(&mut self, slot: Slot) {
        self.area.put(slot);
    }

    fn share(&mut self, slots: impl Iterator<Item = Slot>) {
        for slot in slots {
            self.complain(format!("{slot:?} is shared, though nobody forks"));
        }
    }

    fn digest(&self, slot: Slot) -> u64 {
        self.area.digest(slot)
    }

    fn set_digest(&mut self, slot: Slot, digest: u64) {
        self.area.set_digest(slot, digest);
    }
}

impl Limit for Simulated {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn available(&self) -> u64 {
        self.limit.saturating_sub(self.charged)
    }

    fn try_charge(&mut self, n: u64) -> bool {
        let fits = n <= self.available();
        if fits {
            self.charge_existing(n);
        }
        fits
    }

    fn charge_existing(&mut self, n: u64) {
        self.charged += n;
        self.peak = self.peak.max(self.charged);
    }

    fn uncharge(&mut self, n: u64) {
        if n > self.charged {
            self.complain(format!("{n} pages are given back, of {}", self.charged));
        }
        self.charged = self.charged.saturating_sub(n);
    }

    fn excess(&self) -> u64 {
        self.charged.saturating_sub(self.limit)
    }
}

impl World for Simulated {
    fn notice(&mut self, notice: Notice) {
        if let Some(elsewhere) = &mut self.elsewhere
            && elsewhere.notice(notice)
        {
            return;
        }
        // While swapoff empties the only area, no area accepts pages.
        if notice != Notice::AreasFull {
            self.complain(format!("{notice:?}"));
        }
    }

    fn window(&mut self, pages: u64) {
        self.windows += pages;
    }

    fn disk(&self) -> Disk {
        Disk {
            begun: self.submitted,
            left: self.ends.len() as u64 + self.elsewhere.as_ref().map_or(0, Elsewhere::left),
        }
    }

    fn has_ended(&mut self) -> bool {
        self.next_end().is_some_and(|at| at <= self.now)
    }

    fn served(&mut self, _: Nanos) {}

    fn share_disk(&mut self, _: bool) -> bool {
        false
    }

    fn returns(&mut self, page: Vpn) {
        self.complain(format!("{page:?} returns, though nobody forks"));
    }
}

impl Clock for Simulated {
    fn now(&self) -> Nanos {
        self.now
    }
}
