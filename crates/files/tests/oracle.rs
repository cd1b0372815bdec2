//! Random operations against a plain copy of the file, with a cache so small that everything is evicted.

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use foreswap_files::store::{LocalFile, MemoryStore, SlowStore, Slowness, Store};
use foreswap_files::{Cache, CachedFile, Options};

/// Bytes of the cache: 256 pages.
const CACHE: u64 = 1 << 20;
/// Each thread has a range of the file for itself, which shares its first and last page with the neighbours.
const RANGE: u64 = 3 * 1_000_003;
const THREADS: u64 = 3;

/// Random numbers from a seed (xorshift).
struct Draw(u64);

impl Draw {
    fn new(seed: u64) -> Self {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// Reads and writes at random, in short runs in both directions, and compares. Returns the content of the range.
fn work(file: &CachedFile, range: u64, seed: u64, until: Instant) -> Vec<u8> {
    let (base, mut draw) = (range * RANGE, Draw::new(seed ^ range << 32));
    let mut copy = vec![0u8; RANGE as usize];
    let mut buffer = vec![0; 40_000];
    while Instant::now() < until {
        let most = 1 << draw.below(16);
        let (mut at, length) = (draw.below(RANGE), 1 + draw.below(most).min(39_999));
        let back = draw.below(4) == 0;
        for _ in 0..1 + draw.below(8) {
            let end = (at + length).min(RANGE);
            let bytes = &mut buffer[..(end - at) as usize];
            let place = at as usize..end as usize;
            if draw.below(3) == 0 {
                let value = draw.below(256) as u8;
                (0..)
                    .zip(bytes.iter_mut())
                    .for_each(|(n, byte): (u8, _)| *byte = n.wrapping_add(value));
                file.write_at(bytes, base + at).expect("a write");
                copy[place].copy_from_slice(bytes);
            } else {
                file.read_exact_at(bytes, base + at).expect("a read");
                let differs = bytes.iter().zip(&copy[place]).position(|(a, b)| a != b);
                assert_eq!(
                    differs,
                    None,
                    "seed {seed}: {length} bytes at {}",
                    base + at
                );
            }
            if draw.below(200) == 0 {
                file.sync().expect("a sync");
            }
            at = if back {
                at.saturating_sub(length)
            } else {
                end % RANGE
            };
        }
    }
    copy
}

fn check(cache: &Cache, file: &CachedFile, seed: u64, content: impl Fn() -> Vec<u8>) {
    file.set_len(THREADS * RANGE).expect("a size");
    let until = Instant::now() + Duration::from_millis(1200);
    let ranges: Vec<_> = std::thread::scope(|scope| {
        let start = |range| scope.spawn(move || work(file, range, seed, until));
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no difference"))
            .collect()
    });
    file.sync().expect("the last sync");
    assert!(
        content() == ranges.concat(),
        "seed {seed}: the store differs after the sync"
    );
    let stats = cache.stats();
    assert_eq!(stats.dirty_pages, 0);
    assert!(
        stats.pages_read > 256 && stats.pages_written > 256,
        "{stats:?}"
    );
}

fn on_files_of(directory: &Path, options: Options, seed: u64) {
    let directory = tempfile::tempdir_in(directory).expect("a directory");
    let path = directory.path().join("file");
    let cache = Cache::new(CACHE).expect("a cache");
    let file = cache
        .open_with(&path, options.write(true).create(true))
        .expect("a file");
    check(&cache, &file, seed, || {
        std::fs::read(&path).expect("the file")
    });
    drop(file);
    assert_eq!(
        cache.stats().free_pages,
        CACHE / 4096,
        "a closed file leaves nothing"
    );
}

#[test]
fn files_past_the_kernels_cache() {
    on_files_of(Path::new(env!("CARGO_TARGET_TMPDIR")), Options::new(), 1);
}

#[test]
fn files_through_the_kernels_cache() {
    on_files_of(
        Path::new(env!("CARGO_TARGET_TMPDIR")),
        Options::new().buffered(true),
        2,
    );
}

#[test]
fn files_in_memory() {
    on_files_of(Path::new("/dev/shm"), Options::new(), 3);
}

#[test]
fn files_on_a_slow_store() {
    let memory = Arc::new(MemoryStore::default());
    let slowness = Slowness {
        delay: Duration::from_micros(200),
        bandwidth: 1_000_000_000,
        jitter: Duration::from_millis(1),
        seed: 4,
    };
    let store = SlowStore::new(Arc::clone(&memory) as Arc<dyn Store>, slowness).expect("a thread");
    let cache = Cache::new(CACHE).expect("a cache");
    let file = cache.open_store(Arc::new(store), true).expect("a file");
    check(&cache, &file, 4, || memory.content());
}

/// One writer changes whole pages, and readers never see a mixture.
#[test]
fn no_reader_sees_half_a_write() {
    let cache = Cache::new(CACHE).expect("a cache");
    let file = cache
        .open_store(Arc::new(MemoryStore::new(vec![0; 4096 * 600])), true)
        .expect("a file");
    let (until, barrier) = (Instant::now() + Duration::from_millis(700), Barrier::new(3));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            barrier.wait();
            let mut draw = Draw::new(5);
            while Instant::now() < until {
                let page = draw.below(8) * 75;
                file.write_at(&[draw.below(256) as u8; 4096], page * 4096)
                    .expect("a write");
            }
        });
        for seed in 6..8 {
            let (file, barrier) = (&file, &barrier);
            scope.spawn(move || {
                barrier.wait();
                let (mut draw, mut page) = (Draw::new(seed), [0; 4096]);
                while Instant::now() < until {
                    let at = if draw.below(4) > 0 {
                        draw.below(8) * 75
                    } else {
                        draw.below(600)
                    };
                    file.read_exact_at(&mut page, at * 4096).expect("a read");
                    assert!(
                        page.iter().all(|byte| *byte == page[0]),
                        "page {at} is a mixture"
                    );
                }
            });
        }
    });
}

/// Lengths: growth, cuts, zeros between.
#[test]
fn the_length_is_that_of_a_plain_file() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path().join("file");
    let cache = Cache::new(CACHE).expect("a cache");
    let file = cache
        .open_with(&path, Options::new().write(true).create(true))
        .expect("a file");
    let mut copy: Vec<u8> = Vec::new();
    let mut draw = Draw::new(9);
    for round in 0..600 {
        let (at, length) = (draw.below(3_000_000), draw.below(20_000) as usize);
        match draw.below(10) {
            0..6 => {
                let bytes = vec![round as u8; length];
                file.write_at(&bytes, at).expect("a write");
                let end = at as usize + length;
                if length > 0 && copy.len() < end {
                    copy.resize(end, 0);
                }
                if length > 0 {
                    copy[at as usize..end].copy_from_slice(&bytes);
                }
            }
            6..8 => {
                file.set_len(at).expect("a size");
                copy.resize(at as usize, 0);
            }
            8 => {
                file.sync().expect("a sync");
                assert!(
                    std::fs::read(&path).expect("the file") == copy,
                    "round {round}"
                );
            }
            _ => file.evict(),
        }
        assert_eq!(file.len(), copy.len() as u64, "round {round}");
        let at = draw.below(copy.len() as u64 + 10_000);
        let mut bytes = vec![1; 20_000];
        let count = file.read_at(&mut bytes, at).expect("a read");
        let rest = copy.get(at as usize..).unwrap_or_default();
        let expected = &rest[..rest.len().min(20_000)];
        assert!(
            bytes[..count] == *expected,
            "round {round}: at {at}, {count} bytes of {}",
            expected.len()
        );
    }
    drop(file);
    assert!(
        std::fs::read(&path).expect("the file") == copy,
        "the last handle wrote the rest"
    );
}

#[test]
fn local_files_are_direct_where_they_can_be() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path().join("file");
    std::fs::write(&path, b"x").expect("a file");
    let cache = Cache::new(CACHE).expect("a cache");
    let is_direct = |options| {
        LocalFile::open(&path, options, cache.ring())
            .expect("a file")
            .is_direct()
    };
    assert!(is_direct(Options::new()) && !is_direct(Options::new().buffered(true)));
}

/// Write-back meets pages of a write that is still extending the file.
#[test]
fn appended_bytes_reach_the_store() {
    const WRITE: usize = 300_007;
    let memory = Arc::new(MemoryStore::default());
    let cache = Cache::new(CACHE).expect("a cache");
    let store = Arc::clone(&memory) as Arc<dyn Store>;
    let file = cache.open_store(store, true).expect("a file");
    let bytes: Vec<u8> = (0..WRITE).map(|at| (at % 251) as u8 + 1).collect();
    for n in 0..200 {
        file.write_at(&bytes, n * WRITE as u64).expect("an append");
    }
    file.sync().expect("a sync");
    let content = memory.content();
    assert_eq!(content.len(), 200 * WRITE);
    assert!(content.chunks(WRITE).all(|chunk| chunk == bytes));
}
