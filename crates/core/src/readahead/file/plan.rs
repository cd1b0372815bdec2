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

/// Most runs of one plan.
pub const MAX_RUNS: usize = 8;
/// Pages of one run of a forced read: 2 MiB, to limit the memory that it holds at once.
const FORCED_RUN: u64 = 512;

/// Reads to start, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    window: Option<Window>,
    runs: [Run; MAX_RUNS],
    len: usize,
}

impl Plan {
    /// The runs, none of them empty.
    pub fn runs(&self) -> &[Run] {
        &self.runs[..self.len]
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
        let mut left = pages.min(limits.max.max(limits.device));
        let mut at = page;
        while left > 0 && plan.len < MAX_RUNS {
            let run = left.min(FORCED_RUN);
            plan.push(cache, at, run, 0);
            at = at.plus(run);
            left -= run;
        }
        plan
    }

    /// One more run, as far as the file goes. Beyond [`MAX_RUNS`] it is left out.
    pub(super) fn push(&mut self, cache: &impl Cached, start: FilePage, pages: u64, ahead: u64) {
        let pages = pages.min(cache.file_pages().saturating_sub(start.0));
        if pages > 0 && self.len < MAX_RUNS {
            self.runs[self.len] = Run {
                start,
                pages,
                ahead,
            };
            self.len += 1;
        }
    }
}
