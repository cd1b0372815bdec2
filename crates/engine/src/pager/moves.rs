//! Memory that the program moves while a fork is held: the map between old and new addresses.

use foreswap_core::units::{PageRange, Vpn, len, overlap, without};

/// One mremap. The old content of the target is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    /// The pages that moved.
    pub from: PageRange,
    /// The new place of the first page.
    pub to: Vpn,
}

impl Move {
    /// Their new places.
    pub fn target(&self) -> PageRange {
        self.to..self.to.plus(len(&self.from))
    }

    /// The parts in which the content of `range` lies after the move. Content overwritten at the target has no place.
    pub fn after(&self, range: &PageRange) -> impl Iterator<Item = PageRange> + use<> {
        let moved = overlap(range, &self.from);
        let start = Vpn(moved
            .start
            .0
            .wrapping_sub(self.from.start.0)
            .wrapping_add(self.to.0));
        let moved = start..start.plus(len(&moved));
        let mut holes = [self.from.clone(), self.target()];
        holes.sort_unstable_by_key(|hole| hole.start);
        let [first, second] = holes;
        let stayed = [
            overlap(range, &(Vpn(0)..first.start)),
            overlap(range, &(first.end..second.start)),
            overlap(range, &(second.end..Vpn(u64::MAX))),
        ];
        let parts = [moved].into_iter().chain(stayed);
        parts.filter(|part| len(part) > 0)
    }

    /// The move that undoes this one.
    pub fn reversed(&self) -> Move {
        Move {
            from: self.target(),
            to: self.from.start,
        }
    }

    /// The parts in which the content of `range` lay before the move. New memory at the old place had no place.
    pub fn before(&self, range: &PageRange) -> impl Iterator<Item = PageRange> + use<> {
        self.reversed().after(range)
    }
}

/// Ranges whose pending unmap event must be ignored: memory moved there before the pager read the event that freed
/// them, or memory moved away from there.
#[derive(Debug, Default)]
pub struct Overdue(Vec<PageRange>);

impl Overdue {
    /// Expect such an event.
    pub fn expect(&mut self, range: PageRange) {
        self.0.push(range);
    }

    /// No such event is pending.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether no event is expected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An unmap event of `range` arrived: returns the parts that are really unmapped.
    pub fn rest_of(&mut self, range: PageRange) -> Vec<PageRange> {
        let mut parts = vec![range];
        for late in core::mem::take(&mut self.0) {
            let (mut gone, mut left) = (Vec::new(), Vec::new());
            for part in parts {
                gone.extend(Some(overlap(&part, &late)).filter(|hit| len(hit) > 0));
                left.extend(without(&part, &late));
            }
            parts = left;
            let mut rest = vec![late];
            for gone in &gone {
                rest = rest.iter().flat_map(|part| without(part, gone)).collect();
            }
            self.0.extend(rest);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        Vpn(start)..Vpn(end)
    }

    #[test]
    fn after_and_before_undo_each_other_but_for_what_was_mapped_over() {
        for (from, to) in [
            (range(20, 30), 40),
            (range(40, 50), 20),
            (range(10, 20), 20),
        ] {
            let to = Vpn(to);
            let moved = Move { from, to };
            for page in (0..70).map(Vpn) {
                let (one, gone) = (page..page.plus(1), moved.target().contains(&page));
                let after: Vec<_> = moved.after(&one).collect();
                assert_eq!(after.is_empty(), gone, "{page:?} {moved:?}");
                for part in after {
                    assert!(moved.before(&part).eq([one.clone()]));
                }
                let new = moved.from.contains(&page);
                assert_eq!(
                    moved.before(&one).next().is_none(),
                    new,
                    "{page:?} {moved:?}"
                );
            }
        }
    }

    #[test]
    fn a_range_that_reaches_beyond_is_cut() {
        let moved = Move {
            from: range(20, 30),
            to: Vpn(40),
        };
        let mut after: Vec<_> = moved.after(&range(10, 60)).collect();
        after.sort_by_key(|part| part.start);
        assert_eq!(
            after,
            [range(10, 20), range(30, 40), range(40, 50), range(50, 60)]
        );
        assert_eq!(
            moved.after(&range(25, 35)).collect::<Vec<_>>(),
            [range(45, 50), range(30, 35)]
        );
    }
}
