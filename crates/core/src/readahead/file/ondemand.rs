//! Readahead on demand (seed 004): one window per file. It acts only where a read misses a page or meets a mark.
//!
//! A miss at the start of the file, next to the previous read, or of more pages than the limit begins a window. The
//! mark of that window moves it on, one window at a time, larger each time. A mark of another window, left by another
//! stream, begins a window behind the pages that are cached there. Any other read is random: it is read as it is, and
//! the window stays.
//!
//! There are two variants. The seed's is described above. Linux 6.18 decides on two points more: a miss behind cached
//! pages is taken for a stream whose state was lost (*context*), and a window that a mark started ends at a multiple of
//! a few pages.

use super::cache::{Cached, FilePage};
use super::limits::{Limits, first_size, next_size};
use super::plan::{Plan, Window};
use super::policy::{Ask, FileReadahead};

/// A window started by a mark ends at a multiple of this many pages, as recorded from Linux 6.18.
const LINUX_STEP: u64 = 4;

/// One open file under readahead on demand.
#[derive(Clone, Copy, Debug)]
pub struct OnDemand {
    /// The last window.
    window: Window,
    /// The page of the byte after the previous read; `None` before the first.
    previous: Option<FilePage>,
    /// Whether cached pages before a miss count as those of a stream.
    context: bool,
    /// Windows that a mark started end at a multiple of this many pages. A power of two.
    step: u64,
}

impl OnDemand {
    /// As in seed 004.
    pub fn of_the_seed() -> Self {
        OnDemand {
            window: Window::default(),
            previous: None,
            context: false,
            step: 1,
        }
    }

    /// As in Linux 6.18.
    pub fn of_linux() -> Self {
        OnDemand {
            context: true,
            step: LINUX_STEP,
            ..OnDemand::of_the_seed()
        }
    }

    /// The last window.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Continues from this window.
    pub fn set_window(&mut self, window: Window) {
        self.window = window;
    }

    fn read(&mut self, cache: &impl Cached, window: Window) -> Plan {
        self.window = window;
        Plan::of(cache, window)
    }

    /// A miss is in the page where the previous read ended, or in the next.
    fn goes_on(&self, page: FilePage) -> bool {
        let after = |previous: FilePage| page.0.checked_sub(previous.0);
        matches!(self.previous.and_then(after), Some(0 | 1))
    }
}

/// The window that a sequential miss begins. The mark is right behind the request, or in the middle if the request
/// covers all of it.
pub(super) fn first_window(ask: Ask, max: u64) -> Window {
    let size = first_size(ask.want, max);
    let ahead = match size.saturating_sub(ask.want) {
        0 => size / 2,
        rest => rest,
    };
    Window {
        start: ask.page,
        size,
        ahead,
    }
}

/// A window for a miss behind cached pages; `None` if they are too few for a stream.
///
/// Of `max` pages that are all cached Linux 6.18 counts one less, as recorded: only a request of `max - 1` pages can
/// tell.
pub(super) fn context_window(cache: &impl Cached, ask: Ask, max: u64) -> Option<Window> {
    let before = cache.run_before(ask.page, max);
    let run = before.min(max.saturating_sub(1));
    if run <= ask.want {
        return None;
    }
    let from_the_start = before == ask.page.0 && before < max;
    let history = if from_the_start { 2 * run } else { run };
    Some(Window {
        start: ask.page,
        size: history.saturating_add(ask.want).min(max),
        ahead: 1,
    })
}

/// `window`, begun by a mark, cut to end at a multiple of `step` pages, or of the largest power of two that divides
/// `max` if that is less; not if nothing would be left. The mark is its first page.
pub(super) fn cut(start: FilePage, size: u64, max: u64, step: u64) -> Window {
    let divides = 1 << max.trailing_zeros().min(63);
    let step = step.min(divides);
    let end = start.0.saturating_add(size);
    let cut = end / step * step;
    let size = if cut > start.0 { cut - start.0 } else { size };
    Window {
        start,
        size,
        ahead: size,
    }
}

/// The window behind the pages that are cached from a mark on, for a mark that is not of the current window; `None` if
/// they extend to the limit.
pub(super) fn window_behind(cache: &impl Cached, ask: Ask, max: u64, step: u64) -> Option<Window> {
    let start = cache.first_absent(ask.page.plus(1), max)?;
    let known = (start.0 - ask.page.0).saturating_add(ask.want);
    Some(cut(start, next_size(known, max), max, step))
}

impl FileReadahead for OnDemand {
    fn on_miss(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> Plan {
        let max = limits.lifted(ask.want);
        if ask.page.0 == 0 || ask.want > max || self.goes_on(ask.page) {
            return self.read(cache, first_window(ask, max));
        }
        let context = self.context.then(|| context_window(cache, ask, max));
        match context.flatten() {
            Some(window) => self.read(cache, window),
            None => Plan::asked(cache, ask.page, ask.want),
        }
    }

    fn on_mark(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> Plan {
        let max = limits.lifted(ask.want);
        let window = if ask.page == self.window.mark() {
            let size = next_size(self.window.size, max).max(self.window.size);
            Some(cut(self.window.end(), size, max, self.step))
        } else {
            window_behind(cache, ask, max, self.step)
        };
        window.map_or_else(Plan::default, |window| self.read(cache, window))
    }

    fn on_end(&mut self, _first: FilePage, end: u64) {
        self.previous = Some(FilePage::of(end));
    }
}
