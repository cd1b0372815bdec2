//! One read through the page cache: the pages that it looks up, its misses, and the marks that it meets. The same for
//! all policies.

use super::cache::FilePage;
use super::policy::{Ask, PageCache};
use crate::units::PAGE_SIZE;

/// The next event of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// It reaches a page at which the policy wants to be called.
    Approach(Ask),
    /// The page is not cached.
    Miss(Ask),
    /// The page is cached and had a mark.
    Mark(Ask),
    /// The page can be used as soon as it is read; if it is still absent, it is read alone.
    Use(FilePage),
    /// The read is over.
    End {
        /// The page that it began in.
        first: FilePage,
        /// The byte after the last one read.
        end: u64,
    },
}

/// Progress at the current page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Arrived,
    Approached,
    Missed,
    Marked,
}

/// One read.
#[derive(Clone, Debug)]
pub struct Reading {
    first: FilePage,
    /// The current page.
    at: FilePage,
    stage: Stage,
    /// Where the policy is called before the page is looked up.
    approach: FilePage,
    /// The page after the last that can be read.
    stop: FilePage,
    /// The page after the last that the program asked for.
    wanted: FilePage,
    /// The byte after the last that can be read.
    end: u64,
    over: bool,
}

impl Reading {
    /// A read of `bytes` bytes from `offset` on, in a file of `file_bytes` bytes.
    pub(super) fn new(offset: u64, bytes: u64, file_bytes: u64) -> Self {
        let wanted = offset.saturating_add(bytes);
        let end = wanted.min(file_bytes);
        let first = FilePage::of(offset);
        let page_after = |byte: u64| FilePage(byte.div_ceil(PAGE_SIZE as u64));
        Reading {
            first,
            at: first,
            stage: Stage::Arrived,
            approach: first,
            stop: page_after(end),
            wanted: page_after(wanted),
            end,
            // Nothing is read, so nothing is remembered.
            over: end <= offset,
        }
    }

    /// Sets where the policy is called next.
    pub(super) fn approach_at(&mut self, page: FilePage) {
        self.approach = page;
    }

    /// The next event; `None` when the read is over. The caller answers a miss before it asks again.
    pub fn next(&mut self, cache: &mut impl PageCache) -> Option<Event> {
        if self.over {
            return None;
        }
        if self.at >= self.stop {
            self.over = true;
            return Some(Event::End {
                first: self.first,
                end: self.end,
            });
        }
        let page = self.at;
        let ask = Ask {
            page,
            want: self.wanted.0 - page.0,
        };
        if self.stage == Stage::Arrived {
            self.stage = Stage::Approached;
            if page == self.approach {
                return Some(Event::Approach(ask));
            }
        }
        if self.stage == Stage::Approached && !cache.has(page) {
            self.stage = Stage::Missed;
            return Some(Event::Miss(ask));
        }
        // A read that has just been started may have put its mark on the very page.
        if self.stage != Stage::Marked && cache.has(page) && cache.take_mark(page) {
            self.stage = Stage::Marked;
            return Some(Event::Mark(ask));
        }
        self.at = page.plus(1);
        self.stage = Stage::Arrived;
        Some(Event::Use(page))
    }
}
