//! Counters. Pages are 4 KiB. Times are not counted here, see [`crate::world::World::served`].

/// The pages that readahead read, and their use.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Pages read.
    pub pages: u64,
    /// Pages touched later, seen one by one.
    pub used: u64,
    /// Pages that were mapped before their first touch: their use is not seen.
    pub unseen: u64,
    /// Marks with a known result. Marks are pages left unmapped among the unseen ones, at places that the program
    /// cannot know.
    pub marks: u64,
    /// Of those, used.
    pub marks_used: u64,
}

impl Ahead {
    /// Pages used before they were evicted: the seen ones, and the unseen ones in the proportion of the marks among
    /// them.
    pub fn hits(&self) -> u64 {
        let part = u128::from(self.unseen) * u128::from(self.marks_used);
        self.used + part.checked_div(self.marks.into()).unwrap_or(0) as u64
    }

    /// A page that readahead read is touched for the first time (`used`), or is evicted unused.
    pub fn end(&mut self, mark: bool, used: bool) {
        self.used += u64::from(used);
        self.marks += u64::from(mark);
        self.marks_used += u64::from(mark && used);
    }

    /// Add the counters of another region.
    pub fn add(&mut self, other: &Ahead) {
        self.pages += other.pages;
        self.used += other.used;
        self.unseen += other.unseen;
        self.marks += other.marks;
        self.marks_used += other.marks_used;
    }
}

/// Counters of one process. Names as in the `--stats` contract.
#[derive(Clone, Default)]
pub struct Stats {
    /// Faults that waited for a read.
    pub faults_major: u64,
    /// Faults on a page that was in a frame.
    pub faults_minor: u64,
    /// First touches.
    pub faults_zero: u64,
    /// Pages that first touches mapped.
    pub first_touched: u64,
    /// Pages read.
    pub swap_in: u64,
    /// Pages written.
    pub swap_out: u64,
    /// Reads.
    pub swap_read_ios: u64,
    /// Writes.
    pub swap_write_ios: u64,
    /// Pages that readahead read, and their use.
    pub ahead: Ahead,
    /// Pages read from mapped files, which `swap_in` counts too.
    pub file_in: u64,
    /// Of `ahead`, the pages of regions that map files.
    pub file_ahead: Ahead,
    /// Pages of mapped files that left memory without a write.
    pub file_drops: u64,
    /// Pages dropped without a write as their slot held the same bytes.
    pub clean_drops: u64,
    /// Pages dropped without a write as they were all zero.
    pub zero_drops: u64,
    /// Pages dropped without a write as all their words were the same, not zero.
    pub filled_drops: u64,
    /// Huge pages read whole.
    pub huge_swap_in: u64,
    /// Of those, the ones that swapoff read.
    pub huge_drained: u64,
    /// Huge pages written whole.
    pub huge_swap_out: u64,
    /// Huge pages that had to be split.
    pub huge_splits: u64,
    /// Times that background reclaim began.
    pub kswapd_wakeups: u64,
    /// Times that a fault had to reclaim itself.
    pub direct_reclaims: u64,
    /// Major faults on pages that a little more memory would have kept.
    pub refaults: u64,
    /// Time that threads waited for pages that all the memory of the run would have kept here, in nanoseconds, and how
    /// many such waits there were: what the process loses to the others.
    pub lost_ns: u64,
    /// See above.
    pub losses: u64,
}
