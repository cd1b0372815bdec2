//! The answer of a policy: pages to read, and the page whose touch calls it again.

use super::cache::{Cached, FilePage};
use super::limits::Limits;

/// A readahead window, as a policy remembers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// First page.
    pub start: FilePage,
    /// Pages.
    pub size: u64,
    /// Pages from the mark to the window's end.
    pub ahead: u64,
}

impl Window {
    /// The page after it.
    pub fn end(&self) -> FilePage {
        self.start.plus(self.size)
    }

    /// The page that carries its mark. The end when there is none.
    pub fn mark(&self) -> FilePage {
        self.start.plus(self.size.saturating_sub(self.ahead))
    }
}

/// Pages to read with one request. Pages that are cached already are left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// First page.
    pub start: FilePage,
    /// Pages; none is past the end of the file.
    pub pages: u64,
    /// Pages from the mark to the end of the intended run. More than `pages` if the end of the file cut the run off
    /// before its mark.
    pub ahead: u64,
}

impl Run {
    /// A run without a mark.
    pub fn plain(start: FilePage, pages: u64) -> Self {
        Run {
            start,
            pages,
            ahead: 0,
        }
    }

    /// The page after it.
    pub fn end(&self) -> FilePage {
        self.start.plus(self.pages)
    }

    /// The page that gets the mark, if it was absent.
    pub fn mark(&self) -> Option<FilePage> {
        let before = self.pages.checked_sub(self.ahead)?;
        (self.ahead > 0).then(|| self.start.plus(before))
    }
}

/// Runs of equal size at equal distances.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Series {
    /// The first run.
    pub run: Run,
    /// Pages from one run to the next; below 0: towards the start of the file.
    pub stride: i64,
    /// Runs.
    pub count: u64,
    /// Every so many runs, the first included, have the mark of `run`; the others have none. At least 1.
    pub marked: u64,
}

impl Series {
    /// Run `n`; `None` if it would begin before the start of the file.
    fn run(&self, n: u64) -> Option<Run> {
        let by = self.stride.checked_mul(n.try_into().ok()?)?;
        let start = self.run.start.0.checked_add_signed(by)?;
        let marked = n.is_multiple_of(self.marked.max(1));
        Some(Run {
            start: FilePage(start),
            ahead: if marked { self.run.ahead } else { 0 },
            ..self.run
        })
    }
}

/// Most series of one plan: the pages asked for, and those ahead of them.
const MAX_SERIES: usize = 2;
/// Pages of one run of a forced read: 2 MiB, to limit the memory that it holds at once.
const FORCED_RUN: u64 = 512;

/// Reads to start, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    window: Option<Window>,
    series: [Series; MAX_SERIES],
    len: usize,
    file_pages: u64,
}

impl Plan {
    /// The runs, none of them empty, as far as the file goes.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let end = self.file_pages;
        let within = move |run: Run| Run {
            pages: run.pages.min(end.saturating_sub(run.start.0)),
            ..run
        };
        let series = self.series[..self.len].iter();
        let all = series.flat_map(move |series| {
            let runs = (0..series.count).map_while(|n| series.run(n));
            runs.take_while(move |run| series.stride < 0 || run.start.0 < end)
        });
        all.map(within).filter(|run| run.pages > 0)
    }

    /// The window that was set, if any. It may lie past the end of the file; then nothing is read.
    pub fn window(&self) -> Option<Window> {
        self.window
    }

    /// A new window, read as far as the file goes.
    pub(super) fn of(cache: &impl Cached, window: Window) -> Self {
        let mut plan = Plan {
            window: Some(window),
            ..Plan::default()
        };
        plan.push(cache, window.start, window.size, window.ahead);
        plan
    }

    /// Exactly these pages, as far as the file goes.
    pub(super) fn asked(cache: &impl Cached, page: FilePage, pages: u64) -> Self {
        let mut plan = Plan::default();
        plan.push(cache, page, pages, 0);
        plan
    }

    /// These pages without a mark, as many as the limits allow, in runs of 2 MiB. The rest is requested again later.
    pub(super) fn forced(cache: &impl Cached, page: FilePage, pages: u64, limits: &Limits) -> Self {
        let mut plan = Plan::default();
        let pages = pages.min(limits.max.max(limits.device));
        let run = Run {
            start: page,
            pages: FORCED_RUN,
            ahead: 0,
        };
        let whole = Series {
            run,
            stride: FORCED_RUN.cast_signed(),
            count: pages / FORCED_RUN,
            marked: 1,
        };
        plan.push_series(cache, whole);
        let rest = pages % FORCED_RUN;
        plan.push(cache, page.plus(pages - rest), rest, 0);
        plan
    }

    /// One more run, as far as the file goes.
    pub(super) fn push(&mut self, cache: &impl Cached, start: FilePage, pages: u64, ahead: u64) {
        let run = Run {
            start,
            pages,
            ahead,
        };
        let alone = Series {
            run,
            stride: 0,
            count: 1,
            marked: 1,
        };
        self.push_series(cache, alone);
    }

    /// More runs, as far as the file goes. No policy has more than [`MAX_SERIES`].
    pub(super) fn push_series(&mut self, cache: &impl Cached, series: Series) {
        if series.run.pages > 0 && series.count > 0 {
            debug_assert!(self.len < MAX_SERIES, "{self:?} and {series:?}");
            if let Some(place) = self.series.get_mut(self.len) {
                (*place, self.file_pages) = (series, cache.file_pages());
                self.len += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    struct File(u64);

    impl Cached for File {
        fn file_pages(&self) -> u64 {
            self.0
        }

        fn has(&self, _: FilePage) -> bool {
            false
        }
    }

    /// The runs of a series in a file of 1000 pages, as (start, pages, ahead).
    fn runs(
        start: u64,
        pages: u64,
        (stride, count, marked): (i64, u64, u64),
    ) -> Vec<(u64, u64, u64)> {
        let mut plan = Plan::default();
        let run = Run {
            start: FilePage(start),
            pages,
            ahead: 1,
        };
        let series = Series {
            run,
            stride,
            count,
            marked,
        };
        plan.push_series(&File(1000), series);
        plan.runs()
            .map(|run| (run.start.0, run.pages, run.ahead))
            .collect()
    }

    #[test]
    fn a_series_ends_with_the_file_on_both_sides() {
        let up = runs(980, 4, (9, 5, 2));
        assert_eq!(up, [(980, 4, 1), (989, 4, 0), (998, 2, 1)]);
        let down = runs(20, 4, (-9, 5, 1));
        assert_eq!(down, [(20, 4, 1), (11, 4, 1), (2, 4, 1)]);
        assert_eq!(runs(0, 4, (i64::MIN, u64::MAX, 1)), [(0, 4, 1)]);
        assert_eq!(runs(0, 0, (1, 1, 1)), []);
        assert_eq!(runs(0, 400, (i64::MAX, u64::MAX, 1)), [(0, 400, 1)]);
    }
}
