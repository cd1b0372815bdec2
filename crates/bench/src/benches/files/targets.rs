//! What issue 35 asks for, and whether it is reached.

use super::mapped::{ABSENT, HINTS, HOT, LOADER, TWICE, kernel, on_slow};
use super::{DEVICE, OURS, PREFETCH, TWICE_ON, cached_row, pread, row, slow_row};
use crate::disk::DEPTHS;
use crate::files::Pattern;
use crate::report::{Report, Target, Unit};

/// Rates of rows, in bytes per second.
struct Rates<'a> {
    report: &'a Report,
    /// The values of `read_ahead_kb` with which pread was run.
    values: &'a [u64],
}

fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.zip(b).map(|(a, b)| a / b)
}

impl Rates<'_> {
    fn of(&self, name: &str) -> Option<f64> {
        self.report.peer(name)?.median("bytes_per_s")
    }

    fn ours(&self, pattern: Pattern) -> Option<f64> {
        self.of(&row(&pattern.name(), OURS))
    }

    fn best_pread(&self, pattern: Pattern) -> Option<f64> {
        let rates = self.values.iter();
        let rates = rates.filter_map(|kib| self.of(&row(&pattern.name(), &pread(*kib))));
        rates.reduce(f64::max)
    }

    fn device(&self) -> Option<f64> {
        let depths = DEPTHS.iter();
        let rates = depths.filter_map(|depth| self.of(&row(DEVICE, &format!("{depth} at once"))));
        rates.reduce(f64::max)
    }
}

/// The patterns that the kernel reads badly.
fn is_hard(pattern: Pattern) -> bool {
    !matches!(
        pattern,
        Pattern::Sequential | Pattern::Random | Pattern::Twice
    )
}

fn cached(rates: &Rates<'_>) -> Vec<Target> {
    let mut targets = Vec::new();
    for pattern in [Pattern::Reverse, Pattern::Random] {
        for threads in [1, 2] {
            let name = cached_row(pattern, threads);
            let value = ratio(rates.of(&row(&name, OURS)), rates.of(&row(&name, "pread")));
            let what = format!("{name}: rate / pread's");
            targets.push(Target::at_least(what, 3.0, Unit::Ratio, value));
        }
    }
    targets
}

fn uncached(rates: &Rates<'_>) -> Vec<Target> {
    let at_least = |what: String, bound, value| Target::at_least(what, bound, Unit::Ratio, value);
    let sequential = rates.ours(Pattern::Sequential);
    let mut targets = vec![
        at_least(
            "sequential: rate / device's".to_owned(),
            0.95,
            ratio(sequential, rates.device()),
        ),
        at_least(
            "sequential: rate / best pread's".to_owned(),
            1.0,
            ratio(sequential, rates.best_pread(Pattern::Sequential)),
        ),
        Target::at_most(
            "random 4 KiB: time / best pread's",
            1.05,
            Unit::Ratio,
            ratio(
                rates.best_pread(Pattern::Random),
                rates.ours(Pattern::Random),
            ),
        ),
    ];
    for pattern in Pattern::ALL.into_iter().filter(|pattern| is_hard(*pattern)) {
        let value = ratio(rates.ours(pattern), rates.best_pread(pattern));
        let what = format!("{}: rate / best pread's", pattern.name());
        targets.push(at_least(what, 2.0, value));
    }
    targets
}

fn slow(rates: &Rates<'_>) -> Vec<Target> {
    let store = TWICE_ON;
    let patterns = Pattern::ALL.into_iter();
    let asked = patterns.filter(|pattern| is_hard(*pattern) || *pattern == Pattern::Sequential);
    let part = |pattern: Pattern| {
        let rate = rates.of(&slow_row(pattern, OURS, store));
        let what = format!("{}, 20 ms: part of 1 GB/s", pattern.name());
        Target::at_least(what, 0.8, Unit::Ratio, rate.map(|rate| rate / 1e9))
    };
    let mut targets: Vec<_> = asked.map(part).collect();
    let twice = |of| rates.of(&slow_row(Pattern::Twice, of, store));
    targets.push(Target::at_least(
        "twice, 20 ms: rate / prefetch first",
        3.0,
        Unit::Ratio,
        ratio(twice(OURS), twice(PREFETCH)),
    ));
    targets
}

fn mapped(rates: &Rates<'_>) -> Vec<Target> {
    let slow = |name: &str, of: &str| rates.of(&on_slow(name, of));
    let at_least = |what: &str, bound, value| Target::at_least(what, bound, Unit::Ratio, value);
    let ours = slow(LOADER, OURS);
    let kernels = HINTS.iter().filter_map(|hint| slow(LOADER, &kernel(hint)));
    let absent = rates.report.peer(&on_slow(HOT, OURS));
    let absent = absent.and_then(|row| row.median(ABSENT));
    vec![
        at_least(
            "mapped loader's order, 20 ms: part of 1 GB/s",
            0.8,
            ours.map(|rate| rate / 1e9),
        ),
        at_least(
            "mapped loader's order, 20 ms: rate / best mmap's",
            50.0,
            ratio(ours, kernels.reduce(f64::max)),
        ),
        at_least(
            "mapped loader's order, 20 ms: rate / prefetch first",
            1.0,
            ratio(ours, slow(LOADER, PREFETCH)),
        ),
        at_least(
            "mapped twice, 20 ms: rate / prefetch first",
            3.0,
            ratio(slow(TWICE, OURS), slow(TWICE, PREFETCH)),
        ),
        Target::at_most(
            "mapped scan beside a hot set: part of its touches that miss",
            0.01,
            Unit::Ratio,
            absent,
        ),
    ]
}

/// Judges the rows of a report. `part`: not all rows were asked for, and targets of the others are left out.
pub fn judge(report: &mut Report, values: &[u64], part: bool) {
    let rates = Rates { report, values };
    let mut targets = cached(&rates);
    targets.extend(uncached(&rates));
    targets.extend(slow(&rates));
    targets.extend(mapped(&rates));
    targets.retain(|target| !part || target.found.is_some());
    report.targets = targets;
}
