//! Properties of every policy for any sequence of reads.

use alloc::collections::BTreeSet;

use super::*;

/// SplitMix64: the same numbers everywhere.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// Rules that every plan keeps, for any policy.
fn check(plan: &Plan, cache: &Model, most: u64, policy: Policy) {
    let runs = runs(plan);
    let pages: u64 = runs.iter().map(|run| run.pages).sum();
    assert!(pages <= most, "{pages} pages in {plan:?}, at most {most}");
    let mut seen = BTreeSet::new();
    for run in &runs {
        assert!(run.pages > 0 && run.end().0 <= cache.pages, "{plan:?}");
        for page in run.start.0..run.end().0 {
            assert!(seen.insert(page), "page {page} twice in {plan:?}");
        }
        if let Some(mark) = run.mark() {
            assert!(mark >= run.start && mark < run.end(), "{plan:?}");
        }
    }
    let marks = runs.iter().filter_map(Run::mark).count();
    // One for each part of a window, and of what the program has used since.
    let most = if policy == Policy::Streams { 9 } else { 1 };
    assert!(marks <= most, "{marks} marks in {plan:?}");
}

#[test]
fn any_reads_with_any_evictions_keep_the_rules() {
    for seed in 0..400 {
        let mut rng = Rng(seed);
        let policy = Policy::ALL[(seed % 4) as usize];
        let max = [0, 1, 2, 3, 8, 31, 32, 50, 256, 700][rng.below(10) as usize];
        let set = Limits {
            max,
            device: [0, 32, 256][rng.below(3) as usize],
        };
        let mut file = OpenFile::new(policy, set);
        let pages = 1 + rng.below(5000);
        let bytes = pages * PAGE - rng.below(PAGE);
        let mut cache = Model::new(pages);
        let mut at = 0;
        for _ in 0..300 {
            match rng.below(12) {
                0 => at = rng.below(bytes),
                1 => at = at.saturating_sub(rng.below(100 * PAGE)),
                2 => at += rng.below(20 * PAGE),
                3 => {
                    let part = rng.below(4);
                    cache.cached.retain(|page, _| page % 4 != part);
                }
                4 => {
                    let hints = [Pattern::Normal, Pattern::Sequential, Pattern::Random];
                    file.advise(hints[rng.below(3) as usize]);
                }
                _ => {}
            }
            let longest = [4000, 20_000, 2_000_000][rng.below(3) as usize];
            let length = rng.below(longest);
            let in_force = file.limits();
            // The base starts both of its windows at once; pieces at a stride are read with the request; a window is
            // read with one part more, of two at least.
            let want = length.div_ceil(PAGE) + 1;
            let most = in_force.max.max(in_force.device).max(1);
            let most = match policy {
                Policy::Legacy => 2 * most,
                Policy::Streams => most + want.min(most).max(most / 2),
                _ => most.max(file.window().map_or(0, |window| window.size)),
            };
            let mut reading = file.begin(at, length, bytes);
            while let Some(event) = reading.next(&mut cache) {
                let plan = file.decide(&mut reading, &cache, event);
                check(&plan, &cache, most, policy);
                plan.runs().for_each(|run| cache.read(&run));
                if let Event::Use(page) = event
                    && !cache.has(page)
                {
                    cache.read(&Run::plain(page, 1));
                }
            }
            at = (at + length).min(bytes);
        }
    }
}

/// A file read from start to end reads every page exactly once, whatever the size of the reads.
#[test]
fn a_whole_file_is_read_once() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let policy = Policy::ALL[(seed % 4) as usize];
        let max = 1 + rng.below(300);
        let mut file = OpenFile::new(policy, limits(max));
        let pages = 1 + rng.below(3000);
        let bytes = pages * PAGE - rng.below(PAGE);
        let mut cache = Model::new(pages);
        let mut at = 0;
        let mut waited = 0;
        while at < bytes {
            let length = 1 + rng.below(8 * PAGE);
            let mut reading = file.begin(at, length, bytes);
            while let Some(event) = reading.next(&mut cache) {
                waited += u64::from(matches!(event, Event::Miss(_)));
                let plan = file.decide(&mut reading, &cache, event);
                plan.runs().for_each(|run| cache.read(&run));
            }
            at += length;
        }
        assert_eq!(cache.brought.len() as u64, pages, "{policy:?}");
        assert!(cache.brought.values().all(|&times| times == 1));
        if policy != Policy::Legacy && max >= 16 {
            assert_eq!(waited, 1, "{policy:?}, limit {max}: misses");
        }
    }
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    for policy in Policy::ALL {
        for max in [0, 1, 32, u64::MAX] {
            let set = Limits {
                max,
                device: u64::MAX,
            };
            let mut file = OpenFile::new(policy, set);
            file.advise(Pattern::Sequential);
            let mut cache = Model::new(u64::MAX >> 12);
            for offset in [0, 1 << 40, u64::MAX - 5000, u64::MAX] {
                let mut reading = file.begin(offset, u64::MAX, u64::MAX);
                for nth in 0..4 {
                    let Some(event) = reading.next(&mut cache) else {
                        break;
                    };
                    // Only the decision: no model holds that many pages.
                    let plan = file.decide(&mut reading, &cache, event);
                    assert!(plan.runs().all(|run| run.end().0 <= cache.pages));
                    cache.cached.insert((offset >> 12) + nth, true);
                }
            }
        }
    }
}
