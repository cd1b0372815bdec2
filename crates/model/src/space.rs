//! One process as the kernel sees it: its pages, the engine's frames, its I/O in flight.

use std::collections::BTreeMap;
use std::ops::Range;

use foreswap_core::process::Account;
use foreswap_core::units::{Frame, Nanos, Slot, Vpn};
use foreswap_core::world::{IoId, IoResult, Refusal, Stop};

use crate::family::Words;
use crate::setup::Setup;
use crate::system::{Area, GARBAGE, System};

/// The mapping of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mapping {
    /// Nothing: a touch is a segmentation fault.
    #[default]
    None,
    /// A mapping that is not adopted.
    Plain,
    /// A mapping that the engine manages.
    Managed,
}

/// A page of the program. The content is one number.
#[derive(Clone, Copy, Default)]
pub struct Page {
    /// Its mapping.
    pub mapping: Mapping,
    /// Its content, if it is in memory.
    pub present: Option<u64>,
    /// A touch raises SIGBUS.
    pub poisoned: bool,
    /// A touch raises SIGSEGV.
    pub guard: bool,
    /// mlock.
    pub locked: bool,
    /// The kernel or a device uses it.
    pub pinned: bool,
    /// A parent or child shares it.
    pub shared: bool,
    /// The number of the page that others may have in their memory too; 0: none.
    pub id: u64,
    /// A write waits until it is let through.
    pub wp: bool,
}

impl Page {
    /// Why it cannot be evicted, if it is in memory.
    pub fn stays(&self, protected: bool) -> Option<Stop> {
        match self {
            _ if protected || self.locked => Some(Stop::Fixed),
            _ if self.pinned || self.shared => Some(Stop::Busy),
            _ => None,
        }
    }
}

/// An I/O in flight or, without a slot, frames whose digests are being taken.
#[derive(Default)]
pub struct Flight {
    /// Its number.
    pub io: u32,
    /// A write; otherwise a read.
    pub write: bool,
    /// A write that must not be refused as incompressible.
    pub as_it_is: bool,
    /// The first slot.
    pub slot: Option<Slot>,
    /// The frames, in the order of the slots.
    pub frames: Vec<Frame>,
    /// The contents of the frames when a write was submitted.
    pub data: Vec<u64>,
    /// Pages completed by a short transfer.
    pub done: usize,
    /// When the device completes it, unless it is early.
    pub due: Nanos,
    /// It stalls.
    pub stalls: bool,
}

/// A completion.
pub enum Ended {
    /// An I/O.
    Io(IoId, IoResult),
    /// The digests of a cluster, from this frame on, have been taken.
    Digest(Frame),
}

/// The I/O of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Nothing.
    Idle,
    /// A read into it is in flight.
    Reading,
    /// A write of it is in flight.
    Writing,
}

/// The memory of one process and its engine.
pub struct Space {
    /// Its number; never used again.
    pub pid: usize,
    /// The first modelled page.
    pub base: u64,
    /// The pages from there on.
    pub pages: Vec<Page>,
    /// The memory of each frame.
    pub frames: Vec<Option<u64>>,
    /// Its I/O.
    pub frame_use: Vec<Use>,
    /// Pages charged for it.
    pub charged: u64,
    /// Its account, where processes of a family share pages without being charged for them.
    pub account: Account<usize>,
    /// Pages given back since the limit last gave way.
    pub given_back: u64,
    /// Unread events, and events whose thread has not continued yet: the MMU returns EAGAIN.
    pub changing: u32,
    /// I/Os in flight, in the order of their submission.
    pub flights: Vec<Flight>,
    /// I/Os begun.
    pub begun: u64,
    /// Of these, the ones begun in a call of the core before which others were in flight.
    pub added: u64,
    /// The number in flight before the current call of the core.
    pub had: usize,
    /// For reuse.
    idle: Vec<Flight>,
    /// The number of stalled ones among them.
    pub stalls: u32,
    /// A request of the core failed by chance since time last passed.
    pub unlucky: bool,
    /// The queue depth.
    pub depth: usize,
    /// Clusters that may be hashed in parallel beside the core.
    pub helpers: usize,
    /// The device reports completions only when none is left.
    pub at_once: bool,
    /// I/Os in flight that such a device has executed ([`Process::round`](crate::Process::round)).
    pub worked_off: usize,
    /// For how many moves the kernel holds a frame whose I/O has ended.
    pub lingers: u32,
    /// The frames that it holds, and for how many more moves.
    pub lingering: BTreeMap<u32, u32>,
    /// The frames whose read or digest completed in the current call, and their contents.
    arrived: Vec<(Frame, u64)>,
    /// The index of the next of these that the core is expected to ask for.
    next_arrived: usize,
    /// Pages whose threads were woken.
    pub woken: Vec<u64>,
    /// Touches for which the program mostly only reads.
    pub reads: u32,
    /// All pages are write-protected until the program has read enough: none can be moved, in or out.
    pub protected: bool,
    /// Moves of immovable pages that were refused in the current call of the core.
    pub refused: u32,
    /// Huge pages made in this call with an immovable page.
    pub in_vain: u32,
    /// Huge pages made of mapped small pages.
    pub collapsed: u32,
    /// Pages to be made movable.
    pub unshare: Vec<(Vpn, u32)>,
    /// References that this process holds, by area and slot.
    pub refs: Vec<Vec<u16>>,
    /// Of these, references to slots that are left alone as bad.
    pub bad: Vec<Vec<u16>>,
    /// References taken for the child to come.
    pub shares: Vec<Slot>,
    /// Pages announced as returning while a fork is held.
    pub returned: Vec<Vpn>,
    /// The MMU reported a page as present: the next charge is for a present page.
    pub existed: bool,
    /// The limit may be exceeded in this call for known reasons.
    pub lenient: bool,
}

impl Space {
    /// An empty process.
    pub fn new(sys: &mut System, base: u64, setup: &Setup) -> Self {
        let frames = setup.frames();
        sys.pressure.push(0);
        sys.out_of_slots.push(false);
        sys.ledger.push(Words::default());
        let per_slot = || -> Vec<Vec<u16>> {
            let slots = |area: &Area| vec![0; area.counts.len()];
            sys.areas.iter().map(slots).collect()
        };
        Space {
            pid: sys.pressure.len() - 1,
            base,
            pages: vec![Page::default(); setup.pages],
            frames: vec![None; frames],
            frame_use: vec![Use::Idle; frames],
            charged: 0,
            account: Account::default(),
            given_back: 0,
            changing: 0,
            flights: Vec::new(),
            begun: 0,
            added: 0,
            had: 0,
            stalls: 0,
            unlucky: false,
            idle: Vec::new(),
            depth: setup.queue,
            helpers: setup.helpers,
            at_once: setup.at_once,
            worked_off: 0,
            lingers: 0,
            lingering: BTreeMap::new(),
            arrived: Vec::new(),
            next_arrived: 0,
            woken: Vec::new(),
            reads: 0,
            protected: false,
            refused: 0,
            in_vain: 0,
            collapsed: 0,
            unshare: Vec::new(),
            refs: per_slot(),
            bad: per_slot(),
            shares: Vec::new(),
            returned: Vec::new(),
            existed: false,
            lenient: false,
        }
    }

    /// The number of a page.
    pub fn at(&self, page: Vpn) -> usize {
        (page.0 - self.base) as usize
    }

    /// The page of a number.
    pub fn vpn(&self, at: usize) -> Vpn {
        Vpn(self.base + at as u64)
    }

    /// The pages of a range of numbers.
    pub fn range(&self, at: &Range<usize>) -> Range<Vpn> {
        self.vpn(at.start)..self.vpn(at.end)
    }

    /// This process' references to a slot.
    pub fn refs_mut(&mut self, slot: Slot) -> &mut u16 {
        &mut self.refs[usize::from(slot.area)][slot.index as usize]
    }

    /// Of these, references that are never given back.
    pub fn bad_mut(&mut self, slot: Slot) -> &mut u16 {
        &mut self.bad[usize::from(slot.area)][slot.index as usize]
    }

    /// Adds or replaces an area.
    pub fn set_area(&mut self, area: usize, slots: usize) {
        for table in [&mut self.refs, &mut self.bad] {
            table.resize_with(table.len().max(area + 1), Vec::new);
            assert!(
                table[area].iter().all(|n| *n == 0),
                "references to area {area} are left, which has gone"
            );
            table[area] = vec![0; slots];
        }
    }

    /// Memory really present.
    pub fn physical(&self) -> u64 {
        let managed = |p: &&Page| p.mapping == Mapping::Managed && p.present.is_some();
        let program = self.pages.iter().filter(managed).count();
        (program + self.frames.iter().flatten().count()) as u64
    }

    /// Whether the kernel still holds one of `n` frames, possibly of one huge page. It will release them.
    pub fn holds(&mut self, first: Frame, n: u32) -> bool {
        let frames = first.0..first.0 + n;
        let held = self.lingering.range(frames.clone()).next().is_some();
        self.lingering.retain(|frame, tries| {
            *tries -= u32::from(frames.contains(frame));
            *tries > 0
        });
        held
    }

    /// The core asks for the digest of a frame of the read that has just completed. An engine computed it then: the
    /// content must still be the same.
    pub fn check_arrived(&mut self, frame: Frame) {
        let is = |&(read, _): &(Frame, u64)| read == frame;
        let mut at = self.next_arrived;
        if !self.arrived.get(at).is_some_and(is) {
            let found = self.arrived.iter().position(is);
            at = found.unwrap_or_else(|| panic!("{frame:?} was not just read"));
        }
        self.next_arrived = at + 1;
        assert_eq!(
            self.frames[frame.0 as usize],
            Some(self.arrived[at].1),
            "{frame:?} has changed since it was read"
        );
    }

    /// The call of the core after a completion has ended.
    pub fn forget_arrived(&mut self) {
        self.arrived.clear();
        self.next_arrived = 0;
    }

    fn note_arrived(&mut self, frames: &[Frame]) {
        self.forget_arrived();
        let content = |frame: &Frame| self.frames[frame.0 as usize].unwrap_or(GARBAGE);
        let contents = frames.iter().map(|frame| (*frame, content(frame)));
        self.arrived.extend(contents);
    }

    /// A flight with empty lists.
    pub fn new_flight(&mut self) -> Flight {
        let mut flight = self.idle.pop().unwrap_or_default();
        flight.frames.clear();
        flight.data.clear();
        Flight {
            frames: flight.frames,
            data: flight.data,
            ..Flight::default()
        }
    }

    /// The index of the flight that is due first, and when.
    pub fn first_due(&self) -> Option<(usize, Nanos)> {
        let dues = self.flights.iter().map(|flight| flight.due);
        dues.enumerate().min_by_key(|&(_, due)| due)
    }

    /// The index of a completed flight; earlier ones first.
    pub fn ended(&self, now: Nanos) -> Option<usize> {
        self.flights.iter().position(|flight| flight.due <= now)
    }

    /// The device completes flight number `at`: chance, bad sectors and the device's health decide the result. `None`
    /// after a short transfer: the driver continues with the rest.
    pub fn complete(&mut self, sys: &mut System, at: usize) -> Option<Ended> {
        if self.flights[at].slot.is_none() {
            return Some(Ended::Digest(self.end_digest(at)));
        }
        let chaos = sys.chaos;
        let pages = self.flights[at].frames.len();
        let left = pages - self.flights[at].done;
        if left > 1 && sys.chance.one_in(chaos.short) {
            let more = 1 + sys.chance.below(left as u64 - 1) as usize;
            let flight = &mut self.flights[at];
            flight.done += more;
            flight.due = sys.now + 1_000;
            return None;
        }
        // In order: none is postponed for ever if the first is always taken.
        let flight = self.flights.remove(at);
        self.stalls -= u32::from(flight.stalls);
        let first = flight.slot.unwrap_or(Slot { area: 0, index: 0 });
        if first.is_file() {
            return Some(self.read_file(sys, flight, first));
        }
        let trouble = sys.trouble(pages);
        let area = &mut sys.areas[usize::from(first.area)];
        let compresses = first.area == 0 && sys.compressing;
        let mut result = IoResult::Ok;
        if area.dead {
            result = IoResult::Failed(5);
        } else if flight.write {
            if sys.chance.one_in(chaos.write_error) {
                result = IoResult::Failed(5);
            } else if sys.chance.one_in(chaos.no_space) {
                result = IoResult::Failed(28);
            } else if compresses && sys.chance.one_in(chaos.refuse) {
                let full = sys.chance.one_in(100);
                let mut refused = [0; 8];
                refused[0] = sys.chance.draw() | 1 << sys.chance.below(8);
                if full || !flight.as_it_is {
                    result = IoResult::Refused(Refusal {
                        pages: refused,
                        full,
                    });
                }
            }
        } else if sys.chance.one_in(chaos.read_error) {
            result = IoResult::Failed(5);
        }
        sys.write_failed |= flight.write && result != IoResult::Ok;
        for (i, &frame) in (0..).zip(&flight.frames) {
            let due = trouble.is_none_or(|at| at == i as usize);
            let slot = first.plus(i);
            let here = frame.0 as usize;
            self.frame_use[here] = Use::Idle;
            if self.lingers > 0 {
                self.lingering.insert(frame.0, self.lingers);
            }
            let on_area = &mut area.content[slot.index as usize];
            if flight.write {
                area.writing[slot.index as usize] -= 1;
                assert_eq!(
                    self.frames[here],
                    Some(flight.data[i as usize]),
                    "{frame:?} changed while it was written"
                );
                assert_eq!(
                    area.digests[slot.index as usize],
                    System::digest(flight.data[i as usize], sys.ordinary).number(),
                    "{slot:?} has another digest than the page that is written there"
                );
                match result {
                    IoResult::Refused(refusal) if refusal.has(i) => *on_area = GARBAGE,
                    IoResult::Ok | IoResult::Refused(_) => {
                        if due && sys.chance.one_in(chaos.lost_write) {
                            sys.spoiled.insert(slot);
                        } else {
                            *on_area = flight.data[i as usize];
                        }
                    }
                    IoResult::Failed(error) => {
                        *on_area = GARBAGE;
                        // A slot without room is as good as any later.
                        if error != 28 {
                            self.bad[usize::from(slot.area)][slot.index as usize] += 1;
                        }
                    }
                }
                continue;
            }
            self.frames[here] = Some(*on_area);
            if sys.bad_sectors.contains(&slot) {
                result = IoResult::Failed(5);
            }
            if due && sys.chance.one_in(chaos.corrupt) {
                let wrong = [0, GARBAGE, *on_area ^ 1];
                self.frames[here] = Some(wrong[sys.chance.below(3) as usize]);
                sys.spoiled.insert(slot);
            }
        }
        if !flight.write && result != IoResult::Ok {
            for (i, frame) in (0..).zip(&flight.frames) {
                self.frames[frame.0 as usize] = Some(GARBAGE);
                sys.spoiled.insert(first.plus(i));
            }
        }
        if !flight.write && result == IoResult::Ok {
            self.note_arrived(&flight.frames);
        }
        let io = IoId(flight.io);
        self.idle.push(flight);
        Some(Ended::Io(io, result))
    }

    /// A read of a file has ended. Nobody can tell whether its bytes are right.
    fn read_file(&mut self, sys: &mut System, flight: Flight, first: Slot) -> Ended {
        let failed = sys.chance.one_in(sys.chaos.read_error);
        for (i, &frame) in (0..).zip(&flight.frames) {
            let (here, slot) = (frame.0 as usize, first.plus(i));
            self.frame_use[here] = Use::Idle;
            if self.lingers > 0 {
                self.lingering.insert(frame.0, self.lingers);
            }
            self.frames[here] = Some(match failed {
                true => GARBAGE,
                false => System::file_content(slot.index),
            });
            if failed {
                sys.spoiled.insert(slot);
            }
        }
        let io = IoId(flight.io);
        if !failed {
            self.note_arrived(&flight.frames);
        }
        self.idle.push(flight);
        Ended::Io(
            io,
            if failed {
                IoResult::Failed(5)
            } else {
                IoResult::Ok
            },
        )
    }

    fn end_digest(&mut self, at: usize) -> Frame {
        let flight = self.flights.remove(at);
        for (frame, content) in flight.frames.iter().zip(&flight.data) {
            let here = frame.0 as usize;
            self.frame_use[here] = Use::Idle;
            assert_eq!(
                self.frames[here],
                Some(*content),
                "{frame:?} changed while its digest was taken"
            );
        }
        let first = flight.frames[0];
        self.note_arrived(&flight.frames);
        self.idle.push(flight);
        first
    }
}
