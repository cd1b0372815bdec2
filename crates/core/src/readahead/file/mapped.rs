//! Faults on mapped files. A fault says less than a read: one page, no length. A miss therefore reads *around* the
//! page, and a file for which this does not help is left alone.

use super::{Ask, Cached, FilePage, OpenFile, Pattern, Plan, Window};

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

impl OpenFile {
    /// A fault on a page that is not cached, in a mapping with the hint `pattern`. The page itself is read whatever the
    /// plan is.
    pub fn on_mapped_miss(
        &mut self,
        cache: &impl Cached,
        page: FilePage,
        pattern: Pattern,
    ) -> Plan {
        let limits = self.limits();
        if limits.max == 0 || pattern == Pattern::Random {
            return Plan::asked(cache, page, 1);
        }
        if pattern == Pattern::Sequential {
            let want = limits.max;
            self.fault();
            return self.miss(cache, Ask { page, want }, &limits);
        }
        self.mapped.misses = (self.mapped.misses + 1).min(MOST_MISSES);
        if self.mapped.misses > MISSES_TO_GIVE_UP {
            return Plan::asked(cache, page, 1);
        }
        let window = around(page, limits.max);
        self.set_window(window);
        Plan::of(cache, window)
    }

    /// A fault on a page that is cached; `marked`: it had a mark, which has been taken off.
    pub fn on_mapped_hit(
        &mut self,
        cache: &impl Cached,
        page: FilePage,
        marked: bool,
        pattern: Pattern,
    ) -> Plan {
        let limits = self.limits();
        if limits.max == 0 || pattern == Pattern::Random {
            return Plan::default();
        }
        self.mapped.misses = self.mapped.misses.saturating_sub(1);
        if !marked {
            return Plan::default();
        }
        let want = limits.max;
        self.fault();
        self.mark(cache, Ask { page, want }, &limits)
    }

    /// The program will need these pages (WILLNEED): all of them, up to what one I/O takes.
    pub fn on_will_need(&self, cache: &impl Cached, page: FilePage, pages: u64) -> Plan {
        Plan::forced(cache, page, pages, &self.limits())
    }
}
