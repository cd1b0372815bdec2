//! The devices and costs of the simulated machine.
//!
//! A device has channels that work in parallel and one bus that transfers one page after the other. The figures are
//! orders of magnitude, from data sheets and from measurements on the development machines (docs/FIGURES.md);
//! `--latency` and `--bandwidth` change them.

use clap::ValueEnum;
use foreswap_core::units::{Nanos, PAGE_SIZE};

const SECOND: u128 = 1_000_000_000;

/// The devices to choose from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Kind {
    /// A disk of 7200 rpm: 12.7 ms to seek, 150 MB/s
    Hdd,
    /// An SSD on SATA: 90 µs, 530 MB/s
    Sata,
    /// An SSD on NVMe: 80 µs, 3.2 GB/s
    Nvme,
    /// The disk of a virtual machine: 38 µs, 2 GB/s
    Virtio,
    /// Compressed memory: 3 µs, 1.5 GB/s
    Ram,
}

/// The timing of a device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Device {
    /// Its kind.
    pub kind: Kind,
    /// From the start of a read to its first byte.
    pub read: Nanos,
    /// As `read`, for a write: the caches of SSDs complete writes sooner.
    pub write: Nanos,
    /// In addition, if an I/O does not begin where the last one ended.
    pub seek: Nanos,
    /// Bandwidth of the bus, in bytes a second.
    pub bandwidth: u64,
    /// I/Os in parallel.
    pub channels: usize,
    /// It reports completions when it has no further I/O, all at once.
    pub batches: bool,
}

impl Device {
    /// A device of this kind.
    pub fn of(kind: Kind) -> Self {
        const MICRO: Nanos = 1000;
        let (read, write, seek, bandwidth, channels) = match kind {
            // 8.5 ms to the track, half a turn of 4.2 ms.
            Kind::Hdd => (100 * MICRO, 100 * MICRO, 12_700 * MICRO, 150_000_000, 1),
            Kind::Sata => (90 * MICRO, 40 * MICRO, 0, 530_000_000, 32),
            Kind::Nvme => (80 * MICRO, 20 * MICRO, 0, 3_200_000_000, 64),
            Kind::Virtio => (38 * MICRO, 38 * MICRO, 0, 2_000_000_000, 32),
            Kind::Ram => (3 * MICRO, 6 * MICRO, 0, 1_500_000_000, 2),
        };
        Device {
            kind,
            read,
            write,
            seek,
            bandwidth,
            channels,
            batches: false,
        }
    }
}

/// Costs of the machine's software, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// From a touch of an absent page until the engine has its message, if it sleeps.
    pub wake_engine: Nanos,
    /// The engine's own work for a message.
    pub message: Nanos,
    /// From the mapping of the page until its thread runs.
    pub wake_thread: Nanos,
    /// A call that maps or moves pages, for the first page.
    pub map: Nanos,
    /// As `map`, for each further page.
    pub map_more: Nanos,
    /// To copy or to clear a page.
    pub copy: Nanos,
    /// The digest of a page.
    pub digest: Nanos,
    /// Start of an I/O, and processing of its completion.
    pub io: Nanos,
    /// A round of the engine's loop.
    pub round: Nanos,
    /// To move a huge page whole.
    pub move_huge: Nanos,
    /// A fresh huge page of zeros.
    pub fill_huge: Nanos,
    /// Collapse of 512 small pages into a huge one: they are copied.
    pub collapse: Nanos,
    /// Split of a huge page.
    pub split: Nanos,
    /// Removal of the page table of small pages at the place of a huge one.
    pub mend: Nanos,
}

/// Measured values; see the tables in the design document, docs/FIGURES.md and docs/TRACES.md.
pub const COSTS: Costs = Costs {
    wake_engine: 2_500,
    message: 700,
    wake_thread: 2_500,
    map: 800,
    map_more: 80,
    copy: 300,
    digest: 250,
    io: 600,
    round: 200,
    move_huge: 1_500,
    fill_huge: 80_000,
    collapse: 550_000,
    split: 15_000,
    mend: 10_000,
};

/// A device at work.
pub struct Queue {
    device: Device,
    /// When each channel becomes free.
    channels: Vec<Nanos>,
    /// When the bus becomes free.
    wire: Nanos,
    /// The end of the last I/O.
    end: u64,
}

impl Queue {
    /// Idle.
    pub fn new(device: Device) -> Self {
        Queue {
            device,
            channels: vec![0; device.channels.max(1)],
            wire: 0,
            end: 0,
        }
    }

    /// When the last I/O ends.
    pub fn last_end(&self) -> Nanos {
        self.wire
    }

    /// Submits an I/O of `pages` from `at` on at `now`. Returns its completion time.
    pub fn submit(&mut self, now: Nanos, write: bool, at: u64, pages: u64) -> Nanos {
        let device = self.device;
        let latency = if write { device.write } else { device.read };
        let seek = if at == self.end { 0 } else { device.seek };
        self.end = at + pages;
        let bytes = u128::from(pages) * PAGE_SIZE as u128;
        let transfer = (bytes * SECOND / u128::from(device.bandwidth.max(1))) as Nanos;
        let free = self.channels.iter_mut().min_by_key(|free| **free);
        let start = free.as_ref().map_or(now, |free| now.max(**free));
        let done = self.wire.max(start + latency + seek) + transfer;
        self.wire = done;
        if let Some(free) = free {
            *free = done;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_overlap_and_the_wire_does_not() {
        let device = Device {
            bandwidth: 4_096_000_000,
            channels: 2,
            ..Device::of(Kind::Virtio)
        };
        let mut queue = Queue::new(device);
        // 1 µs per page on the bus.
        assert_eq!(queue.submit(0, false, 0, 1), 39_000);
        assert_eq!(queue.submit(0, false, 100, 1), 40_000);
        // Both channels are busy.
        assert_eq!(queue.submit(0, false, 200, 1), 78_000);
        assert_eq!(queue.submit(1_000_000, false, 200, 10), 1_048_000);
    }

    #[test]
    fn a_disk_that_goes_on_where_it_was_needs_no_seek() {
        let mut queue = Queue::new(Device::of(Kind::Hdd));
        let first = queue.submit(0, false, 1000, 8);
        let next = queue.submit(first, false, 1008, 8);
        assert!(first > 12_000_000 && next - first < 1_000_000);
    }
}
