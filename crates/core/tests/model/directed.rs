//! Each kind of failure, alone: lost pages, kept pages, notices.

use foreswap_core::readahead::Policy;
use foreswap_core::units::Slot;
use foreswap_core::world::Notice;
use foreswap_core::{Config, Entry, ReclaimPolicy, Swapoff};
use foreswap_model::{Access, Chaos, Fork, Mapping, Process, Setup, System};

/// One process with all its pages adopted.
pub struct Machine {
    pub sys: System,
    pub p: Process,
}

pub const TIMEOUT: u64 = 100_000;
/// A thread beside those that wait.
pub const OTHER: usize = 7;

impl Machine {
    pub fn new(limit: u64, areas: &[u32], pages: usize) -> Self {
        Self::with(Policy::None, limit, areas, pages)
    }

    pub fn with(readahead: Policy, limit: u64, areas: &[u32], pages: usize) -> Self {
        Self::of(readahead, 32, limit, areas, pages)
    }

    pub fn of(readahead: Policy, frames: u32, limit: u64, areas: &[u32], pages: usize) -> Self {
        let config = Config {
            frames,
            depth: 128,
            readahead,
            reclaim: ReclaimPolicy::default(),
            full_timeout: TIMEOUT,
            first_touch: 1,
            thp: foreswap_core::Thp::Never,
            clusters: 0,
            swapoff: Swapoff::Stream,
        };
        Self::configured(config, limit, areas, pages)
    }

    pub fn configured(config: Config, limit: u64, areas: &[u32], pages: usize) -> Self {
        let mut sys = System::new(limit, areas, Chaos::default());
        // No page is same-filled by its number.
        sys.ordinary = u64::MAX;
        let mut p = Process::new(&mut sys, Setup::new(config, pages));
        p.map(0..pages);
        p.adopt(&mut sys, 0..pages);
        Machine { sys, p }
    }

    /// A thread touches a page; the machine runs until the thread has it.
    pub fn touch(&mut self, at: usize, write: Option<u64>) -> Option<u64> {
        let before = self.p.tally.sigbus;
        if self.p.touch(&mut self.sys, 0, at, write) == Access::Waits {
            self.rest();
        }
        (self.p.tally.sigbus == before).then(|| self.p.cells[at].value)
    }

    pub fn rest(&mut self) {
        for _ in 0..10_000 {
            if self.p.round(&mut self.sys, true) {
                return;
            }
        }
        panic!("no rest: {}", self.p.state(&self.sys));
    }

    /// Run without any I/O.
    pub fn rounds_without_io(&mut self) {
        for _ in 0..20 {
            self.p.round(&mut self.sys, false);
        }
    }

    /// Write `1000 + page` to all pages.
    pub fn fill(&mut self) {
        for at in 0..self.p.cells.len() {
            self.touch(at, Some(1000 + at as u64));
        }
    }

    /// Write to a page that is mapped.
    fn touch_now(&mut self, at: usize, value: u64) {
        let access = self.p.touch(&mut self.sys, OTHER, at, Some(value));
        assert_eq!(access, Access::Done);
    }

    fn rounds_without_zap(&mut self) {
        for _ in 0..20 {
            self.p.run(&mut self.sys);
            while !self.p.space.flights.is_empty() {
                self.p.complete(&mut self.sys, 0);
            }
        }
    }

    pub fn read_all(&mut self) -> Vec<usize> {
        let pages = 0..self.p.cells.len();
        pages.filter(|&at| self.touch(at, None).is_none()).collect()
    }

    /// A page that is on an area only, with its slot.
    pub fn swapped(&self) -> (usize, Slot) {
        let find = |at| match self.p.mm.entry(self.p.space.vpn(at)) {
            Entry::Swapped { slot, .. } => Some((at, slot)),
            _ => None,
        };
        (0..self.p.cells.len()).find_map(find).expect("one")
    }

    pub fn told(&self, what: fn(&Notice) -> bool) -> usize {
        self.sys.told.iter().filter(|notice| what(notice)).count()
    }

    pub fn resident(&self) -> Vec<usize> {
        let mapped = |&at: &usize| self.p.space.pages[at].present.is_some();
        (0..self.p.cells.len()).filter(mapped).collect()
    }

    /// Unmap all: nothing may be left.
    pub fn end(mut self) {
        let pages = self.p.cells.len();
        self.p.unmap(0..pages);
        self.rest();
        self.p.check_references();
        assert!(self.p.space.refs == self.p.space.bad);
        assert_eq!(
            self.p.space.charged,
            self.p.space.frames.iter().flatten().count() as u64
        );
    }
}

#[test]
fn a_read_error_poisons_that_page_only() {
    let mut m = Machine::new(48, &[512], 100);
    m.fill();
    let (at, slot) = m.swapped();
    m.sys.bad_sectors.insert(slot);
    assert_eq!(m.read_all(), [at]);
    assert_eq!(m.told(|n| matches!(n, Notice::ReadFailed { .. })), 1);
    // Given back, it is a page like any other.
    m.p.discard(at..at + 1);
    m.rest();
    assert_eq!(m.touch(at, None), Some(0));
    m.end();
}

#[test]
fn a_read_error_in_a_batch_poisons_that_page_only() {
    let mut m = Machine::with(Policy::Vma(32), 48, &[512], 100);
    m.fill();
    m.rest();
    let (at, slot) = m.swapped();
    m.sys.bad_sectors.insert(slot);
    m.sys.limit += 20;
    let reads = m.p.mm.stats.swap_read_ios;
    m.touch(at + 1, None);
    assert!(
        m.p.mm.stats.swap_read_ios > reads + 1,
        "it was in the batch"
    );
    assert_eq!(m.read_all(), [at]);
    m.end();
}

#[test]
fn wrong_bytes_are_reported_and_not_delivered() {
    let mut m = Machine::new(48, &[512], 100);
    m.fill();
    let (at, slot) = m.swapped();
    m.sys.areas[0].content[slot.index as usize] ^= 4;
    m.sys.spoiled.insert(slot);
    assert_eq!(m.read_all(), [at]);
    assert_eq!(m.told(|n| matches!(n, Notice::Corrupt { .. })), 1);
    m.end();
}

#[test]
fn a_write_error_keeps_the_data() {
    let mut m = Machine::new(48, &[2048], 100);
    m.sys.chaos.write_error = 500;
    for at in 0..70 {
        m.touch(at, Some(1000 + at as u64));
    }
    m.sys.chaos.write_error = 0;
    m.fill();
    assert!(m.told(|n| matches!(n, Notice::WriteFailed { error: 5, .. })) > 0);
    assert!(m.read_all().is_empty());
    m.end();
}

#[test]
fn no_space_on_the_device_keeps_the_data() {
    let mut m = Machine::new(48, &[512, 512], 80);
    m.sys.chaos.no_space = 1000;
    for at in 0..50 {
        if m.p.touch(&mut m.sys, 0, at, Some(1)) == Access::Waits {
            m.p.round(&mut m.sys, true);
            m.p.round(&mut m.sys, true);
        }
    }
    m.sys.chaos.no_space = 0;
    m.rest();
    m.fill();
    assert!(m.told(|n| matches!(n, Notice::WriteFailed { error: 28, .. })) > 0);
    assert!(m.read_all().is_empty());
    m.end();
}

#[test]
fn a_full_area_costs_the_thread_that_finds_no_room_and_then_has_room_again() {
    let mut m = Machine::new(48, &[24], 100);
    let began = m.sys.now;
    m.fill();
    let lost = m.read_all();
    assert!(!lost.is_empty() && lost.len() < 60, "{lost:?}");
    assert!(m.sys.now - began >= TIMEOUT);
    assert_eq!(
        m.told(|n| matches!(n, Notice::OutOfMemory { .. })),
        lost.len()
    );
    assert!(m.told(|n| matches!(n, Notice::AreasFull)) >= 1);
    m.p.discard(0..100);
    m.rest();
    for at in 0..60 {
        assert!(m.touch(at, Some(7)).is_some());
    }
    m.end();
}

/// More was touched than there is memory, and other processes have all slots.
fn filled_by_others() -> Machine {
    let mut m = Machine::new(48, &[512], 100);
    m.sys.foreign_fill();
    for at in 0..60 {
        m.p.touch(&mut m.sys, 0, at, Some(9));
        m.p.round(&mut m.sys, true);
    }
    assert_eq!(m.told(|n| matches!(n, Notice::AreasFull)), 1);
    m
}

#[test]
fn an_area_that_others_left_is_not_full_any_more() {
    let mut m = filled_by_others();
    m.sys.foreign_free(|_| 0);
    m.rest();
    // Nothing can be moved, but not for want of slots: nothing may be lost.
    for page in &mut m.p.space.pages {
        page.locked = true;
    }
    for at in 0..60 {
        assert!(m.touch(at, None).is_some());
    }
    assert!(m.told(|n| matches!(n, Notice::LimitPassed)) > 0);
    assert_eq!(m.told(|n| matches!(n, Notice::OutOfMemory { .. })), 0);
    for page in &mut m.p.space.pages {
        page.locked = false;
    }
    m.end();
}

/// As the previous test, with nothing left to write: a write would have found the free slots.
#[test]
fn an_area_that_others_left_is_not_full_where_nothing_is_to_be_written() {
    let mut m = filled_by_others();
    let cached: Vec<_> = (0..60)
        .filter(|&at| matches!(m.p.mm.entry(m.p.space.vpn(at)), Entry::Cached(_)))
        .collect();
    for page in &mut m.p.space.pages {
        page.locked = true;
    }
    assert!(!cached.is_empty());
    for &at in &cached {
        m.p.discard(at..at + 1);
        m.p.round(&mut m.sys, true);
    }
    m.sys.foreign_free(|_| 0);
    m.rest();
    for at in 0..100 {
        assert!(m.touch(at, None).is_some(), "page {at} is lost");
    }
    assert!(m.told(|n| matches!(n, Notice::LimitPassed)) > 0);
    assert_eq!(m.told(|n| matches!(n, Notice::OutOfMemory { .. })), 0);
    for page in &mut m.p.space.pages {
        page.locked = false;
    }
    m.end();
}

#[test]
fn a_full_queue_delays_and_loses_nothing() {
    let mut m = Machine::new(48, &[512], 100);
    m.fill();
    m.p.space.depth = 0;
    let (at, _) = m.swapped();
    assert_eq!(m.p.touch(&mut m.sys, 0, at, None), Access::Waits);
    m.rounds_without_io();
    assert!(m.p.threads[0].is_some() && m.p.mm.is_stalled());
    m.p.space.depth = 8;
    m.rest();
    assert!(m.read_all().is_empty());
    m.end();
}

#[test]
fn a_discard_meets_a_read_a_write_and_a_dirty_page() {
    let mut m = Machine::new(48, &[512], 100);
    m.fill();
    m.rest();
    let (at, _) = m.swapped();
    m.p.touch(&mut m.sys, 0, at, None);
    m.p.read_message(&mut m.sys, 0, 0);
    assert!(m.p.space.flights.iter().any(|flight| !flight.write));
    m.p.discard(at..at + 1);
    m.rest();
    assert_eq!(m.touch(at, None), Some(0));
    // Now writes: all are held back, then everything is discarded.
    m.sys.pressure[0] = 40;
    m.rounds_without_io();
    assert!(m.p.space.flights.iter().any(|flight| flight.write));
    m.p.discard(0..100);
    for _ in 0..4 {
        m.p.read_event(&mut m.sys);
        m.p.acknowledge();
        m.p.zap();
    }
    m.rest();
    for at in 0..100 {
        assert_eq!(m.touch(at, None), Some(0));
    }
    m.end();
}

#[test]
fn a_thread_that_waits_for_an_unmapped_page_wakes_up() {
    let mut m = Machine::new(48, &[512], 100);
    m.fill();
    let (at, _) = m.swapped();
    m.p.touch(&mut m.sys, 0, at, None);
    m.p.read_message(&mut m.sys, 0, 0);
    m.p.unmap(at..at + 1);
    m.rounds_without_io();
    assert!(m.p.threads[0].is_none());
    m.rest();
    assert_eq!(m.p.space.pages[at].mapping, Mapping::None);
    m.end();
}

#[test]
fn a_fork_waits_for_writes_and_the_child_has_everything() {
    let mut m = Machine::new(64, &[2048], 100);
    m.fill();
    m.sys.pressure[0] = 30;
    m.rounds_without_io();
    assert!(!m.p.space.flights.is_empty());
    m.p.hold(&mut m.sys);
    m.rounds_without_io();
    assert!(m.p.fork == Fork::Held, "writes are in flight");
    for _ in 0..100 {
        m.p.round(&mut m.sys, true);
    }
    let (came_back, _) = m.swapped();
    m.p.touch(&mut m.sys, 0, came_back, Some(77));
    for _ in 0..10 {
        m.p.round(&mut m.sys, true);
    }
    let child = m.p.forked(&mut m.sys).expect("a child");
    let mut child = Machine {
        sys: m.sys,
        p: child,
    };
    assert_eq!(child.touch(came_back, None), Some(77));
    assert!(child.read_all().is_empty());
    child.fill();
    m.sys = child.sys;
    m.rest();
    assert!(m.read_all().is_empty());
    child.p.exit(&mut m.sys);
    assert!(m.read_all().is_empty());
    m.end();
}

#[test]
fn a_page_that_is_being_written_is_given_back_from_memory() {
    let mut m = Machine::new(200, &[512], 40);
    m.fill();
    m.sys.pressure[0] = 30;
    m.rounds_without_io();
    let flight = m.p.space.flights.first().expect("a write");
    let at = (0..40)
        .find(|&at| m.p.mm.entry(m.p.space.vpn(at)) == Entry::Cached(flight.frames[0]))
        .expect("its page");
    m.sys.pressure[0] = 0;
    m.p.touch(&mut m.sys, 0, at, Some(5));
    m.rounds_without_io();
    assert!(m.p.threads[0].is_none(), "it waits for its write");
    assert_eq!(m.p.mm.stats.swap_read_ios, 0);
    m.rest();
    assert!(m.read_all().is_empty());
    m.end();
}

#[test]
fn a_mapped_page_is_newer_than_the_one_read() {
    let mut m = Machine::new(48, &[512], 100);
    m.fill();
    m.rest();
    let (at, _) = m.swapped();
    m.p.touch(&mut m.sys, 0, at, None);
    m.p.read_message(&mut m.sys, 0, 0);
    m.p.space.pages[at].present = Some(5);
    m.p.cells[at].value = 5;
    m.rest();
    assert_eq!(m.touch(at, None), Some(5));
    assert!(m.read_all().is_empty());
    m.end();
}

#[test]
fn a_fault_from_before_a_discard_does_not_bring_the_content_back() {
    let mut m = Machine::new(200, &[512], 40);
    // Two threads fault on one page: one has to be retried, one finds no memory.
    for (thread, again) in [(0, true), (1, false)] {
        m.sys.chaos.again = if again { 1000 } else { 0 };
        m.sys.chaos.no_memory = 1000;
        m.p.touch(&mut m.sys, thread, 5, None);
        m.p.read_message(&mut m.sys, 0, 0);
    }
    m.sys.chaos = Chaos::default();
    m.p.call(&mut m.sys, |mm, w| mm.retry(w));
    m.touch_now(5, 9);
    m.p.discard(5..6);
    m.p.read_event(&mut m.sys);
    m.p.acknowledge();
    // The discarding thread has not reached it yet when the other fault is tried again.
    m.sys.pressure[0] = 40;
    m.rounds_without_zap();
    m.p.zap();
    m.rest();
    assert_eq!(m.touch(5, None), Some(0));
    m.end();
}

#[test]
fn a_lost_page_is_lost_in_the_child_too() {
    let mut m = Machine::new(48, &[2048], 100);
    m.fill();
    let (at, slot) = m.swapped();
    m.sys.bad_sectors.insert(slot);
    m.p.touch(&mut m.sys, 0, at, None);
    m.p.read_message(&mut m.sys, 0, 0);
    m.p.hold(&mut m.sys);
    m.sys.chaos.again = 1000;
    while !m.p.space.flights.is_empty() {
        m.p.complete(&mut m.sys, 0);
    }
    m.p.try_snapshot(&mut m.sys);
    assert!(m.p.fork == Fork::Held, "no mark is set yet");
    m.sys.chaos.again = 0;
    for _ in 0..100 {
        m.p.round(&mut m.sys, true);
    }
    let child = m.p.forked(&mut m.sys).expect("a child");
    let mut child = Machine {
        sys: m.sys,
        p: child,
    };
    assert_eq!(child.read_all(), [at]);
    child.end();
}

#[test]
fn a_page_lost_while_it_moves_is_lost_in_the_child_too() {
    let mut m = Machine::new(48, &[2048], 100);
    m.fill();
    let (at, slot) = m.swapped();
    m.sys.bad_sectors.insert(slot);
    m.p.touch(&mut m.sys, 0, at, None);
    m.p.read_message(&mut m.sys, 0, 0);
    m.p.remap(at..at + 1, 99);
    // The mark is refused: the address space is changing.
    while !m.p.space.flights.is_empty() {
        m.p.complete(&mut m.sys, 0);
    }
    m.rest();
    m.p.hold(&mut m.sys);
    for _ in 0..100 {
        m.p.round(&mut m.sys, true);
    }
    let child = m.p.forked(&mut m.sys).expect("a child");
    let mut child = Machine {
        sys: m.sys,
        p: child,
    };
    assert_eq!(child.read_all(), [99]);
    child.end();
}

#[test]
fn a_page_that_vanishes_in_silence_is_lost_and_named_and_never_reads_as_zeros() {
    let mut m = Machine::new(48, &[512], 100);
    m.fill();
    m.read_all();
    let unaccounted = |n: &Notice| matches!(n, Notice::Unaccounted { .. });
    let first = m.resident()[0];
    m.p.silently_discard(first..first + 1);
    assert_eq!(m.touch(first, None), None, "zeros instead of a signal");
    assert_eq!(m.told(unaccounted), 1);
    // Reclaim comes to some of these before a fault does.
    let mut lost = m.resident();
    for &at in &lost {
        m.p.silently_discard(at..at + 1);
    }
    lost.push(first);
    lost.sort_unstable();
    assert_eq!(m.read_all(), lost);
    assert_eq!(m.told(unaccounted), lost.len());
    // A proper discard makes them as good as new.
    let pages = m.p.cells.len();
    m.p.discard(0..pages);
    m.rest();
    assert!(m.read_all().is_empty());
    m.end();
}

#[test]
fn locked_memory_passes_the_limit_and_says_so() {
    let mut m = Machine::new(32, &[512], 100);
    m.fill();
    m.rest();
    for page in &mut m.p.space.pages {
        page.locked = true;
    }
    assert!(m.read_all().is_empty());
    assert!(m.told(|n| matches!(n, Notice::LimitPassed)) > 0);
    for page in &mut m.p.space.pages {
        page.locked = false;
    }
    // Reclaim skipped the leaf for some passes.
    for _ in 0..40 {
        m.p.round(&mut m.sys, true);
    }
    assert!(m.sys.charged <= m.sys.limit);
    m.end();
}

#[test]
fn zero_pages_are_never_written() {
    let mut m = Machine::new(48, &[512], 200);
    for at in 0..200 {
        m.touch(at, Some(0));
    }
    assert!(m.read_all().is_empty());
    assert_eq!(m.p.mm.stats.swap_write_ios, 0);
    assert!(m.p.mm.stats.zero_drops > 100);
    m.end();
}

#[test]
fn a_clean_page_is_dropped_and_a_changed_one_is_not() {
    let mut m = Machine::new(48, &[4096], 100);
    m.fill();
    m.read_all();
    m.rest();
    let written = m.p.mm.stats.swap_out;
    for _ in 0..3 {
        assert!(m.read_all().is_empty());
    }
    assert!(m.p.mm.stats.clean_drops > 100);
    assert!(m.p.mm.stats.swap_out < written + 60);
    for at in 0..100 {
        m.touch(at, Some(5000 + at as u64));
    }
    assert!(m.read_all().is_empty());
    m.end();
}

#[test]
fn a_scan_of_clean_pages_has_readahead() {
    let mut m = Machine::with(Policy::Vma(8), 200, &[4096], 600);
    m.fill();
    m.read_all();
    let faults = m.p.mm.stats.faults_major;
    let ahead = m.p.mm.stats.ahead.pages;
    assert!(m.read_all().is_empty());
    let faults = m.p.mm.stats.faults_major - faults;
    let ahead = m.p.mm.stats.ahead.pages - ahead;
    assert!(
        faults < 200 && ahead > 400,
        "{faults} faults, {ahead} ahead"
    );
    m.end();
}
