//! S3-FIFO: a small queue for pages that came once, and a main queue for those that came again.
//!
//! Pages are mapped into the small queue. While it is larger than a tenth of memory, its oldest pages are the victims,
//! otherwise those of the main queue. A page that is touched in its frame after its eviction, or comes back before as
//! many pages were evicted as are mapped (the ghost queue, kept as refault distances), is mapped into the main queue. So
//! a scan of any length passes through the small queue. The original counts the touches of pages in the queues, which
//! are not seen here: a page of the main queue that goes to a frame and is touched there takes the place of a page
//! that is inserted again.

use super::parts::{Class, Order, Search, class};
use super::policy::{Came, Rank, ReclaimPolicy};

const SMALL: Class = Class::First;
const MAIN: Class = Class::Second;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// The part of mapped memory that the small queue has.
    small: u64,
}

const CONFIG: Config = Config { small: 10 };

/// The policy.
pub(crate) struct S3Fifo {
    config: Config,
    order: Order,
    /// The pass takes its victims from the small queue.
    from_small: bool,
}

impl Default for S3Fifo {
    fn default() -> Self {
        S3Fifo {
            config: CONFIG,
            order: Order::default(),
            from_small: true,
        }
    }
}

impl ReclaimPolicy for S3Fifo {
    fn rank(&self, came: Came, resident: u64) -> Rank {
        let class = match came {
            Came::Joined(rank) if rank != 0 => return rank,
            _ if came.returned_within(resident) => MAIN,
            _ => SMALL,
        };
        self.order.rank(class, 0)
    }

    fn on_mapped(&mut self, _rank: Rank, resident: u64) {
        self.order.on_mapped(resident);
    }

    fn judge(&mut self, rank: Rank, pages: u32) -> Option<Rank> {
        let search = self.order.search();
        if rank == 0 || search == Search::All {
            return None;
        }
        let of_queue = search == Search::Wide || (class(rank) == SMALL) == self.from_small;
        if of_queue && self.order.is_oldest(rank) {
            return None;
        }
        Some(self.order.keep(rank, pages))
    }

    fn begin_pass(&mut self, evicted: u64, resident: u64) {
        let [small, main] = self.order.begin_pass(evicted, resident, false);
        self.from_small = small * self.config.small >= small + main;
    }

    fn is_needed(&self, rank: Rank) -> bool {
        rank != 0 && class(rank) == MAIN
    }
}
