//! What `run --report` gathers while the run goes on, and the file that it becomes.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use foreswap::ledger::StatsSnapshot;
use foreswap_lab::trace::Record;

use super::activity::Activity;
use super::code::Samples;
use super::timeline::{Sample, Timeline};
use super::{Measured, Process, Story};
use crate::control::list;
use crate::control::words::Area;
use crate::doctor::quoted;
use crate::report::Run;
use crate::stats_file;

/// The most characters of a command line.
const COMMAND: usize = 1000;
/// Processes in the page.
const PROCESSES: usize = 10;

/// The page cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the report to {path}: {cause}; name another file", path = path.display())]
pub struct PageError {
    path: PathBuf,
    cause: io::Error,
}

/// The file of a page.
#[derive(Debug)]
pub struct PageFile {
    path: PathBuf,
}

impl PageFile {
    /// Checks that `path` can be written: it is replaced by a rename.
    pub fn check(path: &Path) -> Result<Self, PageError> {
        match stats_file::replaceable(path) {
            Ok(path) => Ok(Self { path }),
            Err(cause) => Err(PageError {
                path: path.to_owned(),
                cause,
            }),
        }
    }

    /// Writes it. Returns the path.
    pub fn write(self, story: &Story<'_>) -> Result<PathBuf, PageError> {
        match stats_file::replace(&self.path, story.page().as_bytes()) {
            Ok(()) => Ok(self.path),
            Err(cause) => Err(PageError {
                path: self.path,
                cause,
            }),
        }
    }
}

/// What the records and the ends of processes tell.
#[derive(Debug)]
pub struct Records {
    activity: Activity,
    code: Samples,
    commands: HashMap<u32, String>,
    ended: Vec<Process>,
    more: usize,
}

impl Records {
    /// Of a run with a limit of `limit_pages`.
    pub fn new(limit_pages: u64) -> Self {
        Self {
            activity: Activity::new(limit_pages),
            code: Samples::default(),
            commands: HashMap::new(),
            ended: Vec::new(),
            more: 0,
        }
    }

    /// A managed process has connected.
    pub fn on_start(&mut self, pid: u32) {
        let command = list::command_of(pid).chars().take(COMMAND).collect();
        self.commands.insert(pid, command);
    }

    /// A record of the trace, whose numbers are possible.
    pub fn on_record(&mut self, record: &Record) {
        self.activity.record(record);
    }

    /// Records of a process have come, `now` ns after the start.
    pub fn on_active(&mut self, pid: u32, now: u64) {
        self.code.on_active(pid, now);
    }

    /// `now`, ns since the start: what can be seen of processes that live.
    pub fn look(&mut self, now: u64) {
        self.activity.look_at_names(now);
        self.code.look(now);
    }

    /// A process has ended, or the page is written.
    pub fn on_end(&mut self, pid: u32, stats: &StatsSnapshot) {
        self.code.on_end(pid);
        self.ended.push(Process {
            pid,
            command: self.commands.remove(&pid).unwrap_or_default(),
            managed_bytes: stats.managed_bytes,
            faults_major: stats.faults_major,
            in_bytes: stats.swap_in_bytes,
            out_bytes: stats.swap_out_bytes,
            stalled_ns: stats.stalled_ns,
        });
        let rank =
            |one: &Process| std::cmp::Reverse((one.in_bytes + one.out_bytes, one.managed_bytes));
        self.ended.sort_by_key(rank);
        self.more += self.ended.len().saturating_sub(PROCESSES);
        self.ended.truncate(PROCESSES);
    }
}

/// The page of a run in progress.
#[derive(Debug)]
pub struct Watching {
    file: PageFile,
    title: String,
    began: SystemTime,
    timeline: Timeline,
    areas: Vec<Area>,
}

impl Watching {
    /// Checks that the page can be written to `path`. The run is that of `command`.
    pub fn open(path: &Path, command: &[OsString]) -> Result<Self, PageError> {
        let words: Vec<String> = command
            .iter()
            .map(|word| quoted(&word.to_string_lossy()))
            .collect();
        Ok(Self {
            file: PageFile::check(path)?,
            title: words.join(" ").chars().take(COMMAND).collect(),
            began: SystemTime::now(),
            timeline: Timeline::default(),
            areas: Vec::new(),
        })
    }

    /// How soon to look, `now` after the start.
    pub fn due_in(&self, now: Duration) -> Duration {
        self.timeline.due_in(now)
    }

    /// The run as it is.
    pub fn on_look(&mut self, sample: Sample, areas: Vec<Area>) {
        self.timeline.push(sample);
        for area in areas {
            match self
                .areas
                .iter_mut()
                .find(|old| old.number == area.number && old.path == area.path)
            {
                Some(old) if old.used_bytes > area.used_bytes => {}
                Some(old) => *old = area,
                None => self.areas.push(area),
            }
        }
    }

    /// The run has ended. Returns the path of the page.
    pub fn write(self, run: &Run, records: Records) -> Result<PathBuf, PageError> {
        let found = records.activity.finish();
        let functions = records.code.finish();
        self.file.write(&Story {
            title: self.title,
            found: &found,
            measured: Some(Measured {
                run,
                timeline: &self.timeline,
                areas: &self.areas,
                processes: &records.ended,
                more_processes: records.more,
                functions: &functions,
                began: self.began,
            }),
            cut_off: false,
        })
    }
}
