//! Reclaim: the thread of each node, directed by the core, and the scan of a list's end, which tasks without memory
//! execute as well.
//!
//! A scan frees clean pages. Pages that are dirty or under writeback make way: they move to the active list, and are
//! freed as soon as they have been written (the kernel of seed 001, "mm: vmscan: move dirty pages out of the way
//! until they're flushed"). If a scan meets only dirty pages, it wakes writeback. It records what it met in the
//! node's flags ([`foreswap_core::linux_kswapd::NodeFlags`]): with `dirty` the thread itself writes pages that it meets
//! again, with `writeback` it waits when it meets pages under writeback again, with `congested` tasks wait for the
//! disk, until it keeps up or a tenth of a second has passed. The core decides when the flags are cleared.

use foreswap_core::linux_kswapd::{
    Action, Config, Defects, FIRST_PRIORITY, Kswapd, NAP, RECLAIM_BATCH, Reclaimed, Zone, ZoneIndex,
};
use foreswap_core::units::Nanos;

use super::lists::List;
use super::program::Program;
use super::zones::{HIGHEST, ZONES};
use super::{Event, Machine};

/// The longest wait for a congested disk.
pub(super) const CONGESTION: Nanos = 100_000_000;
/// The cost of a look at the zones.
const LOOK: Nanos = 1_000;
/// Consecutive scans of everything by a task that free nothing and find nothing free, after which memory counts as
/// used up (Linux's `MAX_RECLAIM_RETRIES`).
const FRUITLESS: u32 = 16;

/// A node's thread.
#[derive(Debug)]
pub struct Background {
    pub(super) core: Kswapd,
    round: Option<Round>,
    /// Identifies outdated events.
    turn: u64,
    waits: bool,
    /// It waits for the disk.
    stalls: bool,
    /// When it began to wait; for the disk, the end of its last scan.
    since: Nanos,
    /// Its used part of the slice.
    used: Nanos,
    /// It went to sleep while its node was short, and has not waited again since.
    slept_short: bool,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    left: u64,
    target: u64,
    done: Reclaimed,
}

impl Background {
    /// About to look for the first time.
    pub fn new(defects: Defects) -> Self {
        Background {
            core: Kswapd::new(Config {
                zones: ZONES,
                defects,
            }),
            round: None,
            turn: 0,
            waits: false,
            stalls: false,
            since: 0,
            used: 0,
            slept_short: false,
        }
    }

    /// Working after a sleep that began while its node was short.
    pub fn makes_up(&self) -> bool {
        self.slept_short && !self.core.waits()
    }
}

/// A task in direct reclaim: it scans the ends of all nodes' lists, further at each turn, until it has freed a batch
/// or seen everything. Pages freed by others meanwhile show at its next allocation.
#[derive(Clone, Copy, Debug)]
pub struct Direct {
    priority: u32,
    /// Nodes scanned in this turn, counted from its own.
    nodes: usize,
    /// The rest of the current node, and the pages freed there.
    left: Option<(u64, u64)>,
    freed: u64,
}

impl Direct {
    /// It has found no memory.
    pub const fn new() -> Self {
        Direct {
            priority: FIRST_PRIORITY,
            nodes: 0,
            left: None,
            freed: 0,
        }
    }
}

/// The state of a task in direct reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// There is more to scan.
    GoesOn,
    /// It waits for the congested disk, or for [`CONGESTION`].
    WaitsForDisk,
    /// It tries to allocate again.
    Done,
    /// It has scanned everything and freed nothing. It tries to allocate again, because others may have freed pages.
    Fruitless,
}

/// The result of scanning a few pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scan {
    pub scanned: u64,
    pub freed: u64,
    took: Nanos,
    /// The thread has to wait for pages under writeback.
    stall: bool,
}

impl<P: Program> Machine<P> {
    /// An allocation found too little memory: a node's thread gets a request, and is woken if necessary.
    pub(super) fn ask(&mut self, node: usize) {
        let thread = &mut self.background[node];
        if !thread.core.on_request(&self.memory.nodes[node], 0, HIGHEST) {
            return;
        }
        thread.core.on_woken();
        self.counts.naps_cut += u64::from(thread.waits);
        thread.waits = false;
        thread.used = 0;
        thread.turn += 1;
        let (turn, since) = (thread.turn, thread.since);
        let latency = self.wake_up(since);
        self.plan(latency, Event::Background(node as u32, turn));
    }

    /// A node's thread continues.
    pub(super) fn on_background(&mut self, node: usize, turn: u64) {
        let thread = &mut self.background[node];
        if thread.turn != turn {
            return;
        }
        thread.stalls = false;
        let mut short = false;
        if std::mem::take(&mut thread.waits) {
            thread.core.on_nap_over();
            thread.used = 0;
            let high = |zone: &Zone| zone.allows(0, zone.marks.high, HIGHEST);
            short = !self.memory.nodes[node].iter().any(high);
            self.counts.naps += 1;
            self.counts.naps_short += u64::from(short);
        }
        let thread = &mut self.background[node];
        if let Some(mut round) = thread.round.take() {
            if round.left > 0 && round.done.freed < round.target {
                let scan = self.scan(node, round.left.min(RECLAIM_BATCH), true);
                round.left -= scan.scanned.min(round.left);
                if scan.scanned == 0 {
                    round.left = 0;
                }
                round.done.scanned += scan.scanned;
                round.done.freed += scan.freed;
                self.counts.background_freed += scan.freed;
                self.background[node].round = Some(round);
                let mut used = self.background[node].used;
                let mut took = self.on_cpu(&mut used, scan.took);
                let now = self.now;
                let thread = &mut self.background[node];
                if scan.stall {
                    thread.since = now + took;
                    self.counts.stalls += 1;
                    took += CONGESTION;
                    used = 0;
                }
                (thread.used, thread.stalls) = (used, scan.stall);
                self.plan(took, Event::Background(node as u32, turn));
                return;
            }
            thread.core.on_reclaimed(round.done);
        }
        let action = self.background[node].core.next(&self.memory.nodes[node]);
        match action {
            Action::Nap | Action::Sleep => {
                let slept_short = short && action == Action::Sleep;
                self.counts.slept_short += u64::from(slept_short);
                let thread = &mut self.background[node];
                thread.slept_short = slept_short;
                thread.since = self.now;
                thread.waits = action == Action::Nap;
                if thread.waits {
                    self.plan(NAP, Event::Background(node as u32, turn));
                }
            }
            Action::Again => self.plan(LOOK, Event::Background(node as u32, turn)),
            Action::Reclaim(round) => {
                self.background[node].round = Some(Round {
                    left: self.part(node, round.priority),
                    target: round.target,
                    done: Reclaimed {
                        scanned: 0,
                        freed: 0,
                    },
                });
                self.plan(LOOK, Event::Background(node as u32, turn));
            }
        }
    }

    /// The disk is no longer congested: its waiters continue.
    pub(super) fn relieved(&mut self) {
        for node in 0..self.background.len() {
            let thread = &mut self.background[node];
            if std::mem::take(&mut thread.stalls) {
                thread.turn += 1;
                let turn = thread.turn;
                // Its scan has to be over.
                let busy = thread.since.saturating_sub(self.now);
                let after = busy.max(self.prices.switch);
                self.plan(after, Event::Background(node as u32, turn));
            }
        }
        for task in std::mem::take(&mut self.congested) {
            self.resume(task, 0);
        }
    }

    /// The part of a node's list to scan, computed for the full machine.
    fn part(&self, node: usize, priority: u32) -> u64 {
        let pages = self.pages.count(node, List::Inactive);
        ((pages * self.scale) >> priority).clamp(RECLAIM_BATCH.min(pages), pages)
    }

    /// A task has waited for the disk for the maximum time.
    pub(super) fn enough(&mut self, task: u32, since: Nanos) {
        if self.tasks[task as usize].blocked_since(since) {
            self.congested.retain(|&other| other != task);
            self.resume(task, 0);
        }
    }

    /// A task reclaims directly: returns the time until it continues, and its next state.
    pub(super) fn direct(
        &mut self,
        home: usize,
        used: &mut Nanos,
        direct: &mut Direct,
    ) -> (Nanos, Progress) {
        let nodes = self.memory.nodes.len();
        if direct.nodes < nodes {
            let node = (home + direct.nodes) % nodes;
            let (left, before) = match direct.left {
                Some(left) => left,
                None => (self.part(node, direct.priority), 0),
            };
            let scan = self.scan(node, left.min(RECLAIM_BATCH), false);
            direct.freed += scan.freed;
            self.counts.direct_freed += scan.freed;
            if scan.freed > 0 {
                self.background[node].core.on_direct_reclaim();
            }
            let (left, freed) = (left.saturating_sub(scan.scanned), before + scan.freed);
            let took = self.on_cpu(used, scan.took);
            // In the first turn it scans the part to its end, later only until it has a batch.
            let enough = direct.priority < FIRST_PRIORITY && freed >= RECLAIM_BATCH;
            if left == 0 || scan.scanned == 0 || enough {
                direct.nodes += 1;
                direct.left = None;
            } else {
                direct.left = Some((left, freed));
            }
            let flags = self.background[node].core.flags();
            if flags.congested && self.files.congested {
                self.counts.congested += 1;
                return (took, Progress::WaitsForDisk);
            }
            return (took, Progress::GoesOn);
        }
        // Through all nodes: done, or harder next time.
        let over = direct.freed >= RECLAIM_BATCH || direct.priority == 0;
        if over {
            return match direct.freed {
                0 => (0, Progress::Fruitless),
                _ => (0, Progress::Done),
            };
        }
        direct.nodes = 0;
        direct.priority -= 1;
        (0, Progress::GoesOn)
    }

    /// Whether a task that has freed nothing this many times in a row tries again (true: after a wait for the disk),
    /// or memory is used up (none). As in Linux: it continues if a node would have enough with its reclaimable pages,
    /// less a sixteenth per try, and waits if more than half of them must be written first.
    pub(super) fn tries_again(&self, fruitless: u32) -> Option<bool> {
        let left = u64::from(FRUITLESS.checked_sub(fruitless)?);
        let enough = |node: &usize| {
            let files = [List::Inactive, List::Active].map(|list| self.pages.count(*node, list));
            let hope = files.iter().sum::<u64>() * left / u64::from(FRUITLESS);
            let mut zones = self.memory.nodes[*node].iter();
            zones.any(|zone| {
                let free = zone.free + hope;
                let with = Zone { free, ..*zone };
                zone.pages > 0 && with.allows(0, zone.marks.min, HIGHEST)
            })
        };
        (0..self.memory.nodes.len()).find(enough)?;
        Some(self.files.unwritten() * 2 > self.pages.file_pages())
    }

    /// Active pages beyond their share become inactive. Returns the number examined.
    fn age(&mut self, node: usize) -> u64 {
        let (inactive, active) = (
            self.pages.count(node, List::Inactive),
            self.pages.count(node, List::Active),
        );
        // The kernel's ratio: the square root of ten times the size in GiB, at least 1.
        let gib = ((inactive + active) * self.scale) >> 18;
        let ratio = (10 * gib).isqrt().max(1);
        if inactive * ratio >= active {
            return 0;
        }
        for n in 0..RECLAIM_BATCH {
            let Some(frame) = self.pages.oldest(node, List::Active) else {
                return n;
            };
            self.pages.remove(node, frame);
            self.pages[frame].referenced = false;
            self.pages.put(node, List::Inactive, frame, false);
        }
        RECLAIM_BATCH
    }

    /// Scans the oldest pages of a node's inactive list.
    pub(super) fn scan(&mut self, node: usize, count: u64, background: bool) -> Scan {
        let aged = self.age(node);
        let flags = self.background[node].core.flags();
        let (mut scanned, mut freed) = (0, 0);
        let mut given = [0; ZONES];
        // Counts: dirty pages not being written; pages under writeback, and those among them for which the thread
        // waits because it meets them again; all of these, and those for which the disk is congested.
        let (mut dirty, mut writeback, mut immediate) = (0, 0, 0);
        let (mut unclean, mut congested) = (0, 0);
        let mut to_write = Vec::new();
        while scanned < count {
            let Some(frame) = self.pages.oldest(node, List::Inactive) else {
                break;
            };
            scanned += 1;
            self.pages.remove(node, frame);
            let page = &mut self.pages[frame];
            if page.locked {
                self.pages.put(node, List::Inactive, frame, false);
            } else if page.writeback {
                congested += u64::from(self.files.congested || page.reclaim);
                unclean += 1;
                if background && page.reclaim && flags.writeback {
                    immediate += 1;
                } else {
                    writeback += 1;
                }
                page.reclaim = true;
                self.pages.put(node, List::Active, frame, false);
            } else if page.dirty {
                congested += u64::from(self.files.congested);
                unclean += 1;
                dirty += 1;
                let again = std::mem::replace(&mut page.reclaim, true);
                if background && again && flags.dirty {
                    to_write.push(frame);
                    self.pages.put(node, List::Inactive, frame, false);
                } else {
                    self.pages.put(node, List::Active, frame, false);
                }
            } else {
                self.files.forget(&mut self.pages, frame);
                given[self.memory.zone(frame)] += 1;
                self.memory.give(frame);
                freed += 1;
            }
        }
        for &frame in &to_write {
            self.counts.written += 1;
            self.write_page(frame);
        }
        let flags = self.background[node].core.flags_mut();
        flags.writeback |= writeback > 0 && writeback == scanned;
        flags.dirty |= dirty > 0 && dirty == scanned;
        flags.congested |= unclean > 0 && unclean == congested;
        if dirty > 0 && dirty == scanned {
            self.kick();
        }
        self.counts.scanned += scanned;
        // The lock of the lists is held to remove pages and to put some back; that of a zone to free frames.
        let held = (scanned + aged) * self.prices.look;
        let mut at = self.now + self.locks.lists(node, self.now, held) + held;
        at += freed * self.prices.drop;
        let given = given.into_iter().enumerate();
        for (zone, given) in given.filter(|(_, given)| *given > 0) {
            let held = given * self.prices.look;
            at += self
                .locks
                .zone(node, ZoneIndex(zone), [self.now, at - held], held);
        }
        let written = to_write.len() as u64 * self.prices.submit;
        Scan {
            scanned,
            freed,
            took: at - self.now + written,
            stall: immediate > 0,
        }
    }
}
