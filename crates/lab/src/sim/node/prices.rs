//! CPU costs of memory operations, derived from the machine's own figures.

use foreswap_core::units::Nanos;

use super::zones::BLOCK;
use crate::sim::parameters::Costs;

/// CPU time, per page unless stated otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    /// The first touch of a page: the fault, a frame, its zeros, the entry, the touch.
    pub first_touch: Nanos,
    /// The first touch of a huge page, and of all small ones in it.
    pub first_touch_huge: Nanos,
    /// To remove a mapping with its region.
    pub unmap: Nanos,
    /// To allocate a frame for a page of a file.
    pub bring: Nanos,
    /// To copy a page of a file to or from the program: both are in memory, at the speed of zeroing.
    pub copy: Nanos,
    /// To mark a page of a file dirty: its entry and the counters.
    pub dirty: Nanos,
    /// To reclaim a page of a file: to remove its buffers and its entry in the cache's index, each at the cost of
    /// finding and removing a mapping, and to free its frame.
    pub drop: Nanos,
    /// To free the frame of a page whose file is removed.
    pub truncate: Nanos,
    /// To examine a page at the end of a list.
    pub look: Nanos,
    /// To submit a request to the disk, and to process its completion.
    pub submit: Nanos,
    /// As above.
    pub complete: Nanos,
    /// To switch tasks on a CPU.
    pub switch: Nanos,
}

impl Prices {
    /// The costs of a machine.
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
