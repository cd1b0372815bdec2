//! Where in a process its memory is, and where pages came in since the look before: samples of `/proc/PID/pagemap`.
//!
//! The mappings of the process, one after the other, are divided into places of one size, and some pages of each are
//! looked at: nothing in the engine counts by place, and a look costs the same for any amount of memory. Whoever may see the
//! run may look, except at a process of another user (`--other-users`): its places have the mean of their mapping.

use std::fs::File;
use std::os::unix::fs::FileExt;

use foreswap_store::area::PAGE_BYTES;

use crate::control::words::Mapping;

/// The number of places: about the width of a terminal.
const PLACES: usize = 160;
/// The pages that are looked at in each.
const SAMPLES: usize = 16;
/// The bit of pagemap for a page in memory.
const PRESENT: u64 = 1 << 63;

/// A part of the mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Place {
    /// The part of it in memory, 0 to 1.
    pub resident: f64,
    /// The part of it that came in since the look before.
    pub came: f64,
    /// Pages of its mapping are on areas.
    pub is_swapped: bool,
}

/// What was seen of a process.
#[derive(Debug, PartialEq)]
struct Seen {
    pid: i32,
    addresses: Vec<u64>,
    present: Vec<bool>,
}

/// Looks at one process after the other.
#[derive(Debug, Default)]
pub struct Sampler {
    before: Option<Seen>,
}

impl Sampler {
    /// The places of `mappings`, which are those of the process `pid`; none if there are no mappings.
    pub fn look(&mut self, pid: i32, mappings: &[Mapping]) -> Vec<Place> {
        let samples = samples(mappings);
        let addresses: Vec<u64> = samples.iter().map(|(address, _)| *address).collect();
        let Some(present) = present(pid, &addresses) else {
            self.before = None;
            return means(&samples);
        };
        let now = Seen {
            pid,
            addresses,
            present,
        };
        let places = places(&samples, &now, self.before.as_ref());
        self.before = Some(now);
        places
    }
}

/// The addresses of the samples of all places, each with its mapping.
fn samples(mappings: &[Mapping]) -> Vec<(u64, &Mapping)> {
    let total: u64 = mappings.iter().map(|mapping| mapping.bytes).sum();
    let count = if total < PAGE_BYTES {
        0
    } else {
        PLACES * SAMPLES
    };
    let mut before = 0;
    let mut rest = mappings.iter();
    let mut mapping = rest.next();
    let addresses = (0..count as u128).filter_map(|sample| {
        let at = (u128::from(total) * (2 * sample + 1) / (2 * count as u128)) as u64;
        while let Some(now) = mapping
            && at - before >= now.bytes
        {
            before += now.bytes;
            mapping = rest.next();
        }
        let now = mapping?;
        Some(((now.start + at - before) / PAGE_BYTES * PAGE_BYTES, now))
    });
    addresses.collect()
}

/// Which of the pages are in memory; `None` if that cannot be seen.
fn present(pid: i32, addresses: &[u64]) -> Option<Vec<bool>> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).ok()?;
    let look = |address: &u64| {
        let mut entry = [0; 8];
        let read = pagemap.read_exact_at(&mut entry, address / PAGE_BYTES * 8);
        read.ok().map(|()| u64::from_ne_bytes(entry) & PRESENT != 0)
    };
    addresses.iter().map(look).collect()
}

fn places(samples: &[(u64, &Mapping)], now: &Seen, before: Option<&Seen>) -> Vec<Place> {
    // The places of other mappings are others.
    let same = |before: &&Seen| before.pid == now.pid && before.addresses == now.addresses;
    let before = before.filter(same);
    let came = |at: usize| before.is_some_and(|before| now.present[at] && !before.present[at]);
    let part = |count: usize| count as f64 / SAMPLES as f64;
    let starts = (0..samples.len()).step_by(SAMPLES);
    let place = starts.map(|start| {
        let each = start..start + SAMPLES;
        Place {
            resident: part(each.clone().filter(|&at| now.present[at]).count()),
            came: part(each.filter(|&at| came(at)).count()),
            is_swapped: is_swapped(&samples[start..start + SAMPLES]),
        }
    });
    place.collect()
}

fn is_swapped(samples: &[(u64, &Mapping)]) -> bool {
    samples.iter().any(|(_, mapping)| mapping.swapped_bytes > 0)
}

/// The places if only their mappings are known.
fn means(samples: &[(u64, &Mapping)]) -> Vec<Place> {
    let place = samples.chunks(SAMPLES).map(|each| {
        let parts = each
            .iter()
            .map(|(_, mapping)| mapping.resident_bytes as f64 / mapping.bytes as f64);
        Place {
            resident: parts.sum::<f64>() / each.len() as f64,
            came: 0.0,
            is_swapped: is_swapped(each),
        }
    });
    place.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, mebibytes: u64, resident: u64, swapped: u64) -> Mapping {
        Mapping {
            start,
            bytes: mebibytes << 20,
            resident_bytes: resident << 20,
            swapped_bytes: swapped << 20,
        }
    }

    #[test]
    fn places_are_in_the_order_of_addresses_and_as_large_as_each_other() {
        let mappings = [mapping(1 << 30, 30, 0, 1), mapping(1 << 40, 10, 0, 0)];
        let samples = samples(&mappings);
        assert_eq!(samples.len(), PLACES * SAMPLES);
        let in_first = samples.iter().filter(|(at, _)| *at < 1 << 40).count();
        assert_eq!(in_first, PLACES * SAMPLES * 3 / 4);
        assert!(samples.is_sorted_by(|one, next| one.0 <= next.0));
        assert!(
            samples
                .iter()
                .all(|(at, of)| (of.start..of.start + of.bytes).contains(at))
        );
        assert!(super::samples(&[]).is_empty());
    }

    #[test]
    fn what_came_in_is_what_was_not_there_at_the_same_address() {
        let mappings = [mapping(1 << 30, 40, 0, 1)];
        let samples = samples(&mappings);
        let addresses: Vec<u64> = samples.iter().map(|(at, _)| *at).collect();
        let seen = |pid, addresses: &[u64], present: fn(usize) -> bool| Seen {
            pid,
            addresses: addresses.to_vec(),
            present: (0..addresses.len()).map(present).collect(),
        };
        let before = seen(1, &addresses, |at| at < 8);
        let now = seen(1, &addresses, |at| at < 24);
        let found = places(&samples, &now, Some(&before));
        let parts: Vec<_> = found
            .iter()
            .map(|place| (place.resident, place.came))
            .collect();
        assert_eq!(parts[..3], [(1.0, 0.5), (0.5, 0.5), (0.0, 0.0)]);
        assert!(found.iter().all(|place| place.is_swapped));
        for other in [
            seen(2, &addresses, |at| at < 8),
            seen(1, &addresses[1..], |at| at < 8),
        ] {
            let found = places(&samples, &now, Some(&other));
            assert!(found.iter().all(|place| place.came == 0.0));
        }
    }

    #[test]
    fn memory_of_this_process_is_seen_and_of_none_is_guessed() {
        let mut memory = vec![0_u8; 64 << 20];
        let len = memory.len() as u64;
        memory[len as usize / 2..].fill(1);
        let mappings = [Mapping {
            start: memory.as_ptr() as u64,
            bytes: len,
            resident_bytes: len / 4,
            swapped_bytes: 0,
        }];
        let pid = std::process::id().cast_signed();
        let mut sampler = Sampler::default();
        let found = sampler.look(pid, &mappings);
        assert!(
            found[..PLACES / 2 - 8]
                .iter()
                .all(|place| place.resident < 0.5)
        );
        assert!(
            found[PLACES / 2 + 1..]
                .iter()
                .all(|place| place.resident == 1.0)
        );
        memory[..len as usize / 4].fill(1);
        let found = sampler.look(pid, &mappings);
        assert!(found[..PLACES / 4 - 1].iter().all(|place| place.came > 0.5));
        assert!(
            found[PLACES / 2 + 1..]
                .iter()
                .all(|place| place.came == 0.0)
        );
        let guessed = sampler.look(i32::MAX, &mappings);
        assert!(guessed.iter().all(|place| place.resident == 0.25));
    }
}
