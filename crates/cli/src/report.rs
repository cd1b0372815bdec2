//! The closing block: limit, peak, faults, traffic, hit ratio and latency at a glance.

use std::fmt::Write;
use std::time::Duration;

use foreswap::ledger::OverLimit;
use foreswap_store::area::PAGE_BYTES;

use crate::auto_memory::Auto;
use crate::sessions::Totals;
use crate::size::{humane, humane_ns};
use crate::stats_file::ratio;
use crate::unmanaged::{Kind, Unmanaged};

/// Unmanaged memory is listed above this fraction of the limit.
const WORTH: u64 = 64;

/// A finished run.
#[derive(Debug, Default)]
pub struct Run {
    /// From the start of the command to its end.
    pub elapsed: Duration,
    /// Of the command, as a shell reports it.
    pub exit_status: i32,
    /// The memory limit at the end.
    pub limit_bytes: u64,
    /// Its bounds, if it was not fixed.
    pub auto: Option<Auto>,
    /// The maximum charge: the resident managed memory.
    pub peak_bytes: u64,
    /// Its excess over the limit.
    pub over: OverLimit,
    /// The maximum of unmanaged memory.
    pub unmanaged: Unmanaged,
    /// The memory, file pages included, of a process that was never looked at while it held that; 0 if within the
    /// limit.
    pub unseen_bytes: u64,
    /// The processes could not be examined.
    pub blind: bool,
    /// There was a warning, for example of an unmanaged program.
    pub warned: bool,
    /// The processes' statistics.
    pub totals: Totals,
    /// Processes that outlive the command.
    pub left_running: usize,
}

impl Run {
    /// The most that the limit could be. One that is not fixed moves below that.
    fn bound(&self) -> u64 {
        self.auto.map_or(self.limit_bytes, |auto| auto.most_bytes)
    }

    /// The limit in words.
    pub fn limit_text(&self) -> String {
        match self.auto {
            Some(_) => format!("{} (auto)", humane(self.limit_bytes)),
            None => humane(self.limit_bytes),
        }
    }

    /// Whether memory was managed.
    pub fn has_managed(&self) -> bool {
        let stats = &self.totals.stats;
        // The size is published less often than the counters: a short life may show only in these.
        let worked =
            stats.faults_major + stats.faults_minor + stats.faults_zero + stats.swap_out_bytes;
        stats.managed_bytes > 0 || worked > 0
    }
}

/// A count with thousands separators.
pub fn grouped(count: u64) -> String {
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

/// A count of things: `1 process`, `2 processes`.
pub fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

fn of_kind(run: &Run, kind: Kind) -> String {
    format!("{} {}", humane(run.unmanaged.of(kind)), kind.name())
}

/// The text for a run without managed memory: whether none was needed.
pub fn idle(run: &Run, limit: &str) -> String {
    let total = humane(run.unmanaged.total);
    if run.unmanaged.total > run.bound() {
        let kinds = run.unmanaged.main_kinds();
        let kinds: Vec<String> = kinds.iter().map(|&kind| of_kind(run, kind)).collect();
        let kinds = kinds.join(", ");
        // It ended before the next look.
        let least = if run.unseen_bytes > 0 {
            "at least "
        } else {
            ""
        };
        format!(
            "nothing was managed: {least}{total} of unmanaged memory passed the limit of {limit} ({kinds})"
        )
    } else if run.unseen_bytes > 0 {
        let held = humane(run.unseen_bytes);
        format!(
            "nothing was managed: a process held {held}, files included, too briefly to be looked at; limit {limit}"
        )
    } else if run.blind {
        format!("nothing was managed, and what is not cannot be seen in /proc; limit {limit}")
    } else if run.warned {
        format!("nothing was managed, {total} were not, limit {limit}")
    } else if run.peak_bytes + run.unmanaged.total > run.bound() {
        let peak = humane(run.peak_bytes);
        format!(
            "nothing was moved out: {peak} of memory, {total} that is not managed, limit {limit}"
        )
    } else {
        let so_far = if run.left_running > 0 { " so far" } else { "" };
        format!("nothing needed managing{so_far}: the peak stayed below {limit}")
    }
}

/// Why the charge exceeded the limit.
fn why_over(run: &Run) -> &'static str {
    let over = run.peak_bytes - run.bound();
    let OverLimit {
        for_forks,
        for_present,
        ..
    } = run.over;
    if for_forks.max(for_present) * PAGE_BYTES < over {
        "it was lowered"
    } else if for_forks > for_present {
        "a forked child's pages were its parent's too"
    } else {
        "pages that were there before, or that cannot be moved out"
    }
}

/// The block as printed; colours only on request.
pub fn block(run: &Run, coloured: bool) -> String {
    let stats = &run.totals.stats;
    let (bold, dim, plain) = if coloured {
        ("\x1b[1m", "\x1b[2m", "\x1b[0m")
    } else {
        ("", "", "")
    };
    let limit = run.limit_text();
    let mut text = String::new();
    if !run.has_managed() {
        let _ = writeln!(text, "{bold}foreswap:{plain} {}", idle(run, &limit));
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
        if let Some(auto) = run.auto {
            let first = match auto.settled_bytes {
                Some(bytes) => format!("settled on {}", humane(bytes)),
                None => format!("{} at the end", humane(run.limit_bytes)),
            };
            line(
                "limit",
                [first, format!("auto, {}", auto.bounds()), String::new()],
            );
        }
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
        if stats.file_bytes > 0 {
            line(
                "files",
                [
                    format!("{} mapped", humane(stats.file_bytes)),
                    format!("{} in", humane(stats.file_in_bytes)),
                    match stats.file_readahead_pages {
                        0 => format!("{} dropped", humane(stats.file_dropped_bytes)),
                        pages => format!(
                            "{} dropped, {:.1} % of readahead hit",
                            humane(stats.file_dropped_bytes),
                            100.0 * ratio(stats.file_readahead_hits, pages)
                        ),
                    },
                ],
            );
        }
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
        if run.unmanaged.total >= run.limit_bytes / WORTH {
            let kinds = run.unmanaged.main_kinds();
            let cell = |kind: Option<&Kind>| kind.map_or(String::new(), |&kind| of_kind(run, kind));
            let total = humane(run.unmanaged.total);
            line(
                "unmanaged",
                [total, cell(kinds.first()), cell(kinds.get(1))],
            );
        }
    }
    if run.peak_bytes > run.bound() {
        let over = humane(run.peak_bytes - run.bound());
        let why = why_over(run);
        let _ = writeln!(
            text,
            "  {dim}{:<10}{plain} {over} above the limit: {why}",
            "peak"
        );
    }
    if run.over.for_found > 0 {
        let over = humane(run.over.for_found * PAGE_BYTES);
        let _ = writeln!(
            text,
            "  {dim}{:<10}{plain} {over} above the limit for a moment: memory mapped past the C library",
            "found"
        );
    }
    if run.left_running > 0 {
        let left = plural(run.left_running as u64, "process goes", "processes go");
        let within = if run.unmanaged.total > run.bound() {
            ""
        } else {
            ", still within the limit"
        };
        let _ = writeln!(text, "  {left} on in the background{within}");
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

    /// What goes on may still need it.
    #[test]
    fn a_small_command_that_leaves_processes_is_not_over() {
        let text = block(
            &Run {
                limit_bytes: 1 << 30,
                left_running: 2,
                ..Run::default()
            },
            false,
        );
        assert_eq!(
            text,
            "foreswap: nothing needed managing so far: the peak stayed below 1 GiB\n  2 processes go on in the background, still within the limit\n"
        );
    }

    #[test]
    fn nothing_needed_managing_is_said_only_where_it_is_so() {
        let mut run = Run {
            limit_bytes: 128 << 20,
            peak_bytes: 20 << 20,
            ..Run::default()
        };
        run.unmanaged.count(Kind::Files, 3 << 20);
        let says_so = |run: &Run| block(run, false).contains("nothing needed managing");
        assert!(says_so(&run));
        let unseen = Run {
            unseen_bytes: 400 << 20,
            ..run
        };
        assert!(!says_so(&unseen) && block(&unseen, false).contains("400 MiB"));
        let blind = Run {
            unseen_bytes: 0,
            blind: true,
            ..unseen
        };
        assert!(!says_so(&blind));
        let mut run = Run {
            blind: false,
            warned: true,
            ..blind
        };
        assert!(!says_so(&run));
        run.warned = false;
        run.unmanaged.count(Kind::Unknown, 107 << 20);
        let text = block(&run, false);
        assert!(!says_so(&run) && text.contains("110 MiB"), "{text}");
        run.unmanaged.count(Kind::Shared, 768 << 20);
        let text = block(&run, false);
        assert!(
            !says_so(&run) && text.contains("768 MiB shared, 107 MiB unknown)"),
            "{text}"
        );
    }

    fn text_says_found(run: &Run) -> bool {
        block(run, false).contains("20 MiB above the limit for a moment: memory mapped past")
    }

    #[test]
    fn a_peak_above_the_limit_is_explained() {
        let mut run = busy();
        assert!(!block(&run, false).contains("above"));
        run.peak_bytes = 270 << 20;
        assert!(block(&run, false).contains("14 MiB above the limit: it was lowered"));
        run.over.for_present = (14 << 20) / PAGE_BYTES;
        assert!(block(&run, false).contains("there before"));
        assert!(!text_says_found(&run));
        run.over.for_found = (20 << 20) / PAGE_BYTES;
        assert!(text_says_found(&run));
        run.over.for_forks = (15 << 20) / PAGE_BYTES;
        run.unmanaged.count(Kind::Locked, 30 << 20);
        let text = block(&run, false);
        assert!(
            text.contains("forked child") && text.contains("30 MiB locked"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() < 100), "{text}");
    }

    #[test]
    fn a_limit_that_is_not_fixed_says_what_it_settled_on() {
        let mut run = busy();
        run.limit_bytes = 300 << 20;
        run.peak_bytes = 800 << 20;
        let auto = Auto {
            least_bytes: 64 << 20,
            most_bytes: 1 << 30,
            settled_bytes: Some(212 << 20),
        };
        run.auto = Some(auto);
        let text = block(&run, false);
        for part in [
            "limit 300 MiB (auto)",
            "settled on 212 MiB",
            "auto, 64 MiB..1 GiB",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("above the limit"), "{text}");
        assert!(text.lines().all(|line| line.len() < 90), "{text}");
        run.auto = Some(Auto {
            settled_bytes: None,
            ..auto
        });
        assert!(block(&run, false).contains("300 MiB at the end"));
    }

    #[test]
    fn counts() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(plural(1, "process", "processes"), "1 process");
    }
}
