//! The speed of an area, measured within two seconds.
//!
//! Writes and reads in order, in pieces of a mebibyte, four at a time, as writeback and readahead of streams make them;
//! then single pages at random, one at a time, as a fault waits for them. The writes are first writes, which thin disks
//! are slow at: so are those of a run in a new file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use foreswap_store::area::{OpenArea, PAGE_BYTES};
use rustix::fs::Advice;

const PIECE: usize = 1 << 20;
const AT_ONCE: u64 = 4;
/// The most that is written.
const MOST: u64 = 256 << 20;
const WRITES: Duration = Duration::from_millis(800);
const READS: Duration = Duration::from_millis(500);
const RANDOM: Duration = Duration::from_millis(400);
/// Enough for a median.
const PAGES: usize = 2000;

/// As direct I/O requires.
#[repr(align(4096))]
struct Aligned<const BYTES: usize>([u8; BYTES]);

/// The figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// In order.
    pub write_bytes_per_s: f64,
    /// In order.
    pub read_bytes_per_s: f64,
    /// The median time of a page at random.
    pub random_read_ns: u64,
}

/// Measures an area that this process has opened. Its content is lost, as with a run.
pub fn measure(area: &OpenArea) -> io::Result<Speed> {
    let room = (area.bytes - area.reserved_bytes) / 2;
    let most = room.min(MOST) / PIECE as u64;
    let at = |piece: u64| area.reserved_bytes + piece * PIECE as u64;
    let began = Instant::now();
    let written = pieces(most, WRITES, |piece, buffer| {
        // Some disks compress.
        fill(buffer, piece + 1);
        area.file.write_all_at(buffer, at(piece))
    })?;
    if !area.direct {
        area.file.sync_data()?;
    }
    let write_bytes_per_s = rate(written, began.elapsed());
    if written == 0 {
        return Err(io::Error::other("too small"));
    }
    forget(&area.file);
    let began = Instant::now();
    let read = pieces(written, READS, |piece, buffer| {
        area.file.read_exact_at(buffer, at(piece))
    })?;
    let read_bytes_per_s = rate(read, began.elapsed());
    forget(&area.file);
    let random_read_ns = random(&area.file, area.reserved_bytes, written * PIECE as u64)?;
    Ok(Speed {
        write_bytes_per_s,
        read_bytes_per_s,
        random_read_ns,
    })
}

fn rate(pieces: u64, time: Duration) -> f64 {
    (pieces * PIECE as u64) as f64 / time.as_secs_f64().max(1e-6)
}

/// The page cache's copies would be read instead of the disk.
fn forget(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
}

/// Transfers pieces 0 to `most`, several at a time, until `time` has passed; returns how many.
fn pieces(
    most: u64,
    time: Duration,
    transfer: impl Fn(u64, &mut [u8]) -> io::Result<()> + Sync,
) -> io::Result<u64> {
    let (next, until) = (AtomicU64::new(0), Instant::now() + time);
    let work = || {
        let mut buffer = Box::new(Aligned([0; PIECE]));
        while Instant::now() < until {
            let piece = next.fetch_add(1, Relaxed);
            if piece >= most {
                break;
            }
            transfer(piece, &mut buffer.0)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let results = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread ended early")))
        });
        results.collect::<io::Result<()>>()
    })?;
    Ok(next.into_inner().min(most))
}

/// The median time of a page at random in `bytes` from `first`.
fn random(file: &File, first: u64, bytes: u64) -> io::Result<u64> {
    let mut page = Aligned([0; PAGE_BYTES as usize]);
    let (mut times, mut seed) = (Vec::new(), 1);
    let until = Instant::now() + RANDOM;
    while times.is_empty() || (times.len() < PAGES && Instant::now() < until) {
        seed = next_random(seed);
        let at = first + seed % (bytes / PAGE_BYTES) * PAGE_BYTES;
        let began = Instant::now();
        file.read_exact_at(&mut page.0, at)?;
        times.push(began.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn fill(buffer: &mut [u8], seed: u64) {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for bytes in buffer.chunks_exact_mut(8) {
        word = next_random(word);
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
}

/// Xorshift; `word` is not 0.
pub fn next_random(mut word: u64) -> u64 {
    word ^= word << 13;
    word ^= word >> 7;
    word ^ (word << 17)
}
