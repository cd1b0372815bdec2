//! One modelled process as the kernel sees it: its pages, the engine's frames, its I/O in flight.

use std::collections::BTreeMap;
use std::ops::Range;

use foreswap_core::units::{Frame, Slot, Vpn};
use foreswap_core::world::{IoId, IoResult, Refusal};

use super::system::{GARBAGE, System};

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
    pub mapping: Mapping,
    pub present: Option<u64>,
    pub poisoned: bool,
    pub locked: bool,
    pub pinned: bool,
    pub shared: bool,
}

/// An I/O in flight, or frames whose digests are being computed.
pub struct Flight {
    pub digest: bool,
    pub io: IoId,
    pub write: bool,
    /// A write that may not be refused for the content of its pages.
    pub as_it_is: bool,
    pub slot: Slot,
    pub frames: Vec<Frame>,
    /// The content of the frames when a write was submitted.
    pub data: Vec<u64>,
}

/// The end of a flight.
pub enum Ended {
    Io(IoId, IoResult),
    Digest(Frame),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Idle,
    Reading,
    Writing,
}

/// The memory of one process and its engine.
pub struct Space {
    pub pid: usize,
    /// First page that is modelled.
    pub base: u64,
    pub pages: Vec<Page>,
    pub frames: Vec<Option<u64>>,
    pub frame_use: Vec<Use>,
    pub charged: u64,
    /// Events that wait to be read or whose thread has not continued yet: the MMU answers Again.
    pub changing: u32,
    pub flights: Vec<Flight>,
    /// I/Os that were begun; those of them that were begun by a call before which others were in flight, and how many
    /// others.
    pub begun: u64,
    pub added: u64,
    pub had: usize,
    /// For how many tries the kernel holds a frame whose I/O has ended, and for how many more it does.
    pub lingers: u32,
    pub lingering: BTreeMap<u32, u32>,
    /// I/Os in flight that are executed, on a device that completes in batches.
    pub worked_off: usize,
    /// The content that the last completed read brought, if it succeeded.
    pub brought: Vec<(Frame, Option<u64>)>,
    pub depth: usize,
    pub woken: Vec<u64>,
    pub unshare: Vec<(Vpn, u32)>,
    /// Huge pages that were made of small ones.
    pub collapsed: u32,
    /// References that this process holds, by area and slot.
    pub refs: Vec<Vec<u16>>,
    /// Of those, references to bad slots that are left alone.
    pub bad: Vec<Vec<u16>>,
    /// References taken for the child to come.
    pub shares: Vec<Slot>,
    /// Pages announced as coming back while a fork is held.
    pub returned: Vec<Vpn>,
    /// The MMU answered Exists: the next charge is for an existing page.
    pub existed: bool,
    /// The limit may be exceeded in this call, for a known reason.
    pub lenient: bool,
}

impl Space {
    pub fn new(sys: &mut System, base: u64, pages: usize, frames: u32) -> Self {
        sys.pressure.push(0);
        let per_slot = || -> Vec<Vec<u16>> {
            let slots = |area: &super::system::Area| vec![0; area.counts.len()];
            sys.areas.iter().map(slots).collect()
        };
        Space {
            pid: sys.pressure.len() - 1,
            base,
            pages: vec![Page::default(); pages],
            frames: vec![None; frames as usize],
            frame_use: vec![Use::Idle; frames as usize],
            charged: 0,
            changing: 0,
            flights: Vec::new(),
            begun: 0,
            added: 0,
            had: 0,
            lingers: 0,
            lingering: BTreeMap::new(),
            worked_off: 0,
            brought: Vec::new(),
            depth: 8,
            woken: Vec::new(),
            unshare: Vec::new(),
            collapsed: 0,
            refs: per_slot(),
            bad: per_slot(),
            shares: Vec::new(),
            returned: Vec::new(),
            existed: false,
            lenient: false,
        }
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

    pub fn at(&self, page: Vpn) -> usize {
        (page.0 - self.base) as usize
    }

    pub fn vpn(&self, at: usize) -> Vpn {
        Vpn(self.base + at as u64)
    }

    pub fn range(&self, at: &Range<usize>) -> Range<Vpn> {
        self.vpn(at.start)..self.vpn(at.end)
    }

    pub fn refs_mut(&mut self, slot: Slot) -> &mut u16 {
        &mut self.refs[usize::from(slot.area)][slot.index as usize]
    }

    pub fn bad_mut(&mut self, slot: Slot) -> &mut u16 {
        &mut self.bad[usize::from(slot.area)][slot.index as usize]
    }

    /// A further area, or one in the place of another.
    pub fn set_area(&mut self, area: usize, slots: usize) {
        for table in [&mut self.refs, &mut self.bad] {
            table.resize_with(table.len().max(area + 1), Vec::new);
            assert!(table[area].iter().all(|n| *n == 0), "references are left");
            table[area] = vec![0; slots];
        }
    }

    /// Memory that is really allocated.
    pub fn physical(&self) -> u64 {
        let managed = |p: &&Page| p.mapping == Mapping::Managed && p.present.is_some();
        let program = self.pages.iter().filter(managed).count();
        (program + self.frames.iter().flatten().count()) as u64
    }

    /// The device completes flight number `at`: chance and bad sectors determine the result.
    pub fn complete(&mut self, sys: &mut System, at: usize) -> Ended {
        // In order, so that none is put off for ever where the first is always taken.
        let flight = self.flights.remove(at);
        let now = |&frame: &Frame| (frame, self.frames[frame.0 as usize]);
        if flight.digest {
            self.brought = flight.frames.iter().map(now).collect();
            for frame in &flight.frames {
                self.frame_use[frame.0 as usize] = Use::Idle;
            }
            let data = flight.data.iter().copied();
            assert!(self.brought.iter().map(|b| b.1.unwrap_or(GARBAGE)).eq(data));
            return Ended::Digest(flight.frames[0]);
        }
        let chaos = sys.chaos;
        let mut result = IoResult::Ok;
        if flight.write {
            if sys.rng.chance(chaos.write_error) {
                result = IoResult::Failed(5);
            } else if sys.rng.chance(chaos.no_space) {
                result = IoResult::Failed(28);
            } else if sys.compresses(flight.slot.area) && sys.rng.chance(chaos.refuse) {
                let full = sys.rng.chance(100);
                let mut pages = [0; 8];
                pages[0] = sys.rng.below(u64::MAX) | 1 << sys.rng.below(8);
                if full || !flight.as_it_is {
                    result = IoResult::Refused(Refusal { pages, full });
                }
            }
        } else if sys.rng.chance(chaos.read_error) {
            result = IoResult::Failed(5);
        }
        self.brought.clear();
        for (i, &frame) in (0..).zip(&flight.frames) {
            let slot = flight.slot.plus(i);
            let here = frame.0 as usize;
            self.frame_use[here] = Use::Idle;
            if self.lingers > 0 {
                self.lingering.insert(frame.0, self.lingers);
            }
            let digest = sys
                .digest(flight.data.get(i as usize).copied().unwrap_or(0))
                .number();
            let area = &mut sys.areas[usize::from(slot.area)];
            let on_area = &mut area.content[slot.index as usize];
            if flight.write {
                area.writing[slot.index as usize] -= 1;
                assert_eq!(
                    self.frames[here],
                    Some(flight.data[i as usize]),
                    "{frame:?} changed while it was written"
                );
                assert_eq!(
                    area.digests[slot.index as usize], digest,
                    "{slot:?} has another digest than the page that is written there"
                );
                *on_area = flight.data[i as usize];
                match result {
                    IoResult::Ok => {}
                    IoResult::Refused(refusal) if !refusal.has(i) => {}
                    // A slot that found no room is as good as any later.
                    IoResult::Refused(_) | IoResult::Failed(28) => *on_area = GARBAGE,
                    IoResult::Failed(_) => {
                        *on_area = GARBAGE;
                        *self.bad_mut(slot) += 1;
                    }
                }
                continue;
            }
            self.frames[here] = Some(*on_area);
            if sys.bad_sectors.contains(&slot) {
                result = IoResult::Failed(5);
            }
            if sys.rng.chance(chaos.corrupt) {
                let wrong = [0, GARBAGE, *on_area ^ 1];
                self.frames[here] = Some(wrong[sys.rng.below(3) as usize]);
            }
        }
        if !flight.write && result != IoResult::Ok {
            for frame in &flight.frames {
                self.frames[frame.0 as usize] = Some(GARBAGE);
            }
        }
        if !flight.write && result == IoResult::Ok {
            let now = |&frame: &Frame| (frame, self.frames[frame.0 as usize]);
            self.brought = flight.frames.iter().map(now).collect();
        }
        Ended::Io(flight.io, result)
    }
}
