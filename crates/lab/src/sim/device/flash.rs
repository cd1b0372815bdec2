//! NAND flash behind a controller.
//!
//! The controller executes one command after the other. A write is done when it is in the controller's buffer. The
//! controller fills one unit after the other and programs a full unit on the next die: data that is written together
//! lies together, whatever its addresses. A read goes to the dies that hold its pages: each reads one flash page at a
//! time, and waits for a program of the same die (or suspends it, if the flash can). Slow reads therefore come from
//! the writes beside them, not from other reads.
//!
//! Small random writes leave units half stale, which costs further programs for cleaning: each page of a run of `n`
//! takes the room of `1 + (amplification - 1) / n` pages.

use std::collections::VecDeque;

use foreswap_core::units::{Nanos, PAGE_SIZE};

use super::super::parameters::Flash;
use super::super::rng::mix;
use super::Transfer;

const PAGE: u64 = PAGE_SIZE as u64;
/// Parts of a page, the unit for the room of an open unit.
const PARTS: u64 = 1024;
const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Copy, Default, Debug)]
struct Die {
    /// End of the reads so far.
    reads: Nanos,
    /// End of the programs so far.
    programs: Nanos,
}

/// A flash device at work.
#[derive(Debug)]
pub struct FlashDevice {
    p: Flash,
    dies: Vec<Die>,
    /// The unit that holds each page.
    units: Vec<u32>,
    /// The unit being filled, and its fill.
    open: u32,
    filled: u64,
    /// Ends of programs with data still in the buffer, and the pages that each frees.
    buffer: VecDeque<(Nanos, u64)>,
    buffered: u64,
    /// When the controller and the link become free.
    controller: Nanos,
    link: Nanos,
}

/// Time for `bytes` at `rate` bytes a second.
fn time(bytes: u64, rate: u64) -> Nanos {
    (u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as Nanos
}

impl FlashDevice {
    /// A device that was never written.
    pub fn new(parameters: &Flash) -> Self {
        FlashDevice {
            dies: vec![Die::default(); parameters.dies as usize],
            units: vec![NOWHERE; (parameters.capacity / PAGE) as usize],
            open: 0,
            filled: 0,
            buffer: VecDeque::new(),
            buffered: 0,
            controller: 0,
            link: 0,
            p: parameters.clone(),
        }
    }

    /// Pages that it holds.
    pub fn pages(&self) -> u64 {
        self.units.len() as u64
    }

    /// A transfer begins at `now`; returns its completion.
    pub fn submit(&mut self, now: Nanos, transfer: Transfer) -> Nanos {
        let begin = self.controller.max(now + self.p.virtual_exit / 2);
        self.controller = begin + self.p.command;
        let begin = self.controller;
        let end = if transfer.write {
            self.write(begin, transfer)
        } else {
            self.read(begin, transfer)
        };
        end + self.p.overhead + self.p.virtual_exit.div_ceil(2)
    }

    /// The data of a command that began at `begin` is ready at `ready`; returns when it has passed the link. A
    /// command that waits for its die does not block the link for others: the link's load counts from the commands'
    /// beginnings.
    fn send(&mut self, begin: Nanos, ready: Nanos, pages: u64) -> Nanos {
        let takes = time(pages * PAGE, self.p.link);
        self.link = self.link.max(begin) + takes;
        self.link.max(ready + takes)
    }

    fn read(&mut self, begin: Nanos, transfer: Transfer) -> Nanos {
        let per_read = self.p.read_bytes / PAGE;
        let unit_pages = self.p.program_bytes / PAGE;
        let first = transfer.first;
        let mut end = begin;
        let mut at = first;
        let last = first + u64::from(transfer.pages);
        while at < last {
            let unit = self.unit_of(at, unit_pages);
            let mut n = 1;
            while at + n < last && n < per_read && self.unit_of(at + n, unit_pages) == unit {
                n += 1;
            }
            let done = if unit == self.open && self.units[at as usize] != NOWHERE {
                // Still in the buffer.
                begin
            } else {
                self.read_die(begin, unit) + time(n * PAGE, self.p.channel)
            };
            end = end.max(self.send(begin, done, n));
            at += n;
        }
        end
    }

    /// The place of a page. Pages never written count as written in the order of their addresses.
    fn unit_of(&self, page: u64, unit_pages: u64) -> u32 {
        match self.units.get(page as usize) {
            Some(&unit) if unit != NOWHERE => unit,
            _ => (page / unit_pages) as u32,
        }
    }

    fn read_die(&mut self, begin: Nanos, unit: u32) -> Nanos {
        let count = self.dies.len();
        let spread = self.p.read_spread.min(self.p.read);
        let takes = match mix(unit.into()) & 1 {
            0 => self.p.read - spread,
            _ => self.p.read + spread,
        };
        let die = &mut self.dies[unit as usize % count];
        let mut start = begin.max(die.reads);
        if die.programs > start {
            let wait = (die.programs - start).min(self.p.suspend);
            start += wait;
            if die.programs > start {
                die.programs += takes;
            }
        }
        die.reads = start + takes;
        die.reads
    }

    fn write(&mut self, begin: Nanos, transfer: Transfer) -> Nanos {
        let pages = u64::from(transfer.pages);
        let mut accepted = self.send(begin, begin, pages);
        self.buffered += pages;
        while let Some(&(end, freed)) = self.buffer.front()
            && (end <= accepted || self.buffered * PAGE > self.p.buffer)
        {
            self.buffer.pop_front();
            self.buffered -= freed;
            accepted = accepted.max(end);
        }
        let room = (self.p.program_bytes / PAGE) * PARTS;
        let each = PARTS + (self.p.amplification - 1) * PARTS / pages;
        let mut held = 0;
        for page in transfer.first..transfer.first + pages {
            if let Some(unit) = self.units.get_mut(page as usize) {
                *unit = self.open;
            }
            held += 1;
            self.filled += each;
            while self.filled >= room {
                self.filled -= room;
                self.program(begin, held);
                held = 0;
            }
        }
        if held > 0 {
            // Freed with the unit that is open now.
            self.buffer.push_back((begin, held));
        }
        accepted
    }

    fn program(&mut self, now: Nanos, pages: u64) {
        let count = self.dies.len();
        let die = &mut self.dies[self.open as usize % count];
        let start = now.max(die.programs).max(die.reads.min(now + self.p.read));
        die.programs = start + self.p.program;
        self.buffer.push_back((die.programs, pages));
        self.open = (self.open + 1) % NOWHERE;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::parameters::{DeviceParameters, Parameters};
    use super::super::super::rng::Rng;
    use super::*;

    fn p3700() -> FlashDevice {
        let machine = Parameters::named("xeon-e5-v3")
            .expect("a machine")
            .scaled(64);
        match &machine.device {
            DeviceParameters::Flash(flash) => FlashDevice::new(flash),
            other => panic!("{other:?}"),
        }
    }

    /// Keeps `depth` transfers in flight for a second; returns the pages done.
    fn pages_in_a_second(
        device: &mut FlashDevice,
        depth: usize,
        mut next: impl FnMut() -> Transfer,
    ) -> u64 {
        let mut flights = std::collections::BinaryHeap::new();
        let (mut now, mut pages) = (0, 0);
        while now < 1_000_000_000 {
            while flights.len() < depth {
                let transfer = next();
                let end = device.submit(now, transfer);
                flights.push(std::cmp::Reverse((end, transfer.pages)));
            }
            if let Some(std::cmp::Reverse((end, done))) = flights.pop() {
                now = now.max(end);
                pages += u64::from(done);
            }
        }
        pages
    }

    fn within(found: u64, specified: u64, percent: u64) {
        let distance = found.abs_diff(specified) * 100;
        assert!(
            distance <= specified * percent,
            "{found}, specified {specified}"
        );
    }

    #[test]
    fn rates_are_those_of_the_data_sheet() {
        let slots = p3700().pages();
        let mut rng = Rng::new(1);
        let mut random = |write| Transfer {
            write,
            first: rng.below(slots),
            pages: 1,
        };
        within(
            pages_in_a_second(&mut p3700(), 128, || random(false)),
            450_000,
            5,
        );
        within(
            pages_in_a_second(&mut p3700(), 128, || random(true)),
            75_000,
            10,
        );
        let mut at = 0;
        let mut sequential = |write| {
            at = (at + 32) % (slots - 32);
            Transfer {
                write,
                first: at,
                pages: 32,
            }
        };
        let megabytes = |pages: u64| pages * PAGE / 1_000_000;
        within(
            megabytes(pages_in_a_second(&mut p3700(), 32, || sequential(false))),
            2_700,
            5,
        );
        within(
            megabytes(pages_in_a_second(&mut p3700(), 32, || sequential(true))),
            1_080,
            15,
        );
    }

    #[test]
    fn a_read_alone_takes_the_flash_and_the_way_there() {
        let end = p3700().submit(
            0,
            Transfer {
                write: false,
                first: 77,
                pages: 1,
            },
        );
        assert!((65_000..140_000).contains(&end), "{end}");
        let write = p3700().submit(
            0,
            Transfer {
                write: true,
                first: 77,
                pages: 1,
            },
        );
        assert!((10_000..25_000).contains(&write), "{write}");
    }

    #[test]
    fn reads_wait_for_programs_of_their_die_only() {
        let mut device = p3700();
        // Two units: on die 0 and on die 1.
        device.submit(
            0,
            Transfer {
                write: true,
                first: 0,
                pages: 16,
            },
        );
        let busy = device.submit(
            0,
            Transfer {
                write: false,
                first: 0,
                pages: 1,
            },
        );
        let idle = device.submit(
            0,
            Transfer {
                write: false,
                first: 8 * 5,
                pages: 1,
            },
        );
        assert!(busy > 970_000, "{busy}");
        assert!(idle < 140_000, "{idle}");
    }

    #[test]
    fn buffered_data_is_read_from_the_buffer() {
        let mut device = p3700();
        device.submit(
            0,
            Transfer {
                write: true,
                first: 9,
                pages: 2,
            },
        );
        let end = device.submit(
            50_000,
            Transfer {
                write: false,
                first: 9,
                pages: 1,
            },
        );
        assert!(end < 50_000 + 25_000, "{end}");
    }
}
