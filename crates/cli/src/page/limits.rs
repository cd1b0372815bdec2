//! What another limit would have cost, from the miss-ratio curve of the run and its own measured waits.
//!
//! The curve tells how many of the pages that came back would have stayed in more memory. The run tells how many faults
//! waited, and how long some thread did. Both are taken to fall in proportion. What evictions and reads themselves cost is
//! not taken off, so a larger limit may do better. Below the limit of the run nothing is known: which pages were touched in
//! memory was not seen.

use std::time::Duration;

use foreswap_lab::Curve;
use foreswap_store::area::PAGE_BYTES;

/// Parts of the returns at the limit of the run that are of interest.
const PARTS: [f64; 4] = [0.75, 0.5, 0.25, 0.1];

/// What the run measured at its limit, on which the estimates are based.
#[derive(Clone, Copy, Debug, Default)]
pub struct Basis {
    /// The limit, in pages.
    pub limit_pages: u64,
    /// Faults that waited for an area or a file.
    pub majors: u64,
    /// The part of them (0 to 1) that were on pages evicted before: more memory saves only these.
    pub again: f64,
    /// How long some thread waited. `None`: not known.
    pub stalled: Option<Duration>,
    /// How long the run took. `None`: not known, or several processes or threads may have waited at the same time.
    pub elapsed: Option<Duration>,
}

impl Basis {
    /// Pages that come back, as a part of those that did, if `part` of those that were evicted do.
    pub fn back(&self, part: f64) -> f64 {
        1.0 - self.again * (1.0 - part)
    }
}

/// A limit, and what it would have cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The limit.
    pub bytes: u64,
    /// Pages that would have come back, as a part of those that did (0 to 1).
    pub part: f64,
    /// The same with what comes back for the first time, as a file's pages do, and comes in any memory.
    pub back: f64,
    /// Faults that would have waited.
    pub majors: u64,
    /// How long some thread would have waited.
    pub stalled: Option<Duration>,
    /// How long the run would have taken.
    pub elapsed: Option<Duration>,
}

/// Pages that come back in `pages` of memory, as a part of those that did in the run.
pub fn part(curve: &Curve, pages: u64) -> f64 {
    let all = curve.again(curve.floor);
    if all > 0.0 {
        // Where pages were lost from sight, the curve is corrected, and may begin below zero.
        (curve.again(pages) / all).clamp(0.0, 1.0)
    } else {
        0.0
    }
}

/// `pages`, rounded up to a size that people write: a multiple of a 32nd of the next power of two, at least of 1 MiB.
fn round_up(pages: u64) -> u64 {
    let step = (pages.next_power_of_two() / 32).max(256);
    pages.next_multiple_of(step)
}

/// The limit of the run, and those at which less comes back. Empty if nothing came back.
pub fn choices(curve: &Curve, run: &Basis) -> Vec<Choice> {
    let all = curve.again(curve.floor);
    if all <= 0.0 || curve.touches <= 0.0 {
        return Vec::new();
    }
    let of_touches = |part: f64| part * all / curve.touches;
    let wanted = PARTS.map(|part| curve.needed(of_touches(part)));
    let sizes = wanted.into_iter().chain([curve.enough()]).map(round_up);
    let mut sizes: Vec<u64> = sizes.filter(|&pages| pages > run.limit_pages).collect();
    sizes.dedup();
    let mut choices: Vec<Choice> = Vec::new();
    for pages in std::iter::once(run.limit_pages).chain(sizes) {
        let choice = choice(curve, run, pages);
        // Two sizes that differ by little cost the same.
        let is_new = choices
            .last()
            .is_none_or(|last| last.part - choice.part >= 0.03 || choice.part == 0.0);
        if is_new {
            choices.push(choice);
        }
        if choice.part == 0.0 {
            break;
        }
    }
    choices
}

fn choice(curve: &Curve, run: &Basis, pages: u64) -> Choice {
    let part = part(curve, pages);
    let stalled = run.stalled.map(|stalled| stalled.mul_f64(part));
    let back = run.back(part);
    let saved = run.stalled.map(|stalled| stalled.mul_f64(1.0 - part));
    Choice {
        bytes: pages * PAGE_BYTES,
        part,
        back,
        majors: (run.majors as f64 * back).round() as u64,
        stalled,
        elapsed: run
            .elapsed
            .zip(saved)
            .map(|(elapsed, saved)| elapsed.saturating_sub(saved)),
    }
}

#[cfg(test)]
mod tests {
    use foreswap_lab::RunningCurve;
    use foreswap_lab::trace::{Event, Found, Record, Start, Vpn};

    use super::*;

    /// A run in 16 MiB: half of the returns would have stayed in 32 MiB, the others in 48 MiB.
    fn curve() -> Curve {
        let mut curve = RunningCurve::new(4096, 1 << 20);
        let mut record = |event| {
            curve.record(&Record {
                time: 0,
                task: 0,
                event,
            })
        };
        record(Event::Start(Start {
            space: 0,
            pid: 1,
            tid: 1,
            parent: None,
        }));
        record(Event::Evicted(Vpn(0)..Vpn(8192)));
        let touch = |page| Event::Touch {
            page: Vpn(page),
            found: Found::Away,
            write: false,
        };
        // The last evicted is the nearest.
        (0..100).for_each(|n| record(touch(8191 - 40 * n)));
        (0..100).for_each(|n| record(touch(n)));
        curve.finish()
    }

    #[test]
    fn a_larger_limit_costs_in_proportion_to_what_comes_back() {
        let run = Basis {
            limit_pages: 4096,
            majors: 1000,
            again: 0.9,
            stalled: Some(Duration::from_secs(4)),
            elapsed: Some(Duration::from_secs(10)),
        };
        let choices = choices(&curve(), &run);
        let limits: Vec<u64> = choices.iter().map(|choice| choice.bytes >> 20).collect();
        assert_eq!(limits, [16, 24, 32, 48]);
        let costs = |choice: &Choice| {
            (
                choice.majors,
                choice.stalled,
                choice.elapsed.map(|time| time.as_secs()),
            )
        };
        let seconds = |s| Some(Duration::from_secs(s));
        assert_eq!(costs(&choices[0]), (1000, seconds(4), Some(10)));
        assert_eq!(costs(&choices[2]), (550, seconds(2), Some(8)));
        assert_eq!(costs(&choices[3]), (100, seconds(0), Some(6)));
        // Without a time, there is none.
        let unknown = Basis {
            stalled: None,
            ..run
        };
        assert!(
            super::choices(&curve(), &unknown)
                .iter()
                .all(|choice| choice.elapsed.is_none())
        );
    }

    #[test]
    fn without_returns_there_is_no_choice() {
        let curve = RunningCurve::new(4096, 100).finish();
        assert_eq!(choices(&curve, &Basis::default()), []);
    }

    #[test]
    fn sizes_are_round() {
        assert_eq!(
            [1, 256, 257, 100_000].map(round_up),
            [256, 256, 512, 102_400]
        );
    }
}
