//! The values of the options of `run` that are words.

use clap::ValueEnum;
use foreswap::ledger::{IoBackend, ReadaheadPolicy, ThpMode};
use foreswap_core::ReclaimPolicy;

/// `--load-control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes
    On,
    /// No
    Off,
}

/// `--thp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Thp {
    /// Wherever they are possible
    Always,
    /// Where memory is touched in order
    Adaptive,
    /// Only pages of 4 KiB
    Never,
}

impl From<Thp> for ThpMode {
    fn from(thp: Thp) -> Self {
        match thp {
            Thp::Always => Self::Always,
            Thp::Adaptive => Self::Adaptive,
            Thp::Never => Self::Never,
        }
    }
}

/// `--reclaim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reclaim {
    /// References that the hand of a clock takes
    Clock,
    /// Two lists and refault distance, as in the kernel
    Lru,
    /// Generations and refault distance, as in the kernel's multi-gen LRU
    Generations,
    /// A small queue for what is new, and a main queue
    S3fifo,
}

impl From<Reclaim> for ReclaimPolicy {
    fn from(reclaim: Reclaim) -> Self {
        match reclaim {
            Reclaim::Clock => Self::Clock,
            Reclaim::Lru => Self::Lru,
            Reclaim::Generations => Self::Generations,
            Reclaim::S3fifo => Self::S3Fifo,
        }
    }
}

/// `--readahead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Readahead {
    /// The next pages of every stream of touches
    Streams,
    /// Neighbours by address; more of them while they are used
    Vma,
    /// Neighbours on the swap area
    Cluster,
    /// Along the direction and stride of the last faults
    Trend,
    /// Only the page itself
    None,
}

impl From<Readahead> for ReadaheadPolicy {
    fn from(readahead: Readahead) -> Self {
        match readahead {
            Readahead::Streams => Self::Streams,
            Readahead::Vma => Self::Vma,
            Readahead::Cluster => Self::Cluster,
            Readahead::Trend => Self::Trend,
            Readahead::None => Self::None,
        }
    }
}

/// `--encrypt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Encrypt {
    /// Everywhere but in memory
    Always,
    /// On servers
    Far,
    /// Nowhere
    Never,
}

/// `--io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Io {
    /// io_uring, or threads where it is refused or an area cannot be locked
    Auto,
    /// io_uring only
    Uring,
    /// A few threads that call pread and pwrite
    Threads,
}

impl From<Io> for IoBackend {
    fn from(io: Io) -> Self {
        match io {
            Io::Auto => Self::Auto,
            Io::Uring => Self::Uring,
            Io::Threads => Self::Threads,
        }
    }
}
