//! The requests that have started and not ended, by number.

use alloc::vec::Vec;

use super::pipe::Started;
use crate::units::{Frame, Nanos, PAGE_SIZE, Slot};
use crate::world::{IoId, StoreId};

#[derive(Clone, Default)]
struct Request {
    slot: Option<Slot>,
    write: bool,
    /// The time at which it began, and at which the disk got it.
    begun: Nanos,
    since: Nanos,
    /// Its store and its begin, for a read that the disk has.
    started: Option<(StoreId, Started)>,
    /// A read of swapoff.
    drain: bool,
    /// Its pages, if it was dispatched as background I/O.
    background: u32,
    frames: Vec<Frame>,
}

/// All requests that have not ended. Numbers are reused.
#[derive(Default)]
pub(crate) struct Requests {
    all: Vec<Request>,
    idle: Vec<IoId>,
    /// Time of a read from its dispatch to its end, smoothed.
    latency: Nanos,
}

impl Requests {
    /// Requests that have not ended.
    pub fn in_flight(&self) -> usize {
        self.all.len() - self.idle.len()
    }

    /// Time of a read from its dispatch to its end, smoothed.
    pub fn latency(&self) -> Nanos {
        self.latency
    }

    /// When the oldest request began that has not ended.
    pub fn oldest(&self) -> Option<Nanos> {
        let all = self.all.iter().filter(|io| io.slot.is_some());
        all.map(|io| io.begun).min()
    }

    pub fn begin(
        &mut self,
        slot: Slot,
        write: bool,
        frames: impl Iterator<Item = Frame>,
        now: Nanos,
    ) -> IoId {
        let io = self.idle.pop().unwrap_or_else(|| {
            self.all.push(Request::default());
            IoId(self.all.len() as u32 - 1)
        });
        let entry = &mut self.all[io.0 as usize];
        entry.slot = Some(slot);
        entry.write = write;
        entry.begun = now;
        entry.started = None;
        entry.drain = false;
        entry.background = 0;
        entry.frames.clear();
        entry.frames.extend(frames);
        io
    }

    /// The disk has it since `now`.
    pub fn set_since(&mut self, io: IoId, now: Nanos) {
        self.all[io.0 as usize].since = now;
    }

    /// The read has started.
    pub fn set_started(&mut self, io: IoId, store: StoreId, started: Started) {
        self.all[io.0 as usize].started = Some((store, started));
    }

    /// The store and the begin of a read that has ended, once, and its bytes.
    pub fn take_started(&mut self, io: IoId) -> Option<(StoreId, Started, u64)> {
        let entry = self.all.get_mut(io.0 as usize)?;
        let (store, started) = entry.started.take()?;
        Some((store, started, (entry.frames.len() * PAGE_SIZE) as u64))
    }

    /// Mark a read as one of swapoff.
    pub fn set_drain(&mut self, io: IoId) {
        self.all[io.0 as usize].drain = true;
    }

    /// Whether it is a read of swapoff.
    pub fn is_drain(&self, io: IoId) -> bool {
        self.all.get(io.0 as usize).is_some_and(|io| io.drain)
    }

    /// The first slot of a request, and whether it is a write.
    pub fn what(&self, io: IoId) -> Option<(Slot, bool)> {
        let entry = self.all.get(io.0 as usize)?;
        Some((entry.slot?, entry.write))
    }

    /// Mark a request as background I/O. Returns its pages.
    pub fn set_background(&mut self, io: IoId) -> u32 {
        let entry = &mut self.all[io.0 as usize];
        entry.background = entry.frames.len() as u32;
        entry.background
    }

    /// The pages of a request that was dispatched as background I/O, else 0.
    pub fn background(&self, io: IoId) -> u32 {
        self.all.get(io.0 as usize).map_or(0, |io| io.background)
    }

    /// Requests on an area have not ended.
    pub fn any_on(&self, area: u8) -> bool {
        let mut slots = self.all.iter().filter_map(|io| io.slot);
        slots.any(|slot| slot.area == area)
    }

    pub fn frames(&self, io: IoId) -> &[Frame] {
        &self.all[io.0 as usize].frames
    }

    /// The request is over; the list of its frames goes back with [`Requests::recycle`].
    pub fn end(&mut self, io: IoId) -> Option<(Slot, bool, Vec<Frame>)> {
        let entry = self.all.get_mut(io.0 as usize)?;
        let slot = entry.slot.take()?;
        Some((slot, entry.write, core::mem::take(&mut entry.frames)))
    }

    /// A read that ended at `now` counts for the latency.
    pub fn note_latency(&mut self, io: IoId, now: Nanos) {
        let since = self.all[io.0 as usize].since;
        self.latency = (7 * self.latency + now.saturating_sub(since)) / 8;
    }

    /// The request did not start.
    pub fn cancel(&mut self, io: IoId) {
        if let Some((_, _, frames)) = self.end(io) {
            self.recycle(io, frames);
        }
    }

    pub fn recycle(&mut self, io: IoId, frames: Vec<Frame>) {
        self.all[io.0 as usize].frames = frames;
        self.idle.push(io);
    }
}
