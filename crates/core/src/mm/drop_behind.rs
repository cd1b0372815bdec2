//! Drop-behind at work: pages that a long stream has passed are evicted first ([`crate::reclaim::drop_behind`]).

use alloc::vec::Vec;

use super::Mm;
use crate::heuristics::Heuristic;
use crate::huge::{Thp, unit_of};
use crate::reclaim::drop_behind::{Bounds, OFFERED};
use crate::units::Vpn;
use crate::world::World;

impl Mm {
    /// Drop-behind: resident pages that a long stream has passed, and that did not prove to be needed again. False:
    /// they are units for which there will be room soon.
    pub(super) fn take_drop_behind(
        &mut self,
        w: &mut impl World,
        max: u32,
        victims: &mut Vec<Vpn>,
    ) -> bool {
        if !self.uses(Heuristic::DropBehind) {
            return true;
        }
        let yields = self.faults_at_random() && self.uses(Heuristic::DropBehindAtRandom);
        let bounds = Bounds::new(self.table.resident(), yields);
        let mut offered = 0;
        while offered < OFFERED {
            let Some(run) = self.streams.behind(&bounds, max.into()) else {
                return true;
            };
            offered += run.count;
            if self.config.thp != Thp::Never {
                let mut last = None;
                for page in run.pages() {
                    // Before the first of its pages is evicted, a whole leaf can still become a unit.
                    if last.replace(unit_of(page)) != Some(unit_of(page)) {
                        self.collapse(w, page);
                    }
                }
            }
            let passed = |&page: &Vpn| self.may_pass(page, run.after(page));
            victims.extend(run.rising().filter(passed));
            if victims.iter().any(|&page| self.table.is_huge(page)) && self.awaits_cluster() {
                self.streams.offer_drop_behind_again(run);
                victims.clear();
                return false;
            }
            if !victims.is_empty() {
                break;
            }
        }
        true
    }
}
