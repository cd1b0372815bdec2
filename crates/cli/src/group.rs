//! `--group`: several `foreswap run` commands share one limit and its swap areas.
//!
//! The first of them leads: it opens the areas and supervises all. Its control socket has a second name, that of the
//! group. Those that come later join: they ask the leader for what their command needs to be a part of its run, start
//! it themselves, with their own streams, terminal, directory and environment, and end as it ends. The connection on
//! which they have asked stays open meanwhile: as long as there is one, the supervisor stays, also when its own
//! command has ended. Over it, messages reach every terminal.
//!
//! Who leads is decided under a lock on the folder of the sockets, which the leader holds until its socket has the
//! name. The group ends with its last process, and the next command with its name leads a new one.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use foreswap::ledger::protocol::Severity;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::args::{
    AREA_TIMEOUT, Encrypt, FULL_TIMEOUT, Io, Readahead, Reclaim, RunArgs, Switch, Thp,
};
use crate::command::{self, Event};
use crate::control::asking::{AskError, Asked};
use crate::control::place;
use crate::control::words::{Joined, Limit, Reply, Request, Run, Wish};
use crate::inherited;
use crate::memory_setting::Setting;
use crate::run::{self, Variables};
use crate::signals::Signals;
use crate::size::humane;
use crate::voice::{self, Voice};

/// The default of `--full-timeout`.
/// Bytes of a name.
const LONGEST: usize = 32;
/// How long a leader may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a group that is about to end may stand in the way.
const ENDING: Duration = Duration::from_secs(5);
const ENDING_STEP: Duration = Duration::from_millis(20);

/// The name of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        // A pid would look like it.
        let is_number = |c: char| c.is_ascii_digit() || c == '-';
        if text.chars().all(is_number)
            || text.len() > LONGEST
            || !text.chars().all(is_plain)
            || text.starts_with('.')
        {
            return Err(format!(
                "expected 1 to {LONGEST} letters, digits, dots, dashes and underscores, not digits alone, with no dot in front"
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Name {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The part of a command in its group.
#[derive(Debug)]
pub enum Part {
    /// No other command has begun. No command joins or leads until this is dropped.
    Leads(OwnedFd),
    /// It is a part of another command's run.
    Joins(Box<Membership>),
}

/// A place in another command's run.
#[derive(Debug)]
pub struct Membership {
    name: String,
    asked: Asked,
    joined: Joined,
    /// The socket, by the name of the group.
    path: PathBuf,
}

/// What the supervisor tells those who join.
#[derive(Debug)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// For each command.
    pub joined: Joined,
    /// The command line with which it began.
    pub wish: Wish,
}

/// The command line, for the supervisor.
fn wish(args: &RunArgs) -> anyhow::Result<Wish> {
    let limit = |setting: Setting| {
        let limits = setting.resolve("--memory ")?;
        anyhow::Ok(Limit {
            setting: format!("{setting:?}"),
            bytes: [limits.least, limits.most],
        })
    };
    Ok(Wish {
        memory: args.memory.map(limit).transpose()?,
        options: options(args),
    })
}

impl Group {
    /// The group that the command of `args` leads.
    pub fn new(name: &Name, args: &RunArgs, variables: &Variables<'_>) -> anyhow::Result<Self> {
        Ok(Self {
            name: name.0.clone(),
            joined: Joined {
                engines: variables.engines.to_owned(),
                threshold: variables.threshold,
                map_files: variables.map_files.as_bytes().to_vec(),
            },
            wish: wish(args)?,
        })
    }

    /// The answer to a command that wants to join; `bytes` are the bounds of the limit at the moment. What it leaves
    /// out is as the group has it, and what it names must be the same.
    pub fn answer(&self, wish: &Wish, bytes: [u64; 2]) -> Result<Reply, String> {
        let name = &self.name;
        let is_other = |wanted: &&Limit| {
            let began = self.wish.memory.as_ref();
            let is_first = began.is_some_and(|began| {
                began.setting == wanted.setting || began.bytes == wanted.bytes
            });
            !is_first && wanted.bytes != bytes
        };
        if let Some(wanted) = wish.memory.as_ref().filter(is_other) {
            return Err(format!(
                "group {name} has a limit of {}, and --memory asks for {}; leave --memory out, or change the limit of \
                 all with `foreswap set {name} memory=SIZE`",
                range(bytes),
                range(wanted.bytes),
            ));
        }
        let is_new = |option: &&(String, String)| !self.wish.options.contains(option);
        if let Some((option, value)) = wish.options.iter().find(is_new) {
            return Err(format!(
                "group {name} did not begin with {}; leave {option} out, or use another name",
                format!("{option} {value}").trim_end()
            ));
        }
        Ok(Reply::Joined(Box::new(self.joined.clone())))
    }
}

fn range([least, most]: [u64; 2]) -> String {
    match least == most {
        true => humane(least),
        false => format!("{} to {}", humane(least), humane(most)),
    }
}

/// Joins the group, or leads it once nobody else decides.
pub fn enter(name: &Name, args: &RunArgs) -> anyhow::Result<Part> {
    let wish = wish(args)?;
    let folders: Vec<PathBuf> = place::usable_folders().collect();
    let Some(first) = folders.first() else {
        bail!(
            "--group {}: there is no folder for control sockets (`foreswap doctor` says more)",
            name.0
        );
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let locked = || -> Result<OwnedFd, Errno> {
        let folder = rustix::fs::open(first, flags, Mode::empty())?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&folder, FlockOperation::LockExclusive))?;
        Ok(folder)
    };
    let lock = locked().with_context(|| format!("{}", first.display()))?;
    let began = Instant::now();
    loop {
        let mut paths = folders.iter().map(|folder| place::group(folder, &name.0));
        let found = paths.find_map(|path| Some((place::connect(&path).ok()?, path)));
        let Some((socket, path)) = found else {
            // The name of a group whose supervisor was killed is free again.
            folders.iter().for_each(|folder| drop(place::sweep(folder)));
            return Ok(Part::Leads(lock));
        };
        match join(name, &wish, path, socket) {
            Ok(membership) => return Ok(Part::Joins(Box::new(membership))),
            // Its last process has just ended.
            Err(AskError::Silent { .. }) if began.elapsed() < ENDING => {
                std::thread::sleep(ENDING_STEP)
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn join(name: &Name, wish: &Wish, path: PathBuf, socket: OwnedFd) -> Result<Membership, AskError> {
    let request = Request::Join {
        group: name.0.clone(),
        wish: wish.clone(),
    };
    let mut asked = Asked::new(&path, UnixStream::from(socket), &request)?;
    asked.set_patience(ANSWER);
    match asked.next()? {
        Some(Reply::Joined(joined)) => Ok(Membership {
            name: name.0.clone(),
            asked,
            joined: *joined,
            path,
        }),
        _ => Err(AskError::Silent {
            path,
            why: format!("nothing came for {} s; is it stopped?", ANSWER.as_secs()),
        }),
    }
}

/// The options of the whole group that a command line gives: name and value.
fn options(args: &RunArgs) -> Vec<(String, String)> {
    let areas = (!args.swap.is_empty()).then(|| args.swap.join(", "));
    let patterns = args.map_files.iter().map(|glob| glob.to_string_lossy());
    let patterns = patterns.collect::<Vec<_>>().join(", ");
    let is_on = |switch: bool| switch.then(String::new);
    let timeout = args.full_timeout.unwrap_or(FULL_TIMEOUT);
    let far = args.area_timeout;
    let all = [
        ("--swap", areas),
        ("--swap-size", args.swap_size.map(humane)),
        ("--encrypt", unless(args.encrypt, Encrypt::Far)),
        ("--map-files", (!patterns.is_empty()).then_some(patterns)),
        ("--thp", unless(args.thp, Thp::Adaptive)),
        ("--readahead", unless(args.readahead, Readahead::Streams)),
        (
            "--max-window",
            args.max_window.map(|pages| pages.to_string()),
        ),
        ("--reclaim", unless(args.reclaim, Reclaim::Clock)),
        (
            "--full-timeout",
            (timeout != FULL_TIMEOUT).then(|| format!("{timeout:?}")),
        ),
        (
            "--area-timeout",
            (far != AREA_TIMEOUT).then(|| format!("{far:?}")),
        ),
        ("--load-control", unless(args.load_control, Switch::On)),
        ("--io", unless(args.io, Io::Auto)),
        ("--helpers", args.helpers.map(|helpers| helpers.to_string())),
        ("--strict", is_on(args.strict)),
        ("--other-users", is_on(args.other_users)),
    ];
    let given = all.into_iter();
    given
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

/// The word for a value that is not the default.
fn unless<T: ValueEnum + PartialEq>(value: T, default: T) -> Option<String> {
    let word = value
        .to_possible_value()
        .map(|word| word.get_name().to_owned());
    word.filter(|_| value != default)
}

/// Files of a run, which has one of each.
fn check(args: &RunArgs, name: &str) -> anyhow::Result<()> {
    let of_run = [
        ("--stats", args.stats.is_some()),
        ("--metrics", args.metrics.is_some()),
        ("--metrics-file", args.metrics_file.is_some()),
        ("--trace", args.trace.is_some()),
        ("--report", args.report.is_some()),
    ];
    match of_run.iter().find(|(_, given)| *given) {
        Some((option, _)) => bail!(
            "{option} is about the whole group {name}, which another command has begun; leave {option} out"
        ),
        None => Ok(()),
    }
}

impl Membership {
    /// Runs the command of `args` in the group, until it ends.
    pub fn run(mut self, args: &RunArgs) -> anyhow::Result<Event> {
        check(args, &self.name)?;
        let command = run::find_command(args)?;
        inherited::wait_for_children();
        let signals = Signals::take()?;
        let variables = Variables {
            engines: &self.joined.engines,
            threshold: self.joined.threshold,
            map_files: OsStr::from_bytes(&self.joined.map_files),
        };
        let began = Instant::now();
        let child = variables.start(args, &command, signals.inherited_mask())?;
        let mut voice = Voice::new(args.quiet);
        let mut is_open = true;
        let end = loop {
            let leader = is_open.then(|| PollFd::new(self.asked.fd(), PollFlags::IN));
            let mut fds = vec![PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
            fds.extend(leader);
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
            let has_said = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
            drop(fds);
            if has_said {
                is_open = self.listen(&mut voice);
            }
            if let Some(end) = command::on_signals(&signals, child)? {
                break end;
            }
        };
        if !args.quiet {
            voice::error(&self.last_line(began.elapsed()));
        }
        Ok(end)
    }

    /// Shows the messages that have come. False once nobody is left to send any.
    fn listen(&mut self, voice: &mut Voice) -> bool {
        self.asked.set_patience(Duration::from_millis(1));
        loop {
            match self.asked.next() {
                Ok(Some(Reply::Said { is_error, text })) => {
                    let severity = if is_error {
                        Severity::Error
                    } else {
                        Severity::Warning
                    };
                    voice.remark(severity, &text);
                }
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => {
                    let text = format!(
                        "the supervisor of group {} was killed: this command keeps its memory, but its new processes are not \
                         managed, and a process of which pages are swapped out cannot fork",
                        self.name
                    );
                    voice.remark(Severity::Error, &text);
                    return false;
                }
            }
        }
    }

    /// The run of the group; `None` if it does not answer soon.
    fn now(&self) -> Option<Box<Run>> {
        let socket = place::connect(&self.path).ok()?;
        let request = Request::Ps { mappings_of: None };
        let mut asked = Asked::new(&self.path, UnixStream::from(socket), &request).ok()?;
        asked.set_patience(Duration::from_secs(1));
        match asked.next().ok()? {
            Some(Reply::Run(run)) => Some(run),
            _ => None,
        }
    }

    /// The figures of the group, which this command shares with others.
    fn last_line(&self, elapsed: Duration) -> String {
        let (name, seconds) = (&self.name, elapsed.as_secs_f64());
        let Some(run) = self.now() else {
            return format!("group {name}: this command took {seconds:.2} s");
        };
        let totals = run.totals.unwrap_or_default();
        format!(
            "group {name}: this command took {seconds:.2} s; the group holds {} of {} now and has moved {} out and {} in \
             so far",
            humane(run.resident_bytes),
            humane(run.limit_bytes),
            humane(totals.swap_out_bytes),
            humane(totals.swap_in_bytes),
        )
    }
}
