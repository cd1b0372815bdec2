//! The file readahead of Linux 2.6.20, with which seed 004 compares: a current and an ahead window.
//!
//! The policy sees every read, cached or not. A read that continues where the last one ended is sequential. When it
//! reaches the ahead window, that becomes the current one, and the next ahead window is read. Any other read closes
//! both. If 256 pages in a row were cached already, the file counts as cached and readahead stops until a page is
//! missing.
//!
//! It never turns back: a page that was evicted before its use lies in a finished window. It is read alone, and the
//! next window is 2 pages smaller. This is the defect that the seed measures as thrashing.

use super::cache::{Cached, FilePage};
use super::limits::{Limits, first_size};
use super::plan::{Plan, Window};
use super::policy::{Ask, FileReadahead};

/// Pages found cached in a row after which the file counts as cached.
const CACHED_AFTER: u64 = 256;
/// Misses do not make a window smaller than this, in pages: 16 KiB.
const SMALLEST: u64 = 4;
/// A window loses this many pages when pages of it were missing.
const MISS_COSTS: u64 = 2;

/// One open file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Legacy {
    /// The window that the program is reading; empty when readahead is off.
    current: Window,
    /// The window after it; empty when there is none.
    ahead: Window,
    /// The last page that was seen; `None` before the first.
    last: Option<FilePage>,
    /// Pages in a row that were cached when their window was read.
    cached: u64,
    /// The file counts as cached.
    all_cached: bool,
    /// A page was missing since the last window.
    missed: bool,
}

fn window(start: FilePage, size: u64) -> Window {
    Window {
        start,
        size,
        ahead: 0,
    }
}

impl Legacy {
    /// Reads a window and counts its cached pages. Returns whether readahead is still on.
    fn read(&mut self, cache: &impl Cached, plan: &mut Plan, window: Window) -> bool {
        plan.push(cache, window.start, window.size, 0);
        let end = window.end().0.min(cache.file_pages());
        if (window.start.0..end).any(|page| !cache.has(FilePage(page))) {
            self.cached = 0;
            return true;
        }
        self.cached = self.cached.saturating_add(window.size);
        if self.cached < CACHED_AFTER {
            return true;
        }
        self.close();
        self.all_cached = true;
        false
    }

    fn close(&mut self) {
        self.current = Window::default();
        self.ahead = Window::default();
        self.missed = false;
        self.all_cached = false;
    }

    fn next_size(&mut self, max: u64) -> u64 {
        let size = self.current.size;
        let next = if core::mem::take(&mut self.missed) {
            size.saturating_sub(MISS_COSTS).max(SMALLEST)
        } else if size < max / 16 {
            size * 4
        } else {
            size * 2
        };
        next.min(max)
    }

    /// Reads the window after the current one. Returns whether readahead is still on.
    fn read_ahead(&mut self, cache: &impl Cached, plan: &mut Plan, max: u64) -> bool {
        let size = self.next_size(max);
        self.ahead = window(self.current.end(), size);
        self.read(cache, plan, self.ahead)
    }
}

impl FileReadahead for Legacy {
    fn on_approach(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> (Plan, FilePage) {
        let mut plan = Plan::default();
        let mut want = ask.want;
        let mut page = ask.page;
        // The rest of a page that was seen already.
        if self.last == Some(page) {
            want -= 1;
            if want > 0 {
                page = page.plus(1);
            }
        }
        let sequential = page == self.last.map_or(FilePage(0), |last| last.plus(1));
        let max = limits.max;
        let size = want.min(max);
        if size == 0 || self.all_cached {
            self.last = Some(page);
            return (plan, page.plus(1));
        }
        let mut last = page.plus(size - 1);
        if !sequential {
            self.close();
            self.read(cache, &mut plan, window(page, size));
        } else if self.current.size == 0 {
            self.current = window(page, first_size(size, max));
            // All of the request will be needed, so both windows are.
            if self.read(cache, &mut plan, self.current) && want >= max {
                self.read_ahead(cache, &mut plan, max);
            }
        } else {
            let on = self.ahead.size > 0 || self.read_ahead(cache, &mut plan, max);
            if on && last >= self.ahead.start {
                self.current = self.ahead;
                self.read_ahead(cache, &mut plan, max);
            }
            // It is called again in the window that is not read yet.
            if self.ahead.size > 0 {
                last = last.min(FilePage(self.ahead.end().0 - 1)).max(page);
            }
        }
        self.last = Some(last);
        (plan, last.plus(1))
    }

    fn on_miss(&mut self, cache: &impl Cached, ask: Ask, _limits: &Limits) -> Plan {
        self.missed = true;
        self.all_cached = false;
        self.cached = 0;
        Plan::asked(cache, ask.page, 1)
    }

    /// It leaves no marks; marks of another policy, from before it was chosen, mean nothing to it.
    fn on_mark(&mut self, _cache: &impl Cached, _ask: Ask, _limits: &Limits) -> Plan {
        Plan::default()
    }

    fn on_end(&mut self, _first: FilePage, _end: u64) {}
}
