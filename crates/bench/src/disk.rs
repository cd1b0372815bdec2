//! A swap area's device alone: how fast it reads and writes with O_DIRECT.
//!
//! These are the references for foreswap: no fault is faster than one random 4 KiB read, and no stream is faster than
//! 2 MiB transfers. The file is unlinked as soon as it is open.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context;

use crate::args::Fill;
use crate::interrupt;
use crate::usemem::{Clock, Draw, Histogram, Latency, PAGE, Region, Words, mix};

/// One transfer of a sequential measurement.
pub const TRANSFER: usize = 2 << 20;
/// Transfers in flight, in the measurements.
pub const DEPTHS: [usize; 3] = [1, 4, 8];
/// Transfers in flight while a file is made.
const DEPTH: usize = 4;

/// A file of the area's kind.
#[derive(Debug)]
pub struct Disk {
    file: File,
    directory: PathBuf,
    bytes: u64,
    memory: Region,
    /// Transfers written so far: each has other bytes than all before it.
    written: AtomicU64,
}

/// The kinds of sequential measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfers {
    /// The file is read.
    Reads,
    /// It is read, and each transfer uses the same memory: the processor's cache.
    ReadsToCache,
    /// It is written over.
    Writes,
    /// It is new and sparse, and each transfer is the first write to its place: as in an unnamed swap area.
    FirstWrites,
    /// Every second transfer is a write.
    Both,
}

/// The rates of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// Bytes read over the time of the whole.
    pub read_bytes_per_s: f64,
    /// Bytes written over the time of the whole.
    pub written_bytes_per_s: f64,
}

/// Bytes in a device's smallest block.
const SECTOR: usize = 512;

/// Memory for O_DIRECT, on huge pages if the system has them. A transfer from or to 512 scattered pages is more than a
/// request of a virtio disk can hold, and would be slower than foreswap's own. The memory holds pseudo-random pages, no
/// two of which are equal: a device cannot treat them as a hole, compress them or deduplicate them.
fn buffer(bytes: u64) -> anyhow::Result<Region> {
    let mut region = Region::map(bytes).context("cannot map a buffer")?;
    // Refused if the kernel was built without them: then small pages are used.
    let _ = region.ask_for_huge_pages();
    let words = Words::new(Fill::Random, 1, 0);
    for page in 0..region.pages() {
        let values = words.page(page, 0);
        *region.page_mut(page) = std::array::from_fn(|i| values.at(i));
    }
    Ok(region)
}

/// Changes every sector from all earlier transfers. Cheap: it is timed.
fn freshen(bytes: &mut [u8], transfer: u64) {
    for (number, sector) in (0..).zip(bytes.chunks_exact_mut(SECTOR)) {
        sector[..8].copy_from_slice(&mix(transfer << 32 | number).to_le_bytes());
    }
}

/// A new file of `bytes` without a name, of which nothing is allocated.
fn sparse(directory: &Path, bytes: u64) -> anyhow::Result<File> {
    let path = directory.join(format!("foreswap-bench-{}.area", std::process::id()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .with_context(|| format!("cannot make {} for direct I/O", path.display()))?;
    std::fs::remove_file(&path)?;
    file.set_len(bytes).context("cannot make a sparse file")?;
    Ok(file)
}

impl Disk {
    /// Makes a file of `bytes` in `directory` like a swap file: allocated, then written, twice. Reads go to `memory`
    /// bytes in turn, and writes come from there: a program has that many pages, while one buffer for all transfers
    /// would stay in the processor's cache.
    pub fn make(directory: &Path, bytes: u64, memory: u64) -> anyhow::Result<Self> {
        let bytes = bytes.next_multiple_of(TRANSFER as u64);
        let least = (DEPTHS[DEPTHS.len() - 1] * TRANSFER) as u64;
        let memory = memory.max(least).next_multiple_of(TRANSFER as u64);
        let mut disk = Self {
            file: sparse(directory, bytes)?,
            directory: directory.to_owned(),
            bytes,
            memory: buffer(memory)?,
            written: AtomicU64::new(0),
        };
        // If the file system cannot, the first write allocates.
        // SAFETY: allocates in a file that is open.
        unsafe { libc::fallocate(disk.file.as_raw_fd(), 0, 0, bytes as libc::off_t) };
        disk.stream(DEPTH, Transfers::Writes)
            .context("the first write")?;
        disk.stream(DEPTH, Transfers::Writes)?;
        Ok(disk)
    }

    /// Reads the file from end to end, `depth` transfers at once; bytes per second.
    pub fn read_bandwidth(&mut self, depth: usize) -> anyhow::Result<f64> {
        Ok(self.stream(depth, Transfers::Reads)?.read_bytes_per_s)
    }

    /// Writes the file in the same way.
    pub fn write_bandwidth(&mut self, depth: usize) -> anyhow::Result<f64> {
        Ok(self.stream(depth, Transfers::Writes)?.written_bytes_per_s)
    }

    /// Goes through the file from end to end, `depth` transfers at once; through a new one for first writes.
    pub fn stream(&mut self, depth: usize, transfers: Transfers) -> anyhow::Result<Rates> {
        let new = match transfers {
            Transfers::FirstWrites => Some(sparse(&self.directory, self.bytes)?),
            _ => None,
        };
        let file = new.as_ref().unwrap_or(&self.file);
        let (bytes, written) = (self.bytes, &self.written);
        let next = AtomicU64::new(0);
        let part = |memory: &mut [u8]| -> anyhow::Result<()> {
            let buffers = memory.len() / TRANSFER;
            for turn in 0.. {
                let at = next.fetch_add(TRANSFER as u64, Ordering::Relaxed);
                if at >= bytes {
                    break;
                }
                interrupt::check()?;
                let buffer = &mut memory[turn % buffers * TRANSFER..][..TRANSFER];
                if is_write(transfers, at) {
                    freshen(buffer, written.fetch_add(1, Ordering::Relaxed));
                    file.write_all_at(buffer, at)?;
                } else {
                    file.read_exact_at(buffer, at)?;
                }
            }
            Ok(())
        };
        let memory = self.memory.bytes_mut();
        let each = match transfers {
            Transfers::ReadsToCache => TRANSFER,
            _ => memory.len() / TRANSFER / depth * TRANSFER,
        };
        let start = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = memory
                .chunks_exact_mut(each)
                .take(depth)
                .map(|memory| scope.spawn(|| part(memory)))
                .collect();
            threads
                .into_iter()
                .try_for_each(|thread| match thread.join() {
                    Ok(result) => result,
                    Err(_) => anyhow::bail!("a thread of the disk measurement panicked"),
                })
        })?;
        let seconds = start.elapsed().as_secs_f64();
        let written = (0..self.bytes)
            .step_by(TRANSFER)
            .filter(|at| is_write(transfers, *at))
            .count() as u64
            * TRANSFER as u64;
        Ok(Rates {
            read_bytes_per_s: (self.bytes - written) as f64 / seconds,
            written_bytes_per_s: written as f64 / seconds,
        })
    }

    /// The latency of `count` reads of 4 KiB at random places, one at a time.
    pub fn random_read_latency(&self, count: u64, seed: u64) -> anyhow::Result<Latency> {
        let clock = Clock::calibrated();
        let mut draw = Draw::new(seed, 7);
        let mut histogram = Histogram::new();
        let mut buffer = buffer(PAGE as u64)?;
        for _ in 0..count {
            interrupt::check()?;
            let at = draw.below(self.bytes / PAGE as u64) * PAGE as u64;
            let before = clock.now();
            self.file.read_exact_at(buffer.bytes_mut(), at)?;
            histogram.record(clock.between(before, clock.now()));
        }
        Ok(histogram.latency())
    }
}

fn is_write(transfers: Transfers, at: u64) -> bool {
    match transfers {
        Transfers::Reads | Transfers::ReadsToCache => false,
        Transfers::Writes | Transfers::FirstWrites => true,
        Transfers::Both => (at / TRANSFER as u64).is_multiple_of(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With scattered pages the reference was half as fast as the disk, which made foreswap look too good.
    #[test]
    fn a_transfer_is_one_huge_page() {
        let mut buffer = buffer(TRANSFER as u64).unwrap();
        let at = buffer.bytes_mut().as_ptr() as usize;
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of_it = smaps.lines().skip_while(|line| {
            let range = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            let range = range.and_then(|(start, end)| Some(number(start)?..number(end)?));
            !range.is_some_and(|range| range.contains(&at))
        });
        let huge = of_it
            .into_iter()
            .find_map(|line| line.strip_prefix("AnonHugePages:"));
        let kib: usize = huge
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        assert!(
            kib >= TRANSFER / 1024,
            "{kib} KiB of huge pages; THP must not be \"never\""
        );
    }

    #[test]
    fn every_write_has_sectors_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        let mut buffer = buffer(2 * PAGE as u64).unwrap();
        for transfer in 0..3 {
            freshen(buffer.bytes_mut(), transfer);
            for sector in buffer.bytes_mut().chunks(SECTOR) {
                assert!(seen.insert(sector.to_vec()), "in transfer {transfer}");
            }
        }
        assert_eq!(seen.len(), 3 * 16);
    }

    /// One buffer for all stays in the processor's cache, which no pages of a program do.
    #[test]
    fn reads_go_to_all_of_the_memory() {
        let bytes = 8 * TRANSFER as u64;
        let mut disk = Disk::make(&std::env::temp_dir(), bytes, bytes).unwrap();
        let mut filled_by = |transfers| {
            disk.memory.bytes_mut().fill(0);
            disk.stream(1, transfers).unwrap();
            let parts = disk.memory.bytes_mut().chunks(TRANSFER);
            parts
                .filter(|part| part.iter().any(|byte| *byte != 0))
                .count()
        };
        assert_eq!(filled_by(Transfers::Reads), 8);
        assert_eq!(filled_by(Transfers::ReadsToCache), 1);
    }

    #[test]
    fn half_of_both_is_writes() {
        let at = |transfer: u64| transfer * TRANSFER as u64;
        assert!(is_write(Transfers::Both, at(0)) && !is_write(Transfers::Both, at(1)));
        assert!(is_write(Transfers::Writes, at(1)) && !is_write(Transfers::Reads, at(0)));
    }

    #[test]
    fn a_file_is_written_and_read_from_end_to_end() {
        let bytes = 4 * TRANSFER as u64;
        let mut disk = Disk::make(&std::env::temp_dir(), bytes, 0).unwrap();
        assert_eq!(disk.written.load(Ordering::Relaxed), 8);
        let rates = disk.stream(3, Transfers::Both).unwrap();
        assert!(rates.read_bytes_per_s > 0.0 && rates.written_bytes_per_s > 0.0);
        assert_eq!(disk.written.load(Ordering::Relaxed), 10);
        assert_eq!(
            disk.stream(1, Transfers::Reads)
                .unwrap()
                .written_bytes_per_s,
            0.0
        );
    }
}
