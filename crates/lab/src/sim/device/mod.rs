//! Swap devices: when a transfer that is handed over now will be done.

mod flash;
mod ram;

use foreswap_core::units::Nanos;

use super::parameters::DeviceParameters;
pub use flash::FlashDevice;
pub use ram::RamDevice;

/// A run of pages on its way to or from a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// To the device.
    pub write: bool,
    /// First page on the device.
    pub first: u64,
    /// How many follow each other.
    pub pages: u32,
}

/// A device, by its kind.
#[derive(Debug)]
pub enum Device {
    /// NAND flash.
    Flash(FlashDevice),
    /// Memory.
    Ram(RamDevice),
}

impl Device {
    /// A device of these parameters, at rest and never written.
    pub fn new(parameters: &DeviceParameters) -> Self {
        match parameters {
            DeviceParameters::Flash(flash) => Device::Flash(FlashDevice::new(flash)),
            DeviceParameters::Ram(ram) => Device::Ram(RamDevice::new(*ram)),
        }
    }

    /// Pages that it holds.
    pub fn pages(&self) -> u64 {
        match self {
            Device::Flash(flash) => flash.pages(),
            Device::Ram(ram) => ram.pages(),
        }
    }

    /// A transfer begins at `now`, which never goes back; when it will be done.
    pub fn submit(&mut self, now: Nanos, transfer: Transfer) -> Nanos {
        match self {
            Device::Flash(flash) => flash.submit(now, transfer),
            Device::Ram(ram) => ram.submit(now, transfer),
        }
    }
}
