//! Swap devices: transfers are submitted and complete later.

mod disk;
mod flash;
mod ram;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foreswap_core::units::Nanos;
use foreswap_core::world::IoId;

use super::parameters::DeviceParameters;
use disk::DiskDevice;
use flash::FlashDevice;
use ram::RamDevice;

/// A run of pages on its way to or from a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// To the device.
    pub write: bool,
    /// First page on the device.
    pub first: u64,
    /// The number of consecutive pages.
    pub pages: u32,
}

#[derive(Debug)]
enum Kind {
    Flash(FlashDevice),
    Ram(RamDevice),
    Disk(DiskDevice),
}

/// A device with its transfers in flight.
#[derive(Debug)]
pub struct Device {
    kind: Kind,
    ends: BinaryHeap<Reverse<(Nanos, u64, IoId)>>,
    /// Transfers with the same completion time end in the order in which that was known.
    order: u64,
}

impl Device {
    /// A device of these parameters, at rest and never written.
    pub fn new(parameters: &DeviceParameters) -> Self {
        let kind = match parameters {
            DeviceParameters::Flash(flash) => Kind::Flash(FlashDevice::new(flash)),
            DeviceParameters::Ram(ram) => Kind::Ram(RamDevice::new(*ram)),
            DeviceParameters::Disk(disk) => Kind::Disk(DiskDevice::new(*disk)),
        };
        Device {
            kind,
            ends: BinaryHeap::new(),
            order: 0,
        }
    }

    /// Pages that it holds.
    pub fn pages(&self) -> u64 {
        match &self.kind {
            Kind::Flash(flash) => flash.pages(),
            Kind::Ram(ram) => ram.pages(),
            Kind::Disk(disk) => disk.pages(),
        }
    }

    /// A transfer is submitted at `now`, which never decreases.
    pub fn submit(&mut self, now: Nanos, io: IoId, transfer: Transfer) {
        let end = match &mut self.kind {
            Kind::Flash(flash) => Some((flash.submit(now, transfer), io)),
            Kind::Ram(ram) => Some((ram.submit(now, transfer), io)),
            Kind::Disk(disk) => disk.submit(now, io, transfer),
        };
        self.will_end(end);
    }

    fn will_end(&mut self, end: Option<(Nanos, IoId)>) {
        if let Some((end, io)) = end {
            self.order += 1;
            self.ends.push(Reverse((end, self.order, io)));
        }
    }

    /// When the next transfer ends.
    pub fn next_end(&self) -> Option<Nanos> {
        self.ends.peek().map(|Reverse((end, ..))| *end)
    }

    /// The next transfer to complete, and when.
    pub fn end(&mut self) -> Option<(Nanos, IoId)> {
        let Reverse((now, _, io)) = self.ends.pop()?;
        if let Kind::Disk(disk) = &mut self.kind {
            let next = disk.ended(now);
            self.will_end(next);
        }
        Some((now, io))
    }
}
