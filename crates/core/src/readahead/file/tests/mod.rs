//! File readahead on a modelled page cache: single decisions.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec;
use alloc::vec::Vec;

mod chance;
mod properties;
mod windows;

use super::*;
use crate::units::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;

/// A page cache that records reads.
#[derive(Default)]
struct Model {
    pages: u64,
    /// The cached pages, each with whether it is marked.
    cached: BTreeMap<u64, bool>,
    /// Runs in order.
    runs: Vec<Run>,
    /// How often each page was read.
    brought: BTreeMap<u64, u64>,
}

impl Model {
    fn new(pages: u64) -> Self {
        Model {
            pages,
            ..Model::default()
        }
    }

    fn with(pages: u64, cached: impl IntoIterator<Item = u64>) -> Self {
        let cached = cached.into_iter().map(|page| (page, false)).collect();
        Model {
            pages,
            cached,
            ..Model::default()
        }
    }

    fn marks(&self) -> Vec<u64> {
        let marked = self.cached.iter().filter(|(_, marked)| **marked);
        marked.map(|(&page, _)| page).collect()
    }
}

impl Cached for Model {
    fn file_pages(&self) -> u64 {
        self.pages
    }

    fn has(&self, page: FilePage) -> bool {
        self.cached.contains_key(&page.0)
    }
}

impl PageCache for Model {
    fn take_mark(&mut self, page: FilePage) -> bool {
        self.cached.insert(page.0, false).expect("cached")
    }

    fn read(&mut self, run: &Run) {
        self.runs.push(*run);
        for page in run.start.0..run.end().0 {
            if let Entry::Vacant(place) = self.cached.entry(page) {
                place.insert(run.mark() == Some(FilePage(page)));
                *self.brought.entry(page).or_default() += 1;
            }
        }
    }
}

fn runs(plan: &Plan) -> Vec<Run> {
    plan.runs().collect()
}

fn limits(max: u64) -> Limits {
    Limits { max, device: 256 }
}

fn ask(page: u64, want: u64) -> Ask {
    Ask {
        page: FilePage(page),
        want,
    }
}

/// One read of pages; what it started, as (start, pages, ahead).
fn read(file: &mut OpenFile, cache: &mut Model, page: u64, pages: u64) -> Vec<(u64, u64, u64)> {
    let before = cache.runs.len();
    let mut reading = file.begin(page * PAGE, pages * PAGE, cache.pages * PAGE);
    let mut used = Vec::new();
    while let Some(page) = file.read(&mut reading, cache) {
        assert!(cache.has(page), "{page:?} can be used but is not there");
        used.push(page.0);
    }
    let end = (page + pages).min(cache.pages);
    assert_eq!(used, Vec::from_iter(page..end));
    let tuple = |run: &Run| (run.start.0, run.pages, run.ahead);
    cache.runs[before..].iter().map(tuple).collect()
}

#[test]
fn a_sequential_file_is_read_in_growing_windows() {
    for policy in [Policy::OnDemand, Policy::Linux, Policy::Streams] {
        let (mut file, mut cache) = (OpenFile::new(policy, limits(32)), Model::new(4096));
        let mut runs = Vec::new();
        for page in 0..100 {
            runs.extend(read(&mut file, &mut cache, page, 1));
        }
        let expected = [
            (0, 4, 3),
            (4, 8, 8),
            (12, 16, 16),
            (28, 32, 32),
            (60, 32, 32),
            (92, 32, 32),
            (124, 32, 32),
        ];
        assert_eq!(runs, expected, "{policy:?}");
    }
}

#[test]
fn the_limit_zero_reads_page_by_page() {
    for policy in Policy::ALL {
        let (mut file, mut cache) = (OpenFile::new(policy, limits(0)), Model::new(100));
        let runs = read(&mut file, &mut cache, 3, 4);
        assert_eq!(
            runs,
            [(3, 1, 0), (4, 1, 0), (5, 1, 0), (6, 1, 0)],
            "{policy:?}"
        );
    }
}

#[test]
fn a_limit_of_one_page_is_no_special_case() {
    for policy in Policy::ALL {
        let (mut file, mut cache) = (OpenFile::new(policy, limits(1)), Model::new(64));
        for page in 0..64 {
            read(&mut file, &mut cache, page, 1);
        }
        assert!(cache.brought.values().all(|&times| times == 1));
    }
}

#[test]
fn the_hint_random_reads_what_is_asked() {
    for policy in [Policy::OnDemand, Policy::Linux, Policy::Streams] {
        let mut file = OpenFile::new(policy, limits(32));
        file.advise(Pattern::Random);
        let mut cache = Model::new(4096);
        assert_eq!(read(&mut file, &mut cache, 0, 1), [(0, 1, 0)]);
        assert_eq!(read(&mut file, &mut cache, 1, 4), [(1, 4, 0)]);
        // At most the size of one device I/O, then the rest.
        let runs = read(&mut file, &mut cache, 1000, 300);
        assert_eq!(runs, [(1000, 256, 0), (1256, 44, 0)]);
        // A limit above 2 MiB: in runs of 2 MiB.
        let mut file = OpenFile::new(policy, limits(1200));
        file.advise(Pattern::Random);
        let runs = read(&mut file, &mut cache, 2000, 1100);
        assert_eq!(runs, [(2000, 512, 0), (2512, 512, 0), (3024, 76, 0)]);
    }
}

#[test]
fn the_base_reads_page_by_page_with_the_hint_random() {
    let mut file = OpenFile::new(Policy::Legacy, limits(32));
    file.advise(Pattern::Random);
    let mut cache = Model::new(4096);
    assert_eq!(read(&mut file, &mut cache, 0, 2), [(0, 1, 0), (1, 1, 0)]);
}

/// The window that a large request lifted is not lost to a mark at the end of it.
#[test]
fn a_sequence_of_large_requests_waits_once() {
    for policy in [Policy::OnDemand, Policy::Linux, Policy::Streams] {
        for pages in [50, 256] {
            let (mut file, mut cache) = (OpenFile::new(policy, limits(32)), Model::new(8192));
            let mut waited = 0;
            for n in 0..20 {
                let range = n * pages..(n + 1) * pages;
                waited += usize::from(range.clone().any(|page| !cache.has(FilePage(page))));
                read(&mut file, &mut cache, range.start, pages);
            }
            assert_eq!(waited, 1, "{policy:?}, {pages} pages");
        }
    }
}

#[test]
fn the_hint_sequential_doubles_the_limit() {
    let mut file = OpenFile::new(Policy::Linux, limits(32));
    file.advise(Pattern::Sequential);
    let mut cache = Model::new(4096);
    let mut largest = 0;
    for page in 0..400 {
        for (_, pages, _) in read(&mut file, &mut cache, page, 1) {
            largest = largest.max(pages);
        }
    }
    assert_eq!(largest, 64);
}

#[test]
fn a_window_that_the_file_cuts_off_before_its_mark_has_none() {
    let (mut file, mut cache) = (OpenFile::new(Policy::Linux, limits(32)), Model::new(40));
    for page in 0..28 {
        read(&mut file, &mut cache, page, 1);
    }
    // The window has 32 pages, of which 12 are in the file; the window still moves on.
    assert_eq!(read(&mut file, &mut cache, 28, 1), []);
    assert_eq!(cache.runs.last().map(|run| run.pages), Some(12));
    let last = cache.runs.last().copied().expect("a run");
    assert_eq!((last.ahead, last.mark()), (32, None));
    assert!(cache.marks().is_empty());
    assert_eq!(file.window().map(|window| window.size), Some(32));
}

#[test]
fn a_mark_at_the_end_of_the_file_sets_a_window_that_reads_nothing() {
    let (mut file, mut cache) = (OpenFile::new(Policy::Linux, limits(32)), Model::new(28));
    for page in 0..28 {
        read(&mut file, &mut cache, page, 1);
    }
    let window = file.window().expect("on demand");
    assert_eq!((window.start.0, window.size), (28, 32));
    assert_eq!(cache.runs.len(), 3, "{:?}", cache.runs);
    // A request past the end counts in full.
    let (mut file, mut cache) = (OpenFile::new(Policy::Linux, limits(32)), Model::new(28));
    assert_eq!(read(&mut file, &mut cache, 20, 16), [(20, 8, 0)]);
    assert_eq!(read(&mut file, &mut cache, 40, 4), []);
    assert_eq!(read(&mut file, &mut cache, 0, 0), []);
}

#[test]
fn a_request_over_the_limit_starts_a_window_anywhere() {
    let (mut file, mut cache) = (OpenFile::new(Policy::Linux, limits(32)), Model::new(4096));
    // One that the device takes in one I/O is only that, and so random here.
    assert_eq!(read(&mut file, &mut cache, 1000, 50), [(1000, 50, 0)]);
    assert_eq!(read(&mut file, &mut cache, 1500, 256), [(1500, 256, 0)]);
    // The middle of a larger one carries the mark, and is met by the same read.
    let runs = read(&mut file, &mut cache, 2000, 300);
    assert_eq!(runs, [(2000, 256, 128), (2256, 256, 256), (2512, 256, 256)]);
    // In a sequence the limit is lifted too.
    let (mut file, mut cache) = (OpenFile::new(Policy::Linux, limits(32)), Model::new(4096));
    let runs = read(&mut file, &mut cache, 0, 50);
    assert_eq!(runs, [(0, 50, 25), (50, 50, 50)]);
}

#[test]
fn next_to_the_previous_read_means_the_page_of_its_end_or_the_one_after() {
    for (bytes, miss, window) in [
        (PAGE, 101, true),
        (PAGE, 102, true),
        (PAGE, 103, false),
        (PAGE - 1, 101, true),
        (PAGE - 1, 102, false),
        (PAGE + 1, 103, false),
        (PAGE + 1, 102, true),
    ] {
        let mut file = OpenFile::new(Policy::Linux, limits(32));
        let mut cache = Model::with(4096, [100, 101]);
        let mut reading = file.begin(100 * PAGE, bytes, 4096 * PAGE);
        while file.read(&mut reading, &mut cache).is_some() {}
        cache.cached.clear();
        let runs = read(&mut file, &mut cache, miss, 1);
        let expected = if window { (miss, 4, 3) } else { (miss, 1, 0) };
        assert_eq!(runs, [expected], "{bytes} bytes, then {miss}");
    }
}

#[test]
fn cached_pages_before_a_miss_are_a_lost_stream() {
    let window = |cached: core::ops::Range<u64>, page, want| {
        let mut policy = OnDemand::of_linux();
        let plan = policy.on_miss(&Model::with(4096, cached), ask(page, want), &limits(32));
        plan.window().map(|window| (window.size, window.ahead))
    };
    // No more than was asked for: random.
    assert_eq!(window(98..100, 100, 2), None);
    assert_eq!(window(97..100, 100, 2), Some((5, 1)));
    assert_eq!(window(80..100, 100, 4), Some((24, 1)));
    assert_eq!(window(50..100, 100, 4), Some((32, 1)));
    // Twice as much where the run reaches the start of the file.
    assert_eq!(window(0..5, 5, 2), Some((12, 1)));
    assert_eq!(window(1..5, 5, 2), Some((6, 1)));
    // A run that covers the whole search counts one less.
    assert_eq!(window(50..100, 100, 31), None);
    assert_eq!(window(50..100, 100, 30), Some((32, 1)));
    assert_eq!(window(0..32, 32, 31), None);
    // The seed's variant does not look.
    let mut seed = OnDemand::of_the_seed();
    let plan = seed.on_miss(&Model::with(4096, 50..100), ask(100, 1), &limits(32));
    assert_eq!(
        (plan.window(), runs(&plan)),
        (None, vec![Run::plain(FilePage(100), 1)])
    );
}

#[test]
fn a_mark_of_another_stream_begins_a_window_behind_the_cached_pages() {
    let on_mark = |mut policy: OnDemand, to: u64, want| {
        let cache = Model::with(4096, 100..to);
        let plan = policy.on_mark(&cache, ask(100, want), &limits(32));
        plan.window()
            .map(|window| (window.start.0, window.size, window.ahead))
    };
    let seed = OnDemand::of_the_seed;
    assert_eq!(on_mark(seed(), 103, 2), Some((103, 10, 10)));
    assert_eq!(on_mark(OnDemand::of_linux(), 103, 2), Some((103, 9, 9)));
    // The last page that is looked at, and one further: nothing.
    assert_eq!(on_mark(seed(), 132, 1), Some((132, 32, 32)));
    assert_eq!(on_mark(seed(), 133, 1), None);
}

#[test]
fn windows_begun_by_a_mark_end_at_a_multiple() {
    let end = |max, start: u64, size| {
        let mut policy = OnDemand::of_linux();
        policy.set_window(Window {
            start: FilePage(start),
            size,
            ahead: size,
        });
        let cache = Model::with(1 << 20, start..start + size);
        let plan = policy.on_mark(&cache, ask(start, 1), &limits(max));
        plan.window().map(|window| (window.start.0, window.end().0))
    };
    assert_eq!(end(32, 1, 4), Some((5, 12)));
    assert_eq!(end(32, 3, 32), Some((35, 64)));
    // The power of two that divides the limit.
    assert_eq!(end(50, 1, 4), Some((5, 12)));
    assert_eq!(end(50, 1, 26), Some((27, 76)));
    assert_eq!(end(35, 1, 33), Some((34, 69)));
    // Nothing would be left.
    assert_eq!(end(2, 3, 2), Some((5, 6)));
    assert_eq!(end(4, 4, 1), Some((5, 7)));
    // A larger window than the limit allows now does not shrink by it.
    assert_eq!(end(32, 0, 64), Some((64, 128)));
}

#[test]
fn a_cached_page_does_not_get_the_mark() {
    let mut cache = Model::with(4096, [1]);
    let mut file = OpenFile::new(Policy::Linux, limits(32));
    assert_eq!(read(&mut file, &mut cache, 0, 1), [(0, 4, 3)]);
    assert!(cache.marks().is_empty());
    // The window is not moved on, and the miss behind it begins another.
    for page in 1..4 {
        assert_eq!(read(&mut file, &mut cache, page, 1), []);
    }
    assert_eq!(read(&mut file, &mut cache, 4, 1), [(4, 4, 3)]);
}

#[test]
fn evicted_pages_come_back_in_a_window() {
    for policy in [Policy::OnDemand, Policy::Linux, Policy::Streams] {
        let (mut file, mut cache) = (OpenFile::new(policy, limits(32)), Model::new(4096));
        for page in 0..70 {
            read(&mut file, &mut cache, page, 1);
        }
        cache.cached.retain(|&page, _| page < 70);
        let runs = read(&mut file, &mut cache, 70, 1);
        assert!(runs.len() == 1 && runs[0].1 >= 4, "{policy:?}: {runs:?}");
    }
    // The base reads them one by one.
    let (mut file, mut cache) = (OpenFile::new(Policy::Legacy, limits(32)), Model::new(4096));
    for page in 0..70 {
        read(&mut file, &mut cache, page, 1);
    }
    let ahead = cache.cached.keys().copied().max().expect("pages");
    cache.cached.retain(|&page, _| page < 70);
    let mut alone = 0;
    for page in 70..ahead {
        let runs = read(&mut file, &mut cache, page, 1);
        alone += u64::from(runs.contains(&(page, 1, 0)));
    }
    assert!(alone > 10, "{alone} of {}", ahead - 70);
}

#[test]
fn the_base_reads_a_window_ahead_of_the_current_one() {
    let (mut file, mut cache) = (OpenFile::new(Policy::Legacy, limits(32)), Model::new(4096));
    let mut runs = Vec::new();
    for page in 0..60 {
        runs.extend(read(&mut file, &mut cache, page, 1));
    }
    let expected = [(0, 4, 0), (4, 8, 0), (12, 16, 0), (28, 32, 0), (60, 32, 0)];
    assert_eq!(runs, expected);
    // A read elsewhere closes the windows, and the next one is not sequential yet.
    assert_eq!(read(&mut file, &mut cache, 2000, 2), [(2000, 2, 0)]);
    assert_eq!(read(&mut file, &mut cache, 2002, 2), [(2002, 4, 0)]);
    // Twice the limit at once where all of it is asked for.
    let (mut file, mut cache) = (OpenFile::new(Policy::Legacy, limits(32)), Model::new(4096));
    assert_eq!(
        read(&mut file, &mut cache, 0, 32),
        [(0, 32, 0), (32, 32, 0)]
    );
}

#[test]
fn the_base_stops_in_a_cached_file_until_a_page_is_missing() {
    let mut file = OpenFile::new(Policy::Legacy, limits(32));
    let mut cache = Model::with(4096, 0..1000);
    let mut runs = 0;
    for page in 0..1000 {
        runs += read(&mut file, &mut cache, page, 1).len();
    }
    // 256 pages of windows that read nothing, then silence.
    assert!((4..20).contains(&runs), "{runs} windows");
    let mut runs = Vec::new();
    for page in 1000..1100 {
        runs.extend(read(&mut file, &mut cache, page, 1));
    }
    assert_eq!(runs[0], (1000, 1, 0));
    assert!(runs[1..].iter().any(|run| run.1 == 32), "{runs:?}");
}

/// Interleaved readers of one open file: ours keeps a window for each. A stream is known after two reads. None of these
/// begins at a stride from two others, for which it could be mistaken.
#[test]
fn several_streams_each_have_their_window() {
    let misses = |policy: Policy| {
        let (mut file, mut cache) = (OpenFile::new(policy, limits(32)), Model::new(1 << 20));
        let mut waited = 0;
        for n in 0..200 {
            for start in [1000, 11_000, 41_000, 121_000, 300_000, 700_000] {
                let page = start + n * 2;
                waited += usize::from(!cache.has(FilePage(page)));
                read(&mut file, &mut cache, page, 2);
            }
        }
        waited
    };
    let (ours, seed) = (misses(Policy::Streams), misses(Policy::OnDemand));
    assert_eq!(ours, 12, "two misses a stream");
    assert!(seed > 1000, "{seed} misses");
}

#[test]
fn strides_are_read_ahead_in_both_directions() {
    for step in [7i64, -7, -2, 100, -4000] {
        let (mut file, mut cache) = (
            OpenFile::new(Policy::Streams, limits(32)),
            Model::new(1 << 20),
        );
        let mut alone = 0;
        for n in 0..100 {
            let page = (1i64 << 19) + n * step;
            let runs = read(&mut file, &mut cache, page as u64, 2);
            alone += usize::from(runs.first().is_some_and(|run| run.0 == page as u64));
        }
        assert!(alone <= 4, "{step}: {alone} reads waited");
        let brought: u64 = cache.brought.values().sum();
        assert!(brought <= 200 + 40, "{step}: {brought} pages for 200");
    }
    // Down to the start of the file and no further.
    let (mut file, mut cache) = (OpenFile::new(Policy::Streams, limits(32)), Model::new(100));
    for page in (0..=90).rev().step_by(10) {
        read(&mut file, &mut cache, page, 2);
    }
}

#[test]
fn reads_around_a_mapped_fault_until_it_does_not_help() {
    let mut file = OpenFile::new(Policy::Linux, limits(32));
    let cache = Model::new(1 << 20);
    let at = |n: u64| FilePage(1000 * (n + 1));
    let plan = file.on_mapped_miss(&cache, at(0), Pattern::Normal);
    let around = Run {
        start: FilePage(984),
        pages: 32,
        ahead: 8,
    };
    assert_eq!(runs(&plan), [around]);
    // At the start of the file it is not shifted below it.
    let plan = file.on_mapped_miss(&cache, FilePage(3), Pattern::Normal);
    assert_eq!(runs(&plan)[0].start, FilePage(0));
    for n in 2..u64::from(MISSES_TO_GIVE_UP) {
        let plan = file.on_mapped_miss(&cache, at(n), Pattern::Normal);
        assert_eq!(runs(&plan)[0].pages, 32, "miss {n}");
    }
    let alone = |page| [Run::plain(page, 1)];
    let plan = file.on_mapped_miss(&cache, at(500), Pattern::Normal);
    assert_eq!(runs(&plan), alone(at(500)));
    // Two hits, and it is worth another try.
    for _ in 0..2 {
        file.on_mapped_hit(&cache, at(1), false, Pattern::Normal);
    }
    let plan = file.on_mapped_miss(&cache, at(501), Pattern::Normal);
    assert_eq!(runs(&plan)[0].pages, 32);
    // Hints take precedence.
    let plan = file.on_mapped_miss(&cache, at(9), Pattern::Random);
    assert_eq!(runs(&plan), alone(at(9)));
    assert_eq!(
        file.on_mapped_hit(&cache, at(9), true, Pattern::Random),
        Plan::default()
    );
}

#[test]
fn a_mapped_mark_moves_the_window_on() {
    for policy in [Policy::OnDemand, Policy::Linux, Policy::Streams] {
        let mut file = OpenFile::new(policy, limits(32));
        let mut cache = Model::new(1 << 20);
        let plan = file.on_mapped_miss(&cache, FilePage(100), Pattern::Normal);
        cache.read(&runs(&plan)[0]);
        assert_eq!(cache.marks(), [108]);
        let plan = file.on_mapped_hit(&cache, FilePage(108), true, Pattern::Normal);
        let start = plan.window().map(|window| window.start.0);
        assert_eq!(start, Some(116), "{policy:?}");
    }
}
