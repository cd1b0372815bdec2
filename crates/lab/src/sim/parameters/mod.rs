//! A machine as described by its file: CPUs, memory, costs of the system's work, the swap device.
//!
//! The files are in `machines/`, one per machine of the seeds; every value has its source. [`Parameters::scaled`]
//! reduces the memory and leaves every speed as it is.

mod text;

use foreswap_core::units::Nanos;

pub use text::FileError;
use text::Text;

/// The built-in machine files.
const MACHINES: &[(&str, &str)] = &[
    (
        "xeon-e5-v3",
        include_str!("../../../machines/xeon-e5-v3.machine"),
    ),
    (
        "xeon-e5-v3-4.8",
        include_str!("../../../machines/xeon-e5-v3-4.8.machine"),
    ),
    (
        "two-socket-disk",
        include_str!("../../../machines/two-socket-disk.machine"),
    ),
    (
        "uma-disk",
        include_str!("../../../machines/uma-disk.machine"),
    ),
    (
        "kvm-guest",
        include_str!("../../../machines/kvm-guest.machine"),
    ),
    ("core-2", include_str!("../../../machines/core-2.machine")),
];

/// One machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Parameters {
    /// Its name.
    pub name: String,
    /// Hardware threads.
    pub cpus: u32,
    /// Nodes of memory; each has its own thread of background reclaim.
    pub nodes: u32,
    /// Memory that programs can have, in bytes.
    pub memory: u64,
    /// Its scale.
    pub scale: u64,
    /// Double-precision operations a second of all CPUs together.
    pub flops: u64,
    /// Costs of the system's work.
    pub costs: Costs,
    /// The cost to wake a CPU by its time asleep: the last entry that applies.
    pub idle: [(Nanos, Nanos); 3],
    /// The locks that CPUs contend for.
    pub locks: Locks,
    /// The swap device.
    pub device: DeviceParameters,
    /// The size of the swap area on the device, in bytes; `None` if the device is no smaller than any program needs.
    pub area: Option<u64>,
}

/// CPU time of the system's work, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// A fault: the trap, the walk to the page's entry, and the return.
    pub fault: Nanos,
    /// To map a present page.
    pub map: Nanos,
    /// To find and remove a page's mapping, including the TLB flush on other CPUs.
    pub unmap: Nanos,
    /// To allocate and account a page.
    pub allocate: Nanos,
    /// To fill a page with zeros.
    pub zero: Nanos,
    /// To touch the first byte of a page that is mapped.
    pub touch: Nanos,
    /// To write each word of a page.
    pub fill: Nanos,
    /// To submit one request to the device.
    pub submit: Nanos,
    /// To process one completion.
    pub complete: Nanos,
    /// To copy a page to or from the device, if a CPU does that.
    pub copy: Nanos,
    /// To switch tasks on a CPU.
    pub switch: Nanos,
}

/// The locks of swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Locks {
    /// Hold time of the lock per slot taken or given back.
    pub slot: Nanos,
    /// Slots taken or given back per acquisition of the lock.
    pub slots_at_once: u32,
    /// Hold time of the swap cache's lock per page that enters or leaves.
    pub cache: Nanos,
    /// The cost to get a lock that another CPU held before.
    pub handover: Nanos,
}

/// A swap device.
#[derive(Clone, PartialEq, Debug)]
pub enum DeviceParameters {
    /// NAND flash behind a controller.
    Flash(Flash),
    /// Memory: a RAM disk, or a file in the page cache of a virtual machine's host.
    Ram(Ram),
    /// A rotating disk.
    Disk(Disk),
}

/// A rotating disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disk {
    /// Bytes.
    pub capacity: u64,
    /// Rotations per minute.
    pub rpm: u64,
    /// Seek time to the next track, on average (over a third of all), and over all tracks.
    pub seek: [Nanos; 3],
    /// Bytes per second under the head on the outermost and on the innermost tracks.
    pub outer: u64,
    pub inner: u64,
    /// Bytes that it reads ahead after a read.
    pub ahead: u64,
    /// Its own time for a command.
    pub command: Nanos,
    /// From its cache to the host, in bytes a second.
    pub link: u64,
    /// Bytes that it accepts before they are on the platter; 0 without write cache.
    pub write_cache: u64,
    /// Commands that it accepts and orders (native command queuing); 1 without.
    pub queue: u64,
}

/// Memory behind a block interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ram {
    /// Bytes.
    pub capacity: u64,
    /// The time of a request beside its copy.
    pub access: Nanos,
    /// The rate of one copy, in bytes a second.
    pub copy: u64,
    /// Parallel copies.
    pub copies: u32,
    /// As [`Flash::virtual_exit`].
    pub virtual_exit: Nanos,
}

/// NAND flash behind a controller; an NVMe or a SATA SSD.
#[derive(Clone, PartialEq, Debug)]
pub struct Flash {
    /// Bytes.
    pub capacity: u64,
    /// Independent dies.
    pub dies: u32,
    /// The average time of a die to read a page.
    pub read: Nanos,
    /// Half of the pages take less by this, the others more: of two pages that share their cells, one is read in one
    /// step, the other in two.
    pub read_spread: Nanos,
    /// Bytes delivered by one read of a die.
    pub read_bytes: u64,
    /// The time of a die to program a unit.
    pub program: Nanos,
    /// Bytes of such a unit.
    pub program_bytes: u64,
    /// The longest wait of a read whose die is programming.
    pub suspend: Nanos,
    /// From a die to the controller, in bytes a second.
    pub channel: u64,
    /// From the controller to the host, in bytes a second.
    pub link: u64,
    /// The controller's time per command, in which it begins no other.
    pub command: Nanos,
    /// Other overhead between host and controller per command.
    pub overhead: Nanos,
    /// Bytes that the controller buffers before they are programmed.
    pub buffer: u64,
    /// Write amplification of random single-page writes.
    pub amplification: u64,
    /// The overhead of a virtual machine's exit, the host's driver and the interrupt per request; 0 without one.
    pub virtual_exit: Nanos,
}

impl Parameters {
    /// A built-in machine.
    ///
    /// # Errors
    ///
    /// Its file is invalid, or there is no such machine.
    pub fn named(name: &str) -> Result<Self, FileError> {
        let Some((_, text)) = MACHINES.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = MACHINES.iter().map(|(name, _)| *name).collect();
            return Err(FileError {
                file: name.into(),
                line: 0,
                problem: format!("no such machine; expected one of: {}", known.join(", ")),
            });
        };
        Self::parse(&format!("{name}.machine"), text)
    }

    /// A machine from the text of its file.
    ///
    /// # Errors
    ///
    /// A value is missing, unknown, or invalid.
    pub fn parse(file: &str, text: &str) -> Result<Self, FileError> {
        let text = Text::parse(file, text)?;
        let parameters = Parameters {
            name: text.name("name")?,
            cpus: text.count("cpus", 1..=4096)? as u32,
            nodes: text.count("nodes", 1..=64)? as u32,
            memory: text.bytes("memory")?,
            scale: 1,
            flops: text.count("flops", 1..=1_000_000_000_000_000)?,
            costs: Costs {
                fault: text.time("cost.fault")?,
                map: text.time("cost.map")?,
                unmap: text.time("cost.unmap")?,
                allocate: text.time("cost.allocate")?,
                zero: text.time("cost.zero")?,
                touch: text.time("cost.touch")?,
                fill: text.time("cost.fill")?,
                submit: text.time("cost.submit")?,
                complete: text.time("cost.complete")?,
                copy: text.time("cost.copy")?,
                switch: text.time("cost.switch")?,
            },
            idle: [
                (text.time("idle.after_1")?, text.time("idle.exit_1")?),
                (text.time("idle.after_2")?, text.time("idle.exit_2")?),
                (text.time("idle.after_3")?, text.time("idle.exit_3")?),
            ],
            locks: Locks {
                slot: text.time("lock.slot")?,
                slots_at_once: text.count("lock.slots_at_once", 1..=512)? as u32,
                cache: text.time("lock.cache")?,
                handover: text.time("lock.handover")?,
            },
            device: DeviceParameters::parse(&text)?,
            area: match text.has("swap.area") {
                true => Some(text.bytes("swap.area")?),
                false => None,
            },
        };
        text.finish()?;
        Ok(parameters)
    }

    /// The same machine with `scale` times less memory and swap; every speed stays.
    pub fn scaled(mut self, scale: u64) -> Self {
        self.memory /= scale;
        self.area = self.area.map(|bytes| bytes / scale);
        self.scale *= scale;
        match &mut self.device {
            DeviceParameters::Flash(flash) => flash.capacity /= scale,
            DeviceParameters::Ram(ram) => ram.capacity /= scale,
            // Its size determines the seeks.
            DeviceParameters::Disk(_) => {}
        }
        self
    }

    /// Its memory in pages.
    pub fn pages(&self) -> u64 {
        self.memory / foreswap_core::units::PAGE_SIZE as u64
    }
}

impl DeviceParameters {
    fn parse(text: &Text) -> Result<Self, FileError> {
        match text.word("swap.kind", &["flash", "ram", "disk"])? {
            "ram" => Self::ram(text),
            "disk" => Self::disk(text),
            _ => Self::flash(text),
        }
    }

    fn ram(text: &Text) -> Result<Self, FileError> {
        Ok(DeviceParameters::Ram(Ram {
            capacity: text.bytes("swap.capacity")?,
            access: text.time("swap.access")?,
            copy: text.rate("swap.copy")?,
            copies: text.count("swap.copies", 1..=4096)? as u32,
            virtual_exit: text.time("swap.virtual_exit")?,
        }))
    }

    fn disk(text: &Text) -> Result<Self, FileError> {
        Ok(DeviceParameters::Disk(Disk {
            capacity: text.bytes("swap.capacity")?,
            rpm: text.count("swap.rpm", 1..=100_000)?,
            seek: [
                text.time("swap.seek_track")?,
                text.time("swap.seek_average")?,
                text.time("swap.seek_full")?,
            ],
            outer: text.rate("swap.outer")?,
            inner: text.rate("swap.inner")?,
            ahead: text.bytes("swap.ahead")?,
            command: text.time("swap.command")?,
            link: text.rate("swap.link")?,
            write_cache: match text.has("swap.write_cache") {
                true => text.bytes("swap.write_cache")?,
                false => 0,
            },
            queue: match text.has("swap.queue") {
                true => text.count("swap.queue", 1..=32)?,
                false => 1,
            },
        }))
    }

    fn flash(text: &Text) -> Result<Self, FileError> {
        let page = foreswap_core::units::PAGE_SIZE as u64;
        let pages = |key: &str| Ok(text.bytes(key)?.next_multiple_of(page));
        Ok(DeviceParameters::Flash(Flash {
            capacity: text.bytes("swap.capacity")?,
            dies: text.count("swap.dies", 1..=65_536)? as u32,
            read: text.time("swap.read")?,
            read_spread: text.time("swap.read_spread")?,
            read_bytes: pages("swap.read_bytes")?,
            program: text.time("swap.program")?,
            program_bytes: pages("swap.program_bytes")?,
            suspend: text.time("swap.suspend")?,
            channel: text.rate("swap.channel")?,
            link: text.rate("swap.link")?,
            command: text.time("swap.command")?,
            overhead: text.time("swap.overhead")?,
            buffer: pages("swap.buffer")?,
            amplification: text.count("swap.amplification", 1..=100)?,
            virtual_exit: text.time("swap.virtual_exit")?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("../../../machines/xeon-e5-v3.machine");

    #[test]
    fn every_machine_that_comes_along_can_be_read() {
        for (name, _) in MACHINES {
            let machine = Parameters::named(name).expect("a machine");
            assert_eq!(machine.name, *name);
            assert_eq!(machine.clone().scaled(4).pages(), machine.memory / 4 / 4096);
        }
        assert!(
            Parameters::named("pdp-11")
                .unwrap_err()
                .problem
                .contains("kvm-guest")
        );
    }

    /// The error names the changed line, the value, and the expected form.
    #[test]
    fn an_error_names_its_line() {
        let line = |key: &str| {
            let starts = |line: &str| line.split('=').next().map(str::trim) == Some(key);
            FILE.lines().position(starts).expect(key) + 1
        };
        for (key, value, parts) in [
            (
                "cpus",
                "none",
                &["`none`", "whole number from 1 to 4096"][..],
            ),
            ("cpus", "0", &["`0`", "from 1"]),
            ("memory", "32", &["`32`", "unit of B, KiB", "32 GiB"]),
            ("memory", "-3 GiB", &["`-3 GiB`", "expected a number"]),
            ("memory", "0 GiB", &["more than 0"]),
            ("memory", "99999999999 GiB", &["expected a number"]),
            (
                "fault",
                "1.5.2 us",
                &["`cost.fault`", "1.5.2 us", "a unit of ns"],
            ),
            ("fault", "7 parsecs", &["parsecs", "such as 1.5 us"]),
            ("kind", "tape", &["`tape`", "one of: flash, ram, disk"]),
            ("name", "", &["`name` is empty"]),
        ] {
            let at = line(key);
            let mut lines: Vec<String> = FILE.lines().map(str::to_owned).collect();
            lines[at - 1] = format!("{key} = {value}");
            let error = Parameters::parse("m.machine", &lines.join("\n")).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with(&format!("m.machine:{at}: ")), "{text}");
            for part in parts {
                assert!(text.contains(part), "{part:?} is not in {text:?}");
            }
        }
    }

    #[test]
    fn missing_unknown_double_and_meaningless_lines_are_refused() {
        for (text, part) in [
            (FILE.replace("cpus", "cpu"), "`cpus` is missing"),
            (
                format!("{FILE}\ncolour = red"),
                "`swap.colour` means nothing here",
            ),
            (format!("{FILE}\nkind = flash"), "is there already, in line"),
            (format!("{FILE}\nwhat is this"), "expected `key = value`"),
            (String::new(), "`name` is missing"),
            ("\u{0}\u{1}".into(), "expected `key = value`"),
        ] {
            let error = Parameters::parse("m", &text).unwrap_err().to_string();
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
}
