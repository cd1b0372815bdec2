//! foreswap's own swap readahead: streams, read ahead of the program continuously.
//!
//! A *stream* is a run of touches at a fixed stride (1 for a scan, -1 for a reverse one, 7 for every seventh page; streams
//! side by side are one that takes rows of pages at that stride). It is found among the last touches of a region, whatever
//! other touches lie between them. A random neighbour therefore disturbs nothing, and interleaved scans are told apart.
//! The distance of readahead grows with the run: as far as the bandwidth and the latency of its store require
//! ([`crate::io::pipe`]), within the memory that is available.
//!
//! On a confirmed run pages are mapped before they are touched, all except one in each block of 16 to 256: the *mark*,
//! at a place that the program cannot know. Its touch shows the program's progress, which starts the next reads and
//! mappings. It also shows whether pages are used: the hits of the pages around it are estimated from the marks. A
//! confirmed stream thus costs one fault per block.
//!
//! Touches that belong to no stream are answered as `vma` does.

use alloc::vec::Vec;

use super::grid::Grid;
use super::recent::Recent;
pub use super::run::Run;
use super::stream::{ASLEEP, BLOCK, PROVEN, Stream};
use super::stride_probe::{StrideProbe, WIDE};
use crate::heuristics::{Heuristic, Heuristics};
use crate::reclaim::drop_behind::Bounds;
use crate::units::{LEAF_PAGES, Nanos, PageRange, Vpn};
use crate::world::StoreId;

/// The fewest pages that a stream may read ahead, however many streams there are.
const LEAST: u64 = 16;
/// The shortest time per page that is assumed, whatever was measured.
const FASTEST: Nanos = 200;
/// Streams that are followed at a time.
const STREAMS: usize = 64;
/// Consecutive marks that may be left out.
const DOUBTS: u32 = 2;
/// Measure of a stream that takes every page.
const FULL: u64 = 64;
/// A proven stream is not replaced before this part of the memory for readahead was evicted since its last touch.
const REPLACED_PART: u64 = 2;

/// Identifies a stream; a later stream may take its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamId(usize);

#[cfg(test)]
impl StreamId {
    pub const fn of(n: usize) -> Self {
        StreamId(n)
    }
}

/// All streams of a process.
#[derive(Default)]
pub struct Streams {
    all: Vec<Stream>,
    /// Largest window, in pages.
    max: u32,
    /// Pages of memory that may hold readahead.
    memory: u64,
    /// Pages evicted so far.
    evictions: u64,
    /// The stream that last offered pages for drop-behind.
    offered: usize,
    heuristics: Heuristics,
}

impl Streams {
    /// Follow streams with windows of up to `max` pages.
    pub fn new(max: u32) -> Self {
        Streams {
            max,
            ..Streams::default()
        }
    }

    /// Use only these heuristics.
    #[cfg(feature = "ablate")]
    pub fn set_heuristics(&mut self, heuristics: Heuristics) {
        self.heuristics = heuristics;
    }

    /// `pages` were evicted.
    pub fn on_evicted(&mut self, pages: u32) {
        self.evictions += u64::from(pages);
    }

    /// How many pages of memory may hold readahead.
    pub fn set_memory(&mut self, memory: u64) {
        self.memory = memory;
    }

    /// `id` reads from a store whose pipe `pages` fill. It has its part of the pipe, and no more of it than its program uses up
    /// in the time `horizon`.
    pub fn set_pipe(
        &mut self,
        id: StreamId,
        store: StoreId,
        pages: u64,
        horizon: Nanos,
        now: Nanos,
    ) {
        self.all[id.0].store = Some(store);
        let of_it = |stream: &&Stream| stream.store == Some(store) && stream.has_share(now);
        let sharers = self.all.iter().filter(of_it).count().max(1) as u64;
        let stream = &mut self.all[id.0];
        stream.pipe = (pages / sharers).min(horizon / stream.pace.max(FASTEST));
    }

    /// A touch of an absent page that no stream expects: the stream that begins with it.
    pub fn find(
        &mut self,
        recent: &mut Recent,
        needed: u32,
        address: u64,
        now: Nanos,
    ) -> Option<StreamId> {
        if self.max <= 1 {
            return None;
        }
        let stride = recent.stride(address);
        recent.remember(address);
        Some(self.begin(Vpn::of(address), stride?, needed, now))
    }

    /// A touch of an absent page: the stream that expects it, moved on to it.
    pub fn advance(&mut self, page: Vpn, now: Nanos) -> Option<StreamId> {
        let mut found: Option<(usize, u64)> = None;
        for (n, stream) in self.all.iter().enumerate() {
            let Some(at) = stream.expected(page) else {
                continue;
            };
            // Farther ahead it is a stray touch, which must not pull the stream along. A stream that is not confirmed
            // leaves no page out.
            let proven = stream.touched >= PROVEN;
            let leap = if proven {
                stream.block + stream.present
            } else {
                0
            };
            let end = stream.ahead.min(stream.mappable + leap);
            let expected = at > stream.touched && at <= end;
            if expected && found.is_none_or(|(f, _)| self.all[f].last < stream.last) {
                found = Some((n, at));
            }
        }
        let (n, mut at) = found?;
        let merges = self.heuristics.has(Heuristic::MergedStreams);
        if merges && self.all[n].grid.step() > 1 && self.merge(n, page) {
            at = self.all[n].position(page)?;
        }
        let stream = &mut self.all[n];
        stream.before = stream.touched;
        stream.touches = stream.touches.saturating_add(1);
        let pace = now.saturating_sub(stream.last) / (at - stream.touched);
        stream.pace = (3 * stream.pace.min(4 * pace) + pace) / 4;
        stream.present = stream.present.saturating_sub(at - stream.touched);
        stream.touched = at;
        (stream.last, stream.evictions) = (now, self.evictions);
        stream.rests = false;
        stream.hidden = stream.hidden.saturating_sub(1);
        stream.ahead = stream.ahead.max(at + 1);
        let farthest = self.farthest(n, self.share(now));
        let stream = &mut self.all[n];
        stream.block = stream.block_for(farthest);
        let mappable = at + 1 + (2 * at).min(2 * stream.block);
        stream.mappable = stream.mappable.max(mappable);
        Some(StreamId(n))
    }

    /// Stream `n` has come to `page`: whether it takes more pages from now on. Streams whose touches take turns side by side
    /// are one.
    fn merge(&mut self, n: usize, page: Vpn) -> bool {
        let stream = &self.all[n];
        // In turns: since the last touch of this one, the other was touched, at the page before.
        let beside = |other: &Stream| {
            let last = other.grid.distance(other.touched) as i64;
            let in_turn = other.last >= stream.last && other.grid.forward(page) == last + 1;
            in_turn.then(|| stream.grid.joined(&other.grid))?
        };
        let mut all = self.all.iter().enumerate();
        let found = all.find_map(|(m, other)| Some((m, beside(other)?)));
        let grid = match found {
            Some((m, grid)) => {
                self.all[n].trial = self.all[n].trial.or(self.all[m].trial);
                self.all[m].end();
                if grid.row == grid.step() {
                    grid.whole()
                } else {
                    grid
                }
            }
            // It is a scan that looked sparse because some of its pages were in memory.
            None if stream.grid.row == 1 && self.density(n, page) > FULL / 2 => stream.grid.whole(),
            None => return false,
        };
        self.all[n].take(grid);
        true
    }

    /// How much of the memory at `page` the streams with the direction of `n` take there, of [`FULL`].
    fn density(&self, n: usize, page: Vpn) -> u64 {
        let falls = self.all[n].grid.falls();
        let there = |stream: &&Stream| {
            let from = stream.grid.distance(stream.touched) as i64;
            let end = stream.grid.distance(stream.ahead) as i64;
            stream.grid.falls() == falls
                && stream.touched >= PROVEN
                && (from..end.max(from + 1)).contains(&stream.grid.forward(page))
        };
        let streams = self.all.iter().filter(there);
        streams.map(|s| FULL * s.grid.row / s.grid.step()).sum()
    }

    fn begin(&mut self, page: Vpn, stride: i64, needed: u32, now: Nanos) -> StreamId {
        let stream = Stream {
            // The previous touch is its beginning.
            grid: Grid::new(Vpn(page.0.wrapping_add_signed(-stride)), stride),
            touched: 1,
            before: 0,
            touches: 2,
            needed,
            doubts: 0,
            mappable: 2,
            seen: 2,
            ahead: 2,
            present: 0,
            rests: false,
            hidden: 0,
            block: BLOCK.0,
            last: now,
            evictions: self.evictions,
            beyond_memory: 0,
            pace: 0,
            store: None,
            pipe: 0,
            run_end: None,
            whole: 0,
            room: u64::MAX,
            tail: 0,
            trial: None,
            heuristics: self.heuristics,
        };
        if self.all.len() < STREAMS {
            self.all.push(stream);
            return StreamId(self.all.len() - 1);
        }
        // Where touches are at random, chance begins streams faster than a scan of huge pages shows touches.
        let stays = |s: &Stream| {
            s.touched >= PROVEN && self.evictions - s.evictions < self.memory / REPLACED_PART
        };
        let all = self.all.iter().enumerate();
        let oldest = all.min_by_key(|(_, s)| (stays(s), s.last));
        let place = oldest.map_or(0, |(n, _)| n);
        self.all[place] = stream;
        StreamId(place)
    }

    /// Pages that each stream may read ahead: its share of the memory.
    pub fn share(&self, now: Nanos) -> u64 {
        if !self.heuristics.has(Heuristic::StreamShares) {
            return self.memory.max(LEAST);
        }
        let sharers = self
            .all
            .iter()
            .filter(|stream| stream.has_share(now))
            .count();
        (self.memory / sharers.max(1) as u64).max(LEAST)
    }

    /// How far a confirmed stream is read ahead of its last touch, in pages: what fills the pipe to its store, and one
    /// window, because touches are seen once per block or huge page only; within its `share`.
    fn farthest(&self, n: usize, share: u64) -> u64 {
        let pipe = match self.heuristics.has(Heuristic::WindowByTime) {
            true => self.all[n].pipe,
            false => 0,
        };
        (u64::from(self.max) + pipe).min(share)
    }

    /// A run of `pages` pages begins with a miss of `page`, as the last runs of its region suggest.
    pub fn foretell(&mut self, page: Vpn, pages: u64, now: Nanos) -> StreamId {
        let id = self.begin(page, 1, 0, now);
        let stream = &mut self.all[id.0];
        stream.grid.origin = page;
        (stream.touched, stream.touches, stream.mappable) = (0, 1, 1);
        (stream.seen, stream.ahead) = (1, 1);
        stream.run_end = Some(pages);
        id
    }

    /// Runs like `id`, which has just begun, have so many pages. Lengths are known of runs without gaps.
    pub fn expect_end(&mut self, id: StreamId, pages: Option<u64>) {
        let stream = &mut self.all[id.0];
        stream.run_end = pages.filter(|_| stream.grid.is_plain());
    }

    /// Whether no page of `id` but its first was touched: nobody foresaw that touch.
    pub fn is_new(&self, id: StreamId) -> bool {
        self.all[id.0].touched == 0
    }

    /// The page with which `id` began.
    pub fn first(&self, id: StreamId) -> Vpn {
        self.all[id.0].grid.origin
    }

    /// The pages of the run that began with `first` and that `id` followed; `None` if it follows another.
    pub fn length(&self, id: StreamId, first: Vpn) -> Option<u64> {
        let stream = &self.all[id.0];
        (stream.grid.origin == first && stream.grid.is_plain()).then(|| stream.length())
    }

    /// The position up to which a stream is read, if its region were endless.
    fn end(&self, n: usize, share: u64) -> u64 {
        let stream = &self.all[n];
        let farthest = self.farthest(n, share);
        let run_end = stream.run_end.filter(|&end| stream.touched < end);
        let distance = match run_end {
            Some(_) => farthest,
            None => (4 * stream.touched).min(farthest),
        };
        let distance = distance + stream.present;
        let end = stream.touched + 1 + if stream.hidden > 0 { 0 } else { distance };
        end.min(run_end.unwrap_or(u64::MAX))
    }

    /// Every stream.
    pub fn ids(&self) -> impl Iterator<Item = StreamId> + use<> {
        (0..self.all.len()).map(StreamId)
    }

    /// The next page that `id` would read with its `share`, unless its program has paused or it has read far enough.
    pub fn next_page(&self, id: StreamId, share: u64, now: Nanos) -> Option<Vpn> {
        let stream = &self.all[id.0];
        let awake = now.saturating_sub(stream.last) < ASLEEP && !stream.rests;
        let reads = awake && stream.ahead < self.end(id.0, share);
        reads.then(|| stream.page(stream.ahead))
    }

    /// The next window of `id` with its `share`, within `region`; `None` when it has read far enough.
    pub fn window(&mut self, id: StreamId, region: &PageRange, share: u64) -> Option<Run> {
        let end = self.end(id.0, share);
        let stream = &mut self.all[id.0];
        stream.room = stream.within(region);
        let count = end
            .min(stream.room)
            .checked_sub(stream.ahead)?
            .min(self.max.into());
        (count > 0).then(|| stream.run(stream.ahead, count))
    }

    /// `count` more pages of `id` were read, or need not be, as `present` of them are mapped. Ignored while the
    /// stream rests: its nearer pages were dropped to make room.
    pub fn passed(&mut self, id: StreamId, count: u64, present: u64) {
        let stream = &mut self.all[id.0];
        if !stream.rests {
            stream.ahead += count;
            stream.present += present;
        }
    }

    /// The touch of `id` mapped a huge page. The program may step from unit to unit or touch all pages of each. Where
    /// pages are read one by one the difference shows: a second touch at this step means that it steps.
    pub fn saw_unit(&mut self, id: StreamId) {
        let stream = &mut self.all[id.0];
        let hides = self.heuristics.has(Heuristic::HiddenStreams);
        if hides && stream.grid.step() >= LEAF_PAGES as u64 {
            stream.hidden = 2;
        }
    }

    /// The last touch of `id` missed: pages before it that were passed over (mapped then) may be evicted as well and
    /// are looked at again.
    pub fn missed(&mut self, id: StreamId) {
        let stream = &mut self.all[id.0];
        stream.ahead = stream.touched + 1;
        stream.seen = stream.seen.min(stream.ahead);
        stream.present = 0;
    }

    /// Whether a confirmed stream that leaves out few pages is about to reach `page`.
    pub fn comes_to(&self, page: Vpn, now: Nanos) -> bool {
        let ids = (0..self.all.len()).map(StreamId);
        ids.into_iter().any(|id| {
            let stream = &self.all[id.0];
            let at = stream.expected(page);
            let near = at.is_some_and(|at| {
                at > stream.touched && at <= stream.mappable + stream.block + stream.present
            });
            near && self.is_dense(id) && now.saturating_sub(stream.last) < ASLEEP
        })
    }

    /// Whether `id` has shown enough evidence to be read ahead. Until then it passes over pages in memory only, and
    /// continues at the next absent page only.
    pub fn is_read(&self, id: StreamId) -> bool {
        let stream = &self.all[id.0];
        stream.touches >= stream.needed || !self.heuristics.has(Heuristic::StreamProof)
    }

    /// Whether `id` is confirmed and huge pages are worth reading for it.
    pub fn is_dense(&self, id: StreamId) -> bool {
        let stream = &self.all[id.0];
        let dense = stream.grid.is_dense();
        let long = |end| end >= LEAF_PAGES as u64;
        let proven = stream.touched >= PROVEN || stream.run_end.is_some_and(long);
        let confirmed = proven && self.is_read(id);
        confirmed && (dense || stream.trial.is_some_and(|trial| trial.whole))
    }

    /// `id` has moved on: measure whether huge pages are worth reading, if that is not clear. `region` is the state of
    /// the region.
    pub fn weigh(&mut self, id: StreamId, region: &mut StrideProbe, now: Nanos) {
        let stream = &mut self.all[id.0];
        let (grid, touched) = (stream.grid, stream.touched);
        let probes = self.heuristics.has(Heuristic::StrideProbe);
        if !probes || grid.is_dense() || grid.step() > WIDE || touched < PROVEN {
            return;
        }
        let begin = || region.begin(&grid, touched, now);
        let mut trial = stream.trial.unwrap_or_else(begin);
        trial.go_on(region, &grid, touched, now);
        stream.trial = Some(trial);
    }

    /// Whether `id` touches `page`, and does not leave it out.
    pub fn touches(&self, id: StreamId, page: Vpn) -> bool {
        self.all[id.0].position(page).is_some()
    }

    /// The unit that `id` reaches after the one that begins with `unit`.
    pub fn next_unit(&self, id: StreamId, unit: Vpn) -> Option<Vpn> {
        let pages = LEAF_PAGES as u64;
        match self.all[id.0].grid.falls() {
            false => Some(unit.plus(pages)),
            true => unit.0.checked_sub(pages).map(Vpn),
        }
    }

    /// The unit that begins with `unit` was read whole for `id`: it continues behind the unit, and expects a touch in
    /// it.
    pub fn pass_unit(&mut self, id: StreamId, unit: Vpn) {
        let stream = &mut self.all[id.0];
        let edge = match stream.grid.falls() {
            false => (unit.0 + LEAF_PAGES as u64).saturating_sub(stream.grid.origin.0),
            true => (stream.grid.origin.0 + 1).saturating_sub(unit.0),
        };
        let end = stream.grid.within(edge);
        if !stream.rests {
            stream.ahead = stream.ahead.max(end);
        }
        stream.mappable = stream.mappable.max(end);
        stream.whole = stream.whole.max(end);
    }

    /// The marks that the last touch of `id` left out.
    pub fn left_out(&self, id: StreamId) -> impl Iterator<Item = Vpn> + use<> {
        let stream = self.all[id.0];
        let (from, to) = (stream.before, stream.touched);
        let marks = (from / stream.block..=to / stream.block).map(move |block| stream.mark(block));
        let between = marks.filter(move |&mark| from < mark && mark < to);
        between.map(move |mark| stream.page(mark))
    }

    /// `unused` of the marks that the last touch left out were there to be touched. If that continues, the stream is
    /// not followed any longer. Returns whether it is.
    pub fn judge(&mut self, id: StreamId, unused: u32) -> bool {
        let stream = &mut self.all[id.0];
        let on_mark = stream.mark(stream.touched / stream.block) == stream.touched;
        stream.doubts = if on_mark { 0 } else { stream.doubts + unused };
        if stream.doubts < DOUBTS || !self.heuristics.has(Heuristic::Doubts) {
            return true;
        }
        stream.end();
        false
    }

    /// The pages of `id` that may be mapped before their touch, as far as they were read and not returned before.
    pub fn take_mappable(&mut self, id: StreamId) -> Option<Run> {
        let stream = &mut self.all[id.0];
        let from = stream.seen.max(stream.touched + 1);
        let end = stream.mappable.min(stream.ahead);
        if !self.heuristics.has(Heuristic::DirectMapping) {
            return None;
        }
        let count = end.checked_sub(from).filter(|&n| n > 0)?;
        stream.seen = end;
        Some(stream.run(from, count))
    }

    /// Drop-behind: up to `max` pages behind the stream that left most behind it; each is offered once. They are used
    /// up. A scan that does not fit in memory would otherwise push out all other pages, and find none of its own when it
    /// begins again.
    pub fn behind(&mut self, bounds: &Bounds, max: u64) -> Option<Run> {
        let (now, any) = (
            self.evictions,
            !self.heuristics.has(Heuristic::DropBehindActive),
        );
        let left = |s: &Stream| {
            let is_active = any || now - s.evictions < bounds.lately && !s.is_at_end();
            let (long, margin) = bounds.of(s.exceeds_memory(), is_active)?;
            let left = s.touched.saturating_sub(margin).saturating_sub(s.tail);
            (s.touched >= long).then_some(left)
        };
        let all = self.all.iter().enumerate();
        let all = all.filter_map(|(n, s)| Some((n, left(s)?)));
        let (n, count) = all.max_by_key(|&(_, left)| left)?;
        self.offered = n;
        let count = count.min(max);
        if count == 0 {
            return None;
        }
        let stream = &mut self.all[n];
        let run = stream.run(stream.tail, count);
        stream.tail += count;
        Some(run)
    }

    /// `id` reads `count` pages; whether more than the whole memory was evicted since they were.
    pub fn reads(&mut self, id: StreamId, count: u64, beyond_memory: bool) {
        let count = count as i64;
        self.all[id.0].beyond_memory += if beyond_memory { count } else { -count };
    }

    /// The pages that were offered last could not be taken yet.
    pub fn offer_drop_behind_again(&mut self, run: Run) {
        let stream = &mut self.all[self.offered];
        stream.tail = stream.tail.saturating_sub(run.count);
    }

    fn before(&self, page: Vpn) -> impl Iterator<Item = &Stream> {
        self.all.iter().filter(move |stream| {
            let at = stream.expected(page);
            at.is_some_and(|at| at > stream.touched && at < stream.ahead)
        })
    }

    /// Whether an active stream has `page` before it.
    pub fn expects(&self, page: Vpn, now: Nanos) -> bool {
        let mut streams = self.before(page);
        streams.any(|stream| now.saturating_sub(stream.last) < ASLEEP)
    }

    /// Whether a stream has `page` before it, however long ago it was touched: its thread may wait for a slow disk. A
    /// stream that has ended is followed only until others take its place.
    pub fn may_reach(&self, page: Vpn) -> bool {
        self.before(page).next().is_some()
    }

    /// Readahead of a page was dropped: streams that have it before them read it again.
    pub fn dropped(&mut self, page: Vpn) {
        for stream in &mut self.all {
            if let Some(at) = stream.expected(page)
                && at > stream.touched
            {
                stream.ahead = stream.ahead.min(at);
                stream.seen = stream.seen.min(at);
                stream.rests = self.heuristics.has(Heuristic::ReadaheadRest);
            }
        }
    }

    /// Returns a function that tells whether a page of `id` is a mark, and otherwise whether it may be mapped before
    /// its touch.
    pub fn placing(&self, id: StreamId) -> impl Fn(Vpn) -> (bool, bool) + use<> {
        let stream = self.all[id.0];
        let maps = self.heuristics.has(Heuristic::DirectMapping);
        move |page| {
            stream.position(page).map_or((false, false), |at| {
                let mark = stream.mark(at / stream.block) == at;
                (mark, maps && !mark && at < stream.mappable)
            })
        }
    }
}

#[cfg(test)]
#[path = "streams_tests.rs"]
mod tests;
