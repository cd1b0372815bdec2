//! `programs`: programs of others at a part of their memory, or the user's own command (`-- COMMAND`).
//!
//! Each program first runs without a limit: its output, its time, and the peak of its largest process, of which the
//! limit is a part. Then all peers run in turns under that limit, and foreswap also with other options than its defaults,
//! as a default is only as good as the best that a user would find by trying. The kernel counts at its best: the faster
//! of its two peers. It may kill the program, and whoever takes too long is ended: both are results.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::{linpack, new_report, peers};
use crate::args::{BenchArgs, PeerName};
use crate::interrupt;
use crate::peer::{Counting, Figures, Session, TimedOut, TurnError};
use crate::programs::{self, Folder, Program};
use crate::progress::Progress;
use crate::report::{Column, PeerReport, Report, Target, Unit, peer_name};
use crate::size::humane;
use crate::spread::Spread;

const TURNS: u32 = 3;
/// The limit as a part of the program's own peak.
const PART: f64 = 0.45;
const LEAST_LIMIT: u64 = 16 << 20;
/// A run is ended after this many times the bare time, and the time below.
const PATIENCE: f64 = 20.0;
const LEAST_PATIENCE: Duration = Duration::from_secs(60);
/// Options that a user might try instead of the defaults.
const OPTIONS: [&[&str]; 2] = [&["--thp", "never"], &["--readahead", "none"]];
/// The targets: time relative to the kernel at its best, and to the fastest options.
const KERNEL_BOUND: f64 = 1.0;
const BEST_BOUND: f64 = 1.03;

/// Who runs the program: a peer, foreswap with further options.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Runner {
    peer: PeerName,
    options: Vec<String>,
}

impl Runner {
    fn name(&self) -> String {
        match self.options.is_empty() {
            true => peer_name(self.peer).to_owned(),
            false => format!("{} {}", peer_name(self.peer), self.options.join(" ")),
        }
    }
}

/// The runs of one program by one runner.
#[derive(Debug, Default)]
struct Runs {
    turns: Vec<Figures>,
    details: Vec<Value>,
    /// Why there are no more.
    ended: Option<String>,
}

/// A program without a limit.
struct Bare {
    output: Vec<u8>,
    elapsed: Duration,
    peak: u64,
}

/// Runs the programs.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(TURNS);
    let part = args.part.unwrap_or(PART);
    ensure!(
        part > 0.0 && part <= 1.0,
        "--part {part}: the limit as a part of the program's own peak is expected, above 0 and at most 1"
    );
    let folder;
    let (chosen, missing) = if args.command.is_empty() {
        folder = Folder::make(&session.directory)?;
        let python = linpack::python(args, session)?;
        let wanted = args.rows.clone().unwrap_or_default();
        folder.programs(&python, &wanted)
    } else {
        (vec![own(args)], Vec::new())
    };
    if chosen.is_empty() && !missing.is_empty() {
        bail!("no program of --rows is installed: {}", missing.join("; "));
    }
    if chosen.is_empty() {
        let names: Vec<_> = programs::names().collect();
        bail!(
            "--rows {}: no program has a name that contains it; the names are: {}",
            args.rows.clone().unwrap_or_default().join(","),
            names.join("; ")
        );
    }
    let runners = runners(args);
    let progress =
        Progress::over(chosen.len() as u64 * (1 + u64::from(turns) * runners.len() as u64));
    let (mut limits, mut rows) = (BTreeMap::new(), Vec::new());
    let (mut to_kernel, mut to_best) = (Vec::new(), Vec::new());
    for program in &chosen {
        progress.say(&format!("{}, without a limit", program.name));
        session.timeout = args.timeout.map(Duration::from_secs);
        let bare = bare(program, session, &progress)?;
        progress.step();
        session.limit = args
            .memory
            .unwrap_or_else(|| ((bare.peak as f64 * part) as u64 >> 20 << 20).max(LEAST_LIMIT));
        session.swap_bytes = (4 * bare.peak).next_multiple_of(1 << 30);
        session.timeout = Some(args.timeout.map_or_else(
            || bare.elapsed.mul_f64(PATIENCE).max(LEAST_PATIENCE),
            Duration::from_secs,
        ));
        limits.insert(
            program.name.clone(),
            json!({ "limit_bytes": session.limit, "peak_bytes": bare.peak }),
        );
        let runs = in_turns(program, &bare, &runners, turns, session, &progress)?;
        let medians = medians(&runners, &runs);
        to_kernel.extend(over(&medians, is_kernel).map(|ratio| (ratio, &program.name)));
        to_best.extend(over(&medians, is_foreswap).map(|ratio| (ratio, &program.name)));
        let name = format!(
            "{}, {} in {}",
            program.name,
            humane(bare.peak >> 20 << 20),
            humane(session.limit)
        );
        for (runner, runs) in runners.iter().zip(runs) {
            let row = format!("{name}: {}", runner.name());
            rows.push(match runs.ended {
                Some(why) => PeerReport::not_run(row, why),
                None => PeerReport::new(row, runs.turns, runs.details),
            });
        }
    }
    let title = format!("programs at a part of their memory, medians of {turns} turns");
    let parameters = json!({ "programs": limits, "part": part, "turns": turns,
        "run_options": session.foreswap.more });
    let mut report = new_report("programs", title, session, parameters);
    report.peers = rows;
    report
        .notes
        .push("the outputs of all runs of a program were equal".to_owned());
    report.notes.extend(missing);
    report.show(columns());
    for (what, bound, ratios) in [
        ("time to the kernel's at its best", KERNEL_BOUND, to_kernel),
        ("time to that of the best options", BEST_BOUND, to_best),
    ] {
        judge(&mut report, what, bound, &ratios);
    }
    Ok(report)
}

/// The user's command.
fn own(args: &BenchArgs) -> Program {
    let words = args.command.iter().map(|word| word.to_string_lossy());
    Program {
        name: words.collect::<Vec<_>>().join(" "),
        command: args.command.clone(),
    }
}

/// The runners in the order of their turns.
fn runners(args: &BenchArgs) -> Vec<Runner> {
    let plain = |peer| Runner {
        peer,
        options: Vec::new(),
    };
    let mut runners: Vec<Runner> = peers(
        args,
        &[PeerName::Kernel, PeerName::KernelDefaults, PeerName::Bare],
    )
    .into_iter()
    .map(plain)
    .collect();
    // A user who gives options wants to see these, and no others.
    if args.runner == PeerName::Foreswap && args.run_options.is_empty() && args.readahead.is_none()
    {
        let others = OPTIONS.iter().map(|words| Runner {
            peer: PeerName::Foreswap,
            options: words.iter().map(|word| (*word).to_owned()).collect(),
        });
        runners.splice(1..1, others);
    }
    runners
}

fn bare(program: &Program, session: &mut Session, progress: &Progress) -> anyhow::Result<Bare> {
    let turn = session.turn(PeerName::Bare, &program.command, Counting::Whole, progress);
    let turn = turn.with_context(|| format!("{} failed without a limit", program.name))?;
    Ok(Bare {
        elapsed: Duration::from_nanos(turn.figures["elapsed_ns"] as u64),
        peak: turn.figures["peak_bytes"] as u64,
        output: turn.output,
    })
}

fn in_turns(
    program: &Program,
    bare: &Bare,
    runners: &[Runner],
    turns: u32,
    session: &mut Session,
    progress: &Progress,
) -> anyhow::Result<Vec<Runs>> {
    let mut all: Vec<Runs> = runners.iter().map(|_| Runs::default()).collect();
    for number in 0..turns {
        for (runner, runs) in runners.iter().zip(&mut all) {
            if runs.ended.is_some() {
                continue;
            }
            progress.say(&format!(
                "{}, {}, turn {}",
                program.name,
                runner.name(),
                number + 1
            ));
            interrupt::pause(session.pause)?;
            let given = session.foreswap.more.len();
            session.foreswap.more.extend(runner.options.iter().cloned());
            let turn = session.turn(runner.peer, &program.command, Counting::Whole, progress);
            session.foreswap.more.truncate(given);
            interrupt::check()?;
            match turn {
                Ok(turn) if turn.output != bare.output => bail!(
                    "the output of {} under {} differs from its output without a limit, from byte {} on ({} and {} bytes)",
                    program.name,
                    runner.name(),
                    equal_bytes(&turn.output, &bare.output),
                    turn.output.len(),
                    bare.output.len()
                ),
                Ok(turn) => {
                    runs.turns.push(turn.figures);
                    runs.details.extend(turn.details);
                }
                Err(TurnError::NotRun(why)) => runs.ended = Some(why.to_string()),
                Err(TurnError::Failed(error)) if error.is::<TimedOut>() => {
                    runs.ended = Some(error.to_string());
                }
                // The kernel has no memory for it in this limit; that is its result.
                Err(TurnError::Failed(error)) if is_kernel(runner) => {
                    runs.ended = Some(format!("{error:#}"))
                }
                Err(TurnError::Failed(error)) => {
                    let what = format!("{} under {}", program.name, runner.name());
                    return Err(error.context(what));
                }
            }
            match runs.ended {
                None => progress.step(),
                Some(_) => progress.shrink(u64::from(turns - number)),
            }
        }
    }
    Ok(all)
}

/// How many bytes at the start are equal.
fn equal_bytes(left: &[u8], right: &[u8]) -> usize {
    left.iter()
        .zip(right)
        .take_while(|(left, right)| left == right)
        .count()
}

fn is_kernel(runner: &Runner) -> bool {
    matches!(runner.peer, PeerName::Kernel | PeerName::KernelDefaults)
}

fn is_foreswap(runner: &Runner) -> bool {
    runner.peer == PeerName::Foreswap
}

/// The median time of each runner, if it had all its turns.
fn medians<'a>(runners: &'a [Runner], runs: &[Runs]) -> Vec<(&'a Runner, Option<f64>)> {
    let median = |runs: &Runs| {
        let times: Vec<f64> = runs.turns.iter().map(|turn| turn["elapsed_ns"]).collect();
        (runs.ended.is_none() && !times.is_empty()).then(|| Spread::of(&times).median)
    };
    runners.iter().zip(runs.iter().map(median)).collect()
}

/// The time of foreswap over the least of those of the other runners that `count`, or its own if that is less: infinite if
/// foreswap alone was ended.
fn over(medians: &[(&Runner, Option<f64>)], count: fn(&Runner) -> bool) -> Option<f64> {
    let (first, others) = medians.split_first()?;
    let counted: Vec<_> = others.iter().filter(|(runner, _)| count(runner)).collect();
    if !is_foreswap(first.0) || counted.is_empty() {
        return None;
    }
    let others = counted
        .into_iter()
        .chain(Some(first).filter(|(runner, _)| count(runner)));
    let first = first.1.unwrap_or(f64::INFINITY);
    let least = others
        .filter_map(|(_, time)| *time)
        .min_by(f64::total_cmp)?;
    Some(first / least)
}

/// A line for each ratio, and the target for the worst.
fn judge(report: &mut Report, what: &str, bound: f64, ratios: &[(f64, &String)]) {
    let worst = ratios.iter().max_by(|(a, _), (b, _)| a.total_cmp(b));
    for (ratio, program) in ratios {
        report.say(format!("{program}: {what}: {}", Unit::Ratio.text(*ratio)));
    }
    let name = worst.map_or(String::new(), |(_, program)| {
        format!(", the worst: {program}")
    });
    report.targets.push(Target::at_most(
        format!("{what}{name}"),
        bound,
        Unit::Ratio,
        worst.map(|(ratio, _)| *ratio),
    ));
}

fn columns() -> Vec<Column> {
    vec![
        Column::spread("seconds", "elapsed_ns", Unit::Seconds),
        Column::median("major", "major_faults", Unit::Number),
        Column::median("in MiB", "swap_in_bytes", Unit::Mebibytes),
        Column::median("out MiB", "swap_out_bytes", Unit::Mebibytes),
        Column::median("peak MiB", "peak_bytes", Unit::Mebibytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runners_of(words: &str) -> Vec<String> {
        runners(&crate::args::parse(words))
            .iter()
            .map(Runner::name)
            .collect()
    }

    #[test]
    fn options_of_the_user_take_the_place_of_others() {
        assert_eq!(
            runners_of("programs"),
            [
                "foreswap",
                "foreswap --thp never",
                "foreswap --readahead none",
                "kernel",
                "kernel-defaults",
                "bare"
            ]
        );
        assert_eq!(
            runners_of("programs --runner kernel --against foreswap"),
            ["kernel", "foreswap"]
        );
        assert_eq!(
            runners_of("programs --against kernel --run-option=--thp=always"),
            ["foreswap", "kernel"]
        );
    }

    #[test]
    fn a_runner_that_was_ended_counts_for_nothing() {
        let runners = runners(&crate::args::parse("programs"));
        let took = |seconds: f64| Runs {
            turns: vec![crate::peer::figures([("elapsed_ns", seconds)])],
            ..Runs::default()
        };
        let killed = Runs {
            ended: Some("killed".to_owned()),
            ..took(1.0)
        };
        let runs = [
            took(6.0),
            took(5.0),
            took(7.0),
            killed,
            took(8.0),
            took(2.0),
        ];
        let medians = medians(&runners, &runs);
        assert_eq!(over(&medians, is_kernel), Some(0.75));
        assert_eq!(over(&medians, is_foreswap), Some(1.2));
        let ended = [(&runners[0], None), (&runners[3], Some(1.0))];
        assert_eq!(over(&ended, is_kernel), Some(f64::INFINITY), "the worst");
        assert_eq!(over(&ended, is_foreswap), None, "there is no other");
        let neither = [(&runners[0], Some(1.0)), (&runners[3], None)];
        assert_eq!(over(&neither, is_kernel), None);
        let kernel_first = [(&runners[3], Some(1.0)), (&runners[0], Some(2.0))];
        assert_eq!(over(&kernel_first, is_foreswap), None);
    }
}
