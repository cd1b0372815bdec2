//! The `foreswap` command: [`main()`] is all of it. It is a library so that `examples/pages.rs` can make manual pages and
//! completions of [`command()`], and the command that users get does not contain what makes them.

mod area_file;
mod areas;
mod args;
mod auto_memory;
mod clean;
mod command;
mod control;
mod doctor;
mod group;
mod inherited;
mod listeners;
mod mapped_files;
mod memory;
mod memory_setting;
mod metrics;
mod page;
mod preload;
mod program;
mod reaping;
mod recording;
mod report;
mod run;
mod serve;
mod sessions;
mod signals;
mod size;
mod stats_file;
mod supervisor;
mod top;
pub mod topics;
mod turns;
mod unmanaged;
mod voice;
mod widows;

use std::process::ExitCode;

use args::{Cli, Subcommands};
use clap::CommandFactory;
use control::commands;

/// The definition of the command line.
pub fn command() -> clap::Command {
    Cli::command()
}

/// The relay between engines and the servers of swap areas: standard input is a socket of the supervisor's.
fn relay() -> ExitCode {
    let Ok(control) = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) else {
        return ExitCode::FAILURE;
    };
    match foreswap_far::serve::run(control) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            voice::error(&format!(
                "relay: {error}; `foreswap run --swap nbd://...` starts it, not you"
            ));
            ExitCode::FAILURE
        }
    }
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let result = match Cli::read(std::env::args_os())
        .unwrap_or_else(|error| error.exit())
        .command
    {
        Subcommands::Run(args) => return run::run(&args),
        Subcommands::Relay => return relay(),
        Subcommands::Ps(args) => return commands::ps(&args),
        Subcommands::Top(args) => return top::top(&args),
        Subcommands::Set(args) => return commands::set(&args),
        Subcommands::Swapon(args) => return commands::swapon(&args),
        Subcommands::Swapoff(args) => return commands::swapoff(&args),
        Subcommands::Clean(args) => clean::clean(&args),
        Subcommands::Report(args) => page::command::report(&args),
        Subcommands::Doctor(args) => return doctor::doctor(&args),
        Subcommands::Help(args) => {
            topics::help(&mut command(), &args.words).map_err(|error| error.exit())
        }
        Subcommands::Serve(args) => return serve::serve(&args),
        Subcommands::Trial => return doctor::job(),
        Subcommands::Bench(args) => foreswap_bench::bench(*args),
        Subcommands::Lab(args) => foreswap_lab::lab(args),
        Subcommands::Workload(args) => foreswap_bench::workload(*args),
    };
    result.unwrap_or_else(|error| {
        voice::error(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}
