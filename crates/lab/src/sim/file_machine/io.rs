//! The I/O scheduler between page cache and disk: requests wait here, and are dispatched up to the disk's depth.
//!
//! A task waits for a read, but not for a write that the system began itself. Reads therefore go first, in rising
//! order from the last one; writes go when no read waits, and a batch of them after a few batches of reads have
//! passed them, with the numbers of the kernel's deadline scheduler.

use std::collections::BTreeMap;

use foreswap_core::units::Nanos;
use foreswap_core::world::IoId;

use crate::sim::device::{Device, Transfer};
use crate::sim::page_cache::Segment;
use crate::sim::parameters::DeviceParameters;

/// Pages of the largest request: 512 KiB (the kernel's `max_sectors_kb`).
pub const LARGEST: u64 = 128;
/// Queue depth of a device that is not a disk.
const DEPTH: usize = 32;
/// Requests of a batch (`fifo_batch`).
const BATCH: u32 = 16;
/// Batches of reads that waiting writes let pass (`writes_starved`).
const STARVED: u32 = 2;

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// To the disk.
    pub write: bool,
    /// The segment.
    pub segment: Segment,
    /// Its number, from the first request on.
    pub number: u64,
}

/// Requests of one direction, by place and number.
#[derive(Default, Debug)]
struct Queue {
    waiting: BTreeMap<(u64, u64), Request>,
    /// The end of the last one.
    at: u64,
}

impl Queue {
    fn next(&mut self) -> Option<(u64, Request)> {
        let above = self.waiting.range((self.at, 0)..).next();
        let (&key, _) = above.or_else(|| self.waiting.first_key_value())?;
        let request = self.waiting.remove(&key)?;
        self.at = key.0 + request.segment.pages;
        Some((key.0, request))
    }
}

/// The disk with its waiting requests.
#[derive(Debug)]
pub struct Disk {
    device: Device,
    reads: Queue,
    writes: Queue,
    /// The first page of each file on the disk.
    places: Vec<u64>,
    /// The end of the last file.
    end: u64,
    /// Requests in flight, by number.
    under_way: BTreeMap<u32, Request>,
    /// The number of reads among them.
    reading: usize,
    /// The queue depth.
    depth: usize,
    /// Reads that have passed waiting writes.
    passed: u32,
    /// Writes that now precede reads.
    owed: u32,
    requests: u64,
    /// Dispatched requests and their pages: reads, writes.
    pub done: [(u64, u64); 2],
}

impl Disk {
    /// An idle disk.
    pub fn new(parameters: &DeviceParameters) -> Self {
        Disk {
            device: Device::new(parameters),
            reads: Queue::default(),
            writes: Queue::default(),
            places: Vec::new(),
            end: 0,
            under_way: BTreeMap::new(),
            reading: 0,
            depth: match parameters {
                DeviceParameters::Disk(disk) => disk.queue as usize,
                _ => DEPTH,
            },
            passed: 0,
            owed: 0,
            requests: 0,
            done: [(0, 0); 2],
        }
    }

    /// Adds a file, after the others and contiguous.
    pub fn add_file(&mut self, pages: u64) {
        self.places.push(self.end);
        self.end += pages;
    }

    /// The number that the next request gets.
    pub const fn next_number(&self) -> u64 {
        self.requests
    }

    /// Writes that wait.
    pub fn waiting_writes(&self) -> usize {
        self.writes.waiting.len()
    }

    /// Submits a transfer; large ones are split into requests.
    pub fn submit(&mut self, now: Nanos, write: bool, segment: Segment) {
        let mut start = segment.start;
        let end = segment.start + segment.pages;
        while start < end {
            let pages = LARGEST.min(end - start);
            let segment = Segment {
                start,
                pages,
                ..segment
            };
            let place = self.places[segment.file.0 as usize] + start;
            let request = Request {
                write,
                segment,
                number: self.requests,
            };
            let queue = if write {
                &mut self.writes
            } else {
                &mut self.reads
            };
            queue.waiting.insert((place, self.requests), request);
            self.requests += 1;
            start += pages;
        }
        self.dispatch(now);
    }

    fn dispatch(&mut self, now: Nanos) {
        while self.under_way.len() < self.depth {
            let Some((first, request)) = self.next() else {
                return;
            };
            let done = &mut self.done[usize::from(request.write)];
            done.0 += 1;
            done.1 += request.segment.pages;
            self.reading += usize::from(!request.write);
            // No two in flight have the same.
            let io = request.number as u32;
            self.under_way.insert(io, request);
            let transfer = Transfer {
                write: request.write,
                first: first % self.device.pages().max(1),
                pages: request.segment.pages as u32,
            };
            self.device.submit(now, IoId(io), transfer);
        }
    }

    /// The next request to dispatch, and its place on the disk.
    fn next(&mut self) -> Option<(u64, Request)> {
        let (reads, writes) = (
            !self.reads.waiting.is_empty(),
            !self.writes.waiting.is_empty(),
        );
        if writes && self.owed > 0 {
            self.owed -= 1;
            return self.writes.next();
        }
        if reads {
            self.passed = if writes { self.passed + 1 } else { 0 };
            if self.passed >= STARVED * BATCH {
                self.passed = 0;
                self.owed = BATCH;
            }
            return self.reads.next();
        }
        // Writes in the background do not delay reads.
        if self.reading > 0 {
            None
        } else {
            self.writes.next()
        }
    }

    /// When the next request ends.
    pub fn next_end(&self) -> Option<Nanos> {
        self.device.next_end()
    }

    /// The completed request, and when; dispatches the next one.
    pub fn end(&mut self) -> Option<(Nanos, Request)> {
        let (now, IoId(io)) = self.device.end()?;
        let request = self.under_way.remove(&io)?;
        self.reading -= usize::from(!request.write);
        self.dispatch(now);
        Some((now, request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::page_cache::FileId;
    use crate::sim::parameters::Parameters;

    fn disk() -> Disk {
        let machine = Parameters::named("core-2").expect("a machine");
        let mut disk = Disk::new(&machine.device);
        disk.depth = 1;
        disk.add_file(1_000_000);
        disk.add_file(1_000);
        disk
    }

    fn segment(file: u32, start: u64, pages: u64) -> Segment {
        Segment {
            file: FileId(file),
            start,
            pages,
        }
    }

    fn order(disk: &mut Disk) -> Vec<(bool, u64)> {
        let next = |_| disk.end();
        (0..)
            .map_while(next)
            .map(|(_, r)| (r.write, r.segment.start))
            .collect()
    }

    #[test]
    fn reads_go_in_rising_order_and_large_ones_in_pieces() {
        let mut disk = disk();
        disk.submit(0, false, segment(0, 500, 1));
        for start in [400, 900, 700] {
            disk.submit(0, false, segment(0, start, 1));
        }
        disk.submit(0, false, segment(1, 0, 2 * LARGEST + 1));
        let starts: Vec<u64> = order(&mut disk).into_iter().map(|(_, at)| at).collect();
        assert_eq!(starts, [500, 700, 900, 0, LARGEST, 2 * LARGEST, 400]);
        assert_eq!(disk.done, [(7, 4 + 2 * LARGEST + 1), (0, 0)]);
    }

    #[test]
    fn reads_pass_writes_but_not_for_ever() {
        let mut disk = disk();
        for n in 0..100 {
            disk.submit(0, true, segment(0, 10 * n, 1));
            disk.submit(0, false, segment(0, 500_000 + 10 * n, 1));
        }
        let order = order(&mut disk);
        assert!(order[0].0, "nothing else waited");
        let reads = order[1..].iter().take_while(|(write, _)| !write).count();
        assert_eq!(reads, (BATCH * STARVED) as usize);
        let rest = &order[1 + reads..];
        let writes = rest.iter().take_while(|(write, _)| *write).count();
        assert_eq!(writes, BATCH as usize);
        assert_eq!(order.len(), 200);
    }
}
