//! What acts on memory cost, in CPU time: put together from the machine's own figures.

use foreswap_core::units::Nanos;

use super::zones::BLOCK;
use crate::sim::parameters::Costs;

/// CPU time, by page where nothing else is said.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    /// The first touch of a page: the fault, a frame, its zeros, the entry, the touch.
    pub first_touch: Nanos,
    /// The first touch of a huge page, and of all small ones in it.
    pub first_touch_huge: Nanos,
    /// To take a mapping away with its region.
    pub unmap: Nanos,
    /// To get a frame for a page of a file.
    pub bring: Nanos,
    /// To copy a page of a file to or from the program: both are memory at the speed of zeroing.
    pub copy: Nanos,
    /// To note that a page of a file is dirty: its entry and the counters.
    pub dirty: Nanos,
    /// To reclaim a page of a file: to take it from its buffers and out of the cache's index, each of which
    /// takes as long as to find and take away a mapping, and to give its frame back.
    pub drop: Nanos,
    /// To give the frame of a page back whose file is removed.
    pub truncate: Nanos,
    /// To look at a page at the end of a list.
    pub look: Nanos,
    /// To hand a request to the disk, and to take its completion.
    pub submit: Nanos,
    /// As above.
    pub complete: Nanos,
    /// To let another task run on a CPU.
    pub switch: Nanos,
}

impl Prices {
    /// Of a machine.
    pub fn new(costs: &Costs) -> Self {
        let small = costs.fault + costs.allocate + costs.map;
        let content = costs.zero + costs.touch;
        Prices {
            first_touch: small + content,
            first_touch_huge: small + u64::from(BLOCK) * content,
            unmap: costs.map,
            bring: costs.allocate + costs.map,
            copy: costs.touch + 2 * costs.zero,
            dirty: costs.map,
            drop: costs.allocate + 2 * costs.unmap,
            truncate: costs.allocate,
            look: costs.touch,
            submit: costs.submit,
            complete: costs.complete,
            switch: costs.switch,
        }
    }
}
