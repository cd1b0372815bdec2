//! `--stats`: the run as one JSON object, with documented keys, written atomically.
//!
//! An ordinary file is written under another name in the same folder and renamed: a reader never sees half of it.
//! Other files (a pipe, /dev/stdout) are written directly. The check that the file is writable precedes the start of
//! the command.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use foreswap::ledger::VmaStats;
use foreswap_store::area::PAGE_BYTES;
use rustix::fs::Access;
use serde::Serialize;

use crate::auto_memory::Auto;
use crate::report::Run;
use crate::unmanaged::Unmanaged;

/// The statistics cannot be written to the file.
#[derive(Debug, thiserror::Error)]
#[error("cannot write statistics to {path}: {cause}; name another file with --stats", path = path.display())]
pub struct StatsFileError {
    path: PathBuf,
    cause: io::Error,
}

/// The destination of the statistics.
#[derive(Debug)]
pub struct StatsFile {
    path: PathBuf,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// Already open: /dev/stdout and the like.
    Open(File),
    /// Opened at the end: a named pipe, a device, a file in a read-only folder.
    InPlace,
    /// Written beside this one and renamed to it.
    Replace(PathBuf),
}

impl StatsFile {
    /// Checks that `path` can be written.
    pub fn check(path: &Path) -> Result<Self, StatsFileError> {
        let target = target(path).map_err(|cause| StatsFileError {
            path: path.to_owned(),
            cause,
        })?;
        Ok(Self {
            path: path.to_owned(),
            target,
        })
    }

    /// Writes the statistics.
    pub fn write(self, run: &Run) -> Result<(), StatsFileError> {
        let mut text = serde_json::to_string_pretty(&Report::of(run)).unwrap_or_default();
        text.push('\n');
        let written = match self.target {
            Target::Open(mut file) => file.write_all(text.as_bytes()),
            Target::InPlace => fs::write(&self.path, text),
            Target::Replace(file) => replace(&file, text.as_bytes()),
        };
        written.map_err(|cause| StatsFileError {
            path: self.path,
            cause,
        })
    }
}

/// The absolute path of an ordinary file that [`replace`] can write, whether or not it exists.
pub fn replaceable(path: &Path) -> io::Result<PathBuf> {
    match target(path)? {
        Target::Replace(path) => std::path::absolute(path),
        Target::Open(_) | Target::InPlace => {
            let text = "expected an ordinary file in a folder that can be written to, as it is replaced by a rename";
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    }
}

fn target(path: &Path) -> io::Result<Target> {
    if let Some(fd) = descriptor(path) {
        // SAFETY: borrowed for the duplication only; a number that is not open is an error there.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        return Ok(Target::Open(File::from(rustix::io::fcntl_dupfd_cloexec(
            fd, 3,
        )?)));
    }
    // The link stays a link; its target is replaced.
    let real = match fs::canonicalize(path) {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(error),
    };
    let folder = match real.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder_is_writable = rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK);
    match fs::metadata(&real) {
        Ok(meta) if meta.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(meta) if meta.is_file() && folder_is_writable.is_ok() => {
            rustix::fs::access(&real, Access::WRITE_OK)?;
            // From here on the path is absolute, and a change of directory has no effect.
            Ok(Target::Replace(real))
        }
        Ok(_) => {
            rustix::fs::access(&real, Access::WRITE_OK)?;
            Ok(Target::InPlace)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            folder_is_writable?;
            Ok(Target::Replace(real))
        }
        Err(error) => Err(error),
    }
}

/// The descriptor behind a path: the file is written at the stream's position instead of being reopened at its start.
fn descriptor(path: &Path) -> Option<i32> {
    match path.to_str()? {
        "/dev/stdin" => Some(0),
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        text => ["/dev/fd/", "/proc/self/fd/"]
            .iter()
            .find_map(|folder| text.strip_prefix(folder))
            .and_then(|number| number.parse().ok())
            .filter(|&number: &i32| number >= 0),
    }
}

/// Writes `text` beside `file` and renames it: a reader never sees half of it.
pub fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    let beside = PathBuf::from(beside);
    let written = (|| {
        let mut out = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o666)
            .open(&beside)?;
        out.write_all(text)?;
        fs::rename(&beside, file)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// The JSON object. Units are bytes, nanoseconds, counts.
#[derive(Debug, Serialize)]
struct Report {
    elapsed_s: f64,
    exit_status: i32,
    processes: u64,
    /// At the end.
    memory_limit_bytes: u64,
    /// The bounds of a limit that is not fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_auto: Option<Auto>,
    managed_bytes: u64,
    peak_resident_bytes: u64,
    engine_bytes: u64,
    /// The maximum of unmanaged memory, in total and by kind.
    unmanaged_bytes: Unmanaged,
    /// The excess of the peak over the limit, by cause.
    over_limit_bytes: Over,
    faults_major: u64,
    faults_minor: u64,
    faults_zero: u64,
    swap_in_bytes: u64,
    /// Bytes of files that were mapped and served, and bytes read from them.
    file_bytes: u64,
    file_in_bytes: u64,
    /// Bytes of them that left memory without a write, and the readahead of them, which the figures below contain.
    file_dropped_bytes: u64,
    file_readahead_pages: u64,
    file_readahead_hits: u64,
    swap_out_bytes: u64,
    swap_read_ios: u64,
    swap_write_ios: u64,
    readahead_pages: u64,
    readahead_hits: u64,
    readahead_hit_ratio: f64,
    huge_swap_in: u64,
    huge_swap_out: u64,
    huge_splits: u64,
    clean_drops: u64,
    zero_drops: u64,
    filled_drops: u64,
    kswapd_wakeups: u64,
    direct_reclaims: u64,
    refaults: u64,
    fault_ns_p50: u64,
    fault_ns_p99: u64,
    fault_ns_max: u64,
    /// Time in which a thread waited for a page that more memory would have kept.
    stalled_ns: u64,
    window_histogram: BTreeMap<usize, u64>,
    vmas: Vec<Vma>,
}

#[derive(Debug, Serialize)]
struct Over {
    /// A forked child's pages while they were its parent's as well.
    forks: u64,
    /// Pages that were present before they were managed, or in place of immovable ones.
    present: u64,
    /// With pages that came unnoticed and waited for room; they are not in `peak_resident_bytes`.
    found: u64,
}

#[derive(Debug, Serialize)]
struct Vma {
    start: u64,
    bytes: u64,
    resident_bytes: u64,
    swapped_bytes: u64,
    readahead_pages: u64,
    readahead_hits: u64,
    hit_ratio: f64,
}

/// Hits per page read ahead; 0 without readahead.
pub fn ratio(hits: u64, pages: u64) -> f64 {
    if pages == 0 {
        0.0
    } else {
        hits as f64 / pages as f64
    }
}

impl From<&VmaStats> for Vma {
    fn from(vma: &VmaStats) -> Self {
        Self {
            start: vma.start,
            bytes: vma.bytes,
            resident_bytes: vma.resident_bytes,
            swapped_bytes: vma.swapped_bytes,
            readahead_pages: vma.readahead_pages,
            readahead_hits: vma.readahead_hits,
            hit_ratio: ratio(vma.readahead_hits, vma.readahead_pages),
        }
    }
}

impl Report {
    fn of(run: &Run) -> Self {
        let stats = &run.totals.stats;
        Self {
            elapsed_s: run.elapsed.as_secs_f64(),
            exit_status: run.exit_status,
            processes: run.totals.processes,
            memory_limit_bytes: run.limit_bytes,
            memory_auto: run.auto,
            managed_bytes: stats.managed_bytes,
            peak_resident_bytes: run.peak_bytes,
            engine_bytes: stats.engine_bytes,
            unmanaged_bytes: run.unmanaged,
            over_limit_bytes: Over {
                forks: run.over.for_forks * PAGE_BYTES,
                present: run.over.for_present * PAGE_BYTES,
                found: run.over.for_found * PAGE_BYTES,
            },
            faults_major: stats.faults_major,
            faults_minor: stats.faults_minor,
            faults_zero: stats.faults_zero,
            swap_in_bytes: stats.swap_in_bytes,
            file_bytes: stats.file_bytes,
            file_in_bytes: stats.file_in_bytes,
            file_dropped_bytes: stats.file_dropped_bytes,
            file_readahead_pages: stats.file_readahead_pages,
            file_readahead_hits: stats.file_readahead_hits,
            swap_out_bytes: stats.swap_out_bytes,
            swap_read_ios: stats.swap_read_ios,
            swap_write_ios: stats.swap_write_ios,
            readahead_pages: stats.readahead_pages,
            readahead_hits: stats.readahead_hits,
            readahead_hit_ratio: ratio(stats.readahead_hits, stats.readahead_pages),
            huge_swap_in: stats.huge_swap_in,
            huge_swap_out: stats.huge_swap_out,
            huge_splits: stats.huge_splits,
            clean_drops: stats.clean_drops,
            zero_drops: stats.zero_drops,
            filled_drops: stats.filled_drops,
            kswapd_wakeups: stats.kswapd_wakeups,
            direct_reclaims: stats.direct_reclaims,
            refaults: stats.refaults,
            fault_ns_p50: stats.fault_ns_percentile(0.5),
            fault_ns_p99: stats.fault_ns_percentile(0.99),
            fault_ns_max: stats.fault_ns_max,
            stalled_ns: stats.stalled_ns,
            window_histogram: (0..)
                .zip(stats.windows.iter().copied())
                .filter(|&(_, count)| count != 0)
                .collect(),
            vmas: stats.vmas.iter().map(Vma::from).collect(),
        }
    }
}

#[cfg(test)]
#[path = "stats_file_tests.rs"]
mod tests;
