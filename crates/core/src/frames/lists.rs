//! The lists that frames are on: sets of empty and free frames, and queues of clean pages.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::units::Frame;

/// A set of frames that hands out contiguous runs.
pub(super) struct Runs {
    words: Vec<u64>,
    pub(super) count: u32,
    cursor: usize,
    size: u32,
}

impl Runs {
    pub(super) fn new(size: u32) -> Self {
        Runs {
            words: vec![0; (size as usize).div_ceil(64)],
            count: 0,
            cursor: 0,
            size,
        }
    }

    pub(super) fn has(&self, frame: u32) -> bool {
        frame < self.size && self.words[frame as usize / 64] >> (frame % 64) & 1 != 0
    }

    pub(super) fn insert(&mut self, frame: u32) {
        debug_assert!(!self.has(frame));
        self.words[frame as usize / 64] |= 1 << (frame % 64);
        self.count += 1;
    }

    fn remove(&mut self, frame: u32) {
        debug_assert!(self.has(frame));
        self.words[frame as usize / 64] &= !(1 << (frame % 64));
        self.count -= 1;
    }

    /// Take up to `max` contiguous members. The search continues where the last run ended.
    pub(super) fn take(&mut self, max: u32) -> Option<(Frame, u32)> {
        if self.count == 0 || max == 0 {
            return None;
        }
        let words = self.words.len();
        let mut word = self.cursor / 64;
        let mut mask = !0u64 << (self.cursor % 64);
        for _ in 0..=words {
            let bits = self.words[word] & mask;
            if bits != 0 {
                let first = (word * 64) as u32 + bits.trailing_zeros();
                let mut n = 0;
                while n < max && self.has(first + n) {
                    self.remove(first + n);
                    n += 1;
                }
                self.cursor = (first + n) as usize % (self.size as usize).max(1);
                return Some((Frame(first), n));
            }
            word = (word + 1) % words;
            mask = !0;
        }
        None
    }
}

/// Clean pages in order of arrival, each with the number of its arrival. An entry whose number is not the frame's
/// latest is stale and skipped.
#[derive(Default)]
pub(super) struct Queue {
    entries: VecDeque<(Frame, u32)>,
    pub(super) count: u32,
}

impl Queue {
    pub(super) fn oldest(&mut self, arrivals: &[u32]) -> Option<Frame> {
        while let Some(&(frame, arrival)) = self.entries.front() {
            if arrivals[frame.0 as usize] == arrival {
                return Some(frame);
            }
            self.entries.pop_front();
        }
        None
    }

    pub(super) fn newest(&mut self, arrivals: &[u32]) -> Option<Frame> {
        while let Some(&(frame, arrival)) = self.entries.back() {
            if arrivals[frame.0 as usize] == arrival {
                return Some(frame);
            }
            self.entries.pop_back();
        }
        None
    }

    pub(super) fn enter(&mut self, frame: Frame, arrivals: &mut [u32]) {
        let arrival = &mut arrivals[frame.0 as usize];
        *arrival = arrival.wrapping_add(1);
        self.entries.push_back((frame, *arrival));
        self.count += 1;
    }

    pub(super) fn leave(&mut self, frame: Frame, arrivals: &mut [u32]) {
        self.count -= 1;
        let arrival = &mut arrivals[frame.0 as usize];
        *arrival = arrival.wrapping_add(1);
        if self.entries.len() > 2 * self.count as usize + 64 {
            self.entries
                .retain(|&(f, arrival)| arrivals[f.0 as usize] == arrival);
        }
    }
}
