//! The kernel's figures for a process' memory: `statm` and `status`, which are quick, and `smaps` by kind, for which
//! the kernel walks the page tables.

use std::collections::HashMap;

use super::figures::{Kind, Unmanaged};

const KIB: u64 = 1024;
const PAGE: u64 = 4096;
/// The largest guard below a thread's stack, as in the engine.
const GUARD: u64 = 64 << 10;
/// Names of memory that foreswap shares with its engines.
const OURS: &str = "/memfd:foreswap-";

/// Figures that cost the kernel nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quick {
    /// Its address space, which a new thread changes.
    pub size: u64,
    /// The resident memory, file pages included.
    pub resident: u64,
    /// Its file pages and shared memory.
    pub not_anonymous: u64,
}

/// Parses `statm`; all zeros for a zombie.
pub fn quick(statm: &str) -> Option<Quick> {
    let mut fields = statm.split_ascii_whitespace();
    let mut pages = || fields.next()?.parse::<u64>().ok();
    Some(Quick {
        size: pages()? * PAGE,
        resident: pages()? * PAGE,
        not_anonymous: pages()? * PAGE,
    })
}

/// The figures of `status` beyond those of `statm`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The first letters of the program's name.
    pub name: String,
    /// Resident anonymous memory.
    pub anonymous: u64,
    /// Resident shared memory.
    pub shared: u64,
    /// Address space that is locked.
    pub locked: u64,
    /// Threads.
    pub threads: u64,
}

/// Reads `status`.
pub fn status(text: &str) -> Status {
    let mut status = Status::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        let number = || kib(value).unwrap_or(0);
        match key {
            "Name" => value.clone_into(&mut status.name),
            "RssAnon" => status.anonymous = number(),
            "RssShmem" => status.shared = number(),
            "Threads" => status.threads = value.parse().unwrap_or(0),
            "VmLck" => status.locked = number(),
            _ => {}
        }
    }
    status
}

fn kib(value: &str) -> Option<u64> {
    let digits = value.strip_suffix(" kB")?.trim();
    Some(digits.parse::<u64>().ok()? * KIB)
}

/// Device numbers, and whether a file on that device is memory.
pub type Devices = HashMap<(u32, u32), bool>;

/// A process' mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mappings {
    /// Memory without a userfaultfd registration, by kind, and locked memory.
    pub kinds: Unmanaged,
    /// Address space of [`Kind::Unknown`] and [`Kind::Locked`] without a registration, which an engine may have been
    /// granted.
    pub grantable: u64,
    /// Resident memory that is registered.
    pub registered: u64,
    /// foreswap's own shared memory.
    pub ours: u64,
    /// All anonymous memory, and all pages in shared memory and memory files: the figures of `status` at that time.
    pub anonymous: u64,
    /// See `anonymous`.
    pub shared: u64,
    /// `kinds` with shared pages counted whole.
    whole: u64,
}

/// The relevant fields of one mapping.
#[derive(Default)]
struct Vma<'a> {
    start: u64,
    end: u64,
    permissions: &'a str,
    device: (u32, u32),
    is_file: bool,
    name: &'a str,
    /// The kernel counts a page that n processes map as an n-th of one.
    share: u64,
    resident: u64,
    anonymous: u64,
    locked: u64,
    flags: &'a str,
}

impl<'a> Vma<'a> {
    /// `7f00-7fff rw-p 00000000 00:01 17    /memfd:name (deleted)`; `None` for other lines.
    fn of_line(line: &'a str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let mut fields = rest.splitn(5, ' ');
        let permissions = fields.next()?;
        let _offset = fields.next()?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        let is_file = fields.next()? != "0";
        Some(Self {
            start: hex(start)?,
            end: hex(end)?,
            permissions,
            device: (number(major)?, number(minor)?),
            is_file,
            name: fields.next().unwrap_or("").trim(),
            ..Self::default()
        })
    }

    fn on_field(&mut self, line: &'a str) {
        let Some((key, value)) = line.split_once(':') else {
            return;
        };
        let value = value.trim();
        let word = match key {
            "Rss" => &mut self.resident,
            "Pss" => &mut self.share,
            "Anonymous" => &mut self.anonymous,
            "Locked" => &mut self.locked,
            "VmFlags" => {
                self.flags = value;
                return;
            }
            _ => return,
        };
        *word = kib(value).unwrap_or(0);
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.split(' ').any(|other| other == flag)
    }

    fn may(&self, what: char) -> bool {
        self.permissions.contains(what)
    }

    /// Its anonymous pages, with shared ones counted in part.
    fn anonymous_share(&self) -> u64 {
        if self.anonymous == 0 || self.resident == 0 {
            return 0;
        }
        (u128::from(self.share) * u128::from(self.anonymous) / u128::from(self.resident)) as u64
    }
}

/// Parses `smaps`. `is_memory` tells whether files on a diskless device are memory.
pub fn mappings(text: &str, mut is_memory: impl FnMut((u32, u32)) -> bool) -> Mappings {
    let mut found = Mappings::default();
    let mut below = Vma::default();
    let mut current: Option<Vma<'_>> = None;
    for line in text.lines().map(Some).chain([None]) {
        let next = line.and_then(Vma::of_line);
        if line.is_some() && next.is_none() {
            if let (Some(vma), Some(line)) = (&mut current, line) {
                vma.on_field(line);
            }
            continue;
        }
        if let Some(vma) = std::mem::replace(&mut current, next) {
            found.add(&vma, &below, &mut is_memory);
            below = vma;
        }
    }
    found
}

impl Mappings {
    fn add(
        &mut self,
        vma: &Vma<'_>,
        below: &Vma<'_>,
        is_memory: &mut impl FnMut((u32, u32)) -> bool,
    ) {
        let registered = vma.has("um");
        if registered {
            self.registered += vma.anonymous;
        }
        let private = vma.anonymous_share();
        // Not a program on a memory file system: its pages belong to all processes alike.
        let may_count = vma.may('s') || vma.name.starts_with("/memfd:");
        self.anonymous += vma.anonymous;
        let may_be_memory = vma.is_file && vma.device.0 == 0 && vma.resident > vma.anonymous;
        let in_memory = may_be_memory && is_memory(vma.device);
        if in_memory {
            self.shared += vma.resident - vma.anonymous;
        }
        if in_memory && may_count && vma.share > private {
            if vma.name.starts_with(OURS) {
                self.ours += vma.resident;
            } else {
                self.kinds.count(Kind::Shared, vma.share - private);
                self.whole += vma.resident - vma.anonymous;
            }
        }
        if vma.may('s') {
            return;
        }
        let locked = vma.has("lo");
        let is_stack = vma.name == "[stack]" || !vma.is_file && is_stack(vma, below);
        let kind = if locked {
            Kind::Locked
        } else if vma.is_file {
            Kind::Files
        } else if vma.may('x') {
            Kind::Executable
        } else if is_stack {
            Kind::Stacks
        } else {
            Kind::Unknown
        };
        if !registered || locked {
            self.kinds.count(kind, private);
            self.whole += vma.anonymous;
        }
        let grantable = !registered && !vma.is_file && matches!(kind, Kind::Unknown | Kind::Locked);
        if grantable {
            self.grantable += vma.end - vma.start;
        }
    }

    /// A good part of its pages are shared.
    pub fn is_in_common(&self) -> bool {
        self.whole > self.kinds.total + self.kinds.total / 16
    }

    /// The unmanaged memory of a process whose engine has this charge and this memory of its own.
    pub fn unmanaged(&self, charged: u64, engine: u64) -> Unmanaged {
        let mut left = self.kinds;
        let rest = left.take_off(Kind::Unknown, engine);
        left.take_off(Kind::Stacks, rest);
        // Memory that fits is granted in advance, touched or not, and not registered, also beside memory that is.
        let granted = charged.saturating_sub(self.registered);
        let rest = left.take_off(Kind::Unknown, granted);
        // A charge is ahead of what is touched: beside registered memory, the rest says nothing of other kinds.
        if self.registered == 0 {
            left.take_off(Kind::Locked, rest);
            let beyond = granted.saturating_sub(self.grantable);
            left.take_off(Kind::Executable, beyond);
        }
        left
    }
}

/// A thread's stack by the engine's criterion: writable memory right above a small guard.
fn is_stack(vma: &Vma<'_>, below: &Vma<'_>) -> bool {
    let small = below.end - below.start <= GUARD;
    let guard = below.permissions == "---p" && !below.is_file && small;
    guard && below.end == vma.start && vma.may('w')
}

/// The devices of a `mountinfo` whose files are memory.
pub fn memory_devices(mountinfo: &str) -> Devices {
    let device = |line: &str| {
        let number = line.split(' ').nth(2)?;
        let (major, minor) = number.split_once(':')?;
        let kind = line.split_once(" - ")?.1.split(' ').next()?;
        let is_memory = matches!(kind, "tmpfs" | "devtmpfs" | "ramfs" | "rootfs");
        Some(((major.parse().ok()?, minor.parse().ok()?), is_memory))
    };
    mountinfo.lines().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn vma(head: &str, fields: &[(&str, u64)], flags: &str) -> String {
        let mut text = format!("{head}\nSize: 4 kB\n");
        for (key, mebibytes) in fields {
            text += &format!("{key}:      {} kB\n", mebibytes * 1024);
        }
        text + &format!("THPeligible:           0\nVmFlags: {flags}\n")
    }

    fn private(head: &str, mebibytes: u64, flags: &str) -> String {
        let each = [("Rss", mebibytes), ("Pss", mebibytes)];
        vma(head, &[each[0], each[1], ("Anonymous", mebibytes)], flags)
    }

    #[test]
    fn quick_figures_are_parsed() {
        assert_eq!(
            quick("770 420 409 5 0 92 0\n"),
            Some(Quick {
                size: 770 * PAGE,
                resident: 420 * PAGE,
                not_anonymous: 409 * PAGE
            })
        );
        assert_eq!(quick("0 0 0 0 0 0 0\n"), Some(Quick::default()));
        assert_eq!(quick(""), None);
        let text = "Name:\tmy: (job)\nVmLck:\t      64 kB\nRssAnon:\t     108 kB\n\
                    RssFile:\t    1528 kB\nRssShmem:\t       4 kB\nThreads:\t3\n";
        assert_eq!(
            status(text),
            Status {
                name: "my: (job)".into(),
                anonymous: 108 * KIB,
                shared: 4 * KIB,
                locked: 64 * KIB,
                threads: 3
            }
        );
    }

    #[test]
    fn each_mapping_has_its_kind() {
        let text = [
            private(
                "10000000-12000000 rw-p 00000000 fe:00 5   /bin/x",
                3,
                "rd wr",
            ),
            private("20000000-60000000 rw-p 00000000 00:00 0 ", 200, "rd wr um"),
            private("60000000-60001000 ---p 00000000 00:00 0 ", 0, "mr mw me"),
            private("60001000-60801000 rw-p 00000000 00:00 0 ", 7, "rd wr"),
            private("61000000-62000000 rwxp 00000000 00:00 0 ", 11, "rd wr ex"),
            private(
                "63000000-64000000 rw-p 00000000 00:00 0 ",
                13,
                "rd wr lo um",
            ),
            private("65000000-66000000 rw-p 00000000 00:00 0 ", 17, "rd wr"),
            vma(
                "70000000-78000000 rw-s 00000000 00:01 1033   /dev/zero (deleted)",
                &[("Rss", 100), ("Pss", 50), ("Anonymous", 0)],
                "rd wr sh",
            ),
            vma(
                "80000000-88000000 rw-s 00000000 00:01 9   /memfd:foreswap-ram (deleted)",
                &[("Rss", 60), ("Pss", 30), ("Anonymous", 0)],
                "rd wr sh",
            ),
            // A file of a disk, and one of a file system that is not memory (btrfs has such numbers).
            vma(
                "90000000-98000000 r--s 00000000 fe:00 9   /data/a b",
                &[("Rss", 100), ("Pss", 100), ("Anonymous", 0)],
                "rd sh",
            ),
            vma(
                "a0000000-a8000000 r--p 00000000 00:2f 9   /data/c",
                &[("Rss", 100), ("Pss", 100), ("Anonymous", 10)],
                "rd",
            ),
            private(
                "7ffc0000-7ffd0000 rw-p 00000000 00:00 0   [stack]",
                1,
                "rd wr gd",
            ),
        ]
        .concat();
        let found = mappings(&text, |device| device == (0, 1));
        let kinds = found.kinds;
        let expected = [50, 13, 11, 8, 13, 17].map(|bytes| bytes * MIB);
        assert_eq!(Kind::ALL.map(|kind| kinds.of(kind)), expected);
        assert_eq!(found.registered, 213 * MIB);
        assert_eq!(found.ours, 60 * MIB);
        assert_eq!((found.anonymous, found.shared), (262 * MIB, 160 * MIB));
        assert!(found.is_in_common(), "the half of what is shared");
        // The charge is that of registered memory.
        assert_eq!(found.unmanaged(213 * MIB, 2 * MIB).unknown, 15 * MIB);
        assert_eq!(found.unmanaged(213 * MIB, 2 * MIB).locked, 13 * MIB);
    }

    #[test]
    fn memory_granted_in_advance_is_managed() {
        let text = private("20000000-24000000 rw-p 00000000 00:00 0 ", 40, "rd wr")
            + &private("30000000-34000000 rwxp 00000000 00:00 0 ", 30, "rd wr ex");
        let found = mappings(&text, |_| false);
        assert_eq!((found.registered, found.grantable), (0, 64 * MIB));
        let left = found.unmanaged(66 * MIB, 0);
        assert_eq!((left.unknown, left.executable), (0, 28 * MIB));
        assert_eq!(found.unmanaged(0, 0).total, 70 * MIB);
        // The engine has registered one mapping, and has not come to the others.
        let one = private("10000000-12000000 rw-p 00000000 00:00 0 ", 5, "rd wr um");
        let found = mappings(&(one + &text), |_| false);
        assert_eq!((found.registered, found.grantable), (5 * MIB, 64 * MIB));
        let left = found.unmanaged(47 * MIB, 0);
        assert_eq!((left.unknown, left.executable), (0, 30 * MIB));
        assert_eq!(found.unmanaged(5 * MIB, 0).total, 70 * MIB);
    }

    #[test]
    fn mounts_that_are_memory() {
        let text = "22 1 254:0 / / rw - ext4 /dev/root rw\n\
                    23 22 0:25 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw\n\
                    24 22 0:40 / /data rw - btrfs /dev/sdb rw\n";
        let devices = memory_devices(text);
        assert_eq!(devices.get(&(0, 25)), Some(&true));
        assert_eq!(devices.get(&(0, 40)), Some(&false));
    }
}
