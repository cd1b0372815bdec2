//! How much memory reclaim keeps ready.

use crate::frames::clusters::UNIT;

/// Units that are kept ready while some are taken, and the largest part of memory for them.
const UNITS: u32 = 6;
const UNITS_PART: u64 = 8;

/// When reclaim starts and stops, in pages that a fault could have at once.
#[derive(Clone, Copy, Debug)]
pub struct Watermarks {
    /// Below this, background reclaim wakes up.
    pub low: u32,
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
    /// For a process that can count on `memory`, and a number of frames.
    pub fn new(memory: u64, frames: u32) -> Self {
        let high = (memory / 64).clamp(32, 4096).min(u64::from(frames / 4)) as u32;
        let batch = (high / 4).clamp(8, 128);
        Watermarks {
            low: high / 2,
            high,
            batch,
            writes: frames / 2,
            empty: frames / 4,
            ahead: frames / 4,
            units: (memory / UNITS_PART).min(u64::from(UNITS * UNIT)) as u32,
        }
    }
}
