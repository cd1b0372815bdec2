//! `foreswap serve`: the supervisor of a program that foreswap did not start, and that wants regions of memory beyond its
//! RAM (`crates/capi`).
//!
//! It does what `foreswap run` does, without a command: the program has started it, as an orphan, and connects to it as
//! a process of a run does. It ends when no process uses a region any more, however they end.
//!
//! The program reads what this process prints until it has begun: a line `ready NAME CONTROL`, with the name of the socket
//! for engines and the path of the control socket, or the reason why there is none. After that, messages go to the
//! program's standard error, as long as the program lives: whoever reads that must not wait for a forked child that has
//! been left behind.

use std::fs::File;
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

use foreswap::ledger::protocol::Severity;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::args::RunArgs;
use crate::run;
use crate::supervisor::Supervisor;
use crate::voice::{self, Voice};

/// Where the program has left its standard error.
const ERRORS: i32 = 3;

/// Serves the program; the exit code is of interest to nobody.
pub fn serve(args: &RunArgs) -> ExitCode {
    match try_serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            voice::error(&format!("{error:#}{}", run::hint(&error, &args.swap)));
            ExitCode::FAILURE
        }
    }
}

/// Options of `run` that are about a command.
fn check(args: &RunArgs) -> anyhow::Result<()> {
    let of_command = [
        ("--group", args.group.is_some()),
        ("--strict", args.strict),
        ("--other-users", args.other_users),
        ("--map-files", !args.map_files.is_empty()),
        ("--stats", args.stats.is_some()),
        ("--report", args.report.is_some()),
    ];
    for (option, given) in of_command {
        if given {
            anyhow::bail!(
                "{option} is about a command that foreswap starts (`foreswap run`), not about regions of memory; leave \
                 it out"
            );
        }
    }
    Ok(())
}

/// The program, by the pid that it has given.
fn client(args: &RunArgs) -> anyhow::Result<(Pid, OwnedFd)> {
    let text = args.command.first().and_then(|word| word.to_str());
    let pid = text.and_then(|text| Pid::from_raw(text.parse().ok()?));
    let Some(pid) = pid.filter(|_| args.command.len() == 1) else {
        anyhow::bail!(
            "expected the pid of the program, not {:?}: programs call this themselves (`foreswap_open`)",
            args.command
        );
    };
    let process = pidfd_open(pid, PidfdFlags::empty())
        .map_err(|errno| anyhow::anyhow!("the program with the pid {pid:?} is gone: {errno}"))?;
    Ok((pid, process))
}

fn try_serve(args: &RunArgs) -> anyhow::Result<()> {
    check(args)?;
    let mut voice = Voice::new(args.quiet);
    let (mut prepared, (pid, process)) = run::prepare(args, &mut voice, client)?;
    // Neither Ctrl-C nor the end of the terminal is meant for this process. It leads no group and may leave.
    let _ = rustix::process::setsid();
    let (mut supervisor, name) = run::open(args, &mut prepared, voice)?;
    supervisor.watch = supervisor.watch.off();
    supervisor.command.has_begun(pid);
    let _ = rustix::process::chdir(c"/");
    let control = supervisor.control.path();
    let control = control.map_or(String::new(), |path| path.display().to_string());
    let mut out = std::io::stdout();
    writeln!(out, "ready {name} {control}")?;
    out.flush()?;
    take_streams();
    let served = supervisor.until_unused(&process, || {
        if let Ok(null) = File::options().write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stderr(&null);
        }
    });
    end(&mut supervisor);
    Ok(served?)
}

/// From here on the program does not read what is printed, and messages are for its user.
fn take_streams() {
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
    // SAFETY: the program has opened it for this process, and it is closed once, here.
    let errors = unsafe { OwnedFd::from_raw_fd(ERRORS) };
    let _ = rustix::stdio::dup2_stderr(&errors);
}

fn end(supervisor: &mut Supervisor) {
    if supervisor.sessions.has_unfinished() {
        let text = "the disk still writes what ended processes had begun";
        supervisor.voice.remark(Severity::Note, text);
    }
    supervisor.write_metrics();
    supervisor.end_recording();
    supervisor.areas.erase_all();
}
