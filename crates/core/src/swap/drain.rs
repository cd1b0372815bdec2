//! swapoff: in which order the pages of an area are looked at, when, and how much is in flight.
//!
//! A pass walks the page table in order of address. A page behind the pass may get a slot on the area again (a write
//! that was in flight, a page that could not be mapped). Passes therefore follow each other until the supervisor finds
//! the area empty in all processes. While the program faults, few pages are in flight. A huge page is read whole, unless
//! no memory comes free for it.

use crate::units::{LEAF_PAGES, Nanos, Vpn};

/// The most slots that one read of swapoff covers (2 MiB).
pub const SLOTS_PER_SWAPOFF_IO: usize = LEAF_PAGES;
/// How an area is emptied. The variants beside ours show the results of seed 003.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Swapoff {
    /// A deep stream of large reads.
    #[default]
    Stream,
    /// As the kernel does since seed 003: page by page. The readahead policy answers each miss, and each page found in
    /// memory counts as a hit.
    Readahead,
    /// As the kernel did before: pages that are in memory already count as misses.
    LegacyStats,
}

/// How much swapoff has in flight, and how long it waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// Pages in flight: enough for a disk to be busy.
    pub depth: u32,
    /// Pages in flight while the program is faulting: a fault waits for few of them.
    pub depth_beside_faults: u32,
    /// I/Os in flight: slots need not be consecutive, and faults need entries of the queue.
    pub ios: u32,
    /// After a fault, the program counts as faulting for this time.
    pub calm: Nanos,
    /// Pages that one step looks at.
    pub step: usize,
    /// The pause between two passes while pages are left, and after a step that got no memory.
    pub pause: Nanos,
    /// When no pages are left, the pause is doubled each time, up to this one.
    pub longest_pause: Nanos,
    /// How often swapoff waits for room to transfer a unit, a pause each time.
    pub patience: u32,
}

impl Config {
    /// For a process with `frames` frames: no more than a quarter is for swapoff.
    pub fn new(frames: u32) -> Self {
        Config {
            depth: 4096.min(frames / 4),
            depth_beside_faults: 256.min(frames / 4),
            ios: 64,
            calm: 2_000_000,
            step: 512,
            pause: 1_000_000,
            longest_pause: 256_000_000,
            patience: 100,
        }
    }
}

/// The area that is being emptied, and the progress.
pub(crate) struct Drain {
    config: Config,
    area: Option<u8>,
    /// Where the pass continues.
    cursor: Vpn,
    /// The pass found pages of the area.
    found: bool,
    /// Passes since then that found none.
    idle: u32,
    /// No step before this time.
    resume: Nanos,
    /// Pages and I/Os in flight.
    pages: u32,
    ios: u32,
    /// Major faults at the last step, and when there was a new one.
    faults: u64,
    fault_at: Nanos,
    /// The page that was looked up last (page by page).
    looked: Option<Vpn>,
    /// A fault waits for memory that swapoff keeps from it.
    starved: bool,
    /// Times in a row that no cluster was free for a unit.
    waits: u32,
}

impl Drain {
    /// No area is being emptied.
    pub fn new(config: Config) -> Self {
        Drain {
            config,
            area: None,
            cursor: Vpn(0),
            found: false,
            idle: 0,
            resume: 0,
            pages: 0,
            ios: 0,
            faults: 0,
            fault_at: 0,
            looked: None,
            starved: false,
            waits: 0,
        }
    }

    /// Begin to empty `area`. I/Os of an earlier swapoff may be in flight.
    pub fn begin(&mut self, area: u8) {
        self.area = Some(area);
        (self.cursor, self.looked, self.starved) = (Vpn(0), None, false);
        (self.idle, self.resume) = (0, 0);
        self.waits = 0;
    }

    /// `area` is not emptied any more.
    pub fn end(&mut self, area: u8) {
        if self.area == Some(area) {
            (self.area, self.starved) = (None, false);
        }
    }

    /// The area that is being emptied.
    pub fn area(&self) -> Option<u8> {
        self.area
    }

    /// The last pass found pages of the area, as far as it has come.
    pub fn finds(&self) -> bool {
        self.idle == 0
    }

    /// A fault finds no memory.
    pub fn starve(&mut self) {
        self.starved = true;
    }

    /// A fault waits for memory that swapoff keeps from it.
    pub fn is_starved(&self) -> bool {
        self.starved
    }

    /// Whether it is time for a step.
    pub fn is_due(&self, now: Nanos) -> bool {
        now >= self.resume
    }

    /// The page at which the pass continues.
    pub fn cursor(&self) -> Vpn {
        self.cursor
    }

    /// How many pages the next step may look at, if one may be made now; there have been `faults` major faults. Half of
    /// the depth at a time makes long runs.
    pub fn look(&mut self, faults: u64, now: Nanos) -> Option<usize> {
        if faults != self.faults {
            (self.faults, self.fault_at) = (faults, now);
        }
        let depth = match now.saturating_sub(self.fault_at) >= self.config.calm {
            true => self.config.depth,
            false => self.config.depth_beside_faults,
        };
        let looks = self.pages <= depth / 2 && self.may_read();
        looks.then(|| self.config.step.min(depth as usize))
    }

    /// Pages that a step looks at one by one.
    pub fn step(&self) -> usize {
        self.config.step
    }

    /// The step has found a page of the area.
    pub fn on_found(&mut self) {
        self.found = true;
    }

    /// As [`Drain::on_found`], page by page. Returns whether this is the first look at `page`.
    pub fn on_found_page(&mut self, page: Vpn) -> bool {
        self.found = true;
        self.looked.replace(page) != Some(page)
    }

    /// The pass continues at `page`. `later`: after a pause, as no memory was free and nothing is in flight.
    pub fn stop_at(&mut self, page: Vpn, later: Option<Nanos>) {
        self.cursor = page;
        if let Some(now) = later {
            self.resume = now + self.config.pause;
        }
    }

    /// The pass goes back to `page`, if it is beyond it.
    pub fn go_back(&mut self, page: Vpn) {
        self.cursor = self.cursor.min(page);
    }

    /// The pass is over; the next one follows after a pause. Returns whether it found no page.
    pub fn end_pass(&mut self, now: Nanos) -> bool {
        self.cursor = Vpn(0);
        self.idle = match core::mem::take(&mut self.found) {
            true => 0,
            false => self.idle + 1,
        };
        let pause = self.config.pause << self.idle.min(16);
        self.resume = now + pause.min(self.config.longest_pause);
        self.idle > 0
    }

    /// Whether one more read may begin.
    pub fn may_read(&self) -> bool {
        self.ios < self.config.ios
    }

    /// A read has begun.
    pub fn begin_read(&mut self, pages: usize) {
        self.pages += pages as u32;
        self.ios += 1;
    }

    /// A read is over.
    pub fn end_read(&mut self, pages: usize) {
        self.pages -= pages as u32;
        self.ios -= 1;
    }

    /// Pages are being read.
    pub fn is_reading(&self) -> bool {
        self.pages > 0
    }

    /// No cluster is free for a unit. Returns whether to wait for one; `has_room`: the unit fits on another area.
    pub fn waits_for_cluster(&mut self, has_room: bool) -> bool {
        let waits = has_room && self.waits < self.config.patience;
        self.waits += 1;
        waits
    }

    /// A unit got a cluster.
    pub fn on_cluster(&mut self) {
        self.waits = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain() -> Drain {
        let mut drain = Drain::new(Config::new(1 << 20));
        drain.begin(3);
        drain
    }

    #[test]
    fn a_faulting_program_has_few_pages_before_its_reads() {
        let mut drain = drain();
        let calm = drain.config.calm;
        assert_eq!(drain.look(0, calm), Some(512));
        drain.begin_read(512);
        assert_eq!(
            drain.look(0, calm),
            Some(512),
            "less than half of the depth"
        );
        assert_eq!(drain.look(1, calm), None, "a fault");
        assert_eq!(drain.look(1, 2 * calm), Some(512), "no fault for a while");
        drain.end_read(512);
        assert_eq!(drain.look(2, 2 * calm), Some(256));
    }

    #[test]
    fn passes_that_find_nothing_follow_each_other_more_and_more_slowly() {
        let mut drain = drain();
        let pause = drain.config.pause;
        drain.on_found();
        assert!(!drain.end_pass(0) && drain.is_due(pause) && drain.finds());
        for n in 1..20 {
            assert!(drain.end_pass(0) && !drain.finds());
            let wait = (pause << n).min(drain.config.longest_pause);
            assert!(!drain.is_due(wait - 1) && drain.is_due(wait));
        }
    }

    #[test]
    fn a_unit_waits_for_a_cluster_for_a_limited_time() {
        let mut drain = drain();
        let waits = (0..1000).filter(|_| drain.waits_for_cluster(true)).count();
        assert_eq!(waits as u32, drain.config.patience);
        drain.on_cluster();
        assert!(drain.waits_for_cluster(true));
        assert!(!drain.waits_for_cluster(false), "no room elsewhere");
    }
}
