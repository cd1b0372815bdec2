//! Faults on mapped files. A fault says less than a read: one page, no length. A miss therefore reads *around* the
//! page, and a file for which this does not help is left alone.

use super::cache::FilePage;
use super::plan::Window;

/// This many more misses than hits switch reading around off.
pub const MISSES_TO_GIVE_UP: u32 = 100;
/// Misses are not counted further: then this many hits switch it on again.
const MOST_MISSES: u32 = 1000;

/// The state of the faults on one open file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mapped {
    /// Misses minus hits.
    misses: u32,
}

/// A window with `page` in its middle; the mark comes before its last quarter.
fn around(page: FilePage, max: u64) -> Window {
    Window {
        start: FilePage(page.0.saturating_sub(max / 2)),
        size: max,
        ahead: max / 4,
    }
}

impl Mapped {
    /// A fault on `page` found it not cached. Returns the window around it, of `max` pages, while windows help.
    pub fn on_miss(&mut self, page: FilePage, max: u64) -> Option<Window> {
        self.misses = (self.misses + 1).min(MOST_MISSES);
        (self.misses <= MISSES_TO_GIVE_UP).then(|| around(page, max))
    }

    /// A fault found its page cached.
    pub fn on_hit(&mut self) {
        self.misses = self.misses.saturating_sub(1);
    }
}
