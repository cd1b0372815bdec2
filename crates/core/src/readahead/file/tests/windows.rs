//! How `streams` keeps a window ahead of a stream: its size, its parts, and its reads.

use super::*;

/// Reads `count` pieces of `length` pages, `stride` pages apart, from `page` on. Returns the reads of absent pages and
/// the runs of the second half.
fn pieces(
    file: &mut OpenFile,
    cache: &mut Model,
    page: u64,
    (length, stride, count): (u64, i64, u64),
) -> (usize, Vec<Run>) {
    let (mut waited, mut half) = (0, 0);
    for n in 0..count {
        let page = page.strict_add_signed(stride * n.cast_signed());
        waited += usize::from(!cache.has(FilePage(page)));
        read(file, cache, page, length);
        if n == count / 2 {
            half = cache.runs.len();
        }
    }
    (waited, cache.runs[half..].to_vec())
}

/// The pages that are read and lie ahead of the last read, which began at `page`, in a stream of this stride.
fn ahead(cache: &Model, page: u64, stride: i64) -> u64 {
    let is_ahead = |at: &&u64| (**at > page) == (stride > 0) && **at != page;
    cache.cached.keys().filter(is_ahead).count() as u64
}

/// Once the window has its size, it is never more than a part away from it.
#[test]
fn a_window_is_kept_full_part_by_part() {
    let max = 1024;
    let mut file = OpenFile::new(Policy::Streams, limits(max));
    let mut cache = Model::new(1 << 20);
    for page in (0..40_000).step_by(16) {
        read(&mut file, &mut cache, page, 16);
        let ahead = ahead(&cache, page + 15, 1);
        assert!(page < 8 * max || ahead >= max - 16, "{ahead} at {page}");
        assert!(ahead <= max + max / 4, "{ahead} at {page}");
    }
    let parts = cache.runs.iter().rev().take(40);
    assert!(
        parts.clone().all(|run| run.pages <= max / 6),
        "{:?}",
        cache.runs.last()
    );
    // The limit falls, as where memory is short or other streams begin: the window follows.
    file.set_limits(limits(256));
    for page in (40_000..44_000).step_by(16) {
        read(&mut file, &mut cache, page, 16);
        assert!(ahead(&cache, page + 15, 1) >= 200, "at {page}");
    }
    assert!(ahead(&cache, 43_999, 1) <= 320);
}

/// A store of 20 ms and 1 GB/s needs thousands of pieces in flight.
#[test]
fn a_stride_is_read_as_far_ahead_as_the_limit() {
    for stride in [7, -7, 300] {
        let mut file = OpenFile::new(Policy::Streams, limits(4096));
        let mut cache = Model::new(1 << 24);
        let (waited, _) = pieces(&mut file, &mut cache, 1 << 23, (2, stride, 12_000));
        assert!(waited <= 4, "{stride}: {waited} reads waited");
        let last = (1u64 << 23).strict_add_signed(stride * 11_999);
        let ahead = ahead(&cache, last, stride);
        assert!(
            (3800..4800).contains(&ahead),
            "{stride}: {ahead} pages ahead"
        );
    }
}

#[test]
fn backwards_is_read_in_large_runs() {
    let mut file = OpenFile::new(Policy::Streams, limits(4096));
    let mut cache = Model::new(1 << 20);
    let (waited, runs) = pieces(&mut file, &mut cache, 99_999, (1, -1, 100_000));
    assert!(waited <= 4, "{waited} reads waited");
    let reads = runs.iter().filter(|run| run.start.0 > 0);
    assert!(reads.clone().all(|run| run.pages == 512), "{runs:?}");
    // Each page once, down to the first.
    assert_eq!(cache.brought.len(), 100_000);
    assert!(cache.brought.values().all(|times| *times == 1));
}

/// Where several parts reach to the start of the file, none of its first pages is left out.
#[test]
fn backwards_the_head_of_the_file_is_read() {
    for pages in [700, 1500, 2100, 3000, 9999] {
        let mut file = OpenFile::new(Policy::Streams, limits(4096));
        let mut cache = Model::new(1 << 20);
        let (waited, runs) = pieces(&mut file, &mut cache, pages - 1, (1, -1, pages));
        assert!(waited <= 4, "{waited} reads of {pages} waited: {runs:?}");
    }
}

/// A mark in the middle of a window belongs to a stream only while the stream is read.
#[test]
fn marks_of_a_stale_stream_are_nobodys() {
    let mut file = OpenFile::new(Policy::Streams, limits(1024));
    let mut cache = Model::new(1 << 24);
    for page in (0..20_000).step_by(16) {
        read(&mut file, &mut cache, page, 16);
    }
    let marks = cache.marks();
    assert!(marks.len() > 4, "{marks:?}");
    for n in 0..300 {
        read(&mut file, &mut cache, 1_000_000 + n * n * 100, 1);
    }
    for &mark in &marks[..marks.len() - 1] {
        assert_eq!(
            read(&mut file, &mut cache, mark, 1),
            [],
            "the mark on {mark}"
        );
    }
    let last = marks[marks.len() - 1];
    assert!(
        !read(&mut file, &mut cache, last, 1).is_empty(),
        "the last mark, on {last}"
    );
}

/// Reads 399 MB, skips 99, and reads on.
#[test]
fn a_jump_of_a_long_stream_keeps_its_window() {
    let mut file = OpenFile::new(Policy::Streams, limits(4096));
    let mut cache = Model::new(1 << 24);
    let mut read_on = |from: u64, pages: u64| {
        let mut waited = 0;
        for page in (from..from + pages).step_by(16) {
            waited += usize::from(!cache.has(FilePage(page + 15)));
            read(&mut file, &mut cache, page, 16);
        }
        waited
    };
    assert_eq!(read_on(0, 100_000), 1);
    assert_eq!(read_on(125_000, 50_000), 1);
    let last = cache.runs.last().copied().expect("a run");
    assert!(last.end().0 >= 175_000 + 4000, "{last:?}");
}

/// A scan beside random reads: the first of them may look like a jump.
#[test]
fn jumps_that_begin_nothing_are_soon_ignored() {
    let mut file = OpenFile::new(Policy::Streams, limits(1024));
    let mut cache = Model::new(1 << 24);
    let mut around = 0;
    for n in 0..200 {
        for page in (n * 800..(n + 1) * 800).step_by(16) {
            read(&mut file, &mut cache, page, 16);
        }
        let page = (1 << 22) + n * n * 300;
        let runs = read(&mut file, &mut cache, page, 1);
        around += runs.iter().map(|(_, pages, _)| pages - 1).sum::<u64>();
    }
    assert!(
        around > 0 && around < 400,
        "{around} pages around 200 random reads"
    );
}
