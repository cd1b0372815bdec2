//! Two lists, as the kernel's: pages are mapped inactive, and are active once they prove that they are needed again.
//!
//! The kernel looks at accessed bits where this policy sees returns. A page that was touched in its frame, after its
//! eviction, had a second touch within the time that pages last. A page whose refault distance is not larger than the
//! active list would have stayed if the active pages had been inactive (workingset.c). Both are mapped active. While
//! more pages are active than inactive, the oldest active ones become inactive. Victims are the oldest inactive pages.

use super::parts::{Class, Order, Search, class};
use super::policy::{Came, Rank, ReclaimPolicy};

const INACTIVE: Class = Class::First;
const ACTIVE: Class = Class::Second;

/// The policy.
#[derive(Default)]
pub(crate) struct Lru {
    order: Order,
    /// Active pages at the last pass.
    active: u64,
    /// The pass makes the oldest active pages inactive.
    deactivates: bool,
}

impl ReclaimPolicy for Lru {
    fn rank(&self, came: Came, _resident: u64) -> Rank {
        let class = match came {
            Came::Joined(rank) if rank != 0 => return rank,
            _ if came.returned_within(self.active) => ACTIVE,
            _ => INACTIVE,
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
        let rank = match class(rank) {
            _ if !self.order.is_oldest(rank) => rank,
            Class::First => return None,
            Class::Second if search == Search::Wide => return None,
            Class::Second if self.deactivates => self.order.rank(INACTIVE, 0),
            Class::Second => rank,
        };
        Some(self.order.keep(rank, pages))
    }

    fn begin_pass(&mut self, evicted: u64, resident: u64) {
        let [inactive, active] = self.order.begin_pass(evicted, resident, false);
        self.active = active;
        self.deactivates = active > inactive;
    }

    fn is_needed(&self, rank: Rank) -> bool {
        rank != 0 && class(rank) == ACTIVE
    }
}
