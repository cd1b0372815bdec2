//! Watermarks: how much of a zone stays free, and the action of an allocation that finds less.
//!
//! Three levels per zone, min < low < high, in pages. Above low an allocation takes its page. Between low and min it
//! takes it too, and wakes background reclaim. Below min it must reclaim itself (*direct* reclaim) first. Background
//! reclaim continues up to high, so that it works in long stretches and not page by page.
//!
//! A zone is a pool of frames that only some requests can use: DMA, DMA32, Normal. Zones of a node are ordered. A
//! request names the highest that may serve it, and every lower zone may too. A zone keeps a *reserve* from requests for
//! higher zones, so that they do not use it up.

/// The most zones of a node.
pub const MAX_ZONES: usize = 4;
/// The distance of a watermark to the next, in ten-thousandths of the zone, as Linux starts.
pub const DEFAULT_SCALE: u64 = 10;
/// Pages that reclaim examines in one go; a target is never smaller.
pub const RECLAIM_BATCH: u64 = 32;

/// Which zone of its node, from 0, the lowest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ZoneIndex(pub usize);

/// The levels of one zone, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermarks {
    /// Below it an allocation reclaims itself.
    pub min: u64,
    /// Below it background reclaim is woken.
    pub low: u64,
    /// Background reclaim stops here.
    pub high: u64,
}

/// Pages that a machine of `pages` pages keeps free for allocations that cannot wait: four times the square root of its
/// size in KiB, in KiB; from 128 KiB to 64 MiB.
pub fn min_free(pages: u64) -> u64 {
    let kib = pages.saturating_mul(4);
    (kib.saturating_mul(16).isqrt().clamp(128, 65_536) / 4).min(pages)
}

impl Watermarks {
    /// Of a zone of `zone` pages in a machine of `machine` pages, which keeps `min_free` pages free.
    /// `scale`: the least distance from level to level, in ten-thousandths of the zone.
    pub fn new(zone: u64, machine: u64, min_free: u64, scale: u64) -> Self {
        let part = u128::from(min_free) * u128::from(zone) / u128::from(machine.max(1));
        let min = u64::try_from(part).unwrap_or(u64::MAX).min(zone);
        let by_size = u64::try_from(u128::from(zone) * u128::from(scale) / 10_000);
        let step = (min / 4).max(by_size.unwrap_or(u64::MAX)).min(zone);
        Watermarks {
            min,
            low: min + step,
            high: min + 2 * step,
        }
    }
}

/// The state of one zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Zone {
    /// Its pages. A zone without pages is ignored.
    pub pages: u64,
    /// Of those, free.
    pub free: u64,
    /// The largest order for which a block is free: a block of order `n` is 2^n pages. `None` when nothing is free.
    pub largest: Option<u32>,
    /// Its levels.
    pub marks: Watermarks,
    /// Pages kept back from requests that could be served by zone `n`.
    pub reserve: [u64; MAX_ZONES],
}

impl Zone {
    /// A request of this order, for zones up to `highest`, leaves more than `mark` pages free.
    pub fn allows(&self, order: u32, mark: u64, highest: ZoneIndex) -> bool {
        let kept = self.reserve.get(highest.0).copied().unwrap_or(u64::MAX);
        // All pages of the request but one: the level itself has to stay.
        let taken = 1u64.checked_shl(order).map_or(u64::MAX, |pages| pages - 1);
        let needed = mark.saturating_add(kept).saturating_add(taken);
        self.free > needed && (order == 0 || self.largest.is_some_and(|free| free >= order))
    }
}

/// The zones of a node that may serve a request up to `highest`, lowest first.
pub(super) fn eligible(
    zones: &[Zone],
    highest: ZoneIndex,
) -> impl DoubleEndedIterator<Item = &Zone> {
    let most = highest.0.saturating_add(1).min(zones.len());
    zones[..most].iter().filter(|zone| zone.pages > 0)
}

/// The action of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// Takes from this zone.
    Take(ZoneIndex),
    /// Takes from this zone and asks for background reclaim.
    TakeAndWake(ZoneIndex),
    /// Asks for background reclaim, reclaims itself and tries again.
    Reclaim,
}

/// Where a request of this order, for zones up to `highest`, is served: by the highest zone that has enough.
pub fn allocate(zones: &[Zone], order: u32, highest: ZoneIndex) -> Allocation {
    let first = |mark: fn(&Watermarks) -> u64| {
        let most = highest.0.saturating_add(1).min(zones.len());
        let serves = |&at: &usize| {
            let zone = &zones[at];
            zone.pages > 0 && zone.allows(order, mark(&zone.marks), highest)
        };
        (0..most).rev().find(serves).map(ZoneIndex)
    };
    if let Some(zone) = first(|marks| marks.low) {
        Allocation::Take(zone)
    } else if let Some(zone) = first(|marks| marks.min) {
        Allocation::TakeAndWake(zone)
    } else {
        Allocation::Reclaim
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(free: u64) -> Zone {
        Zone {
            pages: 10_000,
            free,
            largest: Some(10),
            marks: Watermarks {
                min: 100,
                low: 125,
                high: 150,
            },
            reserve: [0; MAX_ZONES],
        }
    }

    #[test]
    fn levels_are_those_of_linux() {
        // 4 GiB: 8 MiB; 32 GiB: 23,170 KiB.
        assert_eq!(min_free(1 << 20), 2048);
        assert_eq!(min_free(1 << 23), 5792);
        assert_eq!(min_free(u64::MAX), 16_384);
        assert_eq!(min_free(10), 10);
        // A quarter of min from level to level in a small machine, a thousandth of a large zone.
        let marks = Watermarks::new(1 << 20, 1 << 20, 2048, DEFAULT_SCALE);
        assert_eq!((marks.min, marks.low, marks.high), (2048, 3096, 4144));
        let marks = Watermarks::new(4000, 1 << 20, 2048, DEFAULT_SCALE);
        assert_eq!((marks.min, marks.low, marks.high), (7, 11, 15));
        let marks = Watermarks::new(1 << 18, 1 << 18, 1024, 1000);
        assert_eq!(
            (marks.low - marks.min, marks.high - marks.low),
            (26_214, 26_214)
        );
        assert_eq!(Watermarks::new(0, 0, 0, 10), Watermarks::default());
    }

    #[test]
    fn an_allocation_takes_wakes_or_reclaims() {
        for (free, expected) in [
            (126, Allocation::Take(ZoneIndex(0))),
            (125, Allocation::TakeAndWake(ZoneIndex(0))),
            (101, Allocation::TakeAndWake(ZoneIndex(0))),
            (100, Allocation::Reclaim),
            (0, Allocation::Reclaim),
        ] {
            assert_eq!(
                allocate(&[zone(free)], 0, ZoneIndex(0)),
                expected,
                "{free} free"
            );
        }
    }

    #[test]
    fn the_highest_zone_goes_first_and_one_above_low_before_one_below() {
        let high = ZoneIndex(1);
        assert_eq!(
            allocate(&[zone(500), zone(500)], 0, high),
            Allocation::Take(high)
        );
        let low = ZoneIndex(0);
        assert_eq!(
            allocate(&[zone(500), zone(110)], 0, high),
            Allocation::Take(low)
        );
        // One that the request may not use does not count, nor one without pages.
        assert_eq!(allocate(&[zone(0), zone(500)], 0, low), Allocation::Reclaim);
        let none = Zone {
            pages: 0,
            ..zone(500)
        };
        assert_eq!(allocate(&[none], 0, low), Allocation::Reclaim);
        assert_eq!(allocate(&[], 0, low), Allocation::Reclaim);
    }

    #[test]
    fn the_reserve_is_kept_from_requests_for_higher_zones() {
        let mut low = zone(500);
        low.reserve[1] = 400;
        assert!(low.allows(0, 150, ZoneIndex(0)));
        assert!(!low.allows(0, 150, ZoneIndex(1)));
        assert!(low.allows(0, 99, ZoneIndex(1)));
        // A zone that there cannot be.
        assert!(!low.allows(0, 0, ZoneIndex(MAX_ZONES)));
    }

    #[test]
    fn a_large_request_needs_a_block_of_its_size() {
        let mut zone = zone(1000);
        zone.largest = Some(8);
        assert!(zone.allows(8, 150, ZoneIndex(0)));
        assert!(!zone.allows(9, 150, ZoneIndex(0)));
        // And its pages, whatever blocks there are.
        zone.largest = Some(10);
        zone.free = 661;
        assert!(!zone.allows(9, 150, ZoneIndex(0)));
        zone.free = 662;
        assert!(zone.allows(9, 150, ZoneIndex(0)));
        zone.largest = None;
        assert!(zone.allows(0, 150, ZoneIndex(0)));
        assert!(!zone.allows(200, 0, ZoneIndex(0)));
    }
}
