//! The output of `foreswap lab torture`.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use foreswap_model::Summary;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::Job;
use super::guard::Finding;
use super::shrink::Case;
use crate::size::count;

/// The progress, on a terminal only.
pub struct Progress(Option<ProgressBar>);

impl Progress {
    /// Nothing has been run.
    pub fn new() -> Self {
        Progress(std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        }))
    }

    /// This many runs are over, with this many faults.
    pub fn at(&self, runs: u64, faults: u64) {
        if let Some(bar) = &self.0 {
            bar.set_message(format!("{} runs, {} faults", count(runs), count(faults)));
        }
    }

    /// The job is done.
    pub fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// A failure made small.
#[derive(Serialize)]
pub struct Shrunk {
    steps: Vec<foreswap_model::Step>,
    what: String,
    place: String,
    /// The number of runs that it took.
    runs: u64,
    file: String,
}

impl Shrunk {
    /// The contents of `path`.
    pub fn new(case: Case, runs: u64, path: &Path) -> Self {
        Shrunk {
            steps: case.steps,
            what: case.finding.what,
            place: case.finding.place,
            runs,
            file: path.display().to_string(),
        }
    }
}

#[derive(Serialize)]
struct Bug {
    seed: u64,
    /// The step that showed it, from 1.
    step: u64,
    what: String,
    place: String,
    replay: String,
    shrunk: Option<Shrunk>,
}

/// The overall result.
#[derive(Serialize)]
pub struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_seed: Option<u64>,
    runs: u64,
    jobs: u64,
    steps: u64,
    touches: u64,
    faults: u64,
    seconds: f64,
    faults_per_second: f64,
    swap_in_pages: u64,
    swap_out_pages: u64,
    huge_pages: u64,
    huge_pages_drained: u64,
    sigbus: u64,
    forks: u64,
    deaths: u64,
    swapoffs: u64,
    longest_wait_ns: u64,
    longest_kept_ns: u64,
    /// Equal for equal runs.
    trace: String,
    bug: Option<Bug>,
}

impl Report {
    fn of(summary: &Summary, took: Duration) -> Self {
        let seconds = took.as_secs_f64();
        let faults = summary.tally.faults;
        Report {
            file: None,
            first_seed: None,
            runs: 1,
            jobs: 1,
            steps: summary.steps,
            touches: summary.tally.touches,
            faults,
            seconds,
            faults_per_second: (faults as f64 / seconds.max(1e-9)).round(),
            swap_in_pages: summary.swap_in,
            swap_out_pages: summary.swap_out,
            huge_pages: summary.huge,
            huge_pages_drained: summary.drained,
            sigbus: summary.tally.sigbus,
            forks: summary.forks,
            deaths: summary.deaths,
            swapoffs: summary.swapoffs,
            longest_wait_ns: summary.tally.longest,
            longest_kept_ns: summary.tally.kept,
            trace: format!("{:016x}", summary.trace),
            bug: None,
        }
    }

    /// For runs from seeds.
    pub fn new(job: &Job, summary: &Summary, runs: u64, took: Duration) -> Self {
        Report {
            first_seed: Some(job.first),
            runs,
            jobs: job.threads,
            ..Self::of(summary, took)
        }
    }

    /// For a replayed file.
    pub fn of_file(name: &str, steps: u64, summary: &Summary, took: Duration) -> Self {
        Report {
            file: Some(name.into()),
            steps,
            ..Self::of(summary, took)
        }
    }

    /// A bug was found.
    pub fn found(&mut self, seed: u64, finding: &Finding, replay: String) {
        self.bug = Some(Bug {
            seed,
            step: finding.step,
            what: finding.what.clone(),
            place: finding.place.clone(),
            replay,
            shrunk: None,
        });
    }

    /// The bug was made small.
    pub fn shrunk(&mut self, shrunk: Shrunk) {
        if let Some(bug) = &mut self.bug {
            bug.shrunk = Some(shrunk);
        }
    }

    /// Prints it; returns the exit status.
    pub fn write(&self, json: bool, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let text = match json {
            true => serde_json::to_string_pretty(self)? + "\n",
            false => self.text()?,
        };
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(ExitCode::from(u8::from(self.bug.is_some())))
    }

    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        writeln!(
            text,
            "{} runs, {} steps, {} touches, {} faults in {:.1} s: {} faults/s",
            count(self.runs),
            count(self.steps),
            count(self.touches),
            count(self.faults),
            self.seconds,
            count(self.faults_per_second as u64),
        )?;
        writeln!(
            text,
            "{} pages read, {} written, {} huge ones ({} by swapoff); {} forks, {} deaths, {} swapoffs, {} lost pages touched; the \
             longest wait took {} ms of virtual time, {} ms the longest for which the core was the reason",
            count(self.swap_in_pages),
            count(self.swap_out_pages),
            count(self.huge_pages),
            count(self.huge_pages_drained),
            count(self.forks),
            count(self.deaths),
            count(self.swapoffs),
            count(self.sigbus),
            count(self.longest_wait_ns / 1_000_000),
            count(self.longest_kept_ns / 1_000_000),
        )?;
        let Some(bug) = &self.bug else {
            writeln!(text, "no bug was found")?;
            return Ok(text);
        };
        match &self.file {
            Some(file) => writeln!(
                text,
                "BUG at step {} of {file}: {}",
                count(bug.step),
                bug.what
            )?,
            None => writeln!(
                text,
                "BUG with seed {}, at step {}: {}",
                bug.seed,
                count(bug.step),
                bug.what
            )?,
        }
        writeln!(text, "  seen in {}", bug.place)?;
        writeln!(text, "  replay: {}", bug.replay)?;
        if let Some(shrunk) = &bug.shrunk {
            writeln!(
                text,
                "shrunk to {} steps by {} runs: {}",
                count(shrunk.steps.len() as u64),
                count(shrunk.runs),
                shrunk.what
            )?;
            for (n, step) in (1..).zip(&shrunk.steps) {
                writeln!(text, "  {n:>3}  process {}: {:?}", step.who, step.act)?;
            }
            writeln!(
                text,
                "  replay: foreswap lab torture --replay {}",
                shrunk.file
            )?;
        }
        Ok(text)
    }
}
