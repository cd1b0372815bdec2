//! The last check: a small job under `foreswap run`, as a user would start it.
//!
//! The job fills more memory than the limit, reads it back and compares. It is foreswap itself, with a hidden
//! subcommand. A trial that succeeds is the proof that foreswap works here; no check before it can say so.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;

use super::check::Check;
use super::speed::next_random;
use crate::memory_setting::MIN_LIMIT;
use crate::size::humane;

/// The job's memory.
const BYTES: u64 = 48 << 20;
/// A slow disk needs seconds.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);
/// Of the job, if it read something else than it had written.
const WRONG: u8 = 3;
const NAME: &str = "trial";
/// Lines of the run's messages that are shown.
const LINES: usize = 4;

/// The result.
#[derive(Clone, Debug)]
pub struct Trial {
    /// How it ended.
    pub end: End,
    /// The run's messages.
    pub said: String,
    /// Its statistics.
    pub stats: Value,
    /// From start to end.
    pub took: Duration,
}

/// How the run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It could not be started.
    NotStarted(String),
    /// It did not end in time.
    Late,
    /// Its exit status.
    Status(i32),
    /// By a signal.
    Killed(i32),
}

/// The job: fills memory with words that do not compress, and reads them back.
pub fn job() -> ExitCode {
    let words = BYTES as usize / 8;
    let mut memory: Vec<u64> = Vec::with_capacity(words);
    let mut word = 1;
    for _ in 0..words {
        word = next_random(word);
        memory.push(word);
    }
    let mut word = 1;
    for found in std::hint::black_box(&memory) {
        word = next_random(word);
        if *found != word {
            return ExitCode::from(WRONG);
        }
    }
    ExitCode::SUCCESS
}

impl Trial {
    /// Runs the job on the areas of `swap`, or the default one.
    pub fn run(swap: &[String]) -> Self {
        let began = Instant::now();
        let mut trial = Self {
            end: End::Late,
            said: String::new(),
            stats: Value::Null,
            took: Duration::ZERO,
        };
        trial.end = match run(swap) {
            Ok((end, mut stats, mut said)) => {
                trial.said = text_of(&mut said);
                trial.stats = serde_json::from_str(&text_of(&mut stats)).unwrap_or_default();
                end
            }
            Err(error) => End::NotStarted(error.to_string()),
        };
        trial.took = began.elapsed();
        trial
    }

    fn bytes(&self, key: &str) -> u64 {
        self.stats[key].as_u64().unwrap_or(0)
    }

    /// The check; `is_explained` if one before it has found an obstacle.
    pub fn judge(&self, is_explained: bool) -> Check {
        let (end, out, back) = (
            &self.end,
            self.bytes("swap_out_bytes"),
            self.bytes("swap_in_bytes"),
        );
        let task = format!("{} in {}", humane(BYTES), humane(MIN_LIMIT));
        let check = match end {
            End::Status(0) if out > 0 && back > 0 => {
                let found = format!(
                    "{task}, every byte compared: {} out, {} in, {:.1} s",
                    humane(out),
                    humane(back),
                    self.took.as_secs_f64()
                );
                Check::ok(NAME, found)
            }
            end => {
                let found = match end {
                    End::NotStarted(why) => format!("{task}: it could not be started: {why}"),
                    End::Late => format!("{task}: not done after {} s", PATIENCE.as_secs()),
                    End::Status(0) => format!("{task}: the job ran without foreswap"),
                    End::Status(status) if *status == i32::from(WRONG) => {
                        format!("{task}: WRONG BYTES were read back; do not use foreswap here")
                    }
                    End::Status(status) => format!("{task}: exit status {status}"),
                    End::Killed(signal) => format!("{task}: ended by signal {signal}"),
                };
                let said = excerpt(&self.said);
                let found = match (is_explained, said.is_empty()) {
                    (true, _) => format!("{found}, for a reason above"),
                    (false, true) => found,
                    (false, false) => format!("{found}; {said}"),
                };
                Check::failure(NAME, found, "A run would end like this.").fact("said", said)
            }
        };
        check
            .fact("limit_bytes", MIN_LIMIT)
            .fact("job_bytes", BYTES)
            .fact("swap_out_bytes", out)
            .fact("swap_in_bytes", back)
            .fact("peak_resident_bytes", self.bytes("peak_resident_bytes"))
            .fact("elapsed_s", self.took.as_secs_f64())
    }
}

/// The first messages, on one line.
fn excerpt(said: &str) -> String {
    let lines = said.lines().take(LINES).map(str::trim);
    let text = lines.collect::<Vec<_>>().join(" ");
    // `run` names this command.
    match text.split_once("; `foreswap doctor") {
        Some((before, _)) => before.to_owned(),
        None => text,
    }
}

/// The end of the run, its statistics and its messages.
fn run(swap: &[String]) -> std::io::Result<(End, File, File)> {
    // Files: a pipe that a process keeps open would delay the end.
    let file = |name| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
    let (stats, said) = (file(c"foreswap-stats")?, file(c"foreswap-said")?);
    let foreswap = std::env::current_exe()?;
    let limit = MIN_LIMIT.to_string();
    let mut command = Command::new(&foreswap);
    command.args([
        "run",
        "--quiet",
        "--stats",
        "/dev/stdout",
        "--memory",
        &limit,
    ]);
    for area in swap {
        command.arg(format!("--swap={area}"));
    }
    command.arg("--").arg(&foreswap).arg("trial");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stats.try_clone()?)
        .stderr(said.try_clone()?)
        .spawn()?;
    let began = Instant::now();
    let end = loop {
        match child.try_wait()? {
            Some(status) => break ended(status),
            None if began.elapsed() > PATIENCE => {
                // The job dies with it.
                child.kill()?;
                child.wait()?;
                break End::Late;
            }
            None => std::thread::sleep(LOOK),
        }
    };
    Ok((end, stats, said))
}

fn ended(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Status(code),
        (None, signal) => End::Killed(signal.unwrap_or_default()),
    }
}

fn text_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.read_to_end(&mut bytes));
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    fn judged(end: End, out: u64, said: &str) -> Check {
        let trial = Trial {
            end,
            said: said.into(),
            stats: serde_json::json!({"swap_out_bytes": out, "swap_in_bytes": out}),
            took: Duration::from_millis(250),
        };
        trial.judge(false)
    }

    #[test]
    fn only_a_job_that_was_paged_is_a_proof() {
        assert_eq!(judged(End::Status(0), 9, "").verdict, Verdict::Ok);
        let check = judged(End::Status(0), 0, "foreswap: process 7 is not managed\n");
        assert_eq!(check.verdict, Verdict::Failure);
        assert!(check.found.contains("process 7"), "{}", check.found);
        for end in [
            End::Status(125),
            End::Killed(25),
            End::Late,
            End::NotStarted("no".into()),
        ] {
            assert_eq!(judged(end, 9, "").verdict, Verdict::Failure);
        }
        let text = "foreswap: no room; `foreswap doctor` says more\n";
        assert_eq!(excerpt(text), "foreswap: no room");
        let check = judged(End::Status(3), 9, "");
        assert!(check.found.contains("WRONG BYTES"), "{}", check.found);
    }

    #[test]
    fn the_job_finds_what_it_wrote() {
        assert_eq!(job(), ExitCode::SUCCESS);
    }
}
