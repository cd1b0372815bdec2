//! How `streams` treats reads that look like a stream by chance, and reads that do not.

use alloc::collections::VecDeque;

use super::properties::Rng;
use super::*;

/// A model with limited room: the oldest page is evicted first.
struct Small {
    model: Model,
    room: usize,
    order: VecDeque<u64>,
}

impl Small {
    fn new(pages: u64, room: usize) -> Self {
        Small {
            model: Model::new(pages),
            room,
            order: VecDeque::new(),
        }
    }

    /// Whether the read met a page that was not there.
    fn read(&mut self, file: &mut OpenFile, page: u64, pages: u64) -> bool {
        let waited = (page..page + pages).any(|page| !self.model.has(FilePage(page)));
        for (start, count, _) in read(file, &mut self.model, page, pages) {
            self.order.extend(start..start + count);
        }
        while self.model.cached.len() > self.room {
            let oldest = self.order.pop_front().expect("it was read");
            self.model.cached.remove(&oldest);
        }
        waited
    }

    fn brought(&self) -> u64 {
        self.model.brought.values().sum()
    }
}

/// Random reads of 16 pages in files of `pages` pages, of which `room` are in memory. Returns the pages read beside
/// missing ones, in percent.
fn beside(policy: Policy, pages: u64, room: usize) -> u64 {
    let mut file = OpenFile::new(policy, limits(256));
    let mut cache = Small::new(pages, room);
    let mut rng = Rng(1);
    let mut missing = 0;
    for _ in 0..20_000 {
        let page = rng.below(pages / 16) * 16;
        let absent = (page..page + 16).filter(|&page| !cache.model.has(FilePage(page)));
        missing += absent.count() as u64;
        cache.read(&mut file, page, 16);
    }
    (cache.brought() - missing) * 100 / missing
}

/// Half of the file is in memory, so every other random miss lies behind cached pages.
#[test]
fn random_misses_behind_cached_pages_are_no_streams() {
    let linux = beside(Policy::Linux, 1 << 18, 1 << 17);
    assert!(linux > 25, "{linux} %");
    let ours = beside(Policy::Streams, 1 << 18, 1 << 17);
    assert!(ours <= 1, "{ours} %");
}

/// In a file of few places, a read is soon beside another one, or in step with two.
#[test]
fn in_a_small_file_few_random_reads_look_like_streams() {
    for pages in [1 << 13, 1 << 14, 1 << 16] {
        let of = |policy| beside(policy, pages, pages as usize / 8);
        let (ours, seed) = (of(Policy::Streams), of(Policy::OnDemand));
        assert!(
            ours <= seed + 5,
            "{pages} pages: {ours} %, on demand {seed} %"
        );
    }
}

/// Cached pages of an old stream say nothing about random reads that reach them later.
#[test]
fn random_reads_go_on_from_nobodys_mark() {
    let mut cache = Model::new(1 << 18);
    for page in (0..1 << 18).step_by(64) {
        cache.cached.insert(page, true);
    }
    let mut file = OpenFile::new(Policy::Streams, limits(256));
    let mut rng = Rng(2);
    for n in 0..1000 {
        let page = rng.below(1 << 12) * 64;
        let runs = read(&mut file, &mut cache, page, 1);
        assert!(runs.is_empty() || n == 0, "read {n} of {page}: {runs:?}");
    }
}

/// Most reads are of a hundredth of the file: the pages around them are wanted.
#[test]
fn crowded_reads_bring_what_lies_around_them() {
    let misses = |policy| {
        let mut file = OpenFile::new(policy, limits(256));
        let mut cache = Small::new(1 << 19, 1 << 17);
        let mut rng = Rng(3);
        let mut waited = 0;
        for _ in 0..4000 {
            let crowd = rng.below(4) > 0;
            let place = if crowd {
                rng.below(1300) + 60_000
            } else {
                rng.below(1 << 17)
            };
            waited += u64::from(cache.read(&mut file, place * 4, 4));
        }
        waited
    };
    let (ours, linux, seed) = (
        misses(Policy::Streams),
        misses(Policy::Linux),
        misses(Policy::OnDemand),
    );
    assert!(ours * 100 < seed * 90, "{ours} misses, on demand {seed}");
    assert!(ours * 100 < linux * 105, "{ours} misses, linux {linux}");
}

/// A stretch that is cached already has no place for its mark.
#[test]
fn strides_go_on_behind_what_is_cached() {
    for step in [7i64, -7, 272] {
        let mut file = OpenFile::new(Policy::Streams, limits(256));
        let mut cache = Model::new(1 << 20);
        let page = |n: i64| ((1i64 << 19) + n * step) as u64;
        for n in (100..130).chain(200..203) {
            for page in page(n)..page(n) + 4 {
                cache.cached.insert(page, false);
            }
        }
        let before = cache.cached.len() as u64;
        let mut alone = 0;
        for n in 0..400 {
            let runs = read(&mut file, &mut cache, page(n), 4);
            alone += usize::from(runs.first().is_some_and(|run| run.0 == page(n)));
        }
        assert!(alone <= 6, "{step}: {alone} reads waited");
        let brought: u64 = cache.brought.values().sum();
        assert!(
            brought + before <= 4 * 400 + 260 + 32,
            "{step}: {brought} pages"
        );
    }
}

/// Far more streams than are told apart: each is known by its last read.
#[test]
fn many_streams_of_one_file_are_found_again() {
    let mut file = OpenFile::new(Policy::Streams, limits(32));
    let mut cache = Model::new(1 << 20);
    let mut waited = 0;
    for n in 0..100 {
        for stream in 0..40 {
            let page = 1000 + stream * 20_000 + n * 2;
            waited += usize::from(!cache.has(FilePage(page)));
            read(&mut file, &mut cache, page, 2);
        }
    }
    assert!(waited <= 4 * 40, "{waited} of 4000 reads waited");
}

/// A file opened again where another program has read it: pages cached before the first miss count as those of a
/// stream, as in the kernel.
#[test]
fn the_first_miss_of_a_file_goes_on_with_what_is_cached() {
    let mut file = OpenFile::new(Policy::Streams, limits(32));
    let mut cache = Model::with(4096, 1000..1020);
    assert_eq!(read(&mut file, &mut cache, 1020, 2), [(1020, 22, 1)]);
}
