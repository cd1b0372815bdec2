//! The client's side of the control socket: finds the run of a pid, sends a request, reads the answers.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::place;
use super::words::{LINE_BYTES, Reply, Request, Run};
use crate::group::Name;

/// How long a supervisor may take to answer a list request.
const LIST: Duration = Duration::from_secs(3);

/// Why a run could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is none.
    #[error(
        "no run of foreswap {0}; expected the pid of a managed program or of its `foreswap run`, or the name of a group, as `foreswap ps` lists them"
    )]
    NoSuchRun(Which),
    /// Root sees the groups of all users.
    #[error("several runs are of group {name}: name one of them by its pid ({pids})")]
    Several {
        /// The name.
        name: String,
        /// The pids of their supervisors.
        pids: String,
    },
    /// The supervisor has ended, or is of another version.
    #[error("the supervisor at {path} does not answer: {why}")]
    Silent {
        /// Its socket.
        path: PathBuf,
        /// The evidence.
        why: String,
    },
    /// It refused.
    #[error("{0}")]
    Refused(String),
}

/// Which run is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// That with this process.
    Process(i32),
    /// That of this group.
    Group(String),
}

impl Which {
    /// Whether it is this one.
    pub fn is(&self, run: &Run) -> bool {
        match self {
            Which::Process(pid) => {
                let own = run.supervisor == *pid || run.command_pid == Some(*pid);
                own || run.processes.iter().any(|process| process.pid == *pid)
            }
            Which::Group(name) => run.group.as_ref() == Some(name),
        }
    }
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // No group has such a name.
        if text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'-')
        {
            let pid = text.parse().ok().filter(|pid| *pid > 0);
            let pid = pid.ok_or(
                "expected a pid, which is a whole number from 1 on, or the name of a group",
            )?;
            return Ok(Which::Process(pid));
        }
        let name: Name = text.parse()?;
        Ok(Which::Group(name.as_str().to_owned()))
    }
}

impl fmt::Display for Which {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Which::Process(pid) => write!(to, "has process {pid}"),
            Which::Group(name) => write!(to, "is of group {name}"),
        }
    }
}

/// A sent request.
#[derive(Debug)]
pub struct Asked {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Asked {
    /// Sends `request` to the supervisor at `path`, to which `socket` is connected.
    pub fn new(path: &Path, socket: UnixStream, request: &Request) -> Result<Self, AskError> {
        let silent = |error: io::Error| AskError::Silent {
            path: path.to_path_buf(),
            why: error.to_string(),
        };
        socket.set_nonblocking(false).map_err(silent)?;
        let mut line = serde_json::to_string(request).map_err(|e| silent(e.into()))?;
        line.push('\n');
        (&socket).write_all(line.as_bytes()).map_err(silent)?;
        Ok(Self {
            path: path.to_path_buf(),
            stream: BufReader::new(socket),
        })
    }

    /// Readable when an answer has come.
    pub fn fd(&self) -> &UnixStream {
        self.stream.get_ref()
    }

    /// How long one answer may take.
    pub fn set_patience(&self, patience: Duration) {
        // Refused for a zero duration only.
        let _ = self.stream.get_ref().set_read_timeout(Some(patience));
    }

    /// The next answer; `None` if it did not arrive in time or a signal came first.
    pub fn next(&mut self) -> Result<Option<Reply>, AskError> {
        let silent = |why: String| AskError::Silent {
            path: self.path.clone(),
            why,
        };
        let mut line = Vec::new();
        loop {
            match self.stream.fill_buf() {
                Ok([]) => return Err(silent("it has ended".to_owned())),
                Ok(bytes) => {
                    let end = bytes.iter().position(|&byte| byte == b'\n');
                    let taken = end.map_or(bytes.len(), |end| end + 1);
                    line.extend_from_slice(&bytes[..taken]);
                    self.stream.consume(taken);
                    if end.is_some() {
                        break;
                    }
                    if line.len() > LINE_BYTES * 16 {
                        return Err(silent("its answer has no end".to_owned()));
                    }
                }
                Err(error)
                    if line.is_empty()
                        && matches!(
                            error.kind(),
                            io::ErrorKind::WouldBlock
                                | io::ErrorKind::TimedOut
                                | io::ErrorKind::Interrupted
                        ) =>
                {
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(silent(error.to_string())),
            }
        }
        match serde_json::from_slice(&line) {
            Ok(Reply::Error { text }) => Err(AskError::Refused(text)),
            Ok(reply) => Ok(Some(reply)),
            Err(error) => Err(silent(format!("it speaks another version ({error})"))),
        }
    }
}

/// A run with its socket.
#[derive(Debug)]
pub struct Found {
    /// Its socket's path.
    pub path: PathBuf,
    /// Its answer.
    pub run: Run,
}

/// All runs that this user may see, and the errors of those that do not answer. With the mappings of one
/// process, if asked.
pub fn all_runs(mappings_of: Option<i32>) -> (Vec<Found>, Vec<AskError>) {
    let user = rustix::process::geteuid();
    let mut folders = place::folders(user.as_raw());
    if user.is_root() {
        folders.extend(place::all_folders());
    }
    folders.sort();
    folders.dedup();
    let (mut found, mut silent) = (Vec::new(), Vec::new());
    for folder in folders {
        // A folder that another user can write to is not trustworthy.
        let Ok(owner) = place::owner(&folder) else {
            continue;
        };
        if owner != user.as_raw() && !user.is_root() {
            continue;
        }
        for (path, socket) in place::sweep(&folder) {
            let peer = rustix::net::sockopt::socket_peercred(&socket);
            if !peer.is_ok_and(|peer| peer.uid.as_raw() == owner) {
                continue;
            }
            match list(&path, UnixStream::from(socket), mappings_of) {
                Ok(run) => found.push(Found { path, run }),
                Err(AskError::Silent { .. }) if has_ended(&path) => {}
                Err(error) => silent.push(error),
            }
        }
    }
    found.sort_by_key(|found| found.run.supervisor);
    (found, silent)
}

/// Whether the run has ended since its socket was found. Its socket then takes no connection, or is gone.
fn has_ended(path: &Path) -> bool {
    use rustix::io::Errno;
    matches!(place::connect(path), Err(Errno::CONNREFUSED | Errno::NOENT))
}

fn list(path: &Path, socket: UnixStream, mappings_of: Option<i32>) -> Result<Run, AskError> {
    let mut asked = Asked::new(path, socket, &Request::Ps { mappings_of })?;
    asked.set_patience(LIST);
    match asked.next()? {
        Some(Reply::Run(run)) => Ok(*run),
        _ => Err(AskError::Silent {
            path: path.to_path_buf(),
            why: format!("nothing came for {} s; is it stopped?", LIST.as_secs()),
        }),
    }
}

/// The run that is meant. Other runs that do not answer are no obstacle.
pub fn find(which: &Which) -> Result<Found, AskError> {
    let (runs, mut silent) = all_runs(None);
    let runs: Vec<Found> = runs
        .into_iter()
        .filter(|found| which.is(&found.run))
        .collect();
    if let (Which::Group(name), [_, _, ..]) = (which, &runs[..]) {
        let pids = runs.iter().map(|found| found.run.supervisor.to_string());
        return Err(AskError::Several {
            name: name.clone(),
            pids: pids.collect::<Vec<_>>().join(", "),
        });
    }
    let found = runs.into_iter().next();
    found.ok_or_else(|| silent.pop().unwrap_or(AskError::NoSuchRun(which.clone())))
}

/// Sends a request to the run that is meant.
pub fn ask(which: &Which, request: &Request) -> Result<Asked, AskError> {
    let found = find(which)?;
    let socket = place::connect(&found.path).map_err(|errno| AskError::Silent {
        path: found.path.clone(),
        why: errno.to_string(),
    })?;
    Asked::new(&found.path, UnixStream::from(socket), request)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// `ps` is about to list a run that ends at that moment.
    #[test]
    fn a_run_that_ends_while_it_is_asked_is_no_run() {
        let path = std::env::temp_dir().join(format!("foreswap-asking-{}", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a socket");
        let socket = UnixStream::connect(&path).expect("a connection");
        assert!(!has_ended(&path));
        drop(listener);
        let error = list(&path, socket, None).expect_err("nobody answers");
        assert!(matches!(error, AskError::Silent { .. }), "{error}");
        assert!(has_ended(&path), "the socket takes no connection");
        std::fs::remove_file(&path).expect("its removal");
        assert!(has_ended(&path), "the socket is gone");
    }
}
