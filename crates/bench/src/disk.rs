//! A swap area's device by itself: how fast it reads and writes with O_DIRECT.
//!
//! These are the references that foreswap is held against: the latency of one random
//! 4 KiB read is what a fault cannot beat, the bandwidth of 2 MiB transfers what a
//! stream cannot beat. The file is unlinked as soon as it is open.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context;

use crate::interrupt;
use crate::usemem::{Clock, Draw, Histogram, Latency, PAGE};

/// One transfer of a sequential measurement.
pub const TRANSFER: usize = 2 << 20;

/// A file of the area's kind.
#[derive(Debug)]
pub struct Disk {
    file: File,
    bytes: u64,
}

/// A buffer as O_DIRECT wants it.
#[repr(align(4096))]
#[derive(Clone, Copy)]
struct Aligned([u8; PAGE]);

struct Buffer(Vec<Aligned>);

impl Buffer {
    fn new(bytes: usize) -> Self {
        let mut pages = vec![Aligned([0; PAGE]); bytes.div_ceil(PAGE)];
        // Not zeros: a device may take those for a hole.
        for (i, byte) in pages.iter_mut().flat_map(|page| &mut page.0).enumerate() {
            *byte = (i.wrapping_mul(0x9e37_79b1) >> 13) as u8;
        }
        Self(pages)
    }

    fn bytes(&mut self) -> &mut [u8] {
        let length = self.0.len() * PAGE;
        // SAFETY: `Aligned` is exactly its page of bytes, with no padding between.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), length) }
    }
}

impl Disk {
    /// Makes a file of `bytes` in `directory`, and returns it with the bandwidth at
    /// which it was written, in bytes per second.
    pub fn make(directory: &Path, bytes: u64, depth: usize) -> anyhow::Result<(Self, f64)> {
        let bytes = bytes.next_multiple_of(TRANSFER as u64);
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
        let disk = Self { file, bytes };
        disk.stream(depth, true).context("the first write")?;
        let bandwidth = disk.stream(depth, true)?;
        Ok((disk, bandwidth))
    }

    /// Reads the file from end to end, `depth` transfers at once; bytes per second.
    pub fn read_bandwidth(&self, depth: usize) -> anyhow::Result<f64> {
        self.stream(depth, false)
    }

    /// Writes it so.
    pub fn write_bandwidth(&self, depth: usize) -> anyhow::Result<f64> {
        self.stream(depth, true)
    }

    fn stream(&self, depth: usize, write: bool) -> anyhow::Result<f64> {
        let next = AtomicU64::new(0);
        let part = || -> anyhow::Result<()> {
            let mut buffer = Buffer::new(TRANSFER);
            loop {
                let at = next.fetch_add(TRANSFER as u64, Ordering::Relaxed);
                if at >= self.bytes {
                    return Ok(());
                }
                interrupt::check()?;
                if write {
                    self.file.write_all_at(buffer.bytes(), at)?;
                } else {
                    self.file.read_exact_at(buffer.bytes(), at)?;
                }
            }
        };
        let start = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..depth).map(|_| scope.spawn(part)).collect();
            threads
                .into_iter()
                .try_for_each(|thread| match thread.join() {
                    Ok(result) => result,
                    Err(_) => anyhow::bail!("a thread of the disk measurement panicked"),
                })
        })?;
        Ok(self.bytes as f64 / start.elapsed().as_secs_f64())
    }

    /// The latency of `count` reads of 4 KiB at random places, one at a time.
    pub fn random_read_latency(&self, count: u64, seed: u64) -> anyhow::Result<Latency> {
        let clock = Clock::calibrated();
        let mut draw = Draw::new(seed, 7);
        let mut histogram = Histogram::new();
        let mut buffer = Buffer::new(PAGE);
        for _ in 0..count {
            interrupt::check()?;
            let at = draw.below(self.bytes / PAGE as u64) * PAGE as u64;
            let before = clock.now();
            self.file.read_exact_at(buffer.bytes(), at)?;
            histogram.record(clock.between(before, clock.now()));
        }
        Ok(histogram.latency())
    }
}
