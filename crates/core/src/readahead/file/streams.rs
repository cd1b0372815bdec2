//! Foreswap's own file readahead: a state for each of several streams in one open file.
//!
//! Readahead on demand has one window per file. Two programs or threads that read a file through one descriptor take it
//! from each other; only marks and cached pages are then left to guess from. Here every stream has its window, its own
//! position, and its own evidence:
//!
//! - a read that continues where a recent one ended begins a stream
//! - three reads of one size at one distance from each other (a stride, forwards or backwards) begin
//!   a stream of pieces at that distance
//! - a read elsewhere, after streams alone were read for long, is one of them that skips pages: it begins with a window
//!   of an eighth of what was read since the last such read, so that no more than that is read for nothing, and of
//!   half as much each time that it was the beginning of nothing
//! - pages of a stream that were evicted before their use halve its window: it was too large for the
//!   memory
//!
//! Random reads look like streams by chance: the more often, the fewer places a file has and the more recent reads one
//! is compared with. A read is therefore compared with as many as keep that rare. Where many reads lie close together,
//! only the last two may be in step with it.
//!
//! Cached pages before a miss, or a mark of no known stream, may be remains of a stream that is not known: a guess. In
//! a file that is partly in memory, most random misses lie behind cached pages, and most marks are old. A guess is
//! therefore made, as in `linux`, only where there is evidence for it: the first read of a file just opened, a read
//! that continues a recent one, and crowded reads, which need the pages around them. All other reads are read as they
//! are.
//!
//! It never reads more at once than the limit of the file and, of a window in parts (`stream`), one part. Random reads
//! never push a stream out: they are remembered apart.

use super::cache::{Cached, FilePage};
use super::limits::Limits;
use super::ondemand::{context_window, first_window, window_behind};
use super::plan::{Plan, Window};
use super::policy::{Ask, FileReadahead};
use super::stream::{Pages, Pieces, STEP, Shape, away, goes_on};

/// Streams that are told apart.
const STREAMS: usize = 64;
/// Reads of no stream that are remembered.
const RECENT: usize = 64;
/// A stream that was not read for this many reads of the file takes no miss: among so many streams, a random miss would
/// lie behind one of them by chance.
const STALE: u64 = 256;
/// What streams have read, divided by two so many times, is the window after a jump.
const JUMP: u32 = 3;
/// The most that jumps which began nothing divide it further.
const MOST_MISJUDGED: u32 = 16;
/// A stream among `n` that are read in turns, in any order, was read so many times `n` reads ago at most.
const IN_TURN: u64 = 4;
/// A read is compared with so few recent ones that at most one in so many random reads lies beside one of them, or in
/// step with two, by chance.
const COINCIDENCE: u64 = 64;
/// The most reads that are searched for a stride: each pair of them is tested.
const IN_STEP: u64 = 16;
/// A read is near another that lies within this part of the file before or behind it.
const NEAR: u64 = 1024;
/// The number of recent reads to which it may be near, if the file has as many places; one random read in 32 is.
const CROWD: u64 = 16;
/// All reads are near others.
const ALL: u32 = 1 << 16;
/// Reads are crowded when so many of them are near others: eight times as many as by chance.
const CROWDED: u32 = ALL / 4;
/// The weight of one read in the mean of the last ones.
const FADE: u32 = 32;

#[derive(Clone, Copy, Debug)]
struct Stream {
    shape: Shape,
    /// The page of the byte after its last read.
    end: FilePage,
    /// When it was last read, in reads of this file.
    used: u64,
}

/// A read of no stream.
#[derive(Clone, Copy, Debug)]
struct Lone {
    start: FilePage,
    end: FilePage,
}

/// One open file.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    streams: [Option<Stream>; STREAMS],
    lone: [Option<Lone>; RECENT],
    /// Where the next lone read goes.
    turn: usize,
    /// Reads so far.
    reads: u64,
    /// The stream of the current read.
    current: Option<usize>,
    /// How many of the last reads were near an earlier one, of [`ALL`]; reads of streams do not count.
    near: u32,
    /// Pages that streams have advanced by since the last read that belonged to none of them.
    advanced: u64,
    /// The stream that the last jump began, and where its first read ended.
    jump: Option<(usize, FilePage)>,
    /// Jumps in succession that began nothing.
    misjudged: u32,
    /// The current read may belong to a stream that is not known.
    guesses: bool,
}

impl Stream {
    /// It was not read for many reads of the file.
    fn is_stale(&self, reads: u64) -> bool {
        reads - self.used >= STALE
    }

    /// Whether the mark on this page is this stream's, after so many reads of the file. A stale stream has only its
    /// last mark: random reads meet the others by chance.
    fn has_mark(&self, page: FilePage, reads: u64) -> bool {
        let all = !self.is_stale(reads);
        match self.shape {
            Shape::Pages(pages) => pages.has_mark(page, all),
            Shape::Pieces(pieces) => pieces.has_mark(page, all),
        }
    }

    /// Whether a read that begins in this page, after so many reads of the file, belongs to this stream. Several
    /// threads may share a stream of pieces and read them in another order.
    fn takes(&self, page: FilePage, reads: u64) -> bool {
        if self.is_stale(reads) {
            return false;
        }
        match self.shape {
            Shape::Pages(_) => goes_on(self.end, page),
            Shape::Pieces(pieces) => {
                let steps = [-1, 1, 2].map(|n| pieces.stride.saturating_mul(n));
                steps.iter().any(|&by| away(pieces.at, by) == Some(page))
            }
        }
    }
}

/// Places in the file at which a read like this one may be.
fn places(cache: &impl Cached, ask: Ask) -> u64 {
    cache.file_pages() / ask.want.max(1)
}

impl Default for Streams {
    fn default() -> Self {
        Streams {
            streams: [None; STREAMS],
            lone: [None; RECENT],
            turn: 0,
            reads: 0,
            current: None,
            near: 0,
            advanced: 0,
            jump: None,
            misjudged: 0,
            guesses: false,
        }
    }
}

impl Streams {
    /// Streams that are being read. Of `n` streams in turns, each was among the last `n` reads; a stream that has ended
    /// falls behind as soon as the others go on.
    pub(super) fn active(&self) -> u64 {
        let mut ages = [u64::MAX; STREAMS];
        for (age, stream) in ages.iter_mut().zip(self.streams.iter().flatten()) {
            *age = self.reads - stream.used;
        }
        ages.sort_unstable();
        let in_turn = |&(n, age): &(u64, u64)| age < IN_TURN * (n + 1);
        (0..).zip(ages).take_while(in_turn).count() as u64
    }

    fn find(&self, is: impl Fn(&Stream) -> bool) -> Option<usize> {
        self.streams
            .iter()
            .position(|stream| stream.as_ref().is_some_and(&is))
    }

    /// Puts a stream in place `at`, or in the place of the stream that was read least recently.
    fn put(&mut self, at: Option<usize>, shape: Shape, end: FilePage) {
        let oldest = |&at: &usize| self.streams[at].map_or(0, |stream| stream.used + 1);
        let at = at.or_else(|| (0..STREAMS).min_by_key(oldest)).unwrap_or(0);
        self.streams[at] = Some(Stream {
            shape,
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
        self.put(at, Shape::Pages(Pages::of(window)), end);
        Plan::of(cache, window)
    }

    /// The last `most` reads of no stream, newest first.
    fn recent(&self, most: u64) -> impl Iterator<Item = &Lone> {
        let most = most.try_into().unwrap_or(RECENT);
        let (newer, older) = self.lone.split_at(self.turn);
        let order = newer.iter().rev().chain(older.iter().rev());
        order.take(most).flatten()
    }

    /// The distance at which this read and two before it lie, all of the same size.
    fn stride(&self, cache: &impl Cached, ask: Ask) -> Option<i64> {
        // There are half as many pairs as the square of this.
        let most = (places(cache, ask) / COINCIDENCE).isqrt().min(IN_STEP);
        if most < 2 {
            return None;
        }
        // A crowd has few places.
        let most = if self.is_crowded() { 2 } else { most };
        let alike = |lone: &&Lone| lone.end.0.saturating_sub(lone.start.0) == ask.want;
        let before = (0u64..)
            .zip(self.recent(most))
            .filter(|(_, lone)| alike(lone));
        let mut strides = before.filter_map(|(n, lone)| {
            let stride = i64::try_from(ask.page.0).ok()? - i64::try_from(lone.start.0).ok()?;
            let first = away(lone.start, -stride)?;
            (stride.unsigned_abs() >= ask.want).then_some((n, first, stride))
        });
        strides.find_map(|(n, first, stride)| {
            let mut older = self.recent(most).skip(n as usize + 1).filter(alike);
            older.any(|lone| lone.start == first).then_some(stride)
        })
    }

    fn is_crowded(&self) -> bool {
        self.near >= CROWDED
    }

    /// Whether a recent read ended where this one begins.
    fn goes_on_from_recent(&self, cache: &impl Cached, ask: Ask) -> bool {
        let most = (places(cache, ask) / COINCIDENCE).max(1);
        self.recent(most).any(|lone| goes_on(lone.end, ask.page))
    }

    /// The window of a read elsewhere, if it may be the beginning of a stream.
    fn jump_window(&mut self, ask: Ask, max: u64) -> Option<Window> {
        let first = first_window(ask, max);
        let size = (self.advanced >> (JUMP + self.misjudged)).min(max);
        if size < first.size {
            return None;
        }
        if let Some((at, end)) = self.jump {
            let began_nothing = self.streams[at].is_none_or(|stream| stream.end <= end);
            self.misjudged = if began_nothing {
                (self.misjudged + 1).min(MOST_MISJUDGED)
            } else {
                0
            };
        }
        self.jump = None;
        self.advanced = 0;
        Some(Window {
            start: ask.page,
            size,
            ahead: size.saturating_sub(ask.want).max(1),
        })
    }

    /// A miss of stream `at`, which should have had the page.
    fn restart(&mut self, cache: &impl Cached, at: usize, ask: Ask, max: u64) -> Plan {
        let mut plan = Plan::asked(cache, ask.page, ask.want);
        let Some(stream) = self.streams[at] else {
            return plan;
        };
        match stream.shape {
            Shape::Pages(pages) => {
                let first = first_window(ask, max);
                let window = pages.halved(ask, first, max).unwrap_or(first);
                self.read(cache, Some(at), window, stream.end)
            }
            // Evicted, or its mark was not set, as the page was cached.
            Shape::Pieces(pieces) => {
                if let Some(mut pieces) = pieces.again(ask) {
                    pieces.start(cache, max, &mut plan);
                    self.put(Some(at), Shape::Pieces(pieces), ask.page);
                }
                plan
            }
        }
    }
}

impl FileReadahead for Streams {
    /// Each read is examined as it begins, whether or not its pages are cached.
    fn on_approach(&mut self, cache: &impl Cached, ask: Ask, _: &Limits) -> (Plan, FilePage) {
        let known = self
            .find(|stream| stream.takes(ask.page, self.reads))
            .is_some();
        let distance = cache.file_pages() / NEAR;
        let beside = |lone: &Lone| lone.start.0.abs_diff(ask.page.0) <= distance;
        // A stream's reads lie close together, but need no page beside them.
        let most = (places(cache, ask) / COINCIDENCE).clamp(1, CROWD);
        let near = !known && self.recent(most).any(beside);
        self.near = self.near - self.near / FADE + u32::from(near) * (ALL / FADE);
        let lost = || self.reads == 0 || self.goes_on_from_recent(cache, ask);
        self.guesses = self.is_crowded() || !known && lost();
        (Plan::default(), ask.page.plus(ask.want))
    }

    fn on_miss(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> Plan {
        let max = limits.lifted(ask.want);
        let end = ask.page;
        let own = |stream: &Stream| match stream.shape {
            Shape::Pages(_) => stream.takes(ask.page, self.reads),
            Shape::Pieces(pieces) => {
                pieces.length == ask.want && stream.takes(ask.page, self.reads)
            }
        };
        if let Some(at) = self.find(own) {
            return self.restart(cache, at, ask, max);
        }
        let begins = ask.page.0 == 0 || ask.want > max;
        if begins || self.goes_on_from_recent(cache, ask) {
            return self.read(cache, None, first_window(ask, max), end);
        }
        if let Some(window) = self.jump_window(ask, max) {
            let plan = self.read(cache, None, window, end);
            self.jump = self.current.map(|at| (at, ask.page.plus(ask.want)));
            return plan;
        }
        if self.guesses
            && let Some(window) = context_window(cache, ask, max)
        {
            return self.read(cache, None, window, end);
        }
        let mut plan = Plan::asked(cache, ask.page, ask.want);
        let Some(stride) = self.stride(cache, ask) else {
            return plan;
        };
        let Some(mut pieces) = Pieces::begin(ask, stride) else {
            return plan;
        };
        // A stream that was lost and has been found again.
        let same =
            |stream: &Stream| matches!(stream.shape, Shape::Pieces(old) if old.stride == stride);
        let at = self.find(same);
        pieces.start(cache, max, &mut plan);
        self.put(at, Shape::Pieces(pieces), end);
        plan
    }

    fn on_mark(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> Plan {
        let max = limits.lifted(ask.want);
        let found = self.find(|stream| stream.has_mark(ask.page, self.reads));
        let Some((at, mut stream)) = found.and_then(|at| Some((at, self.streams[at]?))) else {
            if !self.guesses {
                return Plan::default();
            }
            return match window_behind(cache, ask, max, STEP) {
                Some(window) => self.read(cache, None, window, ask.page),
                None => Plan::default(),
            };
        };
        let plan = match &mut stream.shape {
            Shape::Pages(pages) => pages.on_mark(cache, ask, limits),
            Shape::Pieces(pieces) => pieces.on_mark(cache, ask.page, max),
        };
        self.put(Some(at), stream.shape, stream.end);
        plan
    }

    /// Pages read around another fault are a guess already; its mark shows that it was right.
    fn on_fault(&mut self) {
        self.guesses = true;
    }

    fn on_end(&mut self, first: FilePage, end: u64) {
        let end = FilePage::of(end);
        self.reads += 1;
        let at = self.current.take();
        let at = at.or_else(|| self.find(|stream| stream.takes(first, self.reads)));
        if let Some(stream) = at.and_then(|at| self.streams[at].as_mut()) {
            let by = match stream.shape {
                Shape::Pages(_) => end.0.saturating_sub(stream.end.0),
                Shape::Pieces(pieces) => pieces.length,
            };
            self.advanced = self.advanced.saturating_add(by);
            stream.end = end;
            stream.used = self.reads;
            match &mut stream.shape {
                Shape::Pages(_) => return,
                Shape::Pieces(pieces) => pieces.on_end(first),
            }
            // Each piece may begin a stream of its own.
        } else {
            self.advanced = 0;
        }
        self.lone[self.turn] = Some(Lone { start: first, end });
        self.turn = (self.turn + 1) % RECENT;
    }
}
