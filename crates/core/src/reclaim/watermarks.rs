//! How much memory reclaim keeps ready.

use crate::frames::clusters::UNIT;

/// Frames that are used however low the limit is.
const LEAST_FRAMES: u64 = 512;

/// The part of memory that is kept ready, in pages; the least and the most. A fault needs a page now, and the disk some
/// time to make the next one free.
const HIGH_PART: u64 = 64;
const HIGH: (u64, u64) = (32, 4096);
/// Pages evicted in one go: a call costs as much as some pages, and a fault may wait for all of them.
const BATCH: (u32, u32) = (8, 128);
/// Free frames beyond this many times the high mark go back to the system.
const SURPLUS: u32 = 2;
/// Units that are kept ready while some are taken, and the largest part of memory for them.
const UNITS: u32 = 6;
const UNITS_PART: u64 = 8;

/// When reclaim starts and stops, in pages that a fault could have at once.
#[derive(Clone, Copy, Debug)]
pub struct Watermarks {
    /// Below this, background reclaim wakes up.
    pub low: u32,
    /// A fault may take these; batches, readahead and writes that could wait leave them alone.
    pub reserve: u32,
    /// Above this, it sleeps.
    pub high: u32,
    /// Pages evicted in one go.
    pub batch: u32,
    /// Pages that may be in writeback.
    pub writes: u32,
    /// Empty frames that are kept as destinations.
    pub empty: u32,
    /// Frames for pages that readahead read and no touch used yet.
    pub ahead: u32,
    /// Kept ready in addition while streams and first touches take whole units.
    pub units: u32,
}

impl Watermarks {
    /// As [`Watermarks::new`]; with little memory fewer of the frames are used.
    pub fn of_part(memory: u64, frames: u32) -> Self {
        let used = u64::from(frames).min((memory / 4).max(LEAST_FRAMES));
        Watermarks::new(memory, used as u32)
    }

    /// For a process that can count on `memory`, and a number of frames.
    pub fn new(memory: u64, frames: u32) -> Self {
        let (least, most) = HIGH;
        let high = (memory / HIGH_PART).clamp(least, most);
        let high = high.min(u64::from(frames / 4)) as u32;
        let batch = (high / 4).clamp(BATCH.0, BATCH.1);
        Watermarks {
            low: high / 2,
            reserve: high / 2 / 2,
            high,
            batch,
            writes: frames / 2,
            empty: frames / 4,
            ahead: frames / 4,
            units: (memory / UNITS_PART).min(u64::from(UNITS * UNIT)) as u32,
        }
    }

    /// Free frames that are kept: of those for single pages, and of clusters in addition to `units`.
    pub fn kept(&self, units: u32) -> (u32, u32) {
        (SURPLUS * self.high, SURPLUS * self.high.max(UNIT) + units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marks_follow_the_memory_and_the_frames() {
        let marks = |memory, frames| {
            let marks = Watermarks::new(memory, frames);
            (marks.reserve, marks.low, marks.high, marks.batch)
        };
        assert_eq!(marks(0, 1 << 20), (8, 16, 32, 8));
        assert_eq!(marks(64 * 1000, 1 << 20), (250, 500, 1000, 128));
        assert_eq!(marks(1 << 40, 1 << 20), (1024, 2048, 4096, 128));
        assert_eq!(marks(1 << 40, 400), (25, 50, 100, 25));
        let little = Watermarks::of_part(100, 4096);
        assert_eq!(little.writes, 256, "half of the least number of frames");
    }
}
