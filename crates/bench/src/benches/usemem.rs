//! `usemem` and its shortcuts: time per page on foreswap, and on the kernel's swap.

use clap::ValueEnum;
use serde_json::{Value, json};

use super::{new_report, peers, turns};
use crate::args::{BenchArgs, BenchName, Op, Pattern, PeerName, UsememArgs};
use crate::peer::{Figures, Session};
use crate::report::{Column, Report, Target, Unit};
use crate::size::humane;
use crate::usemem;

const TURNS: u32 = 5;

/// What is asked of a bench: the ratio of its time per page to the kernel's at its best.
const TARGETS: [(BenchName, f64); 1] = [(BenchName::RandRead, 1.1)];

/// Runs usemem as `name` says.
pub fn run(name: BenchName, args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let workload = parameters_of(name, &args.usemem);
    let turns = args.turns.unwrap_or(TURNS);
    session.swap_bytes = swap_for(&workload);
    let order = peers(args, &[PeerName::Kernel]);
    let results = turns::in_turns(
        session,
        &order,
        turns,
        |s, p| command(s, p, &workload),
        read,
    )?;

    let written = name.to_possible_value();
    let written = written.as_ref().map_or("usemem", |value| value.get_name());
    let tasks = match workload.tasks {
        1 => "1 task".to_owned(),
        n => format!("{n} tasks"),
    };
    let title = format!(
        "{} in {}, {tasks}, medians of {turns} turns",
        humane(workload.total_bytes()),
        humane(session.limit)
    );
    let parameters = json!({
        "usemem": workload, "memory_limit_bytes": session.limit, "turns": turns,
        "readahead": session.foreswap.readahead, "run_options": session.foreswap.more,
    });
    let mut report = new_report(written, title, session, parameters);
    report.peers = results;
    let details = report.peers.iter().find_map(|peer| peer.details.first());
    if let Some(clock) = details.and_then(|turn| turn["workload"]["clock"].as_str()) {
        report
            .notes
            .push(format!("touches are timed by: {clock}; 3 % fine"));
    }
    report.show(columns());
    report.compare("ns_per_page");
    report.compare("fill_ns_per_page");
    let same = |bench: &BenchName| parameters_match(*bench, &workload);
    for (bench, bound) in TARGETS
        .iter()
        .filter(|(bench, _)| *bench == name || same(bench))
    {
        let found = report.ratio("ns_per_page", "kernel");
        let what = format!("{}, time per page to the kernel's", value_name(*bench));
        report
            .targets
            .push(Target::at_most(what, *bound, Unit::Ratio, found));
    }
    Ok(report)
}

/// The parameters of a shortcut: its pattern and operation, the rest as given.
fn parameters_of(name: BenchName, given: &UsememArgs) -> UsememArgs {
    let (pattern, op) = match name {
        BenchName::SeqRead => (Pattern::Seq, Op::Read),
        BenchName::SeqWrite => (Pattern::Seq, Op::Write),
        BenchName::RandRead => (Pattern::Rand, Op::Read),
        BenchName::RandWrite => (Pattern::Rand, Op::Write),
        BenchName::Stride => (Pattern::Stride, given.op),
        BenchName::Reverse => (Pattern::Reverse, given.op),
        BenchName::Interleaved => (Pattern::Interleaved, given.op),
        _ => (given.pattern, given.op),
    };
    UsememArgs {
        pattern,
        op,
        ..given.clone()
    }
}

fn parameters_match(name: BenchName, workload: &UsememArgs) -> bool {
    let shortcut = parameters_of(name, workload);
    (shortcut.pattern, shortcut.op) == (workload.pattern, workload.op)
}

fn value_name(name: BenchName) -> String {
    name.to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Swap for the kernel: all regions, and a quarter more for what its clusters waste.
pub fn swap_for(workload: &UsememArgs) -> u64 {
    let bytes = workload.total_bytes();
    (bytes + bytes / 4 + (64 << 20)).next_multiple_of(2 << 20)
}

/// The words that run `workload` for a peer.
pub fn command(
    session: &Session,
    peer: PeerName,
    workload: &UsememArgs,
) -> Vec<std::ffi::OsString> {
    // The kernel at its best has huge pages: the workload asks for them.
    let thp = workload.thp || peer == PeerName::Kernel;
    let workload = UsememArgs {
        thp,
        ..workload.clone()
    };
    session.own_command(&workload.to_command())
}

/// The figures of usemem's report.
pub fn read(output: &[u8]) -> anyhow::Result<(Figures, Value)> {
    let value: Value = serde_json::from_slice(output)?;
    let report: usemem::Report = serde_json::from_value(value.clone())?;
    let total = &report.total;
    let mut figures = Figures::new();
    let mut put = |name: &str, value: f64| figures.insert(name.to_owned(), value);
    put("ns_per_page", total.ns_per_page);
    put("pages_per_s", total.pages_per_s);
    put("bytes_per_s", total.bytes_per_s);
    put("fill_ns_per_page", total.fill_ns_per_page);
    put("work_ns", (total.fill_ns + total.pass_ns) as f64);
    put("check_ns", total.check_ns as f64);
    put("kernel_minor_faults", total.minor_faults as f64);
    put("kernel_major_faults", total.major_faults as f64);
    put("task_ns_per_page", total.task_ns_per_page.median);
    for (name, latency) in [
        ("touch", &total.first_touch),
        ("faulted", &total.faulted_touch),
        ("fill_touch", &total.fill_touch),
    ] {
        put(&format!("{name}_count"), latency.count as f64);
        put(&format!("{name}_average_ns"), latency.average);
        put(&format!("{name}_p50_ns"), latency.p50 as f64);
        put(&format!("{name}_p95_ns"), latency.p95 as f64);
        put(&format!("{name}_p99_ns"), latency.p99 as f64);
        put(&format!("{name}_max_ns"), latency.max as f64);
    }
    Ok((figures, value))
}

fn columns() -> Vec<Column> {
    vec![
        Column::spread("us/page", "ns_per_page", Unit::Microseconds),
        Column::median("MiB/s", "bytes_per_s", Unit::Mebibytes),
        Column::median("fill us/page", "fill_ns_per_page", Unit::Microseconds),
        Column::median("touch p50 us", "touch_p50_ns", Unit::Microseconds),
        Column::median("p99", "touch_p99_ns", Unit::Microseconds),
        Column::median("max", "touch_max_ns", Unit::Microseconds),
        Column::median("hit ratio", "hit_ratio", Unit::Ratio),
        Column::median("in MiB", "swap_in_bytes", Unit::Mebibytes),
        Column::median("out MiB", "swap_out_bytes", Unit::Mebibytes),
        Column::median("major", "major_faults", Unit::Number),
        Column::median("peak MiB", "peak_bytes", Unit::Mebibytes),
    ]
}
