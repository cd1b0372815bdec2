//! Foreswap's own file readahead: a state for each of several streams in one open file.
//!
//! Readahead on demand has one window a file, so two programs or threads that read a file through
//! one descriptor take it from each other; what is left then is to guess from marks and cached pages.
//! Here every stream has its window, its own place where it goes on, and its own evidence:
//!
//! - a read that goes on where a recent one ended begins a stream
//! - three reads of one size at one distance from each other (a stride, forwards or backwards) begin
//!   a stream of pieces at that distance
//! - pages of a stream that were evicted before their use halve its window: it was too large for the
//!   memory left
//!
//! What is no stream is decided as by `linux`. It never reads more at once than the limit of the
//! file, and random reads never push a stream out: they are remembered apart.

use super::limits::next_size;
use super::ondemand::{context_window, cut, first_window, window_behind};
use super::{Ask, Cached, FilePage, FileReadahead, Limits, MAX_RUNS, Plan, Window};

/// Streams that are told apart.
const STREAMS: usize = 8;
/// Reads that were no stream's and are remembered.
const RECENT: usize = 16;
/// Windows end at a multiple of this many pages.
const STEP: u64 = 4;

/// Pieces of `length` pages, each `stride` pages from the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pieces {
    stride: i64,
    length: u64,
    /// The first piece that is not read yet.
    next: FilePage,
    /// Pieces of the last window.
    count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    /// One page after the other.
    Pages(Window),
    Pieces(Pieces),
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    shape: Shape,
    /// The page whose touch moves it on.
    mark: FilePage,
    /// The page of the byte after its last read.
    end: FilePage,
    /// When it was last read, in reads of this file.
    used: u64,
}

/// A read that was no stream's.
#[derive(Clone, Copy, Debug)]
struct Lone {
    start: FilePage,
    end: FilePage,
}

/// One open file.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    streams: [Option<Stream>; STREAMS],
    lone: [Option<Lone>; RECENT],
    /// Where the next lone read goes.
    turn: usize,
    /// Reads so far.
    reads: u64,
    /// The stream that the read at hand belongs to.
    current: Option<usize>,
}

/// `page` is the one where something ended, or the next.
fn goes_on(end: FilePage, page: FilePage) -> bool {
    page == end || page == end.plus(1)
}

fn away(page: FilePage, by: i64) -> Option<FilePage> {
    page.0.checked_add_signed(by).map(FilePage)
}

impl Streams {
    fn lone(&self) -> impl Iterator<Item = &Lone> {
        self.lone.iter().flatten()
    }

    fn find(&self, is: impl Fn(&Stream) -> bool) -> Option<usize> {
        self.streams
            .iter()
            .position(|stream| stream.as_ref().is_some_and(&is))
    }

    /// Puts a stream in place `at`, or in the place of the one that was not read for longest.
    fn put(&mut self, at: Option<usize>, shape: Shape, mark: FilePage, end: FilePage) {
        let oldest = |&at: &usize| self.streams[at].map_or(0, |stream| stream.used + 1);
        let at = at.or_else(|| (0..STREAMS).min_by_key(oldest)).unwrap_or(0);
        self.streams[at] = Some(Stream {
            shape,
            mark,
            end,
            used: self.reads,
        });
        self.current = Some(at);
    }

    fn read(
        &mut self,
        cache: &impl Cached,
        at: Option<usize>,
        window: Window,
        end: FilePage,
    ) -> Plan {
        self.put(at, Shape::Pages(window), window.mark(), end);
        Plan::of(cache, window)
    }

    /// The distance at which this read and two before it lie, all of the same size.
    fn stride(&self, ask: Ask) -> Option<i64> {
        let start_at = |page: FilePage| {
            let alike =
                |lone: &&Lone| lone.start == page && lone.end.0.saturating_sub(page.0) == ask.want;
            self.lone().any(|lone| alike(&lone))
        };
        self.lone().find_map(|lone| {
            let stride = i64::try_from(ask.page.0).ok()? - i64::try_from(lone.start.0).ok()?;
            let apart = stride.unsigned_abs() >= ask.want;
            let before = away(lone.start, -stride)?;
            (apart && start_at(lone.start) && start_at(before)).then_some(stride)
        })
    }

    /// Reads `count` pieces from `pieces.next` on, after `plan`. The first carries the mark.
    fn read_pieces(
        &mut self,
        cache: &impl Cached,
        mut plan: Plan,
        at: Option<usize>,
        mut pieces: Pieces,
        (max, end): (u64, FilePage),
    ) -> Plan {
        let room = (MAX_RUNS - plan.runs().len()) as u64;
        let most = (max / pieces.length.max(1)).min(room).max(1);
        pieces.count = pieces.count.min(most);
        let mark = pieces.next;
        for n in 0..pieces.count {
            let ahead = if n == 0 { pieces.length } else { 0 };
            plan.push(cache, pieces.next, pieces.length, ahead);
            match away(pieces.next, pieces.stride) {
                Some(next) => pieces.next = next,
                // Before the start of the file: the stream ends here.
                None => {
                    pieces.next = FilePage(cache.file_pages());
                    break;
                }
            }
        }
        self.put(at, Shape::Pieces(pieces), mark, end);
        plan
    }

    /// A miss of stream `at`, which should have had the page.
    fn restart(&mut self, cache: &impl Cached, at: usize, ask: Ask, max: u64) -> Plan {
        let Some(stream) = self.streams[at] else {
            return Plan::asked(cache, ask.page, ask.want);
        };
        let first = first_window(ask, max);
        let window = match stream.shape {
            // Evicted before its use.
            Shape::Pages(window) if ask.page >= window.start && ask.page < window.end() => {
                let size = (window.size / 2).clamp(first.size.min(max), max);
                let rest = size.saturating_sub(ask.want);
                Window {
                    start: ask.page,
                    size,
                    ahead: if rest == 0 { size / 2 } else { rest },
                }
            }
            _ => first,
        };
        self.read(cache, Some(at), window, stream.end)
    }
}

impl FileReadahead for Streams {
    fn on_miss(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> Plan {
        let max = limits.lifted(ask.want);
        let end = ask.page;
        let linear = |stream: &Stream| {
            matches!(stream.shape, Shape::Pages(_)) && goes_on(stream.end, ask.page)
        };
        if let Some(at) = self.find(linear) {
            return self.restart(cache, at, ask, max);
        }
        let begins = ask.page.0 == 0 || ask.want > max;
        if begins || self.lone().any(|lone| goes_on(lone.end, ask.page)) {
            return self.read(cache, None, first_window(ask, max), end);
        }
        if let Some(window) = context_window(cache, ask, max) {
            return self.read(cache, None, window, end);
        }
        let plan = Plan::asked(cache, ask.page, ask.want);
        let Some(stride) = self.stride(ask) else {
            return plan;
        };
        let Some(next) = away(ask.page, stride) else {
            return plan;
        };
        let pieces = Pieces {
            stride,
            length: ask.want,
            next,
            count: 2,
        };
        // Pieces of it may have been evicted before their use.
        let same =
            |stream: &Stream| matches!(stream.shape, Shape::Pieces(old) if old.stride == stride);
        let at = self.find(same);
        self.read_pieces(cache, plan, at, pieces, (max, end))
    }

    fn on_mark(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> Plan {
        let max = limits.lifted(ask.want);
        let Some(at) = self.find(|stream| stream.mark == ask.page) else {
            return match window_behind(cache, ask, max, STEP) {
                Some(window) => self.read(cache, None, window, ask.page),
                None => Plan::default(),
            };
        };
        let Some(stream) = self.streams[at] else {
            return Plan::default();
        };
        match stream.shape {
            Shape::Pages(window) => {
                // A window that a large request lifted stays as large, while the limits allow it.
                let kept = window.size.min(limits.max.max(limits.device));
                let size = next_size(window.size, max).max(kept);
                let next = cut(window.end(), size, max, STEP);
                self.read(cache, Some(at), next, stream.end)
            }
            Shape::Pieces(mut pieces) => {
                pieces.count = pieces.count.saturating_mul(2);
                let plan = Plan::default();
                self.read_pieces(cache, plan, Some(at), pieces, (max, stream.end))
            }
        }
    }

    fn on_end(&mut self, first: FilePage, end: u64) {
        let end = FilePage::of(end);
        self.reads += 1;
        let at = self.current.take();
        let at = at.or_else(|| self.find(|stream| goes_on(stream.end, first)));
        if let Some(stream) = at.and_then(|at| self.streams[at].as_mut()) {
            stream.end = end;
            stream.used = self.reads;
            return;
        }
        self.lone[self.turn] = Some(Lone { start: first, end });
        self.turn = (self.turn + 1) % RECENT;
    }
}
