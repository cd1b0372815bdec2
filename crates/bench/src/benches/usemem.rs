//! `usemem` and its shortcuts: time per page on foreswap, and on the kernel's swap.

use serde_json::{Value, json};

use super::device::{Device, Measured};
use super::{asked, new_report, peers, turns, value_name};
use crate::args::{BenchArgs, BenchName, Op, Pattern, PeerName, UsememArgs};
use crate::peer::{Counting, Figures, Session};
use crate::report::{Better, Column, Report, Unit, windows_line};
use crate::size::humane;
use crate::usemem::{self, PAGE};

const TURNS: u32 = 5;

/// Runs usemem as `name` says.
pub fn run(name: BenchName, args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let mut workload = parameters_of(name, &args.usemem);
    workload.full = Some(session.limit).filter(|limit| *limit < workload.total_bytes());
    let turns = args.turns.unwrap_or(TURNS);
    session.swap_bytes = swap_for(workload.total_bytes());
    session.in_order = asked::is_sequential(&workload);
    let order = peers(args, &[PeerName::Kernel]);
    let mut device = device_for(session, order[0], &workload)?;
    let results = turns::in_turns_by(session, &order, turns, |session, peer, progress| {
        if let Some(device) = device.as_mut().filter(|_| peer == order[0]) {
            device.turn()?;
        }
        let words = command(session, peer, &workload);
        let counting = Counting::Passes;
        let (mut figures, details) =
            turns::one_turn(session, peer, &words, counting, read, progress)?;
        figures.insert("fill_bytes".to_owned(), workload.total_bytes() as f64);
        asked::add_rates(&mut figures, &workload);
        Ok((figures, details))
    })?;

    let tasks = match workload.tasks {
        1 => "1 task".to_owned(),
        n => format!("{n} tasks"),
    };
    let detail = match workload.pattern {
        Pattern::Interleaved => format!("{} scans, ", workload.scans),
        Pattern::Stride => format!("every {}. page, ", workload.stride),
        Pattern::Rows => format!("{} pages of {}, ", workload.row, workload.stride),
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
    if workload.tasks > 1 {
        report.compare("together_bytes_per_s", Better::More);
        report.notes.push(
            "MiB/s sums the tasks' own rates, of which one that found all in memory can be most; \
             together is the bytes of all tasks over the time of the slowest, and is what is judged"
                .to_owned(),
        );
    }
    say_windows(&mut report);
    if let Some(device) = device {
        device.show(&mut report);
    }
    let run = asked::Run {
        workload: &workload,
        peers: &order,
        in_ram: session.foreswap.has_ram(),
    };
    asked::judge(&mut report, &run);
    Ok(report)
}

/// The area's device, if the figures are compared with it: one stream, forwards, to or from an area on that device.
fn device_for(
    session: &Session,
    first: PeerName,
    workload: &UsememArgs,
) -> anyhow::Result<Option<Device>> {
    let directory = match first {
        PeerName::Foreswap | PeerName::Encrypted => session.area_directory(),
        PeerName::Kernel | PeerName::KernelDefaults => Some(session.directory.as_path()),
        PeerName::Zram | PeerName::Zswap | PeerName::Bare => None,
    };
    let measured = match workload.op {
        Op::Read => Measured::Reads,
        Op::Write => Measured::Writes,
    };
    let sequential = workload.pattern == Pattern::Seq;
    directory
        .filter(|_| sequential)
        .map(|directory| Device::make(directory, workload.total_bytes(), session.limit, measured))
        .transpose()
}

/// Notes how touches were timed, from each turn's report at `clock`, and the turns that the columns cover.
pub fn note_clock(report: &mut Report, clock: fn(&Value) -> &Value) {
    let details = report.peers.iter().find_map(|peer| peer.details.first());
    if let Some(clock) = details.and_then(|turn| clock(turn).as_str()) {
        let note = format!(
            "touches are timed by: {clock}; 3 % fine; that is part of every peer's time per page"
        );
        report.notes.push(note);
    }
    report.notes.push(
        "us/page, MiB/s, in and out MiB/s, touches and faults/page (minor and major, as the kernel counts them \
         for the tasks) are of the measured passes; hit ratio, in, out, pages/major (pages that \
         came in over major faults) and windows are of the whole run; for the kernel they are \
         the whole system's"
            .to_owned(),
    );
}

/// A line for each peer that reports its windows.
pub fn say_windows(report: &mut Report) {
    let lines: Vec<String> = report.peers.iter().filter_map(windows_line).collect();
    lines.into_iter().for_each(|line| report.say(line));
}

/// The parameters of a shortcut: its pattern and operation, the others as given.
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
        marks: true,
        ..given.clone()
    }
}

/// The kernel's swap size: less than half of it is ever in use, with a quarter of `bytes` added for clusters that are
/// only partly used. Once half is in use, the kernel frees the slot of every page that it reads, and must write the
/// page again though it was only read: that is not the kernel at its best.
pub fn swap_for(bytes: u64) -> u64 {
    (2 * (bytes + bytes / 4) + (64 << 20)).next_multiple_of(2 << 20)
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
    put("other_bytes", total.other_bytes as f64);
    put("fill_ns", total.fill_ns as f64);
    put("over_ns", total.over_ns as f64);
    put("work_ns", (total.fill_ns + total.pass_ns) as f64);
    put("check_ns", total.check_ns as f64);
    put("kernel_minor_faults", total.minor_faults as f64);
    put("kernel_major_faults", total.major_faults as f64);
    let faults = total.minor_faults + total.major_faults;
    let faults_per_page = faults as f64 / total.pages.max(1) as f64;
    put("faults_per_page", faults_per_page);
    put("faults_per_2mib", 512.0 * faults_per_page);
    put("pass_bytes", total.pages as f64 * PAGE as f64);
    put("pass_ns", total.pass_ns as f64);
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
        Column::median("together", "together_bytes_per_s", Unit::Mebibytes),
        Column::median("in MiB/s", "pass_in_bytes_per_s", Unit::Mebibytes),
        Column::median("out MiB/s", "pass_out_bytes_per_s", Unit::Mebibytes),
        Column::median("fill us/page", "fill_ns_per_page", Unit::Microseconds),
        Column::median("fill out MiB/s", "fill_out_bytes_per_s", Unit::Mebibytes),
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
