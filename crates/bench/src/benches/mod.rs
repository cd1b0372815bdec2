//! The runs of each bench, their number, and their references.

mod areas;
mod asked;
mod build;
mod combined;
mod device;
mod digest;
mod far;
mod fault_latency;
mod files;
mod fits;
mod forks;
mod huge;
mod linpack;
mod programs;
mod readahead;
mod series;
mod slots;
mod startup;
mod swapoff;
mod tiers;
mod turns;
mod usemem;
mod workset;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::args::{BenchArgs, BenchName, PeerName};
use crate::interrupt;
use crate::peer::{ForeswapOptions, Kernels, Session};
use crate::report::{Machine, Report};
use crate::system;

/// The default limit.
const LIMIT: u64 = 256 << 20;

/// `foreswap bench`.
pub fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    if args.undo {
        return undo();
    }
    let name = args.name.context("which bench? see --help")?;
    if !args.command.is_empty() && name != BenchName::Programs {
        bail!(
            "a command after -- is for `foreswap bench programs`; {} has its own",
            value_name(name)
        );
    }
    interrupt::watch();
    let result = prepare(&args).and_then(|mut session| {
        let report = match name {
            BenchName::Fits => fits::run(&args, &mut session),
            BenchName::Build => build::run(&args, &mut session),
            BenchName::Programs => programs::run(&args, &mut session),
            BenchName::Forks => forks::run(&args, &mut session),
            BenchName::Workset => workset::run(&args, &mut session),
            BenchName::Startup => startup::run(&args, &mut session),
            BenchName::FaultLatency => fault_latency::run(&args, &mut session),
            BenchName::Areas => areas::run(&args, &session),
            BenchName::Far => far::run(&args, &mut session),
            BenchName::Tiers => tiers::run(&args, &mut session),
            BenchName::Slots => slots::run(&args, &session),
            BenchName::Files => files::run(&args, &session),
            BenchName::Digest => digest::run(&args, &session),
            BenchName::Readahead => readahead::run(&args, &mut session),
            BenchName::Huge => huge::run(&args, &mut session),
            _ => one(name, &args, &mut session),
        }?;
        // Here the session is dropped, which undoes all changes to the system before anything is printed, errors
        // included.
        Ok(report)
    });
    if let Err(interrupted) = interrupt::check() {
        eprintln!("foreswap bench: {interrupted}");
        return Ok(interrupted.exit_code());
    }
    let report = result?;
    print!("{}", report.text());
    if let Some(path) = &args.json {
        report.write_json(path)?;
    }
    Ok(match report.failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// One of the benches that `readahead` and `huge` combine.
fn one(name: BenchName, args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    match name {
        BenchName::Combined => combined::run(args, session),
        BenchName::Swapoff => swapoff::run(args, session),
        BenchName::Linpack => linpack::run(args, session),
        _ => usemem::run(name, args, session),
    }
}

fn undo() -> anyhow::Result<ExitCode> {
    let (count, complaints) = system::undo_left_behind().context("cannot undo")?;
    for complaint in &complaints {
        eprintln!("foreswap bench: {complaint}");
    }
    match (count, complaints.is_empty()) {
        (0, _) => println!("There is nothing to undo."),
        (count, true) => println!("Undone: {count} changes that a killed bench had left."),
        (count, false) => bail!(
            "{} of {count} changes could not be undone",
            complaints.len()
        ),
    }
    Ok(ExitCode::SUCCESS)
}

fn prepare(args: &BenchArgs) -> anyhow::Result<Session> {
    can_take_turns(&peers(args, &[]))?;
    let exe = match &args.exe {
        Some(exe) => exe.clone(),
        None => std::env::current_exe().context("cannot find this executable")?,
    };
    let directory = match &args.dir {
        Some(directory) => directory.clone(),
        None => std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from),
    };
    let directory = directory
        .canonicalize()
        .with_context(|| format!("no directory {}", directory.display()))?;
    Ok(Session {
        exe,
        directory,
        limit: args.memory.unwrap_or(LIMIT),
        swap_bytes: 0,
        in_order: false,
        pause: Duration::from_secs(args.pause),
        timeout: None,
        foreswap: ForeswapOptions {
            readahead: args.readahead.clone(),
            more: args.run_options.clone(),
        },
        kernels: Kernels::default(),
    })
}

/// The peers in the order of their turns: the one measured, then the others once each.
fn peers(args: &BenchArgs, default: &[PeerName]) -> Vec<PeerName> {
    let mut peers = vec![args.runner];
    for peer in args.against.as_deref().unwrap_or(default) {
        if !peers.contains(peer) {
            peers.push(*peer);
        }
    }
    peers
}

/// Refuses a combination of peers in which one changes the behaviour of another.
fn can_take_turns(peers: &[PeerName]) -> anyhow::Result<()> {
    if peers.contains(&PeerName::Zram) && peers.contains(&PeerName::Zswap) {
        bail!(
            "zram and zswap cannot take turns: once zswap has been enabled, the kernel reads nothing but single pages \
             from zram until the system starts again; measure zram first and then zswap, each in a call of its own"
        );
    }
    Ok(())
}

/// The bench's name on the command line.
fn value_name(name: BenchName) -> String {
    name.to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

fn new_report(
    name: &str,
    title: String,
    session: &Session,
    parameters: serde_json::Value,
) -> Report {
    let machine = Machine::here(&session.directory);
    let mut report = Report::new(name, title, machine, parameters);
    report.notes.extend(session.kernels.notes().iter().cloned());
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zram_and_zswap_do_not_take_turns() {
        let of = |words: &str| can_take_turns(&peers(&crate::args::parse(words), &[]));
        for words in [
            "seq-read --against zram,zswap",
            "rand-read --runner zswap --against zram",
        ] {
            let refused = of(words).expect_err(words).to_string();
            assert!(refused.contains("a call of its own"), "{refused}");
        }
        assert!(of("seq-read --against kernel,zram").is_ok());
        assert!(of("seq-read --against kernel,zswap").is_ok());
    }
}
