//! The closing block: one glance tells limit, peak, faults, traffic, hit ratio and latency.

use std::fmt::Write;
use std::time::Duration;

use crate::sessions::Totals;
use crate::size::{humane, humane_ns};
use crate::stats_file::ratio;

/// A run that is over.
#[derive(Debug, Default)]
pub struct Run {
    /// From the start of the command to its end.
    pub elapsed: Duration,
    /// Of the command, as a shell tells it.
    pub exit_status: i32,
    /// The memory limit.
    pub limit_bytes: u64,
    /// The most that was resident of managed memory.
    pub peak_bytes: u64,
    /// What the processes did.
    pub totals: Totals,
    /// Managed processes that go on without the command.
    pub left_running: usize,
}

/// Thousands apart, for counts.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

/// The block as it is printed; colours only where asked for.
pub fn block(run: &Run, coloured: bool) -> String {
    let stats = &run.totals.stats;
    let (bold, dim, plain) = if coloured {
        ("\x1b[1m", "\x1b[2m", "\x1b[0m")
    } else {
        ("", "", "")
    };
    let limit = humane(run.limit_bytes);
    let mut text = String::new();
    // The size is published less often than the counters: a short life may show only in these.
    let worked = stats.faults_major + stats.faults_minor + stats.faults_zero + stats.swap_out_bytes;
    if stats.managed_bytes == 0 && worked == 0 {
        let _ = writeln!(
            text,
            "{bold}foreswap:{plain} nothing needed managing: the peak stayed below {limit}"
        );
    } else {
        let _ = writeln!(
            text,
            "{bold}foreswap:{plain} {} of memory in {bold}{}{plain}, limit {limit}; {}, engine {}",
            humane(stats.managed_bytes.max(run.peak_bytes)),
            humane(run.peak_bytes),
            plural(run.totals.processes, "process", "processes"),
            humane(stats.engine_bytes),
        );
        let mut line = |label: &str, cells: [String; 3]| {
            let [first, second, third] = cells;
            let row = format!("  {dim}{label:<10}{plain} {first:<20} {second:<20} {third}");
            let _ = writeln!(text, "{}", row.trim_end());
        };
        line(
            "faults",
            [
                format!("{} major", grouped(stats.faults_major)),
                format!("{} minor", grouped(stats.faults_minor)),
                format!("{} zero", grouped(stats.faults_zero)),
            ],
        );
        line(
            "swap",
            [
                format!("{} out", humane(stats.swap_out_bytes)),
                format!("{} in", humane(stats.swap_in_bytes)),
                format!(
                    "{}, {}",
                    plural(stats.swap_write_ios, "write", "writes"),
                    plural(stats.swap_read_ios, "read", "reads")
                ),
            ],
        );
        if stats.readahead_pages > 0 {
            let hits = 100.0 * ratio(stats.readahead_hits, stats.readahead_pages);
            let read = plural(stats.readahead_pages, "page", "pages");
            line(
                "readahead",
                [format!("{hits:.1} % hit"), read, String::new()],
            );
        }
        line(
            "latency",
            [
                format!("p50 {}", humane_ns(stats.fault_ns_percentile(0.5))),
                format!("p99 {}", humane_ns(stats.fault_ns_percentile(0.99))),
                format!("max {}", humane_ns(stats.fault_ns_max)),
            ],
        );
    }
    if run.left_running > 0 {
        let left = plural(run.left_running as u64, "process goes", "processes go");
        let _ = writeln!(
            text,
            "  {left} on in the background, still within the limit"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> Run {
        let mut run = Run {
            limit_bytes: 256 << 20,
            peak_bytes: 255 << 20,
            ..Run::default()
        };
        run.totals.processes = 3;
        let stats = &mut run.totals.stats;
        stats.managed_bytes = 1 << 30;
        stats.engine_bytes = 5 << 20;
        stats.faults_major = 196_608;
        stats.swap_in_bytes = 768 << 20;
        stats.readahead_pages = 1000;
        stats.readahead_hits = 921;
        stats.fault_ns_max = 2_100_000;
        run
    }

    #[test]
    fn one_glance_tells_it_all() {
        let text = block(&busy(), false);
        for part in [
            "limit 256 MiB",
            "255 MiB",
            "196,608 major",
            "768 MiB in",
            "92.1 %",
            "max 2.1 ms",
            "3 processes",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(
            text.lines().count() <= 6 && text.lines().all(|line| line.len() < 90),
            "{text}"
        );
        assert!(!text.contains('\x1b'));
        assert!(block(&busy(), true).contains("\x1b[1m"));
    }

    #[test]
    fn a_small_command_gets_one_line() {
        let text = block(
            &Run {
                limit_bytes: 1 << 30,
                ..Run::default()
            },
            false,
        );
        assert_eq!(
            text,
            "foreswap: nothing needed managing: the peak stayed below 1 GiB\n"
        );
    }

    #[test]
    fn counts() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(plural(1, "process", "processes"), "1 process");
    }
}
