//! The folder for the sockets of a run.
//!
//! `foreswap ps` finds runs there, and processes in another network namespace reach the supervisor through it. The
//! folders are tried in the order of `run`.

use std::path::PathBuf;

use super::check::{Check, quoted};
use super::who::Who;
use crate::control::place;

/// What is read.
#[derive(Clone, Debug)]
pub struct SocketFacts {
    /// The first folder that can be used.
    pub folder: Option<PathBuf>,
    /// The folders before it, and why they cannot be used.
    pub refused: Vec<(PathBuf, String)>,
    /// `$XDG_RUNTIME_DIR`.
    pub runtime: Option<PathBuf>,
}

impl SocketFacts {
    /// For this user.
    pub fn read() -> Self {
        let user = rustix::process::geteuid().as_raw();
        let mut facts = Self {
            folder: None,
            refused: Vec::new(),
            runtime: std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
        };
        for folder in place::folders(user) {
            match place::prepare(&folder, user) {
                Ok(()) => {
                    facts.folder = Some(folder);
                    break;
                }
                Err(why) => facts.refused.push((folder, why.to_string())),
            }
        }
        facts
    }
}

/// The check of this file.
pub fn judge(facts: &SocketFacts, who: &Who) -> Vec<Check> {
    vec![sockets(facts, who)]
}

fn sockets(facts: &SocketFacts, who: &Who) -> Check {
    const NAME: &str = "sockets";
    let last = facts.refused.last().map(|(_, why)| why.as_str());
    let Some(folder) = &facts.folder else {
        let why = "`foreswap ps`, set, swapon and swapoff do not find runs, and processes in \
                   another network namespace run unmanaged.";
        let found = format!("no folder: {}", last.unwrap_or("none is known"));
        return Check::warning(NAME, found, why).remedy(
            "in this shell",
            [
                format!("mkdir -m 700 \"$HOME/.foreswap-{}\"", who.user),
                format!("export XDG_RUNTIME_DIR=\"$HOME/.foreswap-{}\"", who.user),
            ],
        );
    };
    let shown = folder.display().to_string();
    // A system without /run/user is usual; a variable that names an unusable folder is a mistake.
    let wrong = facts.runtime.as_ref().and_then(|runtime| {
        let mut refused = facts.refused.iter();
        refused.find(|(folder, _)| folder.starts_with(runtime))
    });
    let check = match wrong {
        None => Check::ok(NAME, format!("in {shown}")),
        Some((refused, why)) => {
            let text = format!("in {shown}; XDG_RUNTIME_DIR cannot be used: {why}");
            let why = "A `foreswap ps` without this variable looks elsewhere.";
            let top = refused.parent().unwrap_or(refused).display().to_string();
            let owner = format!("install -d -m 700 -o {} {}", who.login(), quoted(&top));
            Check::note(NAME, text, why)
                .remedy("in this shell", ["unset XDG_RUNTIME_DIR"])
                .remedy("or, as root", [owner])
        }
    };
    check.fact("folder", shown)
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::super::who::tests::ordinary;
    use super::*;

    #[test]
    fn folders() {
        let runtime = PathBuf::from("/run/user/1000");
        let refused = vec![(runtime.join("foreswap"), "no permission".to_owned())];
        let facts = SocketFacts {
            folder: Some("/tmp/foreswap-1000".into()),
            refused,
            runtime: None,
        };
        assert_eq!(sockets(&facts, &ordinary()).verdict, Verdict::Ok);
        let named = SocketFacts {
            runtime: Some(runtime),
            ..facts
        };
        let check = sockets(&named, &ordinary());
        assert_eq!(check.verdict, Verdict::Note);
        assert_eq!(
            check.remedies[1].commands,
            ["install -d -m 700 -o ada /run/user/1000"]
        );
        let none = SocketFacts {
            folder: None,
            ..named
        };
        let check = sockets(&none, &ordinary());
        assert_eq!(check.verdict, Verdict::Warning);
        assert!(check.found.contains("no permission"), "{check:?}");
    }
}
