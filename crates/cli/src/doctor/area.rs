//! The swap area: the default one or those that were named, opened as `run` opens them, and measured.

use std::path::{Path, PathBuf};

use foreswap_store::area::{AreaError, OpenArea};
use rustix::fs::Access;

use super::check::{Check, quoted};
use super::speed::{self, Speed};
use super::who::Who;
use crate::areas::{self, Areas, AreasError, Opener};
use crate::args::{AREA_TIMEOUT, Encrypt};
use crate::memory_setting::{Limits, MIN_LIMIT};
use crate::size::{humane, humane_ns};

const G: u64 = 1 << 30;
const NAME: &str = "area";
/// An area below this size is soon full.
const SMALL: u64 = 2 * G;
/// Random reads that take longer (hard disks, networks), in nanoseconds.
const SLOW_READ: u64 = 3_000_000;
/// Writes in order that are slower, in bytes per second.
const SLOW_WRITE: f64 = 100e6;

const TMPFS: u64 = 0x0102_1994;
/// The magic numbers of statfs(2), and their names.
const SYSTEMS: [(u64, &str); 14] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (TMPFS, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlayfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xf2f5_2010, "f2fs"),
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x6573_5546, "fuse"),
    (0x0102_1997, "9p"),
    (0x4d44, "vfat"),
];

/// What is read of one area.
#[derive(Debug)]
pub struct AreaFacts {
    /// Its path.
    pub path: String,
    /// The user named it.
    pub is_named: bool,
    /// The result of opening it.
    pub opened: Result<Opened, AreasError>,
    /// Another folder with room, if this one cannot be used.
    pub instead: Option<PathBuf>,
}

/// An area that can be opened.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    /// The file system's name, or empty.
    pub system: &'static str,
    /// Its size, in bytes.
    pub bytes: u64,
    /// Transfers bypass the page cache.
    pub direct: bool,
    /// Compressed memory.
    pub is_ram: bool,
    /// On a server.
    pub is_far: bool,
    /// Why its transfers do not show their end, if they do not.
    pub unlocked: Option<String>,
    /// The measurement, or why there is none.
    pub speed: Option<Result<Speed, String>>,
}

impl AreaFacts {
    /// Opens all areas in `named`, or the default one, and measures them unless `quick`.
    pub fn read(named: &[String], quick: bool) -> Vec<Self> {
        let default = [std::env::temp_dir().display().to_string()];
        let is_named = !named.is_empty();
        let paths = match is_named {
            true => named,
            false => &default,
        };
        paths
            .iter()
            .map(|path| one(path, is_named, quick))
            .collect()
    }

    /// Swapped pages occupy memory, all or for a time.
    pub fn fills_memory(&self) -> bool {
        self.opened
            .as_ref()
            .is_ok_and(|opened| !opened.is_ram && !opened.is_far && !opened.direct)
    }
}

fn one(path: &str, is_named: bool, quick: bool) -> AreaFacts {
    // The size of the area does not depend on a limit up to 2 GiB.
    let limits = Limits {
        least: MIN_LIMIT,
        most: MIN_LIMIT,
        is_auto: false,
    };
    let named: &[String] = match is_named {
        true => &[path.to_owned()],
        false => &[],
    };
    let mut areas = Areas::new(Opener::new(AREA_TIMEOUT));
    let opened = areas.opener.open_all(named, None, &limits);
    let opened = opened.and_then(|mut open| {
        let area = open.remove(0);
        // Less than a cluster is refused here.
        areas::describe(&area, 0, Encrypt::Never)?;
        Ok(look_at(&area, quick))
    });
    let bad = match &opened {
        Ok(opened) => opened.system == "tmpfs" || opened.bytes < SMALL,
        Err(_) => true,
    };
    AreaFacts {
        path: areas::without_password(path),
        is_named,
        opened,
        instead: bad.then(|| with_room(Path::new(path))).flatten(),
    }
}

fn look_at(area: &OpenArea, quick: bool) -> Opened {
    let system = rustix::fs::fstatfs(&area.file).map_or(0, |system| system.f_type as u64);
    let name = SYSTEMS.iter().find(|(magic, _)| *magic == system);
    let is_far = area.far.is_some();
    let measured = !quick && !area.is_ram && !is_far;
    Opened {
        system: match name {
            _ if is_far => "a server",
            Some((_, name)) => name,
            None => "",
        },
        is_far,
        bytes: area.bytes,
        direct: area.direct,
        is_ram: area.is_ram,
        unlocked: area.shows_transfers().err().map(|errno| errno.to_string()),
        speed: measured.then(|| speed::measure(area).map_err(|error| error.to_string())),
    }
}

/// The folder with the most room among the usual ones, on a disk.
fn with_room(not: &Path) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let usual = ["/var/tmp", "/tmp", "/var/lib", "/mnt"].map(PathBuf::from);
    let folders = usual.into_iter().chain(home);
    let mut best: Option<(u64, PathBuf)> = None;
    for folder in folders {
        let writable = rustix::fs::access(&folder, Access::WRITE_OK | Access::EXEC_OK).is_ok();
        let (Ok(system), Ok(room)) = (rustix::fs::statfs(&folder), rustix::fs::statvfs(&folder))
        else {
            continue;
        };
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        if folder == not || !writable || system.f_type as u64 == TMPFS || free < SMALL {
            continue;
        }
        if best.as_ref().is_none_or(|(most, _)| free > *most) {
            best = Some((free, folder));
        }
    }
    best.map(|(_, folder)| folder)
}

/// The checks of this file.
pub fn judge(areas: &[AreaFacts], who: &Who) -> Vec<Check> {
    areas.iter().map(|area| judge_one(area, who)).collect()
}

fn judge_one(area: &AreaFacts, who: &Who) -> Check {
    let check = match &area.opened {
        Ok(opened) => usable(area, opened),
        Err(error) => refused(area, error, who),
    };
    check
        .fact("path", area.path.as_str())
        .fact("is_default", !area.is_named)
}

fn usable(area: &AreaFacts, opened: &Opened) -> Check {
    let mut found = format!("{}: {}", area.path, humane(opened.bytes));
    if opened.is_ram {
        found.push_str(" of pages in compressed memory");
        return Check::ok(NAME, found).fact("bytes", opened.bytes);
    }
    if !opened.system.is_empty() {
        found.push_str(&format!(" on {}", opened.system));
    }
    let mut slow = false;
    match &opened.speed {
        Some(Ok(speed)) => {
            slow = speed.random_read_ns > SLOW_READ || speed.write_bytes_per_s < SLOW_WRITE;
            found.push_str(&format!(
                ", first writes {}/s, reads {}/s, a random page {}",
                humane(speed.write_bytes_per_s as u64),
                humane(speed.read_bytes_per_s as u64),
                humane_ns(speed.random_read_ns)
            ));
        }
        Some(Err(why)) => found.push_str(&format!(", not measured: {why}")),
        None => {}
    }
    let check = if opened.system == "tmpfs" || opened.system == "ramfs" {
        let why = "What is swapped out to it still occupies memory.";
        instead(Check::warning(NAME, found, why), area)
    } else if let Some(Err(_)) = opened.speed {
        let why = "A program whose pages cannot be written or read gets SIGBUS.";
        instead(Check::warning(NAME, found, why), area)
    } else if opened.bytes < SMALL {
        let why = "When the area is full, a program that needs more waits, and then gets SIGBUS.";
        let folder = quoted(&area.path);
        instead(
            Check::warning(NAME, found, why)
                .remedy("to see what takes the room", [format!("df -h {folder}")]),
            area,
        )
    } else if slow {
        let why = "A program waits about that long for each page that is not read ahead.";
        Check::warning(NAME, found, why).remedy(
            "on a faster disk, or in compressed memory before it",
            [format!(
                "foreswap doctor --swap ram:512M --swap {}",
                quoted(&area.path)
            )],
        )
    } else if !opened.direct && !opened.is_far {
        let why = "Without O_DIRECT, pages pass through the page cache: slower, and it takes \
                   memory.";
        Check::note(NAME, found, why)
    } else if let Some(why) = &opened.unlocked {
        found.push_str(&format!("; files cannot be locked ({why})"));
        let why = "Threads transfer the pages, through the page cache, instead of io_uring.";
        Check::note(NAME, found, why)
    } else {
        Check::ok(NAME, found)
    };
    let check = match &opened.speed {
        Some(Ok(speed)) => check
            .fact("write_bytes_per_s", speed.write_bytes_per_s.round())
            .fact("read_bytes_per_s", speed.read_bytes_per_s.round())
            .fact("random_read_ns", speed.random_read_ns),
        _ => check,
    };
    check
        .fact("bytes", opened.bytes)
        .fact("file_system", opened.system)
        .fact("direct", opened.direct)
}

/// Another folder: tried out, and for all runs of a shell.
fn instead(check: Check, area: &AreaFacts) -> Check {
    let Some(folder) = &area.instead else {
        return check;
    };
    let folder = quoted(&folder.display().to_string());
    if area.is_named {
        return check.remedy("another area", [format!("foreswap doctor --swap {folder}")]);
    }
    check.remedy(
        "another folder, for this shell (or --swap in each run)",
        [format!("export TMPDIR={folder}")],
    )
}

fn refused(area: &AreaFacts, error: &AreasError, who: &Who) -> Check {
    let text = error.to_string();
    let check = Check::failure(
        NAME,
        text,
        "Pages that do not fit in the limit need a place.",
    );
    let path = quoted(&area.path);
    let AreasError::Area(error) = error else {
        return instead(check, area);
    };
    match error {
        AreaError::NotFound { .. } => {
            let place = match who.is_root() {
                true => "in this shell",
                false => "in this shell, or as root with an owner",
            };
            instead(check.remedy(place, [format!("mkdir -p {path}")]), area)
        }
        AreaError::Permission { path: folder } => {
            let own = quoted(&folder.join("foreswap").display().to_string());
            let user = who.login();
            let way = match area.is_named {
                true => format!("foreswap doctor --swap {own}"),
                false => format!("export TMPDIR={own}"),
            };
            instead(check, area).remedy(
                "a folder of your own there: the first line as root",
                [format!("install -d -m 700 -o {user} {own}"), way],
            )
        }
        AreaError::OpenToOthers { wanted, .. } => {
            check.remedy("in this shell", [format!("chmod {wanted:o} {path}")])
        }
        AreaError::ForeignOwner { us, .. } => {
            check.remedy("as root", [format!("chown {us} {path}")])
        }
        AreaError::KernelSwap { .. } => check.remedy("as root", [format!("swapoff {path}")]),
        AreaError::DeviceBusy { .. } => check.remedy("by what", [format!("lsblk {path}")]),
        AreaError::FileSizeLimit { .. } => {
            check.remedy("in this shell", ["ulimit -S -f unlimited"])
        }
        AreaError::NoRoom { .. } => {
            let check = instead(check, area);
            check.remedy("to see what takes the room", [format!("df -h {path}")])
        }
        _ => instead(check, area),
    }
}

#[cfg(test)]
#[path = "area_tests.rs"]
pub mod tests;
