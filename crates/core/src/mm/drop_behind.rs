//! Drop-behind: a scan of more memory than there is evicts the pages behind itself, before anything else is evicted.
//!
//! It would push out the working set of others, and its own pages before it comes back to them. While threads fault at
//! random, a scan yields: it is cut as soon as it is two huge pages long.

use alloc::vec::Vec;

use super::Mm;
use crate::frames::clusters::UNIT;
use crate::huge::{Thp, unit_of};
use crate::units::Vpn;
use crate::world::World;

/// A stream that has passed over this part of the resident pages is evicted behind itself, except for the last part.
const LONG: u64 = 8;
const KEPT: u64 = 16;
/// Pages of such a stream that are searched for resident ones before the clock continues.
const OFFERED: u64 = 4 * UNIT as u64;

impl Mm {
    /// Drop-behind: resident pages that a long stream has passed, and that did not prove to be needed again. False:
    /// they are units for which there will be room soon.
    pub(super) fn take_drop_behind(
        &mut self,
        w: &mut impl World,
        max: u32,
        victims: &mut Vec<Vpn>,
    ) -> bool {
        let memory = self.space.table.resident();
        let yields = self.faults_at_random();
        let (long, margin) = match yields {
            true => (2 * u64::from(UNIT), u64::from(UNIT)),
            false => (memory / LONG, memory / KEPT),
        };
        let mut offered = 0;
        while offered < OFFERED {
            let Some(run) =
                self.readahead
                    .streams
                    .behind(w.now(), long, margin, max.into(), yields)
            else {
                return true;
            };
            offered += run.count;
            let next = |page: Vpn| match run.falling {
                true => Vpn(page.0.saturating_sub(run.step)),
                false => page.plus(run.step),
            };
            if self.config.thp != Thp::Never {
                let mut last = None;
                for page in run.pages() {
                    // Before the first of its pages is evicted, a whole leaf can still become a unit.
                    if last.replace(unit_of(page)) != Some(unit_of(page)) {
                        self.collapse(w, page);
                    }
                }
            }
            let passed = |&page: &Vpn| self.may_pass(page, next(page));
            victims.extend(run.rising().filter(passed));
            if victims.iter().any(|&page| self.space.table.is_huge(page)) && self.awaits_cluster() {
                self.readahead.streams.offer_drop_behind_again(run);
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
