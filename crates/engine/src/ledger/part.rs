//! Sets of slots within one cluster: the unit of the slot operations.
//!
//! A process that dies within an operation leaves a word, its intent, from which the supervisor learns the slots to
//! recount. A word has room for consecutive slots only: the intent of a set covers it.

use std::array::from_fn;

use super::layout::CLUSTER_SLOTS;
use super::{AreaId, ClusterIndex, SlotIndex};

/// Words of a cluster's slot mask.
const WORDS: usize = CLUSTER_SLOTS as usize / 64;
const INTENT: u64 = 1 << 63;

/// Slots of one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) area: AreaId,
    pub(super) cluster: ClusterIndex,
    /// A bit for each slot of the cluster.
    mask: [u64; WORDS],
}

impl Part {
    /// `count` consecutive slots; `None` if there are none, or if they are in more than one cluster.
    pub(super) fn run(area: AreaId, first: SlotIndex, count: u32) -> Option<Self> {
        let start = first.0 % CLUSTER_SLOTS;
        if count == 0 || count > CLUSTER_SLOTS - start {
            return None;
        }
        let mut part = Self::empty(area, first.cluster());
        for (word, bits) in (0..).zip(&mut part.mask) {
            let from = start.clamp(word * 64, word * 64 + 64) - word * 64;
            let to = (start + count).clamp(word * 64, word * 64 + 64) - word * 64;
            if from < to {
                *bits = u64::MAX >> (64 - (to - from)) << from;
            }
        }
        Some(part)
    }

    /// One slot.
    pub(super) fn one(area: AreaId, slot: SlotIndex) -> Self {
        let mut part = Self::empty(area, slot.cluster());
        part.add(slot);
        part
    }

    /// All slots of a cluster.
    pub(super) fn all(area: AreaId, cluster: ClusterIndex) -> Self {
        let mask = [u64::MAX; WORDS];
        Self {
            area,
            cluster,
            mask,
        }
    }

    fn empty(area: AreaId, cluster: ClusterIndex) -> Self {
        let mask = [0; WORDS];
        Self {
            area,
            cluster,
            mask,
        }
    }

    fn add(&mut self, slot: SlotIndex) {
        let at = slot.0 % CLUSTER_SLOTS;
        self.mask[at as usize / 64] |= 1 << (at % 64);
    }

    /// The slots whose bit is still set after `change`, which gets the index of each word of a bitmap of all slots of
    /// the area, and the bits of the set in it.
    pub(super) fn map(&self, mut change: impl FnMut(usize, u64) -> u64) -> Self {
        let first = self.cluster.0 as usize * WORDS;
        let mask = from_fn(|word| match self.mask[word] {
            0 => 0,
            bits => change(first + word, bits),
        });
        Self { mask, ..*self }
    }

    /// Number of slots.
    pub(super) fn count(&self) -> u32 {
        self.mask.iter().map(|word| word.count_ones()).sum()
    }

    /// Its slots in order.
    pub(super) fn slots(&self) -> impl Iterator<Item = SlotIndex> + use<> {
        let (first, mask) = (self.cluster.first_slot().0, self.mask);
        let words = (0..).zip(mask);
        words.flat_map(move |(word, set)| {
            bits(set).map(move |bit| SlotIndex(first + word * 64 + bit))
        })
    }

    pub(super) fn has(&self, area: AreaId, slot: SlotIndex) -> bool {
        let one = Self::one(area, slot);
        let is_set = |(all, bit): (&u64, &u64)| all & bit != 0;
        (self.area, self.cluster) == (area, one.cluster)
            && self.mask.iter().zip(&one.mask).any(is_set)
    }

    /// The word of an intent: the area, the first slot, and the number of slots up to the last.
    pub(super) fn intent(&self) -> u64 {
        let (first, last) = match (self.slots().next(), self.last()) {
            (Some(first), Some(last)) => (first, last),
            _ => return 0,
        };
        let more = u64::from(last.0 - first.0);
        INTENT | more << 40 | u64::from(self.area.0) << 32 | u64::from(first.0)
    }

    fn last(&self) -> Option<SlotIndex> {
        let word = self.mask.iter().rposition(|word| *word != 0)?;
        let bit = self.mask[word].ilog2();
        Some(SlotIndex(
            self.cluster.first_slot().0 + word as u32 * 64 + bit,
        ))
    }

    /// All slots that an operation with this intent may have changed.
    pub(super) fn of_intent(word: u64) -> Option<Self> {
        if word & INTENT == 0 {
            return None;
        }
        let count = ((word >> 40) as u32 & (CLUSTER_SLOTS - 1)) + 1;
        Self::run(AreaId((word >> 32) as u8), SlotIndex(word as u32), count)
    }
}

/// Slots of several areas, by cluster.
#[derive(Default)]
pub(super) struct Parts {
    parts: Vec<Part>,
    /// By area and cluster: the number of its part, plus 1.
    numbers: Vec<Vec<u32>>,
}

impl Parts {
    pub(super) fn add(&mut self, area: AreaId, slot: SlotIndex) {
        let (of_area, cluster) = (usize::from(area.0), slot.cluster());
        if self.numbers.len() <= of_area {
            self.numbers.resize(of_area + 1, Vec::new());
        }
        let numbers = &mut self.numbers[of_area];
        if numbers.len() <= cluster.0 as usize {
            numbers.resize(cluster.0 as usize + 1, 0);
        }
        let number = &mut numbers[cluster.0 as usize];
        if *number == 0 {
            self.parts.push(Part::empty(area, cluster));
            *number = self.parts.len() as u32;
        }
        self.parts[*number as usize - 1].add(slot);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter()
    }
}

/// The positions of the set bits.
pub(super) fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_names_its_slots() {
        let last = AreaId(7);
        for (area, first, count) in [(0, 0, 1), (7, 0xfff_fe00, 512), (3, 512 * 9 + 511, 1)] {
            let (area, first) = (AreaId(area), SlotIndex(first));
            let run = Part::run(area, first, count).expect("slots of one cluster");
            assert_eq!(Part::of_intent(run.intent()), Some(run));
            assert_eq!(run.slots().count(), count as usize);
            assert!(run.slots().all(|slot| run.has(area, slot)));
            let after = SlotIndex(first.0 + count);
            assert!(!run.has(area, after) && !run.has(AreaId(last.0 - area.0), first));
        }
        assert_eq!(Part::of_intent(0), None);
    }

    #[test]
    fn a_run_has_its_slots_and_lies_in_one_cluster() {
        let area = AreaId(0);
        for first in 0..CLUSTER_SLOTS {
            for count in 1..=CLUSTER_SLOTS - first {
                let run = Part::run(area, SlotIndex(first), count).expect("slots of one cluster");
                assert!(run.slots().map(|slot| slot.0).eq(first..first + count));
                assert_eq!(run.count(), count);
            }
            assert_eq!(
                Part::run(area, SlotIndex(first), CLUSTER_SLOTS - first + 1),
                None
            );
        }
        assert_eq!(Part::run(area, SlotIndex(7), 0), None);
    }

    #[test]
    fn an_intent_covers_slots_with_gaps() {
        let mut parts = Parts::default();
        let slots = [1030, 1024 + 511, 5, 1100, 7];
        for slot in slots {
            parts.add(AreaId(2), SlotIndex(slot));
        }
        parts.add(AreaId(0), SlotIndex(5));
        let found: Vec<(u8, Vec<u32>)> = parts
            .iter()
            .map(|part| (part.area.0, part.slots().map(|slot| slot.0).collect()))
            .collect();
        assert_eq!(
            found,
            [(2, vec![1030, 1100, 1535]), (2, vec![5, 7]), (0, vec![5])]
        );
        let covered = parts.iter().map(|part| Part::of_intent(part.intent()));
        let counts = covered.map(|part| part.map_or(0, |part| part.count()));
        assert_eq!(counts.collect::<Vec<_>>(), [506, 3, 1]);
    }

    #[test]
    fn a_change_sees_the_words_of_the_areas_bitmap() {
        let part = Part::run(AreaId(0), SlotIndex(512 + 60), 10).expect("slots of one cluster");
        let mut seen = Vec::new();
        let kept = part.map(|word, bits| {
            seen.push((word, bits));
            bits & 1
        });
        assert_eq!(seen, [(8, 0xf << 60), (9, 0x3f)]);
        assert!(kept.slots().eq([SlotIndex(512 + 64)]));
    }
}
