//! `foreswap ps`, `set`, `swapon` and `swapoff`.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use foreswap_bench::interrupt;
use foreswap_far::address::Address;
use indicatif::{ProgressBar, ProgressStyle};

use super::asking::{self, AskError, Asked, Found};
use super::words::{Process, Progress, Reply, Request, Run};
use crate::args::{PsArgs, SetArgs, Setting, SwapoffArgs, SwaponArgs};
use crate::size::humane;
use crate::voice;

/// How often a command checks for signals.
const LOOK: Duration = Duration::from_millis(200);
/// The interval of progress lines without a terminal.
const LINES: Duration = Duration::from_secs(1);
/// The column of groups, which is there if there are any.
const GROUP: usize = 2;
/// Characters of a command line in the table.
const COMMAND: usize = 32;

/// Foreign text, made safe for the terminal.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

fn fail(error: &AskError) -> ExitCode {
    voice::error(&error.to_string());
    ExitCode::FAILURE
}

/// Lists all runs, or one.
pub fn ps(args: &PsArgs) -> ExitCode {
    let (runs, silent) = match args.which.as_ref().map(asking::find) {
        None => asking::all_runs(None),
        Some(Ok(found)) => (vec![found], Vec::new()),
        Some(Err(error)) => return fail(&error),
    };
    for error in &silent {
        voice::error(&error.to_string());
    }
    let runs: Vec<Run> = runs.into_iter().map(|Found { run, .. }| run).collect();
    let text = if args.json {
        // Strings, numbers and lists of them: serialisation cannot fail.
        serde_json::to_string_pretty(&runs).unwrap_or_default() + "\n"
    } else {
        table(&runs)
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    if written.is_err() || !silent.is_empty() {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The program by its name alone, and as many of its arguments as fit.
pub fn short(command: &str) -> String {
    let (program, arguments) = command.split_once(' ').unwrap_or((command, ""));
    let name = program.rsplit('/').next().unwrap_or(program);
    let command = plain(format!("{name} {arguments}").trim_end());
    if command.chars().count() <= COMMAND {
        return command;
    }
    let kept: String = command.chars().take(COMMAND - 3).collect();
    format!("{kept}...")
}

/// Columns as wide as their widest cell; columns whose heading ends with a blank are aligned right.
fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows
            .iter()
            .map(|row| row[column].trim_end().chars().count());
        cells.max().unwrap_or(0)
    };
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for column in 0..count {
            let (cell, width) = (row[column].trim_end(), width(column));
            let cell = if rows[0][column].ends_with(' ') {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            };
            line.push_str(&cell);
            line.push_str("  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The limit, and whether it changes by itself.
pub fn limit(run: &Run) -> String {
    let now = humane(run.limit_bytes);
    match run.auto {
        Some(_) => format!("auto, {now}"),
        None => now,
    }
}

fn table(runs: &[Run]) -> String {
    let heads = |names: &[&str]| -> Vec<Vec<String>> {
        vec![names.iter().map(|&name| name.to_owned()).collect()]
    };
    let has_groups = runs.iter().any(|run| run.group.is_some());
    let mut programs = heads(&[
        "PID ",
        "SUPERVISOR ",
        "GROUP",
        "COMMAND",
        "MEMORY ",
        "LIMIT ",
        "SWAP ",
        "UNMANAGED ",
        "HIT RATIO ",
    ]);
    let mut areas = heads(&[
        "SUPERVISOR ",
        "AREA ",
        "SIZE ",
        "USED ",
        "PRIORITY ",
        "PATH",
    ]);
    for run in runs {
        let supervisor = run.supervisor.to_string();
        let group = run.group.clone().unwrap_or_else(|| "-".to_owned());
        for process in &run.processes {
            let ratio = process.readahead_hit_ratio;
            let waits = match process.waits_for_memory {
                true => " (waiting for memory)",
                false => "",
            };
            programs.push(vec![
                process.pid.to_string(),
                supervisor.clone(),
                group.clone(),
                short(&process.command) + waits,
                humane(process.resident_bytes),
                limit(run),
                humane(process.swap_bytes),
                humane(process.unmanaged_bytes.total),
                ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
            ]);
        }
        for other in &run.others {
            let none = || "-".to_owned();
            programs.push(vec![
                other.pid.to_string(),
                supervisor.clone(),
                group.clone(),
                short(&other.command),
                none(),
                limit(run),
                none(),
                humane(other.unmanaged_bytes.total),
                none(),
            ]);
        }
        if run.processes.is_empty() && run.others.is_empty() {
            // Small so far: no memory is managed.
            let pid = run
                .command_pid
                .map_or_else(|| "-".to_owned(), |p| p.to_string());
            let none = || "-".to_owned();
            programs.push(vec![
                pid,
                supervisor.clone(),
                group.clone(),
                short(&run.command),
                none(),
                limit(run),
                none(),
                humane(run.unmanaged_bytes.total),
                none(),
            ]);
        }
        for area in &run.areas {
            let mut path = plain(&area.path);
            if let Some(memory) = area.memory {
                path = format!("{path} ({} taken)", humane(memory.held_bytes));
            }
            if area.encrypted {
                path = format!("{path} (encrypted)");
            }
            if area.state != "usable" {
                path = format!("{path} ({})", plain(&area.state));
            }
            areas.push(vec![
                supervisor.clone(),
                area.number.to_string(),
                humane(area.bytes),
                humane(area.used_bytes),
                area.priority.to_string(),
                path,
            ]);
        }
    }
    if !has_groups {
        for row in &mut programs {
            row.remove(GROUP);
        }
    }
    if runs.is_empty() {
        return columns(&programs);
    }
    let files = files(runs);
    format!("{}\n{}{files}", columns(&programs), columns(&areas))
}

/// The mapped files of runs that serve any, with an empty line before them.
fn files(runs: &[Run]) -> String {
    let heads = [
        "SUPERVISOR ",
        "FILES ",
        "IN MEMORY ",
        "READ ",
        "DROPPED ",
        "HIT RATIO ",
    ];
    let mut files = vec![heads.map(str::to_owned).to_vec()];
    for run in runs {
        let sum = |of: fn(&Process) -> u64| run.processes.iter().map(of).sum::<u64>();
        let totals = run.totals.unwrap_or_default();
        let mapped = sum(|process| process.file_bytes);
        if mapped == 0 && totals.file_in_bytes == 0 {
            continue;
        }
        let ratio = (totals.file_readahead_pages > 0)
            .then(|| totals.file_readahead_hits as f64 / totals.file_readahead_pages as f64);
        files.push(vec![
            run.supervisor.to_string(),
            humane(mapped),
            humane(sum(|process| process.file_resident_bytes)),
            humane(totals.file_in_bytes),
            humane(totals.file_dropped_bytes),
            ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
        ]);
    }
    match files.len() {
        1 => String::new(),
        _ => format!("\n{}", columns(&files)),
    }
}

/// Changes a setting of a run.
pub fn set(args: &SetArgs) -> ExitCode {
    let Setting { memory } = &args.setting;
    let memory = memory.clone();
    follow(asking::ask(&args.which, &Request::Set { memory }), "")
}

/// A new area as the supervisor takes it.
pub fn area(text: &str) -> String {
    match text.is_empty() || text.starts_with("ram:") || Address::is_meant(text) {
        true => text.to_owned(),
        false => absolute(text),
    }
}

/// The absolute path, because the supervisor may be in another folder.
pub fn absolute(path: &str) -> String {
    let absolute = Path::new(path)
        .canonicalize()
        .or_else(|_| std::path::absolute(path));
    absolute.map_or_else(|_| path.to_owned(), |path| path.display().to_string())
}

/// Adds a swap area to a run.
pub fn swapon(args: &SwaponArgs) -> ExitCode {
    let request = Request::Swapon {
        area: area(&args.area),
        priority: args.priority,
        swap_size: args.swap_size,
    };
    interrupt::watch();
    follow(
        asking::ask(&args.which, &request),
        "interrupted; the area is not used",
    )
}

/// Empties a swap area of a run and removes it.
pub fn swapoff(args: &SwapoffArgs) -> ExitCode {
    let area = args.area.as_ref();
    let area = area.map(|area| [area.clone(), absolute(area)]);
    interrupt::watch();
    follow(
        asking::ask(&args.which, &Request::Swapoff { area }),
        "interrupted; the area is in use as before",
    )
}

/// Shows progress until the last answer. A signal closes the connection, which cancels the request.
fn follow(asked: Result<Asked, AskError>, interrupted: &str) -> ExitCode {
    let mut asked = match asked {
        Ok(asked) => asked,
        Err(error) => return fail(&error),
    };
    asked.set_patience(LOOK);
    let mut shown = Shown::new();
    loop {
        if let Err(signal) = interrupt::check() {
            shown.clear();
            voice::error(interrupted);
            return signal.exit_code();
        }
        match asked.next() {
            Ok(None) => {}
            Ok(Some(Reply::Progress(progress))) => shown.show(&progress),
            Ok(Some(Reply::Done { text })) => {
                shown.clear();
                voice::error(&text);
                return ExitCode::SUCCESS;
            }
            Ok(Some(_)) => {}
            Err(error) => {
                shown.clear();
                return fail(&error);
            }
        }
    }
}

/// The progress: a bar on a terminal, a line a second elsewhere.
struct Shown {
    bar: Option<ProgressBar>,
    began: Instant,
    line_at: Instant,
}

impl Shown {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            bar: None,
            began: now,
            line_at: now,
        }
    }

    fn show(&mut self, progress: &Progress) {
        let done = progress.total.saturating_sub(progress.left);
        let waits = match &progress.waits_for[..] {
            [] => String::new(),
            pids => {
                let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
                format!(", waiting for process {}", pids.join(", "))
            }
        };
        if std::io::stderr().is_terminal() {
            let bar = self.bar.get_or_insert_with(|| {
                let bar = ProgressBar::new(progress.total);
                let style = ProgressStyle::with_template(
                    "[{bar:30}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left{msg}",
                );
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                bar
            });
            bar.set_length(progress.total);
            bar.set_position(done);
            bar.set_message(waits);
        } else if self.line_at.elapsed() >= LINES {
            self.line_at = Instant::now();
            let rate = done as f64 / self.began.elapsed().as_secs_f64();
            let eta = if rate > 0.0 {
                format!(", {:.0} s left", progress.left as f64 / rate)
            } else {
                String::new()
            };
            voice::error(&format!(
                "{} of {}, {}/s{eta}{waits}",
                humane(done),
                humane(progress.total),
                humane(rate as u64),
            ));
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auto_memory::Auto;
    use crate::control::words::{Area, Memory, Other, Totals};
    use crate::unmanaged::Unmanaged;

    #[test]
    fn the_table_is_aligned_and_harmless() {
        let run = Run {
            supervisor: 100,
            command_pid: Some(101),
            command: "python3 job.py".into(),
            group: None,
            limit_bytes: 256 << 20,
            auto: None,
            resident_bytes: 200 << 20,
            processes: vec![Process {
                pid: 101,
                command: format!("/usr/bin/python3 \x1b[31m{}", "x".repeat(80)),
                managed_bytes: 1 << 30,
                resident_bytes: 200 << 20,
                file_bytes: 0,
                file_resident_bytes: 0,
                swap_bytes: 800 << 20,
                readahead_hit_ratio: Some(0.98765),
                faults_major: 1,
                swap_in_bytes: 0,
                swap_out_bytes: 0,
                stalled_ns: 0,
                unmanaged_bytes: Unmanaged {
                    total: 3 << 20,
                    ..Unmanaged::default()
                },
                waits_for_memory: false,
            }],
            unmanaged_bytes: Unmanaged::default(),
            others: vec![Other {
                pid: 102,
                command: "static".into(),
                unmanaged_bytes: Unmanaged {
                    total: 400 << 20,
                    ..Unmanaged::default()
                },
            }],
            areas: vec![
                Area {
                    number: 0,
                    path: "/tmp".into(),
                    bytes: 4 << 30,
                    used_bytes: 800 << 20,
                    memory: None,
                    priority: -1,
                    state: "draining".into(),
                    encrypted: false,
                },
                Area {
                    number: 1,
                    path: "ram:64M".into(),
                    bytes: 512 << 20,
                    used_bytes: 90 << 20,
                    memory: Some(Memory {
                        capacity_bytes: 64 << 20,
                        held_bytes: 33 << 20,
                        live_bytes: 30 << 20,
                    }),
                    priority: -2,
                    state: "usable".into(),
                    encrypted: false,
                },
            ],
            totals: None,
            mappings: Vec::new(),
        };
        let auto = Run {
            auto: Some(Auto {
                least_bytes: 64 << 20,
                most_bytes: 1 << 30,
                settled_bytes: None,
            }),
            ..run.clone()
        };
        assert!(table(&[auto]).contains("  auto, 256 MiB  "));
        let group = Run {
            group: Some("build".to_owned()),
            ..run.clone()
        };
        let mut secret = run.clone();
        secret.areas[0].encrypted = true;
        let text = table(&[secret]);
        assert!(text.contains("  /tmp (encrypted) (draining)\n"), "{text}");
        assert!(text.ends_with("  ram:64M (33 MiB taken)\n"), "{text}");
        let text = table(&[group, run.clone()]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("PID  SUPERVISOR  GROUP  COMMAND"),
            "{text}"
        );
        assert!(
            lines[1].starts_with("101         100  build  python3 "),
            "{text}"
        );
        assert!(
            lines[3].starts_with("101         100  -      python3 "),
            "{text}"
        );
        let totals = Totals {
            file_in_bytes: 900 << 20,
            file_dropped_bytes: 700 << 20,
            file_readahead_pages: 1000,
            file_readahead_hits: 987,
            ..Totals::default()
        };
        let mut with_files = run.clone();
        with_files.totals = Some(totals);
        with_files.processes[0].file_bytes = 1 << 30;
        with_files.processes[0].file_resident_bytes = 100 << 20;
        let text = table(&[with_files]);
        let last = text.lines().last().expect("a line");
        let words = last.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words, "100 1 GiB 100 MiB 900 MiB 700 MiB 0.987", "{text}");
        let text = table(&[run]);
        assert!(!text.contains('\x1b'), "{text:?}");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("PID  SUPERVISOR  COMMAND"), "{text}");
        assert!(lines[1].contains("  python3 "), "{text}");
        assert!(
            lines[1].ends_with("256 MiB  800 MiB      3 MiB      0.988"),
            "{text}"
        );
        assert!(
            lines[2].starts_with("102") && lines[2].ends_with("400 MiB          -"),
            "{text}"
        );
        assert!(lines[5].ends_with("/tmp (draining)"), "{text}");
        assert!(lines[6].ends_with("ram:64M (33 MiB taken)"), "{text}");
        assert_eq!(table(&[]).lines().count(), 1);
    }
}
