//! Where the leaves are found: by number, in groups of 512.
//!
//! Every step of the pager looks up leaves, and 512 entries of one leaf for a huge page. A lookup is a search in a tree
//! of a few groups, a gibibyte each, and an index into the group. A tree of all leaves would be slower.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::ops::Range;

use super::bits::Bits;

/// Places of a group.
const PLACES: u64 = 512;

/// Values by number. A group takes 4 KiB while one of its values is there.
pub(super) struct Directory<T> {
    groups: BTreeMap<u64, Group<T>>,
}

struct Group<T> {
    places: Box<[Option<Box<T>>; PLACES as usize]>,
    used: Bits,
}

impl<T> Default for Directory<T> {
    fn default() -> Self {
        Directory {
            groups: BTreeMap::new(),
        }
    }
}

impl<T> Default for Group<T> {
    fn default() -> Self {
        Group {
            places: Box::new([const { None }; PLACES as usize]),
            used: Bits::default(),
        }
    }
}

const fn split(key: u64) -> (u64, usize) {
    (key / PLACES, (key % PLACES) as usize)
}

/// The groups that keys of `range` are in.
fn groups_of(range: &Range<u64>) -> Range<u64> {
    let first = range.start / PLACES;
    first..range.end.div_ceil(PLACES).max(first)
}

/// The places of group number `group` that are in `range`.
fn places_in(group: u64, range: &Range<u64>) -> Range<usize> {
    let first = group * PLACES;
    let clamp = |key: u64| key.saturating_sub(first).min(PLACES) as usize;
    clamp(range.start)..clamp(range.end)
}

impl<T> Directory<T> {
    /// The value of `key`, if there is one.
    pub fn get(&self, key: u64) -> Option<&T> {
        let (group, place) = split(key);
        self.groups.get(&group)?.places[place].as_deref()
    }

    /// As [`Directory::get`], to be changed.
    pub fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let (group, place) = split(key);
        self.groups.get_mut(&group)?.places[place].as_deref_mut()
    }

    /// Remove the value of `key`.
    pub fn remove(&mut self, key: u64) {
        let (number, place) = split(key);
        if let Some(group) = self.groups.get_mut(&number) {
            group.places[place] = None;
            group.used.set(place, false);
            if group.used.is_empty() {
                self.groups.remove(&number);
            }
        }
    }

    /// The values of `keys`, in order.
    pub fn range(&self, keys: Range<u64>) -> impl Iterator<Item = (u64, &T)> {
        let groups = self.groups.range(groups_of(&keys));
        groups.flat_map(move |(&number, group)| {
            let places = group.used.within(places_in(number, &keys));
            let first = number * PLACES;
            places.filter_map(move |place| {
                Some((first + place as u64, group.places[place].as_deref()?))
            })
        })
    }

    /// As [`Directory::range`], to be changed.
    pub fn range_mut(&mut self, keys: Range<u64>) -> impl Iterator<Item = (u64, &mut T)> {
        let groups = self.groups.range_mut(groups_of(&keys));
        groups.flat_map(move |(&number, group)| {
            let places = group.used.within(places_in(number, &keys));
            let (first, mut from, mut rest) = (number * PLACES, 0, group.places.iter_mut());
            places.filter_map(move |place| {
                let value = rest.nth(place - from)?;
                from = place + 1;
                Some((first + place as u64, value.as_deref_mut()?))
            })
        })
    }

    /// Bytes of memory that it takes.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        let values: u32 = self.groups.values().map(|group| group.used.count()).sum();
        let group = PLACES as usize * size_of::<Option<Box<T>>>() + size_of::<Group<T>>();
        (values as usize * size_of::<T>() + self.groups.len() * group) as u64
    }
}

impl<T: Default> Directory<T> {
    /// The value of `key`, or a new one.
    pub fn get_or_default(&mut self, key: u64) -> &mut T {
        let (group, place) = split(key);
        let group = self.groups.entry(group).or_default();
        group.used.set(place, true);
        group.places[place].get_or_insert_default()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// The answer of a balanced tree.
    #[test]
    fn it_does_as_a_tree_does() {
        let (mut directory, mut tree) = (Directory::<u64>::default(), BTreeMap::new());
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..20_000 {
            // Some keys lie together, some far apart, and some at the very end.
            let key = match random(3) {
                0 => random(40),
                1 => 500 + random(30) + 512 * random(3),
                _ => u64::MAX / 512 - random(2) * 700,
            };
            match random(4) {
                0 => {
                    directory.remove(key);
                    tree.remove(&key);
                }
                1 => {
                    let value = random(1000);
                    *directory.get_or_default(key) = value;
                    tree.insert(key, value);
                }
                2 => {
                    assert_eq!(directory.get(key), tree.get(&key));
                    assert_eq!(directory.get_mut(key), tree.get_mut(&key));
                }
                _ => {
                    let end = key.max(random(2000));
                    let wanted: Vec<_> = tree.range(key..end).map(|(&k, &v)| (k, v)).collect();
                    let found: Vec<_> = directory.range(key..end).map(|(k, &v)| (k, v)).collect();
                    assert_eq!(found, wanted);
                    let found = directory.range_mut(key..end).map(|(k, v)| (k, *v));
                    assert_eq!(found.collect::<Vec<_>>(), wanted);
                }
            }
        }
        let all: Vec<_> = directory.range(0..u64::MAX).map(|(k, &v)| (k, v)).collect();
        assert_eq!(all, tree.iter().map(|(&k, &v)| (k, v)).collect::<Vec<_>>());
        assert!(all.len() > 50);
        for (key, _) in all {
            directory.remove(key);
        }
        assert_eq!(directory.bytes(), 0);
    }
}
