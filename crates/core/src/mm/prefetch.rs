//! Readahead at work: the windows of the policies are looked up, read, counted and mapped here.
//!
//! A miss is read together with the window that the policy answers. Streams and byte strides continue without misses:
//! [`Mm::read_on`] reads ahead of each between faults, after the waiting threads have been served, and
//! [`Mm::map_ahead`] maps the pages that were read for a stream, many with one call. Readahead takes frames that
//! reclaim keeps ready, never the last of them, and drops no page that another stream waits for.

use alloc::vec::Vec;

use super::Mm;
use crate::frames::clusters::List;
use crate::frames::{FrameDesc, NOTHING, State};
use crate::heuristics::Heuristic;
use crate::huge::unit_of;
use crate::io::SLOTS_PER_IO;
use crate::readahead::byte_stride::ByteStrideId;
use crate::readahead::follow::{Follow, Followed, Predictor};
use crate::readahead::streams::{Run, StreamId};
use crate::readahead::{Answer, Hint, Readahead as _, Touch, Window, budget};
use crate::reclaim::policy::Came;
use crate::reclaim::refault::MISS;
use crate::space::page_table::Entry;
use crate::units::{Frame, LEAF_PAGES, Nanos, PageRange, Slot, Vpn};
use crate::world::{Stop, World};

/// The work to read, map and evict a page, in parts of a miss.
const HANDLING: u32 = MISS / 8;

impl Mm {
    /// The one place where a touch that finds its page in a frame is looked up and counted. Returns the predictor that
    /// it moves on.
    pub(super) fn on_hit(
        &mut self,
        w: &impl World,
        address: u64,
        frame: Frame,
    ) -> Option<Predictor> {
        let page = Vpn::of(address);
        let desc = *self.frames.get(frame);
        if desc.ahead {
            self.use_ahead(page, frame);
        }
        // Otherwise another thread was here first.
        let at = (!desc.wanted).then(|| (address, w.now()));
        let predictor = self.ask_policy(page, at, |policy, history, region| {
            let touch = Touch {
                page,
                slot: desc.slot,
                ahead: desc.ahead && !(desc.streamed && policy.is_own()),
                region,
            };
            policy.on_hit(history, &touch)
        })??;
        let Predictor::Stream(id) = predictor else {
            return Some(predictor);
        };
        if self.frames.unit_of(frame).is_some() {
            self.streams.saw_unit(id);
        }
        self.judge(id).then_some(predictor)
    }

    /// The readahead policy of the region of `page`, which a thread touches `at` an address and a time.
    pub(super) fn ask_policy<R>(
        &mut self,
        page: Vpn,
        at: Option<(u64, Nanos)>,
        ask: impl FnOnce(&Follow, &mut Followed<'_>, &PageRange) -> R,
    ) -> Option<R> {
        let vma = self.vmas.find_mut(page)?;
        let policy = Follow {
            beside: vma.policy(self.config.readahead),
            hint: vma.hint,
            at,
        };
        let mut history = Followed {
            streams: &mut self.streams,
            byte_strides: &mut self.byte_strides,
            shared: &mut self.policies,
            region: &mut vma.history,
        };
        Some(ask(&policy, &mut history, &vma.range))
    }

    /// Whether a stream that has moved on is still one: pages that it should have touched on its way are evidence
    /// against it.
    pub(super) fn judge(&mut self, id: StreamId) -> bool {
        let unused = self.streams.left_out(id).filter(|&page| {
            let Entry::Cached(frame) = self.table.get(page) else {
                return false;
            };
            let desc = self.frames.get(frame);
            desc.mark && desc.ahead
        });
        let unused = unused.count() as u32;
        self.streams.judge(id, unused)
    }

    /// The first touch of a page that readahead read.
    fn use_ahead(&mut self, page: Vpn, frame: Frame) {
        let desc = *self.frames.get(frame);
        let whole = self.frames.unit_of(frame).is_some();
        // One touch maps all of a unit: it stands for the other pages.
        let mark = desc.mark || whole;
        self.frames.use_ahead(frame);
        let cost = self.cost_ahead(&desc);
        self.reclaim.on_return(desc.distance, self.table.resident());
        if let Some(vma) = self.note_ahead(page, |ahead| ahead.end(mark, true)) {
            vma.was_foreseen(true);
            if desc.streamed {
                let pages = if whole { LEAF_PAGES as u32 } else { 1 };
                vma.history.profit.end(pages, desc.mark, true, cost);
            }
        }
    }

    /// The misses, in parts of one, that a page has cost which readahead read.
    fn cost_ahead(&self, desc: &FrameDesc) -> u32 {
        HANDLING + self.reclaim.cost_since(desc.arrived, self.table.resident())
    }

    /// A page that readahead read is evicted unused.
    pub(super) fn end_ahead(&mut self, page: Vpn, desc: &FrameDesc) {
        self.end_unused(page, desc, 1);
    }

    /// As [`Mm::end_ahead`], of a unit: `page` is its first page, and `desc` of its frame.
    pub(super) fn end_unit_ahead(&mut self, page: Vpn, desc: &FrameDesc) {
        self.end_unused(page, desc, LEAF_PAGES as u32);
    }

    fn end_unused(&mut self, page: Vpn, desc: &FrameDesc, pages: u32) {
        let mark = desc.mark || pages > 1;
        let cost = self.cost_ahead(desc);
        if let Some(vma) = self.note_ahead(page, |ahead| ahead.end(mark, false))
            && desc.streamed
        {
            vma.history.profit.end(pages, desc.mark, false, cost);
        }
    }

    /// The page of `address` is about to be read into `frame` for a thread that waits: read its window too.
    pub(super) fn read_with(&mut self, w: &mut impl World, address: u64, slot: Slot, frame: Frame) {
        let mut batch = core::mem::take(&mut self.buffers.batch);
        batch.clear();
        batch.push((slot, frame));
        self.foresee(w, address, slot, &mut batch);
        self.submit_reads(w, &mut batch, Some(frame), SLOTS_PER_IO);
        self.buffers.batch = batch;
    }

    /// Begin to read the pages that the miss of `address` makes likely.
    fn foresee(
        &mut self,
        w: &mut impl World,
        address: u64,
        slot: Slot,
        batch: &mut Vec<(Slot, Frame)>,
    ) {
        let (page, now) = (Vpn::of(address), w.now());
        let answer = self.ask_policy(page, Some((address, now)), |policy, history, region| {
            let touch = Touch {
                page,
                slot: Some(slot),
                ahead: false,
                region,
            };
            policy.on_miss(history, &touch)
        });
        let (Some(answer), Some(vma)) = (answer, self.vmas.find_mut(page)) else {
            return;
        };
        let region = vma.range.clone();
        match answer {
            Answer::Follows(Predictor::Stream(id)) => {
                if self.streams.is_new(id) {
                    vma.was_foreseen(false);
                    self.on_random_fault(now);
                }
                self.streams.missed(id);
                self.weigh_pipe(w, id, slot);
                let share = self.streams.share(now);
                if self.judge(id)
                    && let Some(run) = self.streams.window(id, &region, share)
                {
                    let run = self.before_units(id, run);
                    let count = run.count.min(SLOTS_PER_IO as u64 - 1);
                    let first = run.pages().next();
                    if !first.is_some_and(|page| self.reads_whole(id, page)) {
                        self.read_run(w, id, run.shortened(count), batch);
                    }
                }
            }
            Answer::Follows(Predictor::ByteStride(id)) => {
                if self.byte_strides.next_page(id, now).is_some() {
                    self.read_byte_strides(w, id, &region, batch);
                }
            }
            Answer::Window(window) => {
                vma.was_foreseen(false);
                self.on_random_fault(now);
                w.window(window.count().into());
                if self.uses(Heuristic::BesideStreams) {
                    self.read_window(w, &window, batch);
                }
            }
        }
    }

    /// Pages of memory that may hold readahead.
    fn memory_ahead(&self, w: &impl World) -> u64 {
        let units = self.frames.clusters().number();
        let memory = self.resident() + w.available();
        budget::memory(self.reclaim.marks().ahead, units, memory)
    }

    /// `id` is to read `slot`: how much fills the pipe to its store. Compressed memory is none: nobody waits for it.
    fn weigh_pipe(&mut self, w: &impl World, id: StreamId, slot: Slot) {
        let store = w.store_of(slot);
        let (pages, horizon) = match !slot.is_file() && w.compresses(slot.area) {
            true => (0, 0),
            false => self.io.window(store),
        };
        self.streams.set_pipe(id, store, pages, horizon, w.now());
    }

    /// Read ahead of every stream and byte stride, as far as each may.
    pub(super) fn read_on(&mut self, w: &mut impl World) {
        self.read_streams(w);
        if self.io.holds_back() {
            return;
        }
        let now = w.now();
        for id in self.byte_strides.ids() {
            if let Some(next) = self.byte_strides.next_page(id, now)
                && let Some(vma) = self.vmas.find(next)
                && vma.hint != Hint::Random
            {
                let region = vma.range.clone();
                let mut batch = core::mem::take(&mut self.buffers.batch);
                batch.clear();
                self.read_byte_strides(w, id, &region, &mut batch);
                self.submit_reads(w, &mut batch, None, SLOTS_PER_IO);
                self.buffers.batch = batch;
            }
        }
    }

    fn read_byte_strides(
        &mut self,
        w: &mut impl World,
        id: ByteStrideId,
        region: &PageRange,
        batch: &mut Vec<(Slot, Frame)>,
    ) {
        let (latency, memory) = (self.io.latency(), self.memory_ahead(w));
        let count = self.byte_strides.window(id, region, latency, memory);
        if count == 0 {
            return;
        }
        let pages = self.byte_strides.pages(id, count);
        let placing = self.byte_strides.placing(id);
        let passed = self.read_pages(w, pages, false, placing, batch);
        self.byte_strides.passed(id, passed, passed < count);
    }

    fn read_streams(&mut self, w: &mut impl World) {
        self.streams.set_memory(self.memory_ahead(w));
        let now = w.now();
        let share = self.streams.share(now);
        for id in self.streams.ids() {
            let mut windows = 0;
            while windows < budget::WINDOWS
                && let Some(next) = self.streams.next_page(id, share, now)
                && let Some(vma) = self.vmas.find(next)
                && vma.hint != Hint::Random
                && let Some(run) = self.streams.window(id, &vma.range, share)
            {
                if let Entry::Swapped { slot, .. } = self.table.get(next) {
                    self.weigh_pipe(w, id, slot);
                }
                if self.reads_whole(id, next) {
                    if self.io.holds_back() || !self.read_unit_ahead(w, id, next) {
                        break;
                    }
                    windows += 1;
                    continue;
                }
                let mut run = self.before_units(id, run);
                if self.io.holds_back() || !self.streams.is_read(id) {
                    // It may continue over pages that are in memory.
                    let away = |page| matches!(self.table.get(page), Entry::Swapped { .. });
                    match run.pages().position(away) {
                        Some(0) => break,
                        Some(n) => run = run.shortened(n as u64),
                        None => {}
                    }
                }
                let mut batch = core::mem::take(&mut self.buffers.batch);
                batch.clear();
                let passed = self.read_run(w, id, run, &mut batch);
                self.submit_reads(w, &mut batch, None, SLOTS_PER_IO);
                self.buffers.batch = batch;
                if passed < run.count {
                    break;
                }
                windows += 1;
            }
        }
    }

    /// The part of `run` before the first unit that is to be read whole.
    fn before_units(&self, id: StreamId, run: Run) -> Run {
        let mut last = None;
        let mut pages = run.pages();
        let whole = pages.position(|page| {
            let unit = unit_of(page);
            last.replace(unit) != Some(unit) && self.reads_whole(id, page)
        });
        match whole {
            Some(n) if n > 0 => run.shortened(n as u64),
            _ => run,
        }
    }

    /// A stream reads `count` pages from `page` on: if more than the whole memory was evicted since that page was, they do
    /// not fit in memory.
    pub(super) fn note_distance(&mut self, id: StreamId, page: Vpn, count: u64) {
        if let Entry::Swapped { evicted, .. } = self.table.get(page) {
            let distance = u64::from(self.reclaim.evicted_since(evicted));
            self.streams
                .reads(id, count, distance >= self.table.resident());
        }
    }

    /// Begin to read the pages of `run` that are on an area, as far as there are frames and I/Os; the reads are
    /// appended to `batch`. Returns how much of the run need not be looked at again.
    fn read_run(
        &mut self,
        w: &mut impl World,
        id: StreamId,
        run: Run,
        batch: &mut Vec<(Slot, Frame)>,
    ) -> u64 {
        self.note_distance(id, run.grid.page(run.from), run.count);
        let placing = self.streams.placing(id);
        let passed = self.read_pages(w, run.pages(), run.grid.falls(), placing, batch);
        let mapped = |page: &Vpn| matches!(self.table.get(*page), Entry::Resident(_));
        let present = run.pages().take(passed as usize).filter(mapped).count();
        self.streams.passed(id, passed, present as u64);
        passed
    }

    /// Begin to read the pages of `pages` that are on an area, as far as there are frames and I/Os; the reads are
    /// appended to `batch`. `falling`: the pages are in falling order. `placing` tells whether a page is a mark, and
    /// whether it may be mapped before its touch. Returns how many of them need not be looked at again.
    fn read_pages(
        &mut self,
        w: &mut impl World,
        pages: impl Iterator<Item = Vpn>,
        falling: bool,
        placing: impl Fn(Vpn) -> (bool, bool),
        batch: &mut Vec<(Slot, Frame)>,
    ) -> u64 {
        let mut wants = core::mem::take(&mut self.buffers.wants);
        wants.clear();
        let kept = match self.uses(Heuristic::KeptEntries) {
            true => budget::KEPT_IOS,
            false => 0,
        };
        let mut ios = self.io.in_flight() + kept;
        let mut last: Option<Slot> = batch.last().map(|&(slot, _)| slot);
        let (mut passed, mut first_page) = (0, None);
        for (n, page) in (0..).zip(pages) {
            first_page = first_page.or(Some(page));
            passed = n + 1;
            let Entry::Swapped { slot, .. } = self.table.get(page) else {
                continue;
            };
            let beside =
                |last: Slot| last.area == slot.area && last.index.abs_diff(slot.index) == 1;
            if !last.is_some_and(beside) || wants.len().is_multiple_of(SLOTS_PER_IO) {
                ios += 1;
            }
            if ios > self.config.depth as usize {
                passed = n;
                break;
            }
            last = Some(slot);
            wants.push((n, page, slot));
        }
        let spare = self.spare_frames(w, wants.len() as u32);
        if (spare as usize) < wants.len() {
            let enough = match self.uses(Heuristic::WorthwhileReads) {
                true => budget::worthwhile(spare, self.reclaim.marks().ahead),
                false => spare,
            };
            passed = wants[enough as usize].0;
            wants.truncate(enough as usize);
            self.reclaim.wake();
        }
        if falling {
            wants.reverse();
        }
        let before = batch.len();
        let mut rest = &wants[..];
        while !rest.is_empty()
            && let Some((first, n)) = self.frames.take_free(rest.len() as u32)
        {
            w.renew(first, n);
            let (now, later) = rest.split_at(n as usize);
            for (i, &(_, page, slot)) in (0..).zip(now) {
                let (mark, direct) = placing(page);
                let desc = FrameDesc {
                    ahead: true,
                    streamed: true,
                    mark,
                    direct,
                    ..NOTHING
                };
                self.begin_read(page, slot, first.plus(i), desc);
                batch.push((slot, first.plus(i)));
            }
            rest = later;
        }
        let count = (batch.len() - before) as u64;
        if let Some(page) = first_page.filter(|_| count > 0) {
            w.window(count);
            self.count_ahead(page, count);
        }
        self.buffers.wants = wants;
        passed
    }

    /// Page number `n` of a window, if there is one. In a window of slots, only a page that is in its slot and nowhere
    /// else.
    fn page_of(&self, window: &Window, n: u32) -> Option<Vpn> {
        match *window {
            Window::Pages { first, stride, .. } => {
                let distance = i64::from(n).wrapping_mul(stride);
                Some(Vpn(first.0.wrapping_add_signed(distance)))
            }
            Window::Slots { first, .. } => {
                let wanted = first.plus(n);
                let page = self.owners.get(wanted)?;
                match self.table.get(page) {
                    Entry::Swapped { slot, .. } if slot == wanted => Some(page),
                    _ => None,
                }
            }
        }
    }

    /// Begin to read the pages of a policy's `window` that are on an area, as far as there are frames.
    pub(super) fn read_window(
        &mut self,
        w: &mut impl World,
        window: &Window,
        batch: &mut Vec<(Slot, Frame)>,
    ) {
        for n in 0..window.count() {
            let Some(page) = self.page_of(window, n) else {
                continue;
            };
            let Entry::Swapped { slot, .. } = self.table.get(page) else {
                continue;
            };
            if batch.len() == SLOTS_PER_IO || self.spare_frames(w, 1) == 0 {
                break;
            }
            let Some((frame, _)) = self.frames.take_free(1) else {
                break;
            };
            let desc = FrameDesc {
                ahead: true,
                ..NOTHING
            };
            self.begin_read(page, slot, frame, desc);
            batch.push((slot, frame));
            // Neighbours by slot may be pages of any region.
            self.count_ahead(page, 1);
        }
    }

    /// Make up to `wanted` frames free for readahead. Returns how many.
    pub(super) fn spare_frames(&mut self, w: &mut impl World, wanted: u32) -> u32 {
        while self.frames.free() < wanted
            && self.frames.empty() > self.reclaim.marks().empty
            && let Some((frame, n)) = self.back_empty(w, wanted - self.frames.free())
        {
            for i in 0..n {
                self.frames.set_free(frame.plus(i));
            }
        }
        if self.frames.free() < wanted {
            // Not the last frames that reclaim keeps ready: in a steady state all memory that is not mapped is clean
            // pages.
            let spare = self
                .frames
                .clean()
                .saturating_sub(self.reclaim.marks().reserve);
            self.drop_clean(spare.min(wanted - self.frames.free()));
        }
        let stale = self
            .frames
            .ahead()
            .saturating_sub(self.reclaim.marks().ahead);
        if self.frames.free() < wanted && stale > 0 {
            self.drop_ahead(w.now(), stale.min(wanted - self.frames.free()));
        }
        if self.frames.free() < wanted && self.frames.clusters().count(List::Free) > 1 {
            self.break_cluster(w, wanted - self.frames.free());
        }
        self.frames.free().min(wanted)
    }

    /// Map the pages of a predictor that were read and may be mapped before their touch. Pages that are still being
    /// read follow later.
    pub(super) fn map_ahead(&mut self, w: &mut impl World, predictor: Predictor) {
        match predictor {
            Predictor::Stream(id) => {
                let run = self.streams.take_mappable(id);
                self.map_those(w, run.into_iter().flat_map(Run::rising));
            }
            Predictor::ByteStride(id) => {
                let pages = self.byte_strides.take_mappable(id);
                self.map_those(w, pages);
            }
        }
    }

    fn map_those(&mut self, w: &mut impl World, pages: impl Iterator<Item = Vpn>) {
        if self.held {
            return;
        }
        let mut maps = core::mem::take(&mut self.buffers.maps);
        maps.clear();
        for page in pages {
            let Entry::Cached(frame) = self.table.get(page) else {
                continue;
            };
            if self.frames.unit_of(frame).is_some() {
                continue;
            }
            let desc = self.frames.get(frame);
            if desc.mark || desc.wanted {
                continue;
            }
            match desc.state {
                State::Reading => self.frames.set_direct(frame),
                State::Clean | State::Dirty if !desc.leaves => maps.push((page, frame)),
                _ => {}
            }
        }
        self.map_pages(w, &maps);
        self.buffers.maps = maps;
    }

    /// Map pages that no thread waits for, runs of neighbours by one call.
    pub(super) fn map_pages(&mut self, w: &mut impl World, maps: &[(Vpn, Frame)]) {
        let follows = |a: &(Vpn, Frame), b: &(Vpn, Frame)| a.0.plus(1) == b.0 && a.1.plus(1) == b.1;
        for mut run in maps.chunk_by(follows) {
            while let Some(&(page, frame)) = run.first() {
                let done = w.move_in(frame, page, run.len() as u32);
                let (mapped, rest) = run.split_at(done.pages as usize);
                self.on_mapped(w, mapped);
                run = rest;
                match done.stop {
                    None => {}
                    // It stays in its frame for the fault that will come.
                    Some(Stop::Busy | Stop::Fixed | Stop::Exists) => run = &run[1..],
                    Some(_) => return,
                }
            }
        }
    }

    fn on_mapped(&mut self, w: &mut impl World, mapped: &[(Vpn, Frame)]) {
        let mut unseen = 0;
        for &(page, frame) in mapped {
            let desc = *self.frames.get(frame);
            let slot = desc.slot.filter(|&slot| self.keeps_slots(w, slot));
            if slot != desc.slot {
                self.slots.put(w, desc.slot);
            }
            unseen += u64::from(desc.ahead);
            self.frames.set_empty(frame);
            self.set_mapped(w, page, slot, Came::Ahead);
        }
        let Some(&(page, _)) = mapped.first() else {
            return;
        };
        self.note_ahead(page, |ahead| ahead.unseen += unseen);
    }
}
