//! One stream of a file: where the program is, how far it is read ahead, and what is read next.
//!
//! What is ahead of the program is kept at the size of the window: the window is read in parts, each with a mark on its
//! first page, and the touch of any mark reads as much as the program has used since. A window that is read at once
//! when the program reaches its beginning leaves the store idle between two windows, unless it is twice as large; and
//! all of it is lost where the stream ends. A window of few pages is one part, since small reads cost more than they
//! save.

use super::cache::{Cached, FilePage};
use super::limits::{Limits, next_size};
use super::ondemand::cut;
use super::plan::{Plan, Run, Series, Window};
use super::policy::Ask;

/// Windows end at a multiple of this many pages.
pub(super) const STEP: u64 = 4;
/// The most parts of a window.
const PARTS: u64 = 8;
/// The least pages of a part of consecutive pages: 256 KiB.
const PART: u64 = 64;
/// Windows of fewer pieces are one part.
const FEW: u64 = 4 * PARTS;
/// Pieces with which a stream of them begins.
const FIRST_PIECES: u64 = 2;

/// The page `by` pages away; `None` before the start of the file.
pub(super) fn away(page: FilePage, by: i64) -> Option<FilePage> {
    page.0.checked_add_signed(by).map(FilePage)
}

/// Whether `page` is the page where something ended, or the next.
pub(super) fn goes_on(end: FilePage, page: FilePage) -> bool {
    page == end || page == end.plus(1)
}

/// One page after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pages {
    /// The page of the mark that was met last, or the first of the window.
    from: FilePage,
    /// A mark from here on lets the window grow: the program has used all that was ahead of it at the last growth.
    grows: FilePage,
    /// The page of the last mark, which moves the stream on, however much is ahead of it.
    last: FilePage,
    /// The first page that is not read yet.
    next: FilePage,
    /// The pages to keep ahead.
    size: u64,
}

/// Pieces of `length` pages, each `stride` pages from the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pieces {
    pub stride: i64,
    pub length: u64,
    /// The piece that the program read last.
    pub at: FilePage,
    /// As of [`Pages`].
    grows: FilePage,
    last: FilePage,
    /// The first piece that is not read yet; `None` if it would lie before the file.
    next: Option<FilePage>,
    /// The pieces to keep ahead.
    count: u64,
}

/// The order of a stream's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    Pages(Pages),
    Pieces(Pieces),
}

impl Pages {
    /// The window with which a stream begins, or begins anew. It is one part.
    pub fn of(window: Window) -> Self {
        Pages {
            from: window.start,
            grows: window.mark(),
            last: window.mark(),
            next: window.end(),
            size: window.size,
        }
    }

    fn parts(&self) -> u64 {
        (self.size / PART).clamp(1, PARTS)
    }

    /// Whether the mark on this page is the stream's last one, or any of them (`all`).
    pub fn has_mark(&self, page: FilePage, all: bool) -> bool {
        page == self.last || all && page >= self.from && page < self.last && self.parts() > 1
    }

    /// A page of the window is missing: it was evicted before its use. Half of the window, but not less than `first`.
    pub fn halved(&self, ask: Ask, first: Window, max: u64) -> Option<Window> {
        if ask.page < self.from || ask.page >= self.next {
            return None;
        }
        let size = (self.size / 2).clamp(first.size.min(max), max);
        let rest = size.saturating_sub(ask.want);
        Some(Window {
            start: ask.page,
            size,
            ahead: if rest == 0 { size / 2 } else { rest },
        })
    }

    /// The mark is met. Returns the reads with which the window is full again.
    pub fn on_mark(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> Plan {
        let max = limits.lifted(ask.want);
        // A window that a large request lifted stays as large, while the limits allow it.
        let kept = self.size.min(limits.max.max(limits.device));
        self.from = ask.page;
        if ask.page >= self.grows {
            self.size = next_size(self.size, max).max(kept);
            self.grows = self.next;
        } else {
            self.size = kept;
        }
        let parts = self.parts();
        if parts == 1 {
            let window = cut(self.next, self.size, max, STEP);
            (self.last, self.next) = (window.start, window.end());
            return Plan::of(cache, window);
        }
        let part = self.size / parts;
        // What the program has asked for is not ahead of it.
        let asked = ask.page.plus(ask.want.min(self.size));
        let ahead = self.next.0.saturating_sub(asked.0);
        let missing = self.size.saturating_add(part).saturating_sub(ahead);
        if missing < part / 2 && ask.page < self.last {
            return Plan::default();
        }
        let missing = missing.max(part / 2);
        let count = (missing / part).max(1);
        let part = missing / count / STEP * STEP;
        let series = Series {
            run: Run {
                start: self.next,
                pages: part,
                ahead: part,
            },
            stride: i64::try_from(part).unwrap_or(i64::MAX),
            count,
            marked: 1,
        };
        self.last = self.next.plus((count - 1).saturating_mul(part));
        self.next = self.last.plus(part);
        let mut plan = Plan::default();
        plan.push_series(cache, series);
        plan
    }
}

impl Pieces {
    /// The first pieces of a stream, behind the one in `ask`; `None` if they would lie outside of the file.
    pub fn begin(ask: Ask, stride: i64) -> Option<Self> {
        let next = away(ask.page, stride)?;
        Some(Pieces {
            stride,
            length: ask.want,
            at: ask.page,
            grows: next,
            last: next,
            next: Some(next),
            count: FIRST_PIECES,
        })
    }

    /// The same stream, lost and found again at this piece: half as far ahead.
    pub fn again(self, ask: Ask) -> Option<Self> {
        Some(Pieces {
            count: (self.count / 2).max(FIRST_PIECES),
            ..Pieces::begin(ask, self.stride)?
        })
    }

    /// Pieces from one page to another.
    fn between(&self, from: FilePage, to: FilePage) -> Option<i64> {
        let pages = i128::from(to.0) - i128::from(from.0);
        let stride = i128::from(self.stride);
        (pages % stride == 0).then(|| i64::try_from(pages / stride).ok())?
    }

    /// Whether the mark on this page is the stream's last one, or any of them (`all`).
    pub fn has_mark(&self, page: FilePage, all: bool) -> bool {
        let ahead = self.next.and_then(|next| self.between(page, next));
        let near =
            ahead.is_some_and(|pieces| pieces > 0 && pieces.unsigned_abs() / 2 <= self.count);
        page == self.last || all && near && self.part() < self.count
    }

    /// A read of the piece `first` has ended.
    pub fn on_end(&mut self, first: FilePage) {
        if away(first, self.stride) != Some(self.at) {
            self.at = first;
        }
        // Cached pages take no mark, so the program may be further than was read ahead.
        if self.next == Some(first) {
            self.next = away(first, self.stride);
        }
    }

    /// The mark on the piece is met. Returns the reads with which the window is full again.
    pub fn on_mark(&mut self, cache: &impl Cached, page: FilePage, max: u64) -> Plan {
        let mut plan = Plan::default();
        let Some(next) = self.next else { return plan };
        let reaches = |mark| self.between(mark, page).is_none_or(|pieces| pieces >= 0);
        let is_last = reaches(self.last);
        if reaches(self.grows) {
            self.count = self.count.saturating_mul(2);
            self.grows = next;
        }
        self.bound(max);
        let ahead = self.between(page, next).unwrap_or(0);
        let ahead = u64::try_from(ahead).unwrap_or(0);
        let full = self.count.saturating_add(self.part());
        let missing = full.saturating_sub(ahead);
        self.extend(cache, missing, is_last, &mut plan);
        plan
    }

    /// The first reads of the stream, or the first after a loss.
    pub fn start(&mut self, cache: &impl Cached, max: u64, plan: &mut Plan) {
        self.bound(max);
        self.extend(cache, self.count, true, plan);
    }

    fn bound(&mut self, max: u64) {
        let most = max / self.length.max(1);
        // Twice a window of one part may be ahead.
        let most = if most < FEW { most / 2 } else { most };
        self.count = self.count.min(most).max(1);
    }

    fn part(&self) -> u64 {
        match self.count {
            few if few < FEW => few,
            count => count / PARTS,
        }
    }

    /// Reads so many pieces more, in whole parts. `moves`: one part at least.
    fn extend(&mut self, cache: &impl Cached, pieces: u64, moves: bool, plan: &mut Plan) {
        let mut part = self.part();
        let mut parts = (pieces / part).max(u64::from(moves));
        let Some(next) = self.next.filter(|_| parts > 0) else {
            return;
        };
        if self.goes_back_over_all() {
            // The last parts before the start of the file are one, or what is left of them would not be read.
            let left = next.0 / self.length + 1;
            if part.saturating_mul(parts) >= left {
                (part, parts) = (left, 1);
            }
        }
        plan.push_series(cache, self.series(next, part, parts));
        let at = |pieces: u64| {
            let by = i64::try_from(pieces).ok()?.checked_mul(self.stride)?;
            away(next, by)
        };
        (self.last, self.next) = (
            at(part.saturating_mul(parts - 1)).unwrap_or(self.last),
            at(part.saturating_mul(parts)),
        );
    }

    /// Whether its pieces lie one behind the other, towards the start of the file.
    fn goes_back_over_all(&self) -> bool {
        self.stride.checked_neg() == i64::try_from(self.length).ok()
    }

    /// So many parts from `next` on, each with a mark on its first piece. Pieces that touch are read together.
    fn series(&self, next: FilePage, part: u64, parts: u64) -> Series {
        let piece = Run {
            start: next,
            pages: self.length,
            ahead: self.length,
        };
        if !self.goes_back_over_all() {
            return Series {
                run: piece,
                stride: self.stride,
                count: part.saturating_mul(parts),
                marked: part,
            };
        }
        // Towards the start of the file: the first piece is the last of its run.
        let pages = part.min(next.0 / self.length + 1) * self.length;
        Series {
            run: Run {
                start: FilePage(next.0 + self.length - pages),
                pages,
                ..piece
            },
            stride: 0i64.saturating_sub_unsigned(pages),
            count: parts,
            marked: 1,
        }
    }
}
