//! What is counted. Pages are 4 KiB; times are not kept here, see [`crate::world::World::served`].

/// Counters of one process. Names as in the `--stats` contract.
#[derive(Clone, Default)]
pub struct Stats {
    /// Faults that waited for a read.
    pub faults_major: u64,
    /// Faults on a page that was in a frame of ours.
    pub faults_minor: u64,
    /// First touches.
    pub faults_zero: u64,
    /// Pages read.
    pub swap_in: u64,
    /// Pages written.
    pub swap_out: u64,
    /// Reads.
    pub swap_read_ios: u64,
    /// Writes.
    pub swap_write_ios: u64,
    /// Pages that readahead brought.
    pub readahead_pages: u64,
    /// Of those, used before eviction.
    pub readahead_hits: u64,
    /// Pages dropped without a write as their slot held the same bytes.
    pub clean_drops: u64,
    /// Pages dropped without a write as they were all zero.
    pub zero_drops: u64,
    /// Times that background reclaim began.
    pub kswapd_wakeups: u64,
    /// Times that a fault had to reclaim for itself.
    pub direct_reclaims: u64,
    /// Major faults on pages that a little more memory would have kept.
    pub refaults: u64,
}
