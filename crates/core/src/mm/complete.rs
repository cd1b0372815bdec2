//! Requests that ended.
//!
//! State is published when the request that makes it true has succeeded. Each page that is read is checked against the
//! digest that was computed at its eviction: the program never gets a wrong byte.

use super::Mm;
use crate::frames::{FrameDesc, State};
use crate::io::scheduler::Ended;
use crate::units::{Frame, Slot};
use crate::world::{IoId, IoResult, Notice, World};

impl Mm {
    /// An I/O ended.
    pub fn on_io(&mut self, w: &mut impl World, io: IoId, result: IoResult) {
        self.io.on_end(io, result == IoResult::Ok, w.now());
        let Some(ended) = self.io.end(io) else {
            return;
        };
        let Ended {
            slot,
            write,
            drain,
            frames,
        } = ended;
        if drain {
            self.drain.end_read(frames.len());
        }
        match (write, result) {
            (false, IoResult::Ok) if drain => self.on_drained(w, slot, &frames),
            (false, IoResult::Failed(_)) if frames.len() > 1 => {
                // One bad page must not spoil the others: read each alone.
                self.read_singly(w, slot, &frames);
            }
            (false, _) => {
                self.io.note_latency(io, w.now());
                for (i, &frame) in (0..).zip(&frames) {
                    self.on_read(w, slot.plus(i), frame, result);
                }
                self.map_direct(w, &frames);
                self.settle_units(w, &frames, false);
            }
            (true, _) => {
                let were_full = self.slots.are_full();
                for (i, &frame) in (0..).zip(&frames) {
                    let result = match result {
                        IoResult::Refused(refusal) if !refusal.has(i) => IoResult::Ok,
                        result => result,
                    };
                    self.on_written(w, slot.plus(i), frame, result);
                }
                self.settle_units(w, &frames, true);
                self.slots
                    .on_write_end(slot.area, result, were_full, w.now());
                if let IoResult::Failed(error) = result {
                    w.notice(Notice::WriteFailed { slot, error });
                }
            }
        }
        self.io.recycle(io, frames);
        self.dispatch_waiting(w);
    }

    pub(super) fn on_read(
        &mut self,
        w: &mut impl World,
        slot: Slot,
        frame: Frame,
        result: IoResult,
    ) {
        let Some(page) = self.frames.get(frame).page else {
            #[cfg(feature = "planted")]
            if self.has(crate::planted::Bug::LeakedFrame) && matches!(result, IoResult::Failed(_)) {
                return;
            }
            self.frames.set_free(frame);
            return;
        };
        let lost = match result {
            IoResult::Failed(error) => Some(Notice::ReadFailed { slot, page, error }),
            #[cfg(feature = "planted")]
            IoResult::Ok if self.has(crate::planted::Bug::UncheckedDigest) => None,
            IoResult::Ok if slot.is_file() => {
                self.files.note(slot, w.digest_read(frame).number());
                None
            }
            IoResult::Ok if w.digest_read(frame).number() != w.digest(slot) => {
                Some(Notice::Corrupt { slot, page })
            }
            // A read is never accepted in part.
            IoResult::Ok | IoResult::Refused(_) => None,
        };
        if let Some(notice) = lost {
            w.notice(notice);
            self.slots.keep_bad(slot);
            self.frames.forget_slot(frame);
            self.lose(w, page);
            return;
        }
        self.stats.swap_in += 1;
        self.stats.file_in += u64::from(slot.is_file());
        self.frames.set_state(frame, State::Clean);
        let desc = self.frames.get(frame);
        if desc.wanted {
            self.deliver(w, frame);
        } else if desc.least_tier > 0 && !self.held {
            self.send_on(w, slot, frame);
        }
    }

    /// Map pages that have just been read and may be mapped before their touch.
    fn map_direct(&mut self, w: &mut impl World, frames: &[Frame]) {
        if self.held {
            return;
        }
        let mut maps = core::mem::take(&mut self.buffers.maps);
        maps.clear();
        maps.extend(frames.iter().filter_map(|&frame| {
            let desc = self.frames.get(frame);
            let direct = desc.direct && desc.state == State::Clean && !desc.wanted;
            Some((desc.page.filter(|_| direct)?, frame))
        }));
        self.map_pages(w, &maps);
        self.buffers.maps = maps;
    }

    fn on_written(&mut self, w: &mut impl World, slot: Slot, frame: Frame, result: IoResult) {
        let orphan = self.frames.get(frame).page.is_none();
        #[cfg(feature = "planted")]
        let result = match result {
            IoResult::Failed(_) if self.has(crate::planted::Bug::EarlyPublish) => IoResult::Ok,
            result => result,
        };
        match result {
            IoResult::Ok => {
                self.stats.swap_out += 1;
                if orphan {
                    self.slots.put(w, Some(slot));
                    self.frames.set_free(frame);
                    return;
                }
                let &FrameDesc { leaves, wanted, .. } = self.frames.get(frame);
                if leaves && !wanted {
                    self.leave_frame(frame);
                    return;
                }
                self.frames.set_state(frame, State::Clean);
            }
            IoResult::Failed(_) | IoResult::Refused(_) => {
                self.slots.on_not_written(w, slot, result);
                if orphan {
                    self.frames.set_free(frame);
                    return;
                }
                let least = match result {
                    // Compressed memory had no room, or does not make the page smaller.
                    IoResult::Refused(refusal) if refusal.full => Some(0),
                    IoResult::Refused(_) => Some(w.tier(slot.area) + 1),
                    _ => None,
                };
                self.frames.on_write_failed(frame, least);
            }
        }
        if self.frames.get(frame).wanted {
            self.deliver(w, frame);
        }
    }
}
