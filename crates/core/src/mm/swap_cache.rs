//! Pages that were evicted and are still in their frames: in which order they are forgotten.
//!
//! An evicted page stays in its frame for a while, where a touch costs a minor fault. A clean one is forgotten when its frame
//! is needed. Pages that streams read and that were not touched yet are forgotten last, unless they have waited for long
//! and no stream may reach them, or as much was evicted meanwhile as is mapped.

use super::Mm;
use crate::frames::clusters::{List, UNIT};
use crate::frames::{FrameDesc, State};
use crate::heuristics::Heuristic;
use crate::units::{Frame, Nanos, Vpn};

/// A page has waited for long when more than this part of the mapped memory was evicted since its read.
const STALE_PART: u64 = 8;

impl Mm {
    /// Drop up to `max` clean pages that no thread came back for; their frames become free.
    pub(super) fn drop_clean(&mut self, max: u32) -> u32 {
        let mut dropped = self.drop_singles(max);
        while dropped < max
            && let Some(id) = self.frames.clusters().oldest(List::Clean)
            && self.drop_unit(id)
        {
            dropped += UNIT;
        }
        dropped
    }

    /// As [`Mm::drop_clean`], but no units.
    pub(super) fn drop_singles(&mut self, max: u32) -> u32 {
        let mut dropped = self.drop_stale(max);
        while dropped < max
            && let Some(frame) = self.frames.oldest_clean()
        {
            let desc @ FrameDesc {
                page: Some(page),
                slot: Some(_),
                wanted,
                ..
            } = *self.frames.get(frame)
            else {
                debug_assert!(false, "a clean page has a page and a slot");
                return dropped;
            };
            if wanted {
                // It is about to be mapped: keep it.
                self.frames.set_state(frame, State::Clean);
                return dropped;
            }
            if desc.ahead {
                self.end_ahead(page, &desc);
            }
            self.leave_frame(frame);
            dropped += 1;
        }
        dropped
    }

    /// Drop up to `max` pages that streams read long ago, and all such units, whose frames do not count.
    fn drop_stale(&mut self, max: u32) -> u32 {
        if !self.uses(Heuristic::StaleReadahead) {
            return 0;
        }
        while let Some(oldest) = self.frames.clusters().oldest(List::Ahead)
            && self
                .is_stale(self.frames.clusters().first(oldest))
                .is_some()
            && self.drop_unit(oldest)
        {}
        let mut dropped = 0;
        while dropped < max
            && let Some(oldest) = self.frames.oldest_ahead()
            && let Some(page) = self.is_stale(oldest)
        {
            let desc = *self.frames.get(oldest);
            self.end_ahead(page, &desc);
            self.streams.dropped(page);
            self.leave_frame(oldest);
            dropped += 1;
        }
        dropped
    }

    /// The page of a frame, if a stream read it long ago, and none may reach it before all mapped pages would have been
    /// evicted once.
    fn is_stale(&self, frame: Frame) -> Option<Vpn> {
        let desc = self.frames.get(frame);
        let (age, resident) = (
            self.reclaim.evicted_since(desc.arrived),
            self.table.resident(),
        );
        let age = u64::from(age);
        let reached = |page| age <= resident && self.streams.may_reach(page);
        desc.page
            .filter(|&page| age > resident / STALE_PART && !desc.wanted && !reached(page))
    }

    /// As [`Mm::drop_clean`], for pages that streams read and did not use yet: in order, but if the stream will use the
    /// oldest one, the newest, which are the farthest from their use.
    pub(super) fn drop_ahead(&mut self, now: Nanos, max: u32) -> u32 {
        let mut dropped = 0;
        while dropped < max
            && let Some(oldest) = self.frames.oldest_ahead()
            && let Some(newest) = self.frames.newest_ahead()
        {
            let page = self.frames.get(oldest).page;
            let expected = self.uses(Heuristic::FarthestFirst)
                && page.is_some_and(|page| self.streams.expects(page, now));
            let frame = if expected { newest } else { oldest };
            let desc = *self.frames.get(frame);
            let Some(page) = desc.page.filter(|_| !desc.wanted) else {
                break;
            };
            self.end_ahead(page, &desc);
            self.streams.dropped(page);
            self.leave_frame(frame);
            dropped += 1;
        }
        while dropped < max
            && let Some(oldest) = self.frames.clusters().oldest(List::Ahead)
            && let Some(newest) = self.frames.clusters().newest_ahead()
        {
            let unit = self.frames.clusters().get(oldest).unit;
            let expected = self.uses(Heuristic::FarthestFirst)
                && unit.is_some_and(|unit| self.streams.expects(unit, now));
            if !self.drop_unit(if expected { newest } else { oldest }) {
                break;
            }
            dropped += UNIT;
        }
        dropped
    }
}
