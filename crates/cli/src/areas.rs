//! The swap areas of a run: opened by the store, described for the ledger.

use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use foreswap::ledger::{
    AREA_DIRECT, AREA_RAM, AreaId, AreaInfo, CLUSTER_SLOTS, IoBackend, MAX_AREA_SLOTS, MAX_AREAS,
};
use foreswap_store::area::{self, AreaError, AreaSpec, OpenArea, PAGE_BYTES};

use crate::memory_setting::Limits;
use crate::size::{Size, SizeError, humane};
use crate::{memory, voice};

/// One second in total.
const IN_USE_TRIES: u32 = 50;
const IN_USE_PAUSE: Duration = Duration::from_millis(20);

/// Why a run has no swap areas.
#[derive(Debug, thiserror::Error)]
pub enum AreasError {
    /// One of them cannot be used.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// More than the ledger can describe.
    #[error("{0} swap areas are named; the most is {MAX_AREAS}")]
    TooMany(usize),
    /// Less than one cluster.
    #[error("swap area {name}: {} is too small, the least is 4M; give a larger --swap-size", humane(*bytes))]
    TooSmall {
        /// The area.
        name: String,
        /// Its size.
        bytes: u64,
    },
}

impl AreasError {
    /// The area, if the system is at fault and not the description of the area.
    pub fn obstructed(&self) -> Option<&Path> {
        match self {
            Self::Area(
                AreaError::NotFound { path }
                | AreaError::Permission { path }
                | AreaError::NoRoom { path, .. }
                | AreaError::FileSizeLimit { path, .. }
                | AreaError::Unfaithful { path }
                | AreaError::Io { path, .. },
            ) => Some(path),
            _ => None,
        }
    }
}

/// Opens every area named, or the default one, in order.
pub fn open(
    named: &[String],
    size: Option<u64>,
    limits: &Limits,
) -> Result<Vec<OpenArea>, AreasError> {
    if named.len() > MAX_AREAS {
        return Err(AreasError::TooMany(named.len()));
    }
    let specs = if named.is_empty() {
        vec![AreaSpec::temporary()]
    } else {
        named
            .iter()
            .map(|name| parse(name).map(absolute))
            .collect::<Result<_, _>>()?
    };
    specs
        .iter()
        .map(|spec| {
            let mut area = open_one(spec, size, limits.most)?;
            if !limits.is_auto {
                // Otherwise the limit makes room.
                area.notes.extend(too_much(spec, limits.most));
            }
            Ok(area)
        })
        .collect()
}

/// With the absolute path, which is the same for `foreswap ps` in every folder.
fn absolute(spec: AreaSpec) -> AreaSpec {
    match spec {
        AreaSpec::Path(path) => AreaSpec::Path(std::path::absolute(&path).unwrap_or(path)),
        ram => ram,
    }
}

/// Compressed memory comes on top of the limit: a warning if both together exceed the machine's memory.
fn too_much(spec: &AreaSpec, limit: u64) -> Option<String> {
    let AreaSpec::Ram { capacity, .. } = *spec else {
        return None;
    };
    let memory = memory::available();
    (capacity.saturating_add(limit) > memory).then(|| {
        format!(
            "the limit of {} and the swap area of {} in memory are together more than the {} available here",
            humane(limit),
            humane(capacity),
            humane(memory)
        )
    })
}

/// Parses one `--swap`. A RAM area may have at most the machine's memory.
pub fn parse(text: &str) -> Result<AreaSpec, AreaError> {
    AreaSpec::parse(text, |size| {
        let memory = memory::available();
        let size: Size = size.parse().map_err(|why: SizeError| why.to_string())?;
        let bytes = size.resolve(memory);
        if bytes > memory {
            return Err(format!(
                "{} is more than the {} of memory available here",
                humane(bytes),
                humane(memory)
            ));
        }
        Ok(bytes)
    })
}

/// The processes of a killed run take a moment to exit, and hold its areas until then.
fn open_one(spec: &AreaSpec, size: Option<u64>, limit: u64) -> Result<OpenArea, AreasError> {
    for _ in 0..IN_USE_TRIES {
        match area::open(spec, size, limit) {
            Err(AreaError::InUse { .. }) => std::thread::sleep(IN_USE_PAUSE),
            other => return Ok(other?),
        }
    }
    Ok(area::open(spec, size, limit)?)
}

/// The open areas of a run, by number.
#[derive(Debug, Default)]
pub struct Areas {
    open: Vec<(AreaId, OpenArea)>,
    erasing: Vec<JoinHandle<()>>,
}

impl Areas {
    /// Adds an area.
    pub fn add(&mut self, area: AreaId, open: OpenArea) {
        self.open.push((area, open));
    }

    /// An area is no longer in use: its contents are made unreadable, on a thread, as that may take a while.
    pub fn remove(&mut self, area: AreaId) {
        let Some(at) = self.open.iter().position(|(number, _)| *number == area) else {
            return;
        };
        let (_, open) = self.open.swap_remove(at);
        // Freeing a large file takes a while, too.
        self.erasing.push(std::thread::spawn(move || {
            if open.is_named() {
                erase(&open);
            }
        }));
    }

    /// Waits for all such threads.
    pub fn settle(&mut self) {
        for thread in self.erasing.drain(..) {
            // It has reported its error.
            let _ = thread.join();
        }
    }

    /// Makes the contents of named files and devices unreadable.
    pub fn erase_all(&mut self) {
        self.settle();
        for (_, open) in &self.open {
            erase(open);
        }
    }
}

fn erase(area: &OpenArea) {
    if let Err(error) = area.erase() {
        voice::error(&error.to_string());
    }
}

/// The I/O backend for `areas`, if `wanted` was requested. Transfers of io_uring may outlive their process, and the
/// areas must show their end. If one does not, threads replace io_uring, through the page cache, because on some
/// network file systems their direct I/O outlives them as well. The text is the reason for a deviation from the
/// request.
pub fn backend(wanted: IoBackend, areas: &mut [OpenArea]) -> (IoBackend, Option<String>) {
    let mut why = None;
    for area in areas {
        let Err(errno) = area.shows_transfers() else {
            continue;
        };
        why.get_or_insert(format!(
            "swap area {}: a file there cannot be locked ({errno}), which would show when the writes of an ended process are over",
            area.path.display()
        ));
        // No file system refuses to remove the flag.
        let _ = area.leave_direct_io();
    }
    match why {
        None => (wanted, None),
        Some(why) => {
            let differs = wanted != IoBackend::Threads;
            (IoBackend::Threads, differs.then_some(why))
        }
    }
}

/// The priority of the `order`th area of the command line.
pub fn priority(order: usize) -> i32 {
    -(order as i32) - 1
}

/// The ledger's entry for an area. Whole clusters only: the rest of the area stays unused.
pub fn describe(area: &OpenArea, priority: i32) -> Result<AreaInfo, AreasError> {
    let cluster = u64::from(CLUSTER_SLOTS);
    let pages = (area.bytes - area.reserved_bytes) / PAGE_BYTES;
    let slots = pages.min(u64::from(MAX_AREA_SLOTS)) / cluster * cluster;
    let name = area.path.display().to_string();
    if slots == 0 {
        return Err(AreasError::TooSmall {
            name,
            bytes: area.bytes,
        });
    }
    Ok(AreaInfo {
        slots: slots as u32,
        priority,
        flags: match (area.is_ram, area.direct) {
            (true, _) => AREA_RAM,
            (false, true) => AREA_DIRECT,
            (false, false) => 0,
        },
        first_byte: area.reserved_bytes,
        name,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn threads_do_the_io_where_transfers_do_not_show_their_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |spec| area::open(&spec, Some(4 << 20), 0).expect("an area");
        let mut areas = vec![
            open(parse("ram:4M").expect("a specification")),
            open(AreaSpec::Path(folder.path().to_owned())),
        ];
        let all = [IoBackend::Auto, IoBackend::Uring, IoBackend::Threads];
        for wanted in all {
            assert_eq!(backend(wanted, &mut areas), (wanted, None));
        }
        // As a file system without locks: this description cannot be locked for writing.
        let path = folder.path().join("read-only");
        std::fs::write(&path, "").expect("a file");
        areas[1].file = File::open(path).expect("it can be read");
        for wanted in all {
            let (used, why) = backend(wanted, &mut areas);
            assert_eq!(used, IoBackend::Threads);
            assert_eq!(why.is_none(), wanted == IoBackend::Threads, "{why:?}");
            assert!(!areas[1].direct);
        }
    }
}
