//! The size of a process and the configuration of its core.

use foreswap_core::Config;
#[cfg(feature = "planted")]
use foreswap_core::planted::Bug;
use foreswap_core::units::LEAF_PAGES;

/// A process that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The configuration of its core.
    pub config: Config,
    /// Its pages; the core does not know of them until they are adopted.
    pub pages: usize,
    /// Its threads.
    pub threads: usize,
    /// The queue depth.
    pub queue: usize,
    /// Clusters that may be hashed in parallel beside the core.
    pub helpers: usize,
    /// The device reports completions only when none is left.
    pub at_once: bool,
    /// Calls of the core between two full checks.
    pub check_every: u32,
    /// The bug that is planted in the core.
    #[cfg(feature = "planted")]
    pub plant: Option<Bug>,
}

impl Setup {
    /// A process of eight threads with a queue of eight I/Os, checked the more often the smaller it is.
    pub fn new(config: Config, pages: usize) -> Self {
        Setup {
            config,
            pages,
            threads: 8,
            queue: 8,
            helpers: 0,
            at_once: false,
            check_every: 1 + pages as u32 / 1024,
            #[cfg(feature = "planted")]
            plant: None,
        }
    }

    /// Frames, of clusters and single.
    pub fn frames(&self) -> usize {
        self.config.frames as usize + self.config.clusters as usize * LEAF_PAGES
    }
}
