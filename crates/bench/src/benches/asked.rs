//! The targets of the patterns (docs/BENCH.md), and whether they were reached. This module runs nothing: its input is a
//! report, its output targets.

use super::device;
use crate::args::{Fill, Op, Pattern, PeerName, UsememArgs};
use crate::disk::Transfers;
use crate::peer::Figures;
use crate::report::{Report, Target, Unit, peer_name};

/// A target relative to the kernel at its best.
struct ToKernel {
    pattern: Pattern,
    op: Op,
    bound: Bound,
}

enum Bound {
    /// Of the time per page.
    Time(f64),
    /// Of the bytes per second.
    Throughput(f64),
}

const TO_KERNEL: [ToKernel; 7] = [
    to_kernel(Pattern::Seq, Op::Read, Bound::Throughput(6.0)),
    to_kernel(Pattern::Seq, Op::Write, Bound::Throughput(4.0)),
    to_kernel(Pattern::Reverse, Op::Read, Bound::Throughput(6.0)),
    to_kernel(Pattern::Interleaved, Op::Read, Bound::Throughput(5.0)),
    to_kernel(Pattern::Stride, Op::Read, Bound::Throughput(5.0)),
    to_kernel(Pattern::Rand, Op::Read, Bound::Time(1.05)),
    to_kernel(Pattern::Rand, Op::Write, Bound::Time(0.9)),
];

const fn to_kernel(pattern: Pattern, op: Op, bound: Bound) -> ToKernel {
    ToKernel { pattern, op, bound }
}

/// Read bandwidth of sequential reads relative to the device's fastest reads.
const READS_TO_DEVICE: f64 = 0.8;
/// Write bandwidth of sequential writes relative to the device's fastest writes. For the fill, in which each place of
/// the area is written for the first time, relative to its fastest first writes.
const WRITES_TO_DEVICE: f64 = 0.7;
/// Bytes per second relative to zram, by pattern.
const TO_ZRAM: [(Pattern, f64); 2] = [(Pattern::Seq, 4.0), (Pattern::Rand, 2.0)];
/// Sequential bytes per second with encryption, relative to those without.
const ENCRYPTED_TO_PLAIN: f64 = 0.85;
/// How much longer a page may take with encryption where the disk is waited for, in nanoseconds.
const ENCRYPTION: f64 = 1000.0;
/// Faults per 2 MiB touched in order.
const FAULTS: f64 = 1.1;

/// A run with targets.
pub struct Run<'a> {
    /// Its workload.
    pub workload: &'a UsememArgs,
    /// Its peers; the targets are those of the first.
    pub peers: &'a [PeerName],
    /// Whether foreswap's area is compressed memory.
    pub in_ram: bool,
}

/// Adds all targets of such a run to `report`. The rows of the device, if any, must be there.
pub fn judge(report: &mut Report, run: &Run<'_>) {
    let mut targets = Vec::new();
    let with = |peer| run.peers.contains(&peer);
    let compressed = with(PeerName::Zram) || with(PeerName::Zswap);
    if !compressed || with(PeerName::Kernel) {
        targets.extend(against_kernel(report, run));
    }
    if with(PeerName::Zram) {
        targets.extend(against_zram(report, run));
    }
    if with(PeerName::Encrypted) {
        targets.extend(against_encrypted(report, run));
    }
    targets.extend(against_device(report, run));
    if run.peers.first() == Some(&PeerName::Foreswap) {
        targets.extend(of_itself(report, run));
    }
    report.targets.extend(targets);
}

fn against_kernel(report: &Report, run: &Run<'_>) -> Option<Target> {
    let UsememArgs { pattern, op, .. } = run.workload;
    let asked = TO_KERNEL
        .iter()
        .find(|asked| (asked.pattern, asked.op) == (*pattern, *op))?;
    let kernel = peer_name(PeerName::Kernel);
    let what = what_of(run);
    Some(match asked.bound {
        Bound::Time(bound) => {
            let found = report.ratio("ns_per_page", kernel);
            let what = format!("{what}, time per page to the kernel's");
            Target::at_most(what, bound, Unit::Ratio, found)
        }
        Bound::Throughput(bound) => {
            let found = report.ratio(throughput_of(run.workload), kernel);
            let what = format!("{what}, bytes/s to the kernel's");
            Target::at_least(what, bound, Unit::Ratio, found)
        }
    })
}

/// The figure of a run's throughput. Several tasks are judged by their common rate: a task that found its region in
/// memory ends at once, with a rate that is most of the sum of all.
fn throughput_of(workload: &UsememArgs) -> &'static str {
    match workload.tasks {
        1 => "bytes_per_s",
        _ => "together_bytes_per_s",
    }
}

/// Compressed memory against compressed memory, with compressible data: other data would compare nothing.
fn against_zram(report: &mut Report, run: &Run<'_>) -> Option<Target> {
    let (_, least) = TO_ZRAM
        .iter()
        .find(|(pattern, _)| *pattern == run.workload.pattern && run.workload.op == Op::Read)?;
    if !run.in_ram || run.workload.fill != Fill::Compressible {
        report.notes.push(
            "not judged against zram: that takes --fill compressible and an area in compressed \
             memory (--run-option=--swap=ram:SIZE)"
                .to_owned(),
        );
        return None;
    }
    let found = report.ratio(throughput_of(run.workload), peer_name(PeerName::Zram));
    let what = format!("{}, bytes/s to zram's", what_of(run));
    Some(Target::at_least(what, *least, Unit::Ratio, found))
}

/// What encryption costs.
fn against_encrypted(report: &Report, run: &Run<'_>) -> Option<Target> {
    let (what, encrypted) = (what_of(run), peer_name(PeerName::Encrypted));
    match (run.workload.pattern, run.workload.op) {
        (Pattern::Seq, _) => {
            let found = report.ratio(throughput_of(run.workload), encrypted);
            let found = found.map(|plain_to_encrypted| 1.0 / plain_to_encrypted);
            let what = format!("{what}, bytes/s with --encrypt to those without");
            Some(Target::at_least(
                what,
                ENCRYPTED_TO_PLAIN,
                Unit::Ratio,
                found,
            ))
        }
        (Pattern::Rand, Op::Read) => {
            let ratio = report.ratio("ns_per_page", encrypted);
            let plain = report.peers.first()?.median("ns_per_page");
            let more = plain.zip(ratio).map(|(plain, ratio)| plain / ratio - plain);
            let what = format!("{what}, more time per page with --encrypt");
            Some(Target::at_most(what, ENCRYPTION, Unit::Microseconds, more))
        }
        _ => None,
    }
}

fn against_device(report: &mut Report, run: &Run<'_>) -> Vec<Target> {
    if run.workload.pattern != Pattern::Seq {
        return Vec::new();
    }
    let asked: &[(Transfers, &str, f64, &str)] = match run.workload.op {
        Op::Read => &[(
            Transfers::Reads,
            "pass_in_bytes_per_s",
            READS_TO_DEVICE,
            "bytes/s in to the area's fastest direct reads",
        )],
        Op::Write => &[
            (
                Transfers::Writes,
                "pass_out_bytes_per_s",
                WRITES_TO_DEVICE,
                "bytes/s out to the area's fastest direct writes",
            ),
            (
                Transfers::FirstWrites,
                "fill_out_bytes_per_s",
                WRITES_TO_DEVICE,
                "bytes/s out while it is filled to the area's fastest first writes",
            ),
        ],
    };
    let of_first = |figure| report.peers.first()?.median(figure);
    let targets = asked
        .iter()
        .filter_map(|(transfers, figure, least, words)| {
            let fastest = device::fastest(report, *transfers)?;
            let found = of_first(figure).map(|rate| rate / fastest);
            let what = format!("{}, {words}", what_of(run));
            Some(Target::at_least(what, *least, Unit::Ratio, found))
        });
    let targets = targets.collect();
    let mut lines = vec![("the program's bytes/s", "together_bytes_per_s")];
    if run.workload.op == Op::Write {
        lines.push(("bytes/s out while it was filled", "fill_out_bytes_per_s"));
    }
    let fastest = device::fastest(report, asked[0].0);
    let ratios = lines.into_iter().filter_map(|(what, figure)| {
        let ratio = of_first(figure)? / fastest?;
        Some(format!("{what} / the device's fastest: {ratio:.3}"))
    });
    let ratios: Vec<String> = ratios.collect();
    ratios.into_iter().for_each(|line| report.say(line));
    targets
}

/// The targets of foreswap that do not depend on its peers.
fn of_itself(report: &Report, run: &Run<'_>) -> Vec<Target> {
    let workload = run.workload;
    let first = report.peers.first();
    let what = what_of(run);
    let mut targets = Vec::new();
    if is_sequential(workload) {
        targets.push(Target::at_most(
            format!("{what}, faults per 2 MiB"),
            FAULTS,
            Unit::Ratio,
            first.and_then(|peer| peer.median("faults_per_2mib")),
        ));
        targets.push(Target::at_most(
            format!("{what}, huge pages split"),
            0.0,
            Unit::Number,
            // Of all turns, not of the median turn.
            first.and_then(|peer| peer.largest("stats.huge_splits")),
        ));
    }
    let is_scan = workload.pattern != Pattern::Rand && workload.op == Op::Read;
    if is_scan && workload.warm_up > 0 && !run.in_ram {
        targets.push(Target::at_most(
            format!("{what}, clean data, written again"),
            0.0,
            Unit::Kibibytes,
            first.and_then(|peer| peer.largest("pass_again_bytes")),
        ));
    }
    targets
}

/// Every page in order, forwards or backwards.
pub fn is_sequential(workload: &UsememArgs) -> bool {
    matches!(workload.pattern, Pattern::Seq | Pattern::Reverse)
}

/// Adds figures derived from the counts of the fill and the measured passes: the rates of reads and writes, and the
/// bytes that were written more than once.
///
/// Bytes beyond those that the program touched count for no rate: a page that is moved twice is not faster. In passes
/// that only read, each page of the program is written at most once, at its first eviction. All writes beyond the pages
/// that cannot have been evicted before are therefore repeated writes.
pub fn add_rates(figures: &mut Figures, workload: &UsememArgs) {
    let of = |name: &str| figures.get(name).copied();
    let rate = |bytes: &str, touched: &str, ns: &str| {
        Some(of(bytes)?.min(of(touched)?) * 1e9 / of(ns)?.max(1.0))
    };
    let again = || {
        let data = workload.total_bytes() as f64 + of("other_bytes")?;
        let never_out = (data - of("before_out_bytes")?).max(0.0);
        Some((of("pass_out_bytes")? - never_out).max(0.0))
    };
    let derived = [
        (
            "together_bytes_per_s",
            rate("pass_bytes", "pass_bytes", "pass_ns"),
        ),
        (
            "pass_in_bytes_per_s",
            rate("pass_in_bytes", "pass_bytes", "pass_ns"),
        ),
        (
            "pass_out_bytes_per_s",
            rate("pass_out_bytes", "pass_bytes", "pass_ns"),
        ),
        (
            "fill_out_bytes_per_s",
            rate("over_out_bytes", "fill_bytes", "over_ns"),
        ),
        (
            "pass_again_bytes",
            again().filter(|_| workload.op == Op::Read),
        ),
    ];
    let derived = derived
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    figures.extend(
        derived
            .map(|(name, value)| (name.to_owned(), value))
            .collect::<Vec<_>>(),
    );
}

/// A run in words.
pub fn what_of(run: &Run<'_>) -> String {
    let workload = run.workload;
    let op = match workload.op {
        Op::Read => "read",
        Op::Write => "write",
    };
    let mut words = match workload.pattern {
        Pattern::Seq => format!("seq-{op}"),
        Pattern::Rand => format!("rand-{op}"),
        Pattern::Stride => format!("stride-{} {op}", workload.stride),
        Pattern::Rows => format!("rows-{}-of-{} {op}", workload.row, workload.stride),
        Pattern::Reverse => format!("reverse {op}"),
        Pattern::Interleaved => format!("interleaved {op}, {} scans", workload.scans),
    };
    if workload.tasks > 1 {
        words.push_str(&format!(", {} tasks", workload.tasks));
    }
    match workload.warm_up {
        0 => {}
        1 => words.push_str(", second pass"),
        n => words.push_str(&format!(", after {n} passes")),
    }
    if run.in_ram {
        words.push_str(", in ram:");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;
    use crate::peer::figures;
    use crate::report::{Better, Machine, PeerReport};
    use serde_json::Value;
    use std::path::Path;

    /// A turn of each peer, with these figures.
    fn report(peers: &[(&str, &[(&str, f64)])]) -> Report {
        let machine = Machine::here(Path::new("/"));
        let mut report = Report::new("usemem", String::new(), machine, Value::Null);
        for (name, figures) in peers {
            let turn = figures.iter().copied();
            report.peers.push(PeerReport::of(*name, [turn]));
        }
        report.compare("bytes_per_s", Better::More);
        report.compare("ns_per_page", Better::Less);
        report.compare("together_bytes_per_s", Better::More);
        report
    }

    fn judged(mut report: Report, words: &str, peers: &[PeerName], in_ram: bool) -> Report {
        let workload: UsememArgs = args::parse(words);
        let run = Run {
            workload: &workload,
            peers,
            in_ram,
        };
        judge(&mut report, &run);
        report
    }

    /// The targets: name, bound, figure and whether it was reached.
    fn targets(report: &Report) -> Vec<(&str, f64, Option<f64>, Option<bool>)> {
        let targets = report.targets.iter();
        targets
            .map(|t| (t.what.as_str(), t.bound, t.found, t.reached))
            .collect()
    }

    const BOTH: [PeerName; 2] = [PeerName::Foreswap, PeerName::Kernel];

    #[test]
    fn sequential_reads_are_held_against_the_kernel_the_device_and_themselves() {
        let ours = [
            ("bytes_per_s", 1300.0),
            ("together_bytes_per_s", 1300.0),
            ("pass_in_bytes_per_s", 900.0),
            ("faults_per_2mib", 1.2),
            ("stats.huge_splits", 0.0),
        ];
        let mut found = report(&[("foreswap", &ours), ("kernel", &[("bytes_per_s", 200.0)])]);
        for (name, rate) in [("device, 1 x 2 MiB", 800.0), ("device, 8 x 2 MiB", 1000.0)] {
            let turn = [("bytes_per_s", rate)];
            found.peers.push(PeerReport::of(name, [turn]));
        }
        let found = judged(found, "--pattern seq", &BOTH, false);
        let into = "seq-read, bytes/s in to the area's fastest direct reads";
        let expected = [
            (
                "seq-read, bytes/s to the kernel's",
                6.0,
                Some(6.5),
                Some(true),
            ),
            (into, 0.8, Some(0.9), Some(true)),
            ("seq-read, faults per 2 MiB", 1.1, Some(1.2), Some(false)),
            ("seq-read, huge pages split", 0.0, Some(0.0), Some(true)),
        ];
        assert_eq!(targets(&found), expected);
        // The rate of the program is printed, but part of its data was in memory: it is not judged.
        let text = found.text();
        assert!(
            text.contains("the program's bytes/s / the device's fastest: 1.300"),
            "{text}"
        );
    }

    #[test]
    fn sequential_writes_are_held_against_writes() {
        let ours = [
            ("bytes_per_s", 900.0),
            ("together_bytes_per_s", 700.0),
            ("pass_out_bytes_per_s", 600.0),
            ("fill_out_bytes_per_s", 900.0),
            ("stats.huge_splits", 1.0),
        ];
        // One of the kernel's tasks found all of its region in memory.
        let theirs = [("bytes_per_s", 2000.0), ("together_bytes_per_s", 200.0)];
        let mut found = report(&[("foreswap", &ours), ("kernel", &theirs)]);
        for (name, rate) in [
            ("device, 4 x 2 MiB writes", 1000.0),
            ("device, 1 x 2 MiB first writes", 1200.0),
            ("device, 8 x 2 MiB, half writes", 2000.0),
        ] {
            let turn = [("bytes_per_s", rate)];
            found.peers.push(PeerReport::of(name, [turn]));
        }
        let found = judged(found, "--pattern seq --op write --tasks 8", &BOTH, false);
        let out = "seq-write, 8 tasks, bytes/s out to the area's fastest direct writes";
        let fill =
            "seq-write, 8 tasks, bytes/s out while it is filled to the area's fastest first writes";
        let expected = [
            (
                "seq-write, 8 tasks, bytes/s to the kernel's",
                4.0,
                Some(3.5),
                Some(false),
            ),
            (out, 0.7, Some(0.6), Some(false)),
            (fill, 0.7, Some(0.75), Some(true)),
            ("seq-write, 8 tasks, faults per 2 MiB", 1.1, None, None),
            (
                "seq-write, 8 tasks, huge pages split",
                0.0,
                Some(1.0),
                Some(false),
            ),
        ];
        assert_eq!(targets(&found), expected);
        assert!(
            found
                .text()
                .contains("while it was filled / the device's fastest: 0.900")
        );
    }

    #[test]
    fn other_patterns_have_bounds_of_their_own() {
        for (words, what, bound) in [
            (
                "--pattern reverse",
                "reverse read, bytes/s to the kernel's",
                6.0,
            ),
            (
                "--pattern interleaved --scans 8",
                "interleaved read, 8 scans, bytes/s to the kernel's",
                5.0,
            ),
            (
                "--pattern stride",
                "stride-7 read, bytes/s to the kernel's",
                5.0,
            ),
            (
                "--pattern rand",
                "rand-read, time per page to the kernel's",
                1.05,
            ),
            (
                "--pattern rand --op write",
                "rand-write, time per page to the kernel's",
                0.9,
            ),
        ] {
            let found = report(&[("foreswap", &[]), ("kernel", &[])]);
            let found = judged(found, words, &BOTH, false);
            let (first, ..) = targets(&found)[0];
            assert_eq!((first, found.targets[0].bound), (what, bound));
            assert_eq!(found.targets[0].at_most, words.contains("rand"), "{words}");
            // Only sequential patterns have a target for faults.
            let faults = if words.contains("reverse") { 2 } else { 0 };
            assert_eq!(found.targets.len(), 1 + faults, "{words}");
        }
        // These have no target, and foreswap was not measured.
        let found = report(&[("bare", &[("faults_per_2mib", 0.0)])]);
        let words = "--pattern reverse --op write";
        assert!(
            judged(found, words, &[PeerName::Bare], false)
                .targets
                .is_empty()
        );
    }

    #[test]
    fn encryption_is_judged_by_what_it_costs() {
        let figures = |per_page| [("bytes_per_s", 8e9 / per_page), ("ns_per_page", per_page)];
        let peers = [PeerName::Foreswap, PeerName::Encrypted];
        for (words, costs, reached) in [
            ("", 1100.0, true),
            ("", 1300.0, false),
            ("--pattern rand", 1900.0, true),
            ("--pattern rand", 2100.0, false),
        ] {
            let both = [("foreswap", figures(1000.0)), ("encrypted", figures(costs))];
            let both = both.each_ref().map(|(name, figures)| (*name, &figures[..]));
            let found = judged(report(&both), words, &peers, false);
            let about = |target: &&Target| target.what.contains("--encrypt");
            let target = found.targets.iter().find(about).expect("a target");
            assert_eq!(target.reached, Some(reached), "{words} {costs}: {target:?}");
        }
    }

    #[test]
    fn clean_data_that_is_written_again_is_found_in_any_turn() {
        let turns = [0.0, 4096.0, 0.0].map(|again| [("pass_again_bytes", again)]);
        let mut found = report(&[]);
        found.peers.push(PeerReport::of("foreswap", turns));
        let found = judged(found, "--pattern stride --warm-up 2", &BOTH[..1], false);
        let what = "stride-7 read, after 2 passes, clean data, written again";
        assert_eq!(targets(&found)[1], (what, 0.0, Some(4096.0), Some(false)));
        assert!(found.text().contains("4 KiB, at most 0 KiB: NOT reached"));
    }

    #[test]
    fn compressed_memory_is_judged_against_compressed_memory_only() {
        let peers = [PeerName::Foreswap, PeerName::Zram];
        let both = || {
            report(&[
                ("foreswap", &[("bytes_per_s", 9.0)]),
                ("zram", &[("bytes_per_s", 3.0)]),
            ])
        };
        let compressible = "--fill compressible --pattern";
        let found = judged(both(), &format!("{compressible} seq"), &peers, true);
        let what = "seq-read, in ram:, bytes/s to zram's";
        assert_eq!(targets(&found)[0], (what, 4.0, Some(3.0), Some(false)));
        let found = judged(both(), &format!("{compressible} rand"), &peers, true);
        let what = "rand-read, in ram:, bytes/s to zram's";
        assert_eq!(targets(&found), [(what, 2.0, Some(3.0), Some(true))]);
        for (words, in_ram) in [
            ("--fill compressible --pattern rand", false),
            ("--pattern rand", true),
        ] {
            let found = judged(both(), words, &peers, in_ram);
            assert!(found.targets.is_empty(), "{words}");
            assert!(found.text().contains("not judged against zram"), "{words}");
        }
    }

    #[test]
    fn nothing_is_asked_against_zswap() {
        let found = report(&[("foreswap", &[]), ("zswap", &[])]);
        let peers = [PeerName::Foreswap, PeerName::Zswap];
        let words = "--fill compressible --pattern rand";
        assert!(judged(found, words, &peers, true).targets.is_empty());
    }

    #[test]
    fn rates_are_of_the_time_that_it_took_and_of_no_more_than_was_touched() {
        let workload: UsememArgs = args::parse("--total 4M");
        let bytes = |mebibytes: u32| f64::from(mebibytes << 20);
        let mut figures = figures([
            ("pass_ns", 2e9),
            ("pass_bytes", bytes(4)),
            ("pass_in_bytes", bytes(3)),
            ("pass_out_bytes", bytes(5)),
            ("over_ns", 0.5e9),
            ("fill_bytes", bytes(4)),
            ("over_out_bytes", bytes(1)),
            ("before_out_bytes", bytes(2)),
            ("other_bytes", bytes(1)),
        ]);
        let counted = figures.clone();
        add_rates(&mut figures, &workload);
        assert_eq!(figures["pass_in_bytes_per_s"], bytes(3) / 2.0);
        assert_eq!(figures["pass_out_bytes_per_s"], bytes(4) / 2.0);
        assert_eq!(figures["fill_out_bytes_per_s"], bytes(1) * 2.0);
        assert_eq!(figures["together_bytes_per_s"], bytes(4) / 2.0);
        // Three of five had never been evicted; of the five that were written two were written again.
        assert_eq!(figures["pass_again_bytes"], bytes(2));

        let mut figures = counted;
        figures.remove("pass_in_bytes");
        add_rates(
            &mut figures,
            &UsememArgs {
                op: Op::Write,
                ..workload
            },
        );
        assert!(!figures.contains_key("pass_in_bytes_per_s"));
        assert!(!figures.contains_key("pass_again_bytes"));
    }
}
