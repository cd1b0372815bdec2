//! The other figures as tables: latency, areas, mapped files, memory that is not managed, processes.

use maud::{Markup, html};

use super::{Measured, Process, Story, code, section};
use crate::control::words::Area;
use crate::report::{Run, grouped, plural};
use crate::size::{humane, humane_ns};
use crate::unmanaged::Kind;

/// Latencies are told from 2^9 ns to 2^36 ns (a minute).
const POWERS: std::ops::RangeInclusive<u32> = 9..=36;

/// Faults by the time that they took: the end of each step in ns, and the faults in it. From the first step with any to the
/// last.
fn latencies(run: &Run) -> Vec<(u64, u64)> {
    let stats = &run.totals.stats;
    let mut before = 0;
    let mut steps: Vec<(u64, u64)> = POWERS
        .map(|power| {
            let within = stats.faults_within(power);
            (1 << power, within - std::mem::replace(&mut before, within))
        })
        .collect();
    while steps.last().is_some_and(|&(_, faults)| faults == 0) {
        steps.pop();
    }
    let first = steps
        .iter()
        .position(|&(_, faults)| faults > 0)
        .unwrap_or(0);
    steps.split_off(first)
}

/// `8 µs` for 8192 ns: latencies are known to a few percent.
fn power_of_two(ns: u64) -> String {
    let power = ns.ilog2();
    let unit = ["ns", "µs", "ms", "s"][(power / 10).min(3) as usize];
    format!(
        "{} {unit}",
        1 << (power % 10 + 10 * (power / 10).saturating_sub(3))
    )
}

fn latency(run: &Run) -> Markup {
    let steps = latencies(run);
    let (most, all) = (
        steps.iter().map(|step| step.1).max(),
        steps.iter().map(|step| step.1).sum::<u64>(),
    );
    let Some(most) = most else {
        return html! {};
    };
    let stats = &run.totals.stats;
    let percentile = |p| humane_ns(stats.fault_ns_percentile(p));
    let content = html! {
        p {
            "Half of the faults took at most " (percentile(0.5)) ", 99 % at most " (percentile(0.99)) ", the slowest "
            (humane_ns(stats.fault_ns_max)) "."
        }
        table .bars {
            thead { tr { th scope="col" { "Up to, about" } th scope="col" { "Faults" } th scope="col" { "Part" } } }
            tbody {
                @for (end, faults) in steps {
                    tr {
                        th scope="row" { (power_of_two(end)) }
                        td { (grouped(faults)) }
                        td .bar {
                            span style=(format!("width:{:.1}%", 75.0 * faults as f64 / most as f64)) {}
                            (format!("{:.1} %", 100.0 * faults as f64 / all as f64))
                        }
                    }
                }
            }
        }
    };
    section("How long faults took", &content)
}

fn areas(areas: &[Area]) -> Markup {
    let content = html! {
        div .table { table {
            thead { tr {
                th scope="col" { "Area" } th scope="col" { "Size" } th scope="col" { "Most used" } th scope="col" .wide { "Priority" }
            } }
            tbody {
                @for area in areas {
                    tr {
                        th scope="row" { (area.path) }
                        td { (humane(area.bytes)) }
                        td {
                            (humane(area.used_bytes))
                            @if let Some(memory) = &area.memory { small { "in " (humane(memory.held_bytes)) " of memory" } }
                        }
                        td .wide { (area.priority) }
                    }
                }
            }
        } }
    };
    section("Swap areas", &content)
}

fn files(run: &Run) -> Markup {
    let stats = &run.totals.stats;
    if stats.file_bytes == 0 {
        return html! {};
    }
    let content = html! {
        p { (humane(stats.file_bytes)) " of files were mapped and served; " (humane(stats.file_in_bytes)) " were read from them." }
    };
    section("Mapped files", &content)
}

fn unmanaged(run: &Run) -> Markup {
    let kinds: Vec<Kind> = Kind::ALL
        .into_iter()
        .filter(|&kind| run.unmanaged.of(kind) > 0)
        .collect();
    if kinds.is_empty() {
        return html! {};
    }
    let content = html! {
        p { "Memory that foreswap does not manage does not count towards the limit. The most of each kind at a time:" }
        div .table { table {
            thead { tr { th scope="col" { "Kind" } th scope="col" { "Memory" } } }
            tbody {
                @for kind in kinds {
                    tr { th scope="row" { (explained(kind)) } td { (humane(run.unmanaged.of(kind))) } }
                }
            }
        } }
    };
    section("Not managed", &content)
}

fn explained(kind: Kind) -> &'static str {
    match kind {
        Kind::Shared => "shared memory",
        Kind::Locked => "locked memory",
        Kind::Executable => "executable memory",
        Kind::Stacks => "stacks of threads",
        Kind::Files => "private copies of pages of files",
        Kind::Unknown => "other private memory",
    }
}

fn processes(measured: &Measured<'_>) -> Markup {
    let has_memory =
        |process: &&Process| process.managed_bytes + process.in_bytes + process.out_bytes > 0;
    let processes: Vec<&Process> = measured.processes.iter().filter(has_memory).collect();
    if processes.is_empty() {
        return html! {};
    }
    let content = html! {
        div .table { table {
            thead { tr {
                th scope="col" { "Process" } th scope="col" { "Memory" } th scope="col" .wide { "Major faults" }
                th scope="col" { "Came back" } th scope="col" .wide { "Went out" } th scope="col" { "Waited" }
            } }
            tbody {
                @for process in processes {
                    tr {
                        th scope="row" .command { (process.command) small { (process.pid) } }
                        td { (humane(process.managed_bytes)) }
                        td .wide { (grouped(process.faults_major)) }
                        td { (humane(process.in_bytes)) }
                        td .wide { (humane(process.out_bytes)) }
                        td { (humane_ns(process.stalled_ns)) }
                    }
                }
            }
        } }
        @if measured.more_processes > 0 {
            p .note { (plural(measured.more_processes as u64, "more process", "more processes")) " had less traffic." }
        }
    };
    section("Processes", &content)
}

/// What a page from a trace lacks, and what was lost.
fn missing(story: &Story<'_>) -> Markup {
    let lost = story.found.lost;
    html! {
        footer {
            @if story.measured.is_none() {
                p .note {
                    "A trace has no times of waiting, latencies, memory that is not managed, areas and names: a page of "
                    code { "foreswap run --report FILE.html" } " has them."
                }
            }
            @if lost > 0 {
                p .note {
                    (plural(lost, "record was", "records were")) " lost, as they came too fast: the curve and the pictures lack them."
                }
            }
        }
    }
}

/// All tables for which there are figures.
pub fn draw(story: &Story<'_>) -> Markup {
    html! {
        @if let Some(measured) = &story.measured {
            @if measured.run.has_managed() { (latency(measured.run)) }
            (code::draw(measured.functions))
            (processes(measured))
            @if !measured.areas.is_empty() { (areas(measured.areas)) }
            (files(measured.run))
            (unmanaged(measured.run))
        }
        (missing(story))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_told_by_powers_of_two() {
        let told = [512, 1 << 13, 1 << 20, 1 << 30, 1 << 36].map(power_of_two);
        assert_eq!(told, ["512 ns", "8 µs", "1 ms", "1 s", "64 s"]);
        let mut run = Run::default();
        run.totals.stats.latency = vec![0; 600];
        // Sixteen buckets for each power of two, from 16 ns on: 4 to 8 µs, and 16 to 32 µs.
        run.totals.stats.latency[144 + 5] = 3;
        run.totals.stats.latency[176] = 7;
        assert_eq!(latencies(&run), [(1 << 13, 3), (1 << 14, 0), (1 << 15, 7)]);
        assert_eq!(latencies(&Run::default()), []);
    }
}
