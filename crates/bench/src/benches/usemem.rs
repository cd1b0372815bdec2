//! `usemem` and its shortcuts: time per page on foreswap, and on the kernel's swap.

use serde_json::{Value, json};

use super::{new_report, peers, turns, value_name};
use crate::args::{BenchArgs, BenchName, Op, Pattern, PeerName, UsememArgs};
use crate::peer::{Figures, Session};
use crate::report::{Better, Column, Report, Target, Unit, windows_line};
use crate::size::humane;
use crate::usemem;

const TURNS: u32 = 5;

/// What is asked of a pattern, against the kernel at its best (issue 3).
struct Asked {
    pattern: Pattern,
    op: Op,
    figure: &'static str,
    /// What the figure's ratio is called.
    words: &'static str,
    bound: Bound,
}

enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

const ASKED: [Asked; 5] = [
    throughput(Pattern::Seq),
    throughput(Pattern::Reverse),
    throughput(Pattern::Interleaved),
    throughput(Pattern::Stride),
    Asked {
        pattern: Pattern::Rand,
        op: Op::Read,
        figure: "ns_per_page",
        words: "time per page to the kernel's",
        bound: Bound::AtMost(1.05),
    },
];

const fn throughput(pattern: Pattern) -> Asked {
    Asked {
        pattern,
        op: Op::Read,
        figure: "bytes_per_s",
        words: "bytes/s to the kernel's",
        bound: Bound::AtLeast(3.0),
    }
}

/// Runs usemem as `name` says.
pub fn run(name: BenchName, args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let workload = parameters_of(name, &args.usemem);
    let turns = args.turns.unwrap_or(TURNS);
    session.swap_bytes = swap_for(workload.total_bytes());
    let order = peers(args, &[PeerName::Kernel]);
    let results = turns::in_turns(
        session,
        &order,
        turns,
        |s, p| command(s, p, &workload),
        read,
    )?;

    let tasks = match workload.tasks {
        1 => "1 task".to_owned(),
        n => format!("{n} tasks"),
    };
    let detail = match workload.pattern {
        Pattern::Interleaved => format!("{} scans, ", workload.scans),
        Pattern::Stride => format!("every {}. page, ", workload.stride),
        _ => String::new(),
    };
    let title = format!(
        "{} in {}, {detail}{tasks}, medians of {turns} turns",
        humane(workload.total_bytes()),
        humane(session.limit)
    );
    let parameters = json!({
        "usemem": workload, "memory_limit_bytes": session.limit, "turns": turns,
        "readahead": session.foreswap.readahead, "run_options": session.foreswap.more,
    });
    let mut report = new_report(&value_name(name), title, session, parameters);
    report.peers = results;
    note_clock(&mut report, |turn| &turn["workload"]["clock"]);
    report.show(columns());
    report.compare("ns_per_page", Better::Less);
    report.compare("bytes_per_s", Better::More);
    report.compare("fill_ns_per_page", Better::Less);
    say_windows(&mut report);
    let compressed = order.contains(&PeerName::Zram);
    if !compressed || order.contains(&PeerName::Kernel) {
        judge(&mut report, &workload);
    }
    if compressed {
        judge_compressed(&mut report, &workload);
    }
    Ok(report)
}

fn judge(report: &mut Report, workload: &UsememArgs) {
    let asked = ASKED
        .iter()
        .find(|asked| (asked.pattern, asked.op) == (workload.pattern, workload.op));
    let Some(asked) = asked else { return };
    let found = report.ratio(asked.figure, crate::report::peer_name(PeerName::Kernel));
    let what = format!("{}, {}", what_of(workload), asked.words);
    report.targets.push(match asked.bound {
        Bound::AtMost(bound) => Target::at_most(what, bound, Unit::Ratio, found),
        Bound::AtLeast(bound) => Target::at_least(what, bound, Unit::Ratio, found),
    });
}

/// What is asked of compressed memory, against zram (issue 4).
fn judge_compressed(report: &mut Report, workload: &UsememArgs) {
    let least = match workload.pattern {
        Pattern::Seq => 4.0,
        Pattern::Rand => 2.0,
        _ => return,
    };
    let zram = crate::report::peer_name(PeerName::Zram);
    let found = report.ratio("bytes_per_s", zram);
    let what = format!("{}, bytes/s to zram's", what_of(workload));
    report
        .targets
        .push(Target::at_least(what, least, Unit::Ratio, found));
}

/// A pattern in words.
fn what_of(workload: &UsememArgs) -> String {
    let op = match workload.op {
        Op::Read => "read",
        Op::Write => "write",
    };
    match workload.pattern {
        Pattern::Seq => format!("seq-{op}"),
        Pattern::Rand => format!("rand-{op}"),
        Pattern::Stride => format!("stride-{} {op}", workload.stride),
        Pattern::Reverse => format!("reverse {op}"),
        Pattern::Interleaved => format!("interleaved {op}, {} scans", workload.scans),
    }
}

/// Notes how touches were timed, which each turn's report says at `clock`, and over what
/// the columns go.
pub fn note_clock(report: &mut Report, clock: fn(&Value) -> &Value) {
    let details = report.peers.iter().find_map(|peer| peer.details.first());
    if let Some(clock) = details.and_then(|turn| clock(turn).as_str()) {
        let note = format!(
            "touches are timed by: {clock}; 3 % fine; that is part of every peer's time per page"
        );
        report.notes.push(note);
    }
    report.notes.push(
        "us/page, MiB/s, touches and faults/page (minor and major, as the kernel counts them \
         for the tasks) are of the measured passes; hit ratio, in, out, pages/major (pages that \
         came in over major faults) and windows are of the whole run; for the kernel they are \
         the whole system's"
            .to_owned(),
    );
}

/// A line for each peer that tells of its windows.
pub fn say_windows(report: &mut Report) {
    let lines: Vec<String> = report.peers.iter().filter_map(windows_line).collect();
    lines.into_iter().for_each(|line| report.say(line));
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

/// Swap for the kernel: `bytes`, and a quarter more for what its clusters waste.
pub fn swap_for(bytes: u64) -> u64 {
    (bytes + bytes / 4 + (64 << 20)).next_multiple_of(2 << 20)
}

/// The words that run `workload` for a peer.
pub fn command(
    session: &Session,
    peer: PeerName,
    workload: &UsememArgs,
) -> Vec<std::ffi::OsString> {
    // The kernel at its best has huge pages: the workload asks for them.
    let thp = workload.thp || peer.asks_for_huge_pages();
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
    Ok((figures_of(&report.total), value))
}

/// The figures of a group of tasks.
pub fn figures_of(total: &usemem::Total) -> Figures {
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
    let faults = total.minor_faults + total.major_faults;
    put("faults_per_page", faults as f64 / total.pages.max(1) as f64);
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
    figures
}

fn columns() -> Vec<Column> {
    vec![
        Column::spread("us/page", "ns_per_page", Unit::Microseconds),
        Column::median("MiB/s", "bytes_per_s", Unit::Mebibytes),
        Column::median("fill us/page", "fill_ns_per_page", Unit::Microseconds),
        Column::median("touch p50 us", "touch_p50_ns", Unit::Microseconds),
        Column::median("p99", "touch_p99_ns", Unit::Microseconds),
        Column::median("max", "touch_max_ns", Unit::Microseconds),
        Column::median("faults/page", "faults_per_page", Unit::Ratio),
        Column::median("pages/major", "pages_per_major", Unit::Tenths),
        Column::median("hit ratio", "hit_ratio", Unit::Ratio),
        Column::median("in MiB", "swap_in_bytes", Unit::Mebibytes),
        Column::median("out MiB", "swap_out_bytes", Unit::Mebibytes),
        Column::median("major", "major_faults", Unit::Number),
        Column::median("peak MiB", "peak_bytes", Unit::Mebibytes),
    ]
}
