//! `foreswap lab reproduce`: the seeds' published tables beside the simulated figures.
//!
//! `experiment` names the machine, workload and policies of each comparison. The files named after the seeds run the
//! workloads, `published` has the published figures, `report` and `plot` show both. The model earns its figures: code
//! that computes them cannot see the published ones, and a base and its optimized variant differ only in the named
//! policy. `policies` and `thp_threads` go beyond the seeds.

mod experiment;
mod grid;
mod kswapd;
mod ondemand_readahead;
mod plot;
mod policies;
mod published;
mod report;
mod swapoff;
mod thp_swap;
mod thp_threads;
mod vma_readahead;

use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use crate::jobs;
use crate::sim::machine::SimError;
use crate::sim::parameters::Parameters;
use experiment::{EXPERIMENTS, Experiment, Figures};
use report::Report;

/// `foreswap lab reproduce`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct ReproduceArgs {
    /// The seed whose tables are reproduced
    #[arg(value_enum, value_name = "SEED")]
    seed: Seed,

    /// Print Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Draw the changes to FILE, as SVG; for thp-threads the pages swapped out
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Another machine instead of the seed's own: a file like those in the lab's `machines` folder
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,

    /// Make memory, swap and time smaller by this factor, instead of each table's own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    scale: Option<u64>,

    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    random: u64,

    /// Runs at a time [default: the number of CPUs]
    #[arg(long, value_name = "J", value_parser = jobs::count)]
    jobs: Option<NonZeroUsize>,
}

const HELP: &str = "\
Examples:
  foreswap lab reproduce all
  foreswap lab reproduce thp-swap

The same arguments give the same bytes on any machine, whatever --jobs says. Each variant runs the
engine's memory manager; base and optimized differ in the one policy that the seed is about.

The exit status is 0 when the tables were made, whatever they say, and 2 when a seed cannot be
reproduced in this version, a machine file is wrong, or a run failed.";

/// The seeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Seed {
    /// 000: VMA based swap readahead
    VmaReadahead,
    /// 001: kswapd sleeps prematurely
    Kswapd,
    /// 002: huge pages are split late during swap-out
    ThpSwap,
    /// 003: swapoff counts its hits
    Swapoff,
    /// 004: file readahead on demand
    OndemandReadahead,
    /// All of them
    All,
    /// No seed: all swap readahead policies over all patterns
    Policies,
    /// No seed: the work of thp-swap by 1 to 72 threads, compared with foreswap's own huge pages
    ThpThreads,
}

impl Seed {
    const EACH: [Seed; 5] = [
        Seed::VmaReadahead,
        Seed::Kswapd,
        Seed::ThpSwap,
        Seed::Swapoff,
        Seed::OndemandReadahead,
    ];

    const fn name(self) -> &'static str {
        match self {
            Seed::VmaReadahead => "vma-readahead",
            Seed::Kswapd => "kswapd",
            Seed::ThpSwap => "thp-swap",
            Seed::Swapoff => "swapoff",
            Seed::OndemandReadahead => "ondemand-readahead",
            Seed::All => "all",
            Seed::Policies => "policies",
            Seed::ThpThreads => "thp-threads",
        }
    }

    fn each(self) -> Vec<Seed> {
        if self == Seed::All {
            Self::EACH.into()
        } else {
            vec![self]
        }
    }

    fn experiments(self) -> impl Iterator<Item = &'static Experiment> {
        EXPERIMENTS.iter().filter(move |e| e.seed == self.name())
    }
}

/// Runs `foreswap lab reproduce`.
///
/// # Errors
///
/// The output or the plot cannot be written.
pub fn reproduce(
    args: &ReproduceArgs,
    out: &mut impl Write,
    err: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let machine = match &args.machine {
        None => None,
        Some(path) => {
            let name = path.display().to_string();
            let machine = std::fs::read_to_string(path)
                .map_err(|error| format!("{name}: cannot be read: {error}"))
                .and_then(|text| {
                    Parameters::parse(&name, &text).map_err(|error| error.to_string())
                });
            match machine {
                Ok(machine) => Some(machine),
                Err(error) => {
                    writeln!(err, "foreswap lab: {error}")?;
                    return Ok(ExitCode::from(2));
                }
            }
        }
    };
    match args.seed {
        Seed::Policies => return all_policies(args, machine, out, err),
        Seed::ThpThreads => return all_threads(args, machine, out, err),
        _ => {}
    }
    let published = published::seeds().context("the published figures")?;
    let (mut reports, mut complete) = (Vec::new(), true);
    for seed in args.seed.each() {
        let name = seed.name();
        let Some(tables) = published
            .iter()
            .find(|p| p.seed == name)
            .filter(|_| seed.experiments().next().is_some())
        else {
            let built: Vec<&str> = built();
            writeln!(
                err,
                "foreswap lab: {name} cannot be reproduced in this version: its simulation is not \
                 built yet; built are: {}",
                built.join(", ")
            )?;
            complete = false;
            continue;
        };
        let mut all = <[Figures; 3]>::default();
        let mut machines = BTreeMap::new();
        for experiment in seed.experiments() {
            let scale = args.scale.unwrap_or(experiment.scale);
            let own = || Parameters::named(experiment.machine);
            let machine = machine.clone().map_or_else(own, Ok)?;
            let size = match scale {
                1 => "at full size".to_owned(),
                scale => format!("memory and time 1/{scale}"),
            };
            machines.insert(experiment.name, format!("{}, {size}", machine.name));
            match experiment.figures(&machine, scale, args.random, jobs::number(args.jobs)) {
                Ok(figures) => {
                    for (sum, more) in all.iter_mut().zip(figures) {
                        sum.extend(more);
                    }
                }
                Err(error) => {
                    writeln!(err, "foreswap lab: {name}, {}: {error}", experiment.name)?;
                    complete = false;
                }
            }
        }
        reports.push(Report::new(tables, &all, &machines));
    }
    if !reports.is_empty() {
        let text = if args.json {
            serde_json::to_string_pretty(&reports)? + "\n"
        } else if args.markdown {
            report::markdown(&reports)
        } else {
            report::text(&reports)
        };
        out.write_all(text.as_bytes())?;
        out.flush()?;
        if let Some(path) = &args.plot {
            std::fs::write(path, plot::svg(&reports))
                .with_context(|| format!("{}: cannot be written", path.display()))?;
        }
    }
    Ok(if complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(2)
    })
}

/// All swap readahead policies over all patterns.
fn all_policies(
    args: &ReproduceArgs,
    machine: Option<Parameters>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    if args.plot.is_some() {
        writeln!(
            err,
            "foreswap lab: --plot draws the changes that seeds published; `policies` has none: leave \
             --plot out, or name a seed"
        )?;
        return Ok(ExitCode::from(2));
    }
    let machine = machine.map_or_else(|| Parameters::named(policies::MACHINE), Ok)?;
    let scale = args.scale.unwrap_or(policies::SCALE);
    match policies::table(&machine, scale, args.random, jobs::number(args.jobs)) {
        Ok(table) if args.json => write_json(&table, out),
        Ok(table) if args.markdown => write(&table.markdown(), out),
        Ok(table) => write(&table.text(), out),
        Err(error) => refuse(args.seed, &error, err),
    }
}

/// The workload of seed 002 with increasing numbers of threads.
fn all_threads(
    args: &ReproduceArgs,
    machine: Option<Parameters>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let machine = machine.map_or_else(|| Parameters::named(thp_threads::MACHINE), Ok)?;
    let scale = args.scale.unwrap_or(thp_threads::SCALE);
    let table = match thp_threads::table(&machine, scale, jobs::number(args.jobs)) {
        Ok(table) => table,
        Err(error) => return refuse(args.seed, &error, err),
    };
    if let Some(path) = &args.plot {
        crate::write_file(path, table.plot().svg().as_bytes())?;
    }
    if args.json {
        write_json(&table, out)
    } else if args.markdown {
        write(&table.markdown(), out)
    } else {
        write(&table.text(), out)
    }
}

fn refuse(seed: Seed, error: &SimError, err: &mut impl Write) -> anyhow::Result<ExitCode> {
    writeln!(err, "foreswap lab: {}: {error}", seed.name())?;
    Ok(ExitCode::from(2))
}

fn write_json(table: &impl serde::Serialize, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    write(&(serde_json::to_string_pretty(table)? + "\n"), out)
}

fn write(text: &str, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The seeds that can be reproduced.
fn built() -> Vec<&'static str> {
    let each = Seed::EACH.into_iter();
    each.filter(|seed| seed.experiments().next().is_some())
        .map(Seed::name)
        .collect()
}

#[cfg(test)]
mod tests;
