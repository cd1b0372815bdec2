//! Work that changes: what a scan costs after random touches and beside a hot set, how many touches of a hot set miss,
//! skewed touches, and random ones after scans; under `foreswap run` and on the kernel's own swap, in turns.
//!
//! Each program below is run by each peer. The targets compare its steps with the kernel's, and with the same steps of
//! the program on fresh memory.

use clap::ValueEnum;
use serde_json::{Value, json};

use super::{new_report, peers, turns, usemem};
use crate::args::{BenchArgs, PeerName};
use crate::peer::{Figures, Session};
use crate::report::{Column, PeerReport, Report, Target, Unit, peer_name};
use crate::workset::{self, Kind};

const TURNS: u32 = 5;
/// The region is this many times the limit: the hot set is half of the limit, and the scan beside it 3.5 times.
const OVER: u64 = 4;

const FRESH: &str = "fresh";
const AFTER: &str = "after touches";
const HOT: &str = "hot set";
const ZIPF: &str = "zipf";
const PHASES: &str = "phases";

/// The programs and their steps.
const PROGRAMS: [(&str, &[Kind]); 5] = {
    use Kind::{
        Hot, Interleaved, RandRead, RandWrite, Reverse, Scan, Stride, Touch, ZipfRead, ZipfWrite,
    };
    [
        (FRESH, &[Scan, Interleaved, Stride, Reverse]),
        (
            AFTER,
            &[
                Touch,
                Scan,
                Touch,
                Interleaved,
                Touch,
                Stride,
                Touch,
                Reverse,
            ],
        ),
        // What counts is the last step of each kind: after the third, nearly every page of the hot set was touched.
        (HOT, &[Hot, Hot, Hot, Hot, Scan]),
        (ZIPF, &[ZipfRead, ZipfRead, ZipfWrite]),
        (
            PHASES,
            &[
                Scan,
                RandRead,
                Interleaved,
                Stride,
                RandWrite,
                Scan,
                RandRead,
            ],
        ),
    ]
};

/// Mixed work may take this part of the time on fresh memory.
const TO_FRESH: f64 = 1.3;
/// Touches of the hot set that may miss, and their time to the kernel's.
const MISSES: f64 = 0.01;
const HOT_TO_KERNEL: f64 = 0.2;
/// Times to the kernel's.
const TO_KERNEL: [(&str, Kind, f64); 4] = [
    (ZIPF, Kind::ZipfRead, 0.8),
    (ZIPF, Kind::ZipfWrite, 0.8),
    (PHASES, Kind::RandWrite, 0.95),
    (PHASES, Kind::RandRead, 1.0),
];
/// The time of `--thp adaptive` to the better of the others.
const TO_OTHER_THP: f64 = 1.02;

/// Runs the programs.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(TURNS);
    let bytes = args.usemem.bytes.or(args.usemem.total);
    let bytes = bytes.unwrap_or(OVER * session.limit);
    session.swap_bytes = usemem::swap_for(bytes);
    let order = peers(args, &[PeerName::Kernel]);
    let parameters = json!({ "bytes": bytes, "memory_limit_bytes": session.limit, "turns": turns,
        "readahead": session.foreswap.readahead, "run_options": session.foreswap.more });
    let title = format!(
        "changing work on {} in {}, medians of {turns} turns",
        crate::size::humane(bytes),
        crate::size::humane(session.limit)
    );
    let mut report = new_report("workset", title, session, parameters);
    for (name, steps) in PROGRAMS {
        let mut results = in_turns(session, &order, turns, bytes, steps)?;
        name_all(&mut results, name);
        report.peers.append(&mut results);
    }
    if order[0] == PeerName::Foreswap {
        other_huge_pages(&mut report, session, turns, bytes)?;
    }
    judge(&mut report, &order);
    let steps = Kind::value_variants()
        .iter()
        .filter(|kind| !matches!(kind, Kind::Touch | Kind::LateRead));
    let steps =
        steps.map(|kind| Column::spread(title_of(*kind), figure(*kind), Unit::Microseconds));
    let absent = Column::spread("hot absent", ABSENT, Unit::Ratio);
    report.show(steps.chain([absent]).collect());
    report.say("us/touch; the last step of each kind in its program counts".to_owned());
    Ok(report)
}

fn in_turns(
    session: &mut Session,
    order: &[PeerName],
    turns: u32,
    bytes: u64,
    steps: &[Kind],
) -> anyhow::Result<Vec<PeerReport>> {
    let command = |session: &Session, peer: PeerName| {
        let steps: Vec<String> = steps.iter().map(|kind| name_of(*kind)).collect();
        let words = ["workload", "workset", "--bytes"]
            .map(str::to_owned)
            .into_iter();
        let words = words.chain([bytes.to_string(), "--steps".to_owned(), steps.join(",")]);
        let thp = peer.asks_for_huge_pages().then(|| "--thp".to_owned());
        session.own_command(&words.chain(thp).collect::<Vec<_>>())
    };
    turns::in_turns(session, order, turns, command, read)
}

/// Skewed touches with the other choices of huge pages, unless the caller has made one.
fn other_huge_pages(
    report: &mut Report,
    session: &mut Session,
    turns: u32,
    bytes: u64,
) -> anyhow::Result<()> {
    if session
        .foreswap
        .more
        .iter()
        .any(|option| option.starts_with("--thp"))
    {
        return Ok(());
    }
    for choice in ["never", "always"] {
        session.foreswap.more.push(format!("--thp={choice}"));
        let (_, steps) = PROGRAMS[3];
        let results = in_turns(session, &[PeerName::Foreswap], turns, bytes, steps);
        session.foreswap.more.pop();
        let mut results = results?;
        name_all(&mut results, &format!("{ZIPF}, --thp {choice}"));
        report.peers.append(&mut results);
    }
    Ok(())
}

fn name_all(results: &mut [PeerReport], program: &str) {
    for result in results {
        result.peer = format!("{program}, {}", result.peer);
    }
}

fn judge(report: &mut Report, order: &[PeerName]) {
    let of = |program: &str, peer: &str, figure: &str| {
        let name = format!("{program}, {peer}");
        report.peers.iter().find(|p| p.peer == name)?.median(figure)
    };
    let first = peer_name(order[0]);
    let time = |program: &str, peer: &str, kind| of(program, peer, figure(kind));
    let ratio = |ours: Option<f64>, theirs: Option<f64>| Some(ours? / theirs?);
    let mut targets = Vec::new();
    for kind in [Kind::Scan, Kind::Interleaved, Kind::Stride, Kind::Reverse] {
        let found = ratio(time(AFTER, first, kind), time(FRESH, first, kind));
        let what = format!("{} after random touches, to fresh memory", title_of(kind));
        targets.push(Target::at_most(what, TO_FRESH, Unit::Ratio, found));
    }
    let found = ratio(time(HOT, first, Kind::Scan), time(FRESH, first, Kind::Scan));
    let what = "scan after a hot set, to fresh memory";
    targets.push(Target::at_most(what, TO_FRESH, Unit::Ratio, found));
    let what = "touches of the hot set whose page is absent";
    targets.push(Target::at_most(
        what,
        MISSES,
        Unit::Ratio,
        of(HOT, first, ABSENT),
    ));
    for peer in &order[1..] {
        let peer = peer_name(*peer);
        let mut against = |program, kind, bound| {
            let found = ratio(time(program, first, kind), time(program, peer, kind));
            let what = format!("{program}: {}, time to {peer}", title_of(kind));
            targets.push(Target::at_most(what, bound, Unit::Ratio, found));
        };
        against(HOT, Kind::Hot, HOT_TO_KERNEL);
        for (program, kind, bound) in TO_KERNEL {
            against(program, kind, bound);
        }
    }
    for kind in [Kind::ZipfRead, Kind::ZipfWrite] {
        let other = |choice: &str| time(&format!("{ZIPF}, --thp {choice}"), first, kind);
        let best = other("never").zip(other("always")).map(|(a, b)| a.min(b));
        if best.is_some() {
            let found = ratio(time(ZIPF, first, kind), best);
            let what = format!(
                "{}: adaptive, to the better of never and always",
                title_of(kind)
            );
            targets.push(Target::at_most(what, TO_OTHER_THP, Unit::Ratio, found));
        }
    }
    report.targets.extend(targets);
}

const ABSENT: &str = "hot_absent";

fn name_of(kind: Kind) -> String {
    let value = kind.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Its title, and the name of its figure.
fn names(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Scan => ("scan", "scan_ns"),
        Kind::Reverse => ("reverse", "reverse_ns"),
        Kind::Stride => ("stride", "stride_ns"),
        Kind::Interleaved => ("interleaved", "interleaved_ns"),
        Kind::Touch => ("touch", "touch_ns"),
        Kind::Hot => ("hot", "hot_ns"),
        Kind::ZipfRead => ("zipf read", "zipf_read_ns"),
        Kind::ZipfWrite => ("zipf write", "zipf_write_ns"),
        Kind::RandRead => ("rand read", "rand_read_ns"),
        Kind::RandWrite => ("rand write", "rand_write_ns"),
        Kind::LateRead => ("late read", "late_read_ns"),
    }
}

fn title_of(kind: Kind) -> &'static str {
    names(kind).0
}

fn figure(kind: Kind) -> &'static str {
    names(kind).1
}

fn read(output: &[u8]) -> anyhow::Result<(Figures, Value)> {
    let value: Value = serde_json::from_slice(output)?;
    let report: workset::Report = serde_json::from_value(value.clone())?;
    let mut figures = Figures::new();
    for step in &report.steps {
        figures.insert(figure(step.kind).to_owned(), step.ns_per_touch);
        if let Some(absent) = step.absent {
            figures.insert(ABSENT.to_owned(), absent);
        }
    }
    Ok((figures, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_of_a_kind_counts() {
        let step = |kind, ns_per_touch, absent| workset::Step {
            kind,
            ns_per_touch,
            elapsed_ns: 1,
            latency: Default::default(),
            absent,
        };
        let report = workset::Report {
            steps: vec![
                step(Kind::Hot, 9.0, Some(0.5)),
                step(Kind::Hot, 3.0, Some(0.25)),
                step(Kind::Scan, 1.0, None),
            ],
        };
        let (figures, _) = read(&serde_json::to_vec(&report).unwrap()).unwrap();
        let expected = [("hot_ns", 3.0), (ABSENT, 0.25), ("scan_ns", 1.0)];
        assert_eq!(figures, crate::peer::figures(expected));
    }

    #[test]
    fn every_target_has_a_figure() {
        let order = [PeerName::Foreswap, PeerName::Kernel];
        let machine = crate::report::Machine::here(std::path::Path::new("/"));
        let mut report = Report::new("workset", String::new(), machine, Value::Null);
        for (program, steps) in PROGRAMS {
            let mut all = vec![program.to_owned()];
            if program == ZIPF {
                all.extend(["never", "always"].map(|choice| format!("{ZIPF}, --thp {choice}")));
            }
            for program in all {
                for peer in order {
                    let mut figures = Figures::from([(ABSENT.to_owned(), 0.1)]);
                    figures.extend(steps.iter().map(|kind| (figure(*kind).to_owned(), 2.0)));
                    let name = format!("{program}, {}", peer_name(peer));
                    report
                        .peers
                        .push(PeerReport::new(&name, vec![figures], Vec::new()));
                }
            }
        }
        judge(&mut report, &order);
        assert_eq!(report.targets.len(), 4 + 2 + 5 + 2);
        for target in &report.targets {
            assert!(target.found.is_some(), "{}", target.what);
        }
    }
}
