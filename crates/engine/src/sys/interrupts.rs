//! The number of interrupts from each device to each CPU: `/proc/interrupts`, which some sandboxes hide.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// The table, kept open.
#[derive(Debug)]
pub struct Interrupts {
    file: OwnedFd,
    text: Vec<u8>,
}

/// The counts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The CPUs, in the order of the counts.
    pub cpus: Vec<usize>,
    /// The number of each device's interrupt, and its count per CPU.
    pub lines: Vec<(u32, Vec<u64>)>,
}

impl Interrupts {
    /// Opens it.
    pub fn open() -> Result<Self, Errno> {
        let file = super::handed::open_in_proc(c"/proc/interrupts")?;
        Ok(Interrupts {
            file,
            text: Vec::new(),
        })
    }

    /// The present counts; takes about 50 us on a machine with two CPUs.
    pub fn counts(&mut self) -> Option<Counts> {
        self.text.clear();
        loop {
            let so_far = self.text.len();
            self.text.resize(so_far + 4096, 0);
            let more = rustix::io::pread(&self.file, &mut self.text[so_far..], so_far as u64);
            let more = more.unwrap_or(0);
            self.text.truncate(so_far + more);
            if more == 0 {
                break;
            }
        }
        Counts::of(core::str::from_utf8(&self.text).ok()?)
    }
}

impl Counts {
    /// `None` if the text is not such a table. Interrupts of non-devices have names instead of numbers.
    fn of(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let cpus: Vec<usize> = lines
            .next()?
            .split_ascii_whitespace()
            .map(|name| name.strip_prefix("CPU")?.parse().ok())
            .collect::<Option<_>>()?;
        let line = |line: &str| {
            let (number, rest) = line.split_once(':')?;
            let counts: Vec<u64> = rest
                .split_ascii_whitespace()
                .map_while(|count| count.parse().ok())
                .take(cpus.len())
                .collect();
            let number = number.trim().parse().ok()?;
            (counts.len() == cpus.len()).then_some((number, counts))
        };
        let lines = lines.filter_map(line).collect();
        Some(Counts { cpus, lines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_and_all_else_is_left_out() {
        let text = "           CPU0       CPU2       \n 24:          1          0  IO-APIC   5-edge      ACPI:Ged\n\
                    136:     133911         12 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0\n\
                    NMI:          0          0   Non-maskable interrupts\nERR:          0\n 25:  7\n";
        let counts = Counts::of(text).expect("a table");
        assert_eq!(counts.cpus, [0, 2]);
        assert_eq!(counts.lines, [(24, vec![1, 0]), (136, vec![133_911, 12])]);
        assert_eq!(Counts::of(""), None);
        assert_eq!(Counts::of("no table\n1: 2"), None);
    }

    #[test]
    fn this_machine_has_one() {
        let mut interrupts = Interrupts::open().expect("/proc/interrupts");
        let counts = interrupts.counts().expect("a table");
        assert!(!counts.cpus.is_empty());
        assert!(
            counts
                .lines
                .iter()
                .any(|(_, each)| each.iter().sum::<u64>() > 0)
        );
        assert_eq!(interrupts.counts().expect("again").cpus, counts.cpus);
    }
}
