//! What is asked of the patterns (issues 3 and 4; the stricter where both ask), and whether it
//! was reached. Nothing here runs anything: a report goes in, targets come out.

use super::device;
use crate::args::{Fill, Op, Pattern, PeerName, UsememArgs};
use crate::disk::Transfers;
use crate::peer::Figures;
use crate::report::{Report, Target, Unit, peer_name};

/// What is asked against the kernel at its best.
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

/// Bytes that come in per second of sequential reads, to the device's fastest reads.
const READS_TO_DEVICE: f64 = 0.8;
/// Bytes that go out per second of sequential writes, to the device's fastest writes.
const WRITES_TO_DEVICE: f64 = 0.7;
/// Bytes per second to those of zram, by pattern.
const TO_ZRAM: [(Pattern, f64); 2] = [(Pattern::Seq, 4.0), (Pattern::Rand, 2.0)];
/// Faults per 2 MiB touched in order.
const FAULTS: f64 = 1.1;

/// A run that is judged.
pub struct Run<'a> {
    /// What was run.
    pub workload: &'a UsememArgs,
    /// On whom; the first is the one that is asked.
    pub peers: &'a [PeerName],
    /// Whether foreswap's area is compressed memory.
    pub in_ram: bool,
}

/// Adds to `report` all that is asked of such a run. The rows of the device, if it has any, must
/// be there.
pub fn judge(report: &mut Report, run: &Run<'_>) {
    let mut targets = Vec::new();
    let with = |peer| run.peers.contains(&peer);
    if !with(PeerName::Zram) || with(PeerName::Kernel) {
        targets.extend(against_kernel(report, run));
    }
    if with(PeerName::Zram) {
        targets.extend(against_zram(report, run));
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
            let found = report.ratio("bytes_per_s", kernel);
            let what = format!("{what}, bytes/s to the kernel's");
            Target::at_least(what, bound, Unit::Ratio, found)
        }
    })
}

/// Compressed memory against compressed memory, of data that compresses: anything else compares
/// nothing.
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
    let found = report.ratio("bytes_per_s", peer_name(PeerName::Zram));
    let what = format!("{}, bytes/s to zram's", what_of(run));
    Some(Target::at_least(what, *least, Unit::Ratio, found))
}

fn against_device(report: &mut Report, run: &Run<'_>) -> Option<Target> {
    if run.workload.pattern != Pattern::Seq {
        return None;
    }
    let (transfers, figure, least, words) = match run.workload.op {
        Op::Read => (
            Transfers::Reads,
            "pass_in_bytes_per_s",
            READS_TO_DEVICE,
            "bytes/s in to the area's fastest direct reads",
        ),
        Op::Write => (
            Transfers::Writes,
            "pass_out_bytes_per_s",
            WRITES_TO_DEVICE,
            "bytes/s out to the area's fastest direct writes",
        ),
    };
    let fastest = device::fastest(report, transfers)?;
    let of_first = |figure| report.peers.first()?.median(figure);
    let to_device = |rate: f64| rate / fastest;
    let found = of_first(figure).map(to_device);
    let mut lines = Vec::new();
    if let Some(program) = of_first("bytes_per_s").map(to_device) {
        lines.push(format!(
            "the program's bytes/s / the device's fastest: {program:.3}"
        ));
    }
    if let (Op::Write, Some(fill)) = (run.workload.op, of_first("fill_out_bytes_per_s")) {
        lines.push(format!(
            "bytes/s out while it was filled / the device's fastest: {:.3}",
            to_device(fill)
        ));
    }
    lines.into_iter().for_each(|line| report.say(line));
    let what = format!("{}, {words}", what_of(run));
    Some(Target::at_least(what, least, Unit::Ratio, found))
}

/// What is asked of foreswap whatever its peers do.
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
            // Of all turns, not of the middle one: none is none.
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

/// Adds what follows from what was counted in the filling and the measured passes: the rates at
/// which bytes came in and went out, and the bytes that were written though they had been.
///
/// Bytes beyond those that the program touched make no rate: a page that is moved twice is no
/// faster for it. And in passes that only read, each page is written once at most, when it goes
/// out for the first time; so all that is written beyond what cannot have been out is written
/// again.
pub fn add_rates(figures: &mut Figures, workload: &UsememArgs) {
    let of = |name: &str| figures.get(name).copied();
    let rate = |bytes: &str, touched: &str, ns: &str| {
        Some(of(bytes)?.min(of(touched)?) * 1e9 / of(ns)?.max(1.0))
    };
    let data = workload.total_bytes() as f64;
    let again = || {
        let never_out = (data - of("before_out_bytes")?).max(0.0);
        Some((of("pass_out_bytes")? - never_out).max(0.0))
    };
    let derived = [
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
            rate("fill_out_bytes", "fill_bytes", "fill_ns"),
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
