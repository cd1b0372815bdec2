//! A turn on the kernel's own swap: a memory cgroup with the limit, and a swap file on the file system of foreswap's
//! area.
//!
//! At its best (`Kind::Best`) the device counts as non-rotational (the kernel then reads ahead by VMA and allocates
//! whole clusters), page-cluster is 5, huge pages are always enabled, and the swap file is more than twice the data
//! that can be swapped out (see `swap_for` of the benches). With the system's settings (`Kind::Defaults`) only
//! page-cluster is changed, to the kernel's default of 3. With `Kind::Zswap` compressed memory (lz4) of any size stands
//! before the swap file; with `Kind::Zram` it replaces it. There page-cluster is 0 and means nothing: a fault reads its
//! page alone, or 16 pages if pages are touched in order (huge pages of 64 KiB), whichever is faster. The swap file is
//! made once for all turns; swapon, settings, compressed memory and cgroup belong to each turn.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::passes::{Moved, Passes};
use super::{Counting, Figures, Turn, TurnError, child, derive};
use crate::progress::Progress;
use crate::system::cgroup::MemoryCgroup;
use crate::system::device::Device;
use crate::system::{ChangeError, Changes, chosen, swap};

const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
const VMA_READAHEAD: &str = "/sys/kernel/mm/swap/vma_ra_enabled";
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// If pages are touched in order, a fault on zram with these huge pages reads 16 pages at a time, half as fast again as
/// without them; otherwise that is ten times slower. On a disk, swap-in does not use them.
const SMALL_HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
/// How many of them were swapped in whole so far. None is once zswap has been enabled, until the next boot.
const SMALL_HUGE_PAGES_IN: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats/swpin";

/// Which of the kernel's peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// At its best.
    Best,
    /// As the system stands.
    Defaults,
    /// At its best, on zram with lz4.
    Zram,
    /// At its best, with zswap and lz4.
    Zswap,
}

/// The parameters of a turn.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The directory of the swap file.
    pub directory: &'a Path,
    /// The memory limit.
    pub limit: u64,
    /// The least size of the swap file.
    pub swap_bytes: u64,
    /// Whether the workload touches its pages in an order.
    pub in_order: bool,
    /// After which time the command is ended.
    pub timeout: Option<Duration>,
}

/// State that the kernel's peers share over all turns.
#[derive(Debug, Default)]
pub struct Kernels {
    prepared: Option<Prepared>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct Prepared {
    changes: Changes,
    /// The swap file and its size, once a turn has needed it.
    file: Option<(PathBuf, u64)>,
    device: Device,
}

/// The kernel's swap, prepared for one turn.
pub struct Ground<'a> {
    /// The cgroup of the command.
    pub cgroup: MemoryCgroup,
    /// The swap file.
    pub swap_file: &'a Path,
}

const ZSWAP: &str = "/sys/module/zswap/parameters";
/// The settings of zswap. It may take as much memory as it needs, as zram may: a cgroup of version 1 does not count the
/// memory that it holds.
const ZSWAP_SETTINGS: [(&str, &str); 3] = [
    ("max_pool_percent", "50"),
    ("shrinker_enabled", "N"),
    ("enabled", "Y"),
];

impl Kernels {
    /// Runs `command` on the kernel's swap.
    pub fn turn(
        &mut self,
        kind: Kind,
        place: Place<'_>,
        command: &[OsString],
        counting: Counting,
        progress: &Progress,
    ) -> Result<Turn, TurnError> {
        // Compressed memory is not on the disk.
        let device = Device::under(place.directory).ok();
        let mut passes = Passes::new(device.as_ref().filter(|_| kind != Kind::Zram));
        let (finished, mut figures) = self.with(kind, place, progress, |ground| {
            let door = ground.cgroup.door();
            match counting {
                Counting::Whole => child::run(command, Some(&door), place.timeout, progress),
                Counting::Passes => {
                    child::run_marked(command, Some(&door), progress, |_, moment| {
                        passes.count(moment, Some(moved()));
                        Ok(())
                    })
                }
            }
        })?;
        figures.extend(passes.figures());
        figures.insert("elapsed_ns".to_owned(), finished.elapsed.as_nanos() as f64);
        Ok(Turn {
            output: finished.output,
            figures,
            details: None,
        })
    }

    /// Prepares the kernel's swap, does `work` with it, undoes everything, and returns the kernel's counts of that
    /// time.
    pub fn with<T>(
        &mut self,
        kind: Kind,
        place: Place<'_>,
        progress: &Progress,
        work: impl FnOnce(&Ground<'_>) -> anyhow::Result<T>,
    ) -> Result<(T, Figures), TurnError> {
        // A bench that needs a larger file than the one before makes another.
        let too_small = |prepared: &Prepared| matches!(prepared.file, Some((_, bytes)) if bytes < place.swap_bytes);
        if self.prepared.as_ref().is_some_and(too_small) {
            self.prepared = None;
        }
        let prepared = match &mut self.prepared {
            Some(prepared) => prepared,
            None => {
                // First: it undoes the changes of a dead bench, which would otherwise be recorded as the original
                // state.
                let prepared = Prepared::make(place.directory)?;
                self.notes = notes(place.directory);
                self.prepared.insert(prepared)
            }
        };
        if kind != Kind::Zram && prepared.file.is_none() {
            progress.say("making the kernel's swap file");
            let file = swap::path_in(place.directory);
            prepared.changes.make_swap_file(&file, place.swap_bytes)?;
            prepared.file = Some((file, place.swap_bytes));
        }
        let mark = prepared.changes.mark();
        let result = prepared.with(kind, place, work);
        prepared.changes.undo_to(mark);
        result
    }

    /// Notes about this machine for the reader of the results.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Prepared {
    fn make(directory: &Path) -> Result<Self, ChangeError> {
        let changes = Changes::begin()?;
        swap::sweep(directory);
        let device = Device::under(directory).map_err(|source| ChangeError::Step {
            what: "find the device of",
            path: directory.to_owned(),
            source,
        })?;
        Ok(Self {
            changes,
            file: None,
            device,
        })
    }

    fn with<T>(
        &mut self,
        kind: Kind,
        place: Place<'_>,
        work: impl FnOnce(&Ground<'_>) -> anyhow::Result<T>,
    ) -> Result<(T, Figures), TurnError> {
        let changes = &mut self.changes;
        let swap_file = match (kind, &self.file) {
            (Kind::Zram, _) => changes.make_zram(place.swap_bytes)?,
            (_, Some((file, _))) => file.clone(),
            (_, None) => return Err(ChangeError::Missing("no swap file".to_owned()).into()),
        };
        match kind {
            Kind::Best | Kind::Zram | Kind::Zswap => {
                // Before swapon, which is when the kernel looks.
                if let Some(rotational) = self.device.rotational() {
                    changes.set(rotational, "0")?;
                }
                if Path::new(VMA_READAHEAD).exists() {
                    changes.set(Path::new(VMA_READAHEAD), "true")?;
                }
                if Path::new(HUGE_PAGES).exists() {
                    changes.set(Path::new(HUGE_PAGES), "always")?;
                }
                if kind == Kind::Zram && place.in_order && Path::new(SMALL_HUGE_PAGES).exists() {
                    changes.set(Path::new(SMALL_HUGE_PAGES), "always")?;
                }
                let cluster = if kind == Kind::Zram { "0" } else { "5" };
                changes.set(Path::new(PAGE_CLUSTER), cluster)?;
            }
            Kind::Defaults => changes.set(Path::new(PAGE_CLUSTER), "3")?,
        }
        if kind == Kind::Zswap {
            // A kernel that has no lz4 for zswap keeps its compression; the notes say so.
            let _ = changes.set(&Path::new(ZSWAP).join("compressor"), "lz4");
            for (name, value) in ZSWAP_SETTINGS {
                let path = Path::new(ZSWAP).join(name);
                // Older and newer kernels have more and fewer of them.
                if path.exists() || name == "enabled" {
                    changes.set(&path, value)?;
                }
            }
        }
        changes.swap_on(&swap_file)?;
        let name = format!("foreswap-bench-{}", std::process::id());
        let ground = Ground {
            cgroup: MemoryCgroup::make(changes, &name, place.limit)?,
            swap_file: &swap_file,
        };

        let huge_in = (kind == Kind::Zram && place.in_order)
            .then(small_huge_pages_in)
            .flatten();
        let before = events();
        let result = work(&ground);
        if result.is_err() && ground.cgroup.oom_kills() > 0 {
            let what = "the kernel killed it: it could not hold it to this limit";
            return Err(ChangeError::Missing(what.to_owned()).into());
        }
        let done = result?;
        if let Some((before, now)) = huge_in.zip(small_huge_pages_in()) {
            came_whole(now - before)?;
        }
        let mut figures = since(&before, &events());
        let cgroup = &ground.cgroup;
        figures.insert("cgroup_version".to_owned(), f64::from(cgroup.version()));
        if let Some(peak) = cgroup.peak_bytes() {
            figures.insert("peak_bytes".to_owned(), peak as f64);
        }
        Ok((done, figures))
    }
}

/// The kernel's counters of swapping, for the whole system: only the workload in its small cgroup swaps here.
const EVENTS: [&str; 5] = ["pswpin", "pswpout", "pgmajfault", "swap_ra", "swap_ra_hit"];

fn events() -> [u64; EVENTS.len()] {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    EVENTS.map(|event| value_of(&text, event).unwrap_or(0))
}

fn small_huge_pages_in() -> Option<u64> {
    let text = fs::read_to_string(SMALL_HUGE_PAGES_IN).ok()?;
    text.trim().parse().ok()
}

/// Whether zram was at its best in a turn in which this many were swapped in whole.
fn came_whole(huge_pages: u64) -> Result<(), ChangeError> {
    match huge_pages {
        0 => Err(ChangeError::Missing(
            "the kernel reads nothing but single pages from zram, as it does from the first use of zswap on: start the \
             system again, without zswap, to measure zram at its best"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}

/// The system's swap-ins and swap-outs so far.
fn moved() -> Moved {
    let [pages_in, pages_out, ..] = events();
    Moved {
        in_bytes: pages_in * 4096,
        out_bytes: pages_out * 4096,
    }
}

fn value_of(text: &str, event: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(event)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

fn since(before: &[u64; EVENTS.len()], after: &[u64; EVENTS.len()]) -> Figures {
    let mut figures = Figures::new();
    let delta: Vec<f64> = before
        .iter()
        .zip(after)
        .map(|(b, a)| a.saturating_sub(*b) as f64)
        .collect();
    for (event, count) in EVENTS.iter().zip(&delta) {
        figures.insert(format!("vmstat.{event}"), *count);
    }
    figures.insert("swap_in_bytes".to_owned(), delta[0] * 4096.0);
    figures.insert("swap_out_bytes".to_owned(), delta[1] * 4096.0);
    figures.insert("major_faults".to_owned(), delta[2]);
    if delta[3] > 0.0 {
        figures.insert("hit_ratio".to_owned(), delta[4] / delta[3]);
    }
    derive(&mut figures);
    figures
}

fn notes(directory: &Path) -> Vec<String> {
    let mut notes = vec![format!(
        "the kernel's peers swap to a file in {} in a memory cgroup; `kernel` with page-cluster 5, \
         non-rotational, huge pages always; `kernel-defaults` with page-cluster 3 and the rest \
         as it was found",
        directory.display()
    )];
    // The setting of `kernel-defaults`; a leftover of another program shows here.
    let found = |path: &Path| chosen(&fs::read_to_string(path).unwrap_or_default()).to_owned();
    let device = Device::under(directory).ok();
    let rotational = device.as_ref().and_then(Device::rotational).map(found);
    notes.push(format!(
        "as it was found: page-cluster {}, rotational {}, VMA readahead {}, huge pages {}",
        found(Path::new(PAGE_CLUSTER)),
        rotational.unwrap_or_else(|| "?".to_owned()),
        found(Path::new(VMA_READAHEAD)),
        found(Path::new(HUGE_PAGES)),
    ));
    let compressor = Path::new(ZSWAP).join("compressor");
    if compressor.exists() {
        let lz4 = fs::read_to_string("/proc/crypto").unwrap_or_default();
        notes.push(format!(
            "zswap compresses by {}",
            match lz4.lines().any(|line| line.ends_with(": lz4")) {
                true => "lz4".to_owned(),
                false => format!("{}, as this kernel has no lz4 for it", found(&compressor)),
            }
        ));
    }
    let others = swap::active();
    if !others.is_empty() {
        notes.push(format!(
            "other swap is active ({}); if it rotates, the kernel peer does not read ahead by VMA",
            others
                .iter()
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
                .join(", ")
        ));
    }
    if Device::under(directory).is_ok_and(|device| device.rotational().is_none()) {
        notes.push(format!(
            "no single block device lies under {}; the kernel peer takes it as it is",
            directory.display()
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let text = "pswpin 12\npswpout 34\nswap_ra 5\nswap_ra_hit 4\n";
        assert_eq!(value_of(text, "pswpin"), Some(12));
        assert_eq!(value_of(text, "swap_ra"), Some(5));
        assert_eq!(value_of(text, "swap_ra_hit"), Some(4));
        assert_eq!(value_of(text, "pgmajfault"), None);
    }

    #[test]
    fn zram_that_gives_single_pages_only_is_no_measure() {
        assert!(came_whole(1).is_ok());
        let refused = came_whole(0).expect_err("zswap was used").to_string();
        assert!(refused.contains("zswap"), "{refused}");
    }

    #[test]
    fn differences_become_shared_figures() {
        let figures = since(&[10, 20, 0, 100, 90], &[12, 21, 7, 200, 165]);
        assert_eq!(figures["swap_in_bytes"], 8192.0);
        assert_eq!(figures["swap_out_bytes"], 4096.0);
        assert_eq!(figures["major_faults"], 7.0);
        assert_eq!(figures["hit_ratio"], 0.75);
        assert_eq!(figures["pages_per_major"], 2.0 / 7.0);
    }
}
