//! Generations: pages are evicted in the order in which they came, and a page that nobody asked for comes in the middle.
//!
//! A page that a thread waits for joins the youngest generation, as does a page that comes back sooner than pages last.
//! Pages that readahead maps, neighbours of a first touch, and pages that come back late join the generation of the
//! middle. (The kernel's multi-generational LRU in addition makes pages young again whose accessed bit is set.)

use super::parts::{Class, Order, Search, class};
use super::policy::{Came, Rank, ReclaimPolicy};

const ONCE: Class = Class::First;
const AGAIN: Class = Class::Second;

/// The policy.
#[derive(Default)]
pub(crate) struct Generations {
    order: Order,
    /// How many parts ago half of the pages came.
    middle: u16,
}

impl ReclaimPolicy for Generations {
    fn rank(&self, came: Came, _resident: u64) -> Rank {
        match came {
            Came::Joined(rank) if rank != 0 => rank,
            Came::Returned { soon: true, .. } => self.order.rank(AGAIN, 0),
            Came::Touched => self.order.rank(ONCE, 0),
            _ => self.order.rank(ONCE, self.middle),
        }
    }

    fn on_mapped(&mut self, _rank: Rank, resident: u64) {
        self.order.on_mapped(resident);
    }

    fn judge(&mut self, rank: Rank, pages: u32) -> Option<Rank> {
        if rank == 0 || self.order.search() == Search::All || self.order.is_oldest(rank) {
            return None;
        }
        Some(self.order.keep(rank, pages))
    }

    fn begin_pass(&mut self, evicted: u64, resident: u64) {
        self.middle = self.order.middle();
        self.order.begin_pass(evicted, resident, true);
    }

    fn is_needed(&self, rank: Rank) -> bool {
        rank != 0 && class(rank) == AGAIN
    }
}
