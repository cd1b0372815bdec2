//! `foreswap doctor`: what works here and what does not, each obstacle with its remedy.
//!
//! One file per group of checks: `Facts` are read from the system by the attempts that `run` itself makes, and a pure
//! `judge` turns them into findings. Last, a small job really runs (`trial`). It decides: a failure that does not stop
//! it is a warning, and foreswap works here only if it succeeds.

mod area;
mod check;
mod huge;
mod io;
mod limits;
mod memory;
mod permission;
mod sockets;
mod speed;
mod system;
mod text;
mod trial;
mod who;

pub use check::quoted;
pub use trial::job;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use crate::args::DoctorArgs;
use crate::voice;
use area::AreaFacts;
use check::{Check, Verdict};
use huge::HugeFacts;
use io::IoFacts;
use limits::LimitFacts;
use memory::MemoryFacts;
use permission::PermissionFacts;
use sockets::SocketFacts;
use system::SystemFacts;
use text::Report;
use trial::Trial;
use who::Who;

/// On a terminal, while the area is measured and the trial runs.
const PATIENCE: &str = "measuring the area, and running a small job ...";
/// In its place: nothing.
const ERASED: &str = "\r\x1b[K";

/// Everything that is read, before anything is judged.
#[derive(Debug)]
struct Facts {
    who: Who,
    system: SystemFacts,
    permission: PermissionFacts,
    io: IoFacts,
    huge: HugeFacts,
    limits: LimitFacts,
    areas: Vec<AreaFacts>,
    memory: MemoryFacts,
    sockets: SocketFacts,
}

impl Facts {
    fn read(args: &DoctorArgs) -> Self {
        let who = Who::read();
        Self {
            system: SystemFacts::read(),
            permission: PermissionFacts::read(&who),
            io: IoFacts::read(),
            huge: HugeFacts::read(),
            limits: LimitFacts::read(&who),
            memory: MemoryFacts::read(),
            sockets: SocketFacts::read(),
            areas: AreaFacts::read(&args.swap, args.quick),
            who,
        }
    }
}

fn judge(facts: &Facts) -> Vec<Check> {
    let who = &facts.who;
    let mut checks = system::judge(&facts.system, &facts.permission, who);
    checks.extend(permission::judge(&facts.permission, who));
    checks.extend(io::judge(&facts.io, who));
    checks.extend(huge::judge(&facts.huge));
    checks.extend(limits::judge(&facts.limits, who));
    checks.extend(memory::judge(&facts.memory, &facts.areas, who));
    checks.extend(area::judge(&facts.areas, who));
    checks.extend(sockets::judge(&facts.sockets, who));
    checks
}

/// With the trial, which decides.
fn conclude(mut checks: Vec<Check>, trial: Check) -> (Vec<Check>, bool) {
    let works = trial.verdict != Verdict::Failure;
    if works {
        for check in &mut checks {
            check.verdict = check.verdict.min(Verdict::Warning);
        }
    }
    checks.push(trial);
    (checks, works)
}

/// The first of the worst findings, if something should be done.
fn first(checks: &[Check]) -> Option<&'static str> {
    let worst = checks.iter().map(|check| check.verdict).max()?;
    let first = checks.iter().find(|check| check.verdict == worst)?;
    (worst >= Verdict::Warning).then_some(first.name)
}

/// Prints all findings; success if foreswap works here.
pub fn doctor(args: &DoctorArgs) -> ExitCode {
    let coloured = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let version = env!("CARGO_PKG_VERSION");
    let waits = coloured && !args.json && std::io::stderr().is_terminal();
    if waits {
        voice::write(PATIENCE);
    }
    let facts = Facts::read(args);
    let judged = judge(&facts);
    let is_explained = judged.iter().any(|check| check.verdict == Verdict::Failure);
    let trial = Trial::run(&args.swap).judge(is_explained);
    let (checks, works) = conclude(judged, trial);
    if waits {
        voice::write(ERASED);
    }
    let first = first(&checks);
    let text = if args.json {
        let report = Report {
            version,
            works,
            first,
            place: facts.who.place.name(),
            user: facts.who.user,
            checks: &checks,
        };
        report.json()
    } else {
        let mut text = text::heading(version, &facts.who.described());
        for check in &checks {
            text.push_str(&text::of(check, coloured));
        }
        text.push_str(&text::conclusion(works, first, &checks, coloured));
        text
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    match written.is_ok() && works {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trial_decides() {
        let checks = || vec![Check::ok("a", ""), Check::failure("b", "", "")];
        let (found, works) = conclude(checks(), Check::ok("trial", ""));
        assert!(works);
        assert_eq!(found[1].verdict, Verdict::Warning);
        assert_eq!(first(&found), Some("b"));
        let (found, works) = conclude(checks(), Check::failure("trial", "", ""));
        assert!(!works);
        assert_eq!(found[1].verdict, Verdict::Failure);
        assert_eq!(first(&found), Some("b"), "the cause, not the trial");
        assert_eq!(first(&[Check::note("a", "", "")]), None);
    }

    #[test]
    fn names_are_unique_and_everything_bad_says_why() {
        let facts = Facts::read(&DoctorArgs {
            swap: Vec::new(),
            quick: true,
            json: false,
        });
        let checks = judge(&facts);
        let mut names: Vec<&str> = checks.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), checks.len(), "{names:?}");
        for check in checks {
            assert_eq!(
                check.why.is_empty(),
                check.verdict == Verdict::Ok,
                "{check:?}"
            );
        }
    }
}
