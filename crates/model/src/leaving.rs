//! The remains of an ended process: the device completes its writes, and its slots become free after that. If they
//! were freed earlier, its last pages would overwrite those of others.

use foreswap_core::units::{Nanos, Slot};

use crate::space::Space;
use crate::system::System;
use crate::view::LATENCY;

/// The last writes of a process, and its slots.
pub struct Leaving {
    pid: usize,
    /// When the last write ends.
    ends: Nanos,
    /// Slots with the contents being written.
    writes: Vec<(Slot, u64)>,
    /// References to each slot, by area.
    refs: Vec<Vec<u16>>,
}

impl Leaving {
    fn holds(&self, slot: Slot) -> u16 {
        let area = self.refs.get(usize::from(slot.area));
        area.and_then(|refs| refs.get(slot.index as usize))
            .map_or(0, |&n| n)
    }
}

impl System {
    /// The process of `space` has ended.
    pub fn leave(&mut self, space: Space) {
        let writes = space.flights.iter().filter(|flight| flight.write);
        let last = writes.clone().map(|flight| flight.due).max();
        let writes = writes.filter_map(|flight| Some((flight.slot?, &flight.data)));
        let writes = writes.flat_map(|(first, data)| {
            let slots = (0..).map(move |n| first.plus(n));
            slots.zip(data.iter().copied())
        });
        self.leaving.push(Leaving {
            pid: space.pid,
            // Stalled writes would leave the others without room for longer than their patience.
            ends: last.map_or(0, |due| due.min(self.now + LATENCY)),
            writes: writes.collect(),
            refs: space.refs,
        });
        self.pass(0);
    }

    /// Time passes: completed writes are gone.
    pub fn pass(&mut self, time: Nanos) {
        self.now += time;
        let now = self.now;
        for gone in self
            .leaving
            .extract_if(.., |leaving| leaving.ends <= now)
            .collect::<Vec<_>>()
        {
            for &(slot, content) in &gone.writes {
                let area = &mut self.areas[usize::from(slot.area)];
                area.writing[slot.index as usize] -= 1;
                area.content[slot.index as usize] = content;
            }
            for area in &mut self.areas {
                for claim in &mut area.claims {
                    if *claim == Some(gone.pid) {
                        *claim = None;
                    }
                }
            }
            for (area, refs) in (0u8..).zip(&gone.refs) {
                for (index, &n) in (0u32..).zip(refs) {
                    for _ in 0..n {
                        self.put(Slot { area, index });
                    }
                }
            }
        }
    }

    /// Completes all remaining writes.
    pub fn see_off(&mut self) {
        let last = self.leaving.iter().map(|leaving| leaving.ends).max();
        self.pass(last.map_or(0, |ends| ends.saturating_sub(self.now)));
    }

    /// References to a slot by ended processes.
    pub fn left(&self, slot: Slot) -> u16 {
        self.leaving.iter().map(|leaving| leaving.holds(slot)).sum()
    }
}
