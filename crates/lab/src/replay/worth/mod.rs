//! `foreswap lab worth`: what each heuristic of the core is worth.
//!
//! Every workload runs on every simulated device and number of CPUs: with all heuristics, and with each one turned off.
//! The ratio of the two is what the heuristic is worth there. A run depends on nothing else, so that the same arguments
//! print the same. Most workloads are chaotic: they
//! change by some percent with anything. Each is therefore repeated with a few sizes of memory, a page apart, and the row
//! `control`, which has one page more memory, shows what remains. Only a mean over many workloads resolves one percent.

mod drive;
mod report;
mod workloads;

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use foreswap_core::heuristics::{Heuristic, Heuristics};
use foreswap_core::readahead::Policy;
use foreswap_core::units::Nanos;

use super::device::{Device, Kind};
use super::machine::{Machine, Setup};
use super::world::System;
use crate::jobs;
use crate::trace::{Source, SourceOptions};
use workloads::{MEMORY, Workload};

/// `foreswap lab worth`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct WorthArgs {
    /// Heuristics to turn off, by name; those of one group, a+b, together [default: each alone]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = group)]
    off: Vec<Group>,

    /// Devices [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    device: Vec<String>,

    /// Workloads [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    workload: Vec<String>,

    /// Numbers of CPUs, each with as many threads
    #[arg(
        long,
        value_name = "NUMBERS",
        value_delimiter = ',',
        default_value = "2,16"
    )]
    cpus: Vec<usize>,

    /// Recorded traces to replay as well, with the memory of their recording
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,

    /// Records of each trace
    #[arg(long, value_name = "NUMBER", default_value = "300000")]
    records: usize,

    /// Memory sizes per workload, a page apart, whose geometric mean counts
    #[arg(long, value_name = "NUMBER", default_value = "2", value_parser = clap::value_parser!(u64).range(1..=100))]
    repeat: u64,

    /// Runs at a time [default: the number of CPUs]
    #[arg(long, value_name = "J", value_parser = jobs::count)]
    jobs: Option<NonZeroUsize>,

    /// Print the rows of a Markdown table
    #[arg(long)]
    markdown: bool,

    /// Print every ratio: heuristic, device, CPUs, workload, time, pages in, pages out
    #[arg(long)]
    all: bool,
}

const HELP: &str = "\
Example:
  foreswap lab worth --off split-at-random

Ratios are of a run without the heuristic to the run with all of them: above 1, it is worth
something. Time is the mean of the times at which the threads end.";

/// Heuristics that are turned off together.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Group {
    name: String,
    off: Vec<Heuristic>,
}

fn name(heuristic: Heuristic) -> String {
    let mut name = String::new();
    for letter in format!("{heuristic:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

fn group(text: &str) -> Result<Group, String> {
    let one = |part: &str| {
        let found = Heuristic::ALL
            .iter()
            .find(|&&heuristic| name(heuristic) == part);
        found
            .copied()
            .ok_or_else(|| format!("no heuristic is called '{part}'"))
    };
    let off = text.split('+').map(one).collect::<Result<_, _>>()?;
    Ok(Group {
        name: text.into(),
        off,
    })
}

/// The devices: a disk, two of virtual machines, flash, compressed memory, and a store on another machine.
fn devices() -> [(&'static str, Device); 6] {
    const MICRO: Nanos = 1000;
    let device = |kind, read, seek, bandwidth, channels| Device {
        kind,
        read,
        write: read,
        seek,
        bandwidth,
        channels,
        batches: false,
    };
    let virtio = device(Kind::Virtio, 50 * MICRO, 0, 2_684_354_560, 32);
    [
        (
            "disk",
            device(Kind::Hdd, 100 * MICRO, 8000 * MICRO, 150_000_000, 1),
        ),
        ("virtio", virtio),
        (
            "virtio-batch",
            Device {
                batches: true,
                ..virtio
            },
        ),
        (
            "flash",
            device(Kind::Nvme, 80 * MICRO, 0, 6_000_000_000, 128),
        ),
        ("memory", device(Kind::Ram, 2 * MICRO, 0, 4_000_000_000, 2)),
        (
            "far",
            device(Kind::Virtio, 1000 * MICRO, 0, 1_000_000_000, 64),
        ),
    ]
}

/// A source of touches.
enum Input {
    Workload(Workload),
    Trace(PathBuf, u64),
}

impl Input {
    fn name(&self) -> String {
        match self {
            Input::Workload(workload) => workload.name.into(),
            Input::Trace(path, _) => path
                .file_stem()
                .map_or(String::new(), |name| name.to_string_lossy().into()),
        }
    }
}

/// One run.
#[derive(Clone, Copy)]
struct Run {
    device: usize,
    cpus: usize,
    input: usize,
    /// What is off: 0 nothing, 1 nothing but one page more of memory, then the groups.
    off: usize,
    /// The number of the repetition.
    turn: u64,
}

/// What it took.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Taken {
    time: Nanos,
    pages_in: u64,
    pages_out: u64,
}

fn take(
    args: &WorthArgs,
    input: &Input,
    device: Device,
    cpus: usize,
    more: u64,
    off: &[Heuristic],
) -> Result<Taken, String> {
    let setup = |memory, thp, think, system, cpus| Setup {
        memory: memory + more,
        readahead: Policy::Streams(512),
        thp,
        device,
        think,
        cpus,
        system,
        heuristics: Heuristics::without(off),
        reclaim: foreswap_core::ReclaimPolicy::default(),
    };
    let (figures, time) = match input {
        Input::Workload(workload) => {
            let machine = Machine::new(setup(
                MEMORY,
                workload.thp,
                workload.think,
                workload.system,
                cpus,
            ));
            machine.drive(workload.programs(cpus as u64))?
        }
        Input::Trace(path, memory) => {
            let thp = foreswap_core::Thp::Adaptive;
            let mut machine = Machine::new(setup(*memory, thp, 1000, System::default(), cpus));
            let problem = |error| format!("{}: {error}", path.display());
            let mut source = Source::open(path, &SourceOptions::default()).map_err(problem)?;
            for _ in 0..args.records {
                match source.next().map_err(problem)? {
                    Some(record) => machine.record(&record)?,
                    None => break,
                }
            }
            let figures = machine.finish()?;
            (figures, figures.elapsed)
        }
    };
    Ok(Taken {
        time,
        pages_in: figures.read_pages,
        pages_out: figures.written_pages,
    })
}

/// Measures and reports to `out`.
///
/// # Errors
///
/// A name is unknown, a trace cannot be read, the core broke a rule, or something cannot be written.
pub fn worth(args: &WorthArgs, out: &mut impl Write, err: &mut impl Write) -> anyhow::Result<()> {
    let mut groups = vec![
        Group {
            name: "all on".into(),
            off: Vec::new(),
        },
        Group {
            name: "control".into(),
            off: Vec::new(),
        },
    ];
    match args.off.is_empty() {
        true => groups.extend(Heuristic::ALL.iter().map(|&heuristic| Group {
            name: name(heuristic),
            off: vec![heuristic],
        })),
        false => groups.extend(args.off.iter().cloned()),
    }
    let chosen = |names: &[String], name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let devices: Vec<_> = devices()
        .into_iter()
        .filter(|(name, _)| chosen(&args.device, name))
        .collect();
    let all = workloads::all()
        .into_iter()
        .filter(|workload| chosen(&args.workload, workload.name));
    let mut inputs: Vec<Input> = all.map(Input::Workload).collect();
    for path in &args.trace {
        let source = Source::open(path, &SourceOptions::default()).map_err(crate::on_file(path))?;
        inputs.push(Input::Trace(path.clone(), source.header().limit));
    }
    anyhow::ensure!(
        !devices.is_empty() && !inputs.is_empty(),
        "no device or no workload has that name"
    );
    let mut runs = Vec::new();
    for off in 0..groups.len() {
        for device in 0..devices.len() {
            for &cpus in &args.cpus {
                for turn in 0..args.repeat {
                    runs.extend((0..inputs.len()).map(|input| Run {
                        device,
                        cpus,
                        input,
                        off,
                        turn,
                    }));
                }
            }
        }
    }
    let taken = jobs::each(jobs::number(args.jobs), &runs, |run| {
        let (input, more) = (&inputs[run.input], 2 * run.turn + u64::from(run.off == 1));
        take(
            args,
            input,
            devices[run.device].1,
            run.cpus,
            more,
            &groups[run.off].off,
        )
        .map_err(|error| {
            let (device, _) = devices[run.device];
            let (input, off) = (input.name(), &groups[run.off].name);
            anyhow::anyhow!(
                "{input} on {device} with {} CPUs without {off}: {error}",
                run.cpus
            )
        })
    });
    let mut results = Vec::new();
    for (run, taken) in runs.iter().zip(taken) {
        match taken {
            Ok(taken) => results.push((*run, taken)),
            Err(error) if run.off == 0 => return Err(error),
            Err(error) => writeln!(err, "foreswap lab: {error:#}")?,
        }
    }
    let names = report::Names {
        groups: groups.iter().map(|group| group.name.clone()).collect(),
        devices: devices.iter().map(|(name, _)| *name).collect(),
        inputs: inputs.iter().map(Input::name).collect(),
    };
    let ratios = report::ratios(&results);
    match (args.all, args.markdown) {
        (true, _) => report::all(&names, &ratios, out),
        (_, true) => report::markdown(&names, &ratios, out),
        _ => report::table(&names, &ratios, out),
    }
    .context("the result cannot be written")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: WorthArgs,
    }

    fn run(words: &[&str]) -> Result<String, String> {
        let words = std::iter::once("worth").chain(words.iter().copied());
        let args = Cli::try_parse_from(words)
            .map_err(|error| error.to_string())?
            .args;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        worth(&args, &mut out, &mut err).map_err(|error| format!("{error:#}"))?;
        Ok(String::from_utf8(out).expect("text"))
    }

    #[test]
    fn a_scan_misses_direct_mapping_and_prints_the_same_twice() {
        let off = "direct-mapping,doubts+hasten";
        let words = [
            "--off",
            off,
            "--device",
            "flash",
            "--cpus",
            "2",
            "--workload",
            "no huge pages",
            "--all",
        ];
        let text = run(&words).expect("measured");
        assert_eq!(run(&words).expect("measured"), text);
        let line = text.lines().find(|line| line.starts_with("direct-mapping"));
        let time = line
            .and_then(|line| line.split('\t').nth(4))
            .and_then(|time| time.parse().ok());
        assert!(time > Some(1.5), "{text}");
        assert!(text.contains("doubts+hasten\t"), "{text}");
    }

    #[test]
    fn swapoff_ends_on_every_device() {
        let words = [
            "--off",
            "swapoff-depth",
            "--workload",
            "swapoff",
            "--repeat",
            "1",
            "--all",
        ];
        assert_eq!(run(&words).expect("measured").lines().count(), 2 * 6 * 2);
    }

    #[test]
    fn wrong_names_are_refused() {
        assert!(
            run(&["--off", "luck"])
                .expect_err("refused")
                .contains("'luck'")
        );
        assert!(run(&["--device", "tape"]).is_err());
    }
}
