//! The cost of a fault beyond the disk: random 4 KiB reads of one thread without readahead, compared with O_DIRECT
//! reads of the same size from a file beside the swap area, both in one call and in turns.
//!
//! It also measures the cost of a fault whose page is in memory already, by a sequential scan with readahead. Seven in
//! eight of its faults find their page in a frame, so the median is that of such a fault.
//!
//! The latency is measured in the program: from before the touch to after it. Touches of at most 2 microseconds found
//! their page mapped and are left out.

use serde_json::json;

use super::{new_report, turns, usemem};
use crate::args::{BenchArgs, Mode, Op, Pattern, PeerName, UsememArgs};
use crate::disk::Disk;
use crate::peer::{Figures, Session};
use crate::report::{Column, PeerReport, Report, Target, Unit};
use crate::size::humane;

const TURNS: u32 = 5;
const SECONDS: f64 = 3.0;
const DISK_READS: u64 = 20_000;
/// Nanoseconds that a fault may take longer than the disk, at the median.
const BEYOND_DISK: f64 = 10_000.0;
/// Nanoseconds of a fault whose page is in memory.
const IN_MEMORY: f64 = 8_000.0;
/// Name of the scan in the report.
const SCAN: &str = "foreswap, scan";

/// Runs the random reads and the disk in turns.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(TURNS);
    let given = &args.usemem;
    let workload = UsememArgs {
        mode: Mode::Process,
        tasks: 1,
        pattern: Pattern::Rand,
        op: Op::Read,
        seconds: Some(given.seconds.unwrap_or(SECONDS)),
        ..given.clone()
    };
    session.swap_bytes = usemem::swap_for(workload.total_bytes());
    session
        .foreswap
        .readahead
        .get_or_insert_with(|| "none".to_owned());
    let order = super::peers(args, &[]);

    let disk = Disk::make(&session.directory, workload.total_bytes(), session.limit)?;
    let mut of_disk = Vec::new();
    let mut results: Vec<PeerReport> = Vec::new();
    let mut scans: Vec<PeerReport> = Vec::new();
    for turn in 0..turns {
        let latency = disk.random_read_latency(DISK_READS, given.seed + u64::from(turn))?;
        of_disk.push(Figures::from([
            ("faulted_p50_ns".to_owned(), latency.p50 as f64),
            ("faulted_average_ns".to_owned(), latency.average),
            ("faulted_p95_ns".to_owned(), latency.p95 as f64),
            ("faulted_p99_ns".to_owned(), latency.p99 as f64),
            ("faulted_count".to_owned(), latency.count as f64),
        ]));
        let command = |s: &Session, p| usemem::command(s, p, &workload);
        let one = turns::in_turns(session, &order, 1, command, usemem::read)?;
        results = merged(results, one);

        let scan = UsememArgs {
            pattern: Pattern::Seq,
            ..workload.clone()
        };
        let before = session.foreswap.readahead.replace("vma".to_owned());
        let command = |s: &Session, p| usemem::command(s, p, &scan);
        let one = turns::in_turns(session, &order[..1], 1, command, usemem::read);
        session.foreswap.readahead = before;
        scans = merged(scans, one?);
    }

    let title = format!(
        "{} in {}, random 4 KiB reads without readahead, medians of {turns} turns",
        humane(workload.total_bytes()),
        humane(session.limit)
    );
    let parameters = json!({ "usemem": workload, "memory_limit_bytes": session.limit,
        "turns": turns, "readahead": session.foreswap.readahead, "disk_reads": DISK_READS });
    let mut report = new_report("fault-latency", title, session, parameters);
    report.peers = results;
    report.peers.extend(scans.into_iter().map(|mut scan| {
        scan.peer = SCAN.to_owned();
        scan
    }));
    report
        .peers
        .push(PeerReport::new("disk, O_DIRECT", of_disk, Vec::new()));
    report.show(vec![
        Column::spread("p50 us", "faulted_p50_ns", Unit::Microseconds),
        Column::median("average", "faulted_average_ns", Unit::Microseconds),
        Column::median("p95", "faulted_p95_ns", Unit::Microseconds),
        Column::median("p99", "faulted_p99_ns", Unit::Microseconds),
        Column::median("faults", "faulted_count", Unit::Number),
        Column::median("us/page", "ns_per_page", Unit::Microseconds),
    ]);
    judge(&mut report);
    Ok(report)
}

/// Appends one more turn of each peer.
fn merged(sofar: Vec<PeerReport>, one: Vec<PeerReport>) -> Vec<PeerReport> {
    if sofar.is_empty() {
        return one;
    }
    let append = |(mut all, mut more): (PeerReport, PeerReport)| match (&all.not_run, &more.not_run)
    {
        (None, None) => {
            all.turns.append(&mut more.turns);
            all.details.append(&mut more.details);
            PeerReport::new(all.peer, all.turns, all.details)
        }
        (Some(_), _) => all,
        (None, Some(_)) => more,
    };
    sofar.into_iter().zip(one).map(append).collect()
}

fn judge(report: &mut Report) {
    let median = |report: &Report, name: &str, figure: &str| report.peer(name)?.median(figure);
    let disk = median(report, "disk, O_DIRECT", "faulted_p50_ns");
    let first = report
        .peers
        .first()
        .map_or(String::new(), |peer| peer.peer.clone());
    let fault = median(report, &first, "faulted_p50_ns").filter(|ns| *ns > 0.0);
    let beyond = fault.zip(disk).map(|(fault, disk)| fault - disk);
    let what = format!("{first}, median fault beyond the disk's median read");
    report.targets.push(Target::at_most(
        what,
        BEYOND_DISK,
        Unit::Microseconds,
        beyond,
    ));
    let kernel = crate::report::peer_name(PeerName::Kernel);
    if let Some(ns) = median(report, kernel, "faulted_p50_ns")
        .zip(disk)
        .map(|(ns, disk)| ns - disk)
    {
        report.say(format!(
            "kernel, the same: {} us",
            Unit::Microseconds.text(ns)
        ));
    }
    let what = "foreswap, median fault on a page in memory".to_owned();
    let in_memory = median(report, SCAN, "faulted_p50_ns").filter(|ns| *ns > 0.0);
    report.targets.push(Target::at_most(
        what,
        IN_MEMORY,
        Unit::Microseconds,
        in_memory,
    ));
}
