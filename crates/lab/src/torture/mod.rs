//! `foreswap lab torture`: random programs on random machines with every kind of failure, until the core breaks a
//! rule.
//!
//! The core under test is the engine's, unchanged. The machine is the one of `foreswap-model`, which the core's own
//! tests use as well: a seed gives a machine and a list of steps. Here are the command and its jobs; `guard` catches
//! failures, `shrink` makes them small, `file` stores them, `report` prints them.

mod file;
mod guard;
mod report;
mod shrink;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use clap::Args;

#[cfg(feature = "planted")]
use foreswap_model::PlantedBug;
use foreswap_model::{Plan, Step, Steps, Summary};

use guard::{Finding, Verdict};
use report::{Progress, Report, Shrunk};
use shrink::{Case, Shrinker};

/// The time limit of shrinking.
const SHRINKING: Duration = Duration::from_secs(120);
/// The default duration.
const DEFAULT_SECONDS: f64 = 10.0;

/// `foreswap lab torture`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct TortureArgs {
    /// Seed of the first run; each further run has the next one [default: a fresh one, which is printed]
    #[arg(long, value_name = "N", conflicts_with = "replay")]
    seed: Option<u64>,

    /// Steps of each run
    #[arg(long, value_name = "M", default_value_t = 20_000, conflicts_with = "replay",
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    steps: u64,

    /// Stop after this many runs [default: 1 with --seed, otherwise no limit]
    #[arg(long, value_name = "R", conflicts_with = "replay",
          value_parser = clap::value_parser!(u64).range(1..))]
    runs: Option<u64>,

    /// Begin no run after this many seconds [default: 10, unless --seed or --runs is given]
    #[arg(long, value_name = "S", conflicts_with = "replay", value_parser = seconds)]
    seconds: Option<f64>,

    /// Runs at a time [default: the number of CPUs]
    #[arg(long, value_name = "J", conflicts_with = "replay",
          value_parser = clap::value_parser!(u64).range(1..=1024))]
    jobs: Option<u64>,

    /// Shrink a failure, print its steps, and write them to FILE [default: torture-SEED.jsonl]
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    shrink: Option<Option<PathBuf>>,

    /// Execute the steps of FILE, which --shrink wrote
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,

    /// Processes share pages after a fork, and are charged by their accounts
    #[arg(long, conflicts_with = "replay")]
    families: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Plant a bug in the core
    #[cfg(feature = "planted")]
    #[arg(long, value_name = "BUG", value_parser = bug)]
    plant: Option<PlantedBug>,
}

const HELP: &str = "\
Example:
  foreswap lab torture --seconds 30 --seed 1

The same seed and number of steps do the same on any machine. Nothing outside this process is
changed.

The exit status is 0 when no bug was found, 1 when one was (the command that replays it is
printed), and 2 when the arguments or the file to be replayed are wrong.";

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=1e9).contains(&seconds) => Ok(seconds),
        _ => Err(format!("`{text}`; expected seconds, such as 30 or 0.5")),
    }
}

/// A planted bug by its name in replay files.
#[cfg(feature = "planted")]
fn bug(name: &str) -> Result<PlantedBug, String> {
    serde_json::from_value(name.into()).map_err(|error| error.to_string())
}

/// A fresh seed.
fn fresh() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = since.map_or(0, |since| since.as_nanos() as u64);
    // Short enough to type.
    crate::hash::mix(nanos ^ u64::from(std::process::id()) << 40) >> 32
}

/// The job.
struct Job {
    first: u64,
    steps: u64,
    runs: Option<u64>,
    until: Option<Instant>,
    threads: u64,
    families: bool,
    #[cfg(feature = "planted")]
    plant: Option<PlantedBug>,
}

impl Job {
    fn new(args: &TortureArgs) -> Self {
        let runs = args
            .runs
            .or((args.seed.is_some() && args.seconds.is_none()).then_some(1));
        let seconds = args
            .seconds
            .or(runs.is_none().then_some(DEFAULT_SECONDS))
            .map(Duration::from_secs_f64);
        let cpus = thread::available_parallelism().map_or(1, |n| n.get() as u64);
        Job {
            first: args.seed.unwrap_or_else(fresh),
            steps: args.steps,
            runs,
            until: seconds.map(|seconds| Instant::now() + seconds),
            threads: args.jobs.unwrap_or(cpus).min(runs.unwrap_or(u64::MAX)),
            families: args.families,
            #[cfg(feature = "planted")]
            plant: args.plant,
        }
    }

    fn plan(&self, seed: u64) -> Plan {
        let plan = match self.families {
            true => Plan::draw(seed).with_family(seed),
            false => Plan::draw(seed),
        };
        #[cfg(feature = "planted")]
        let plan = Plan {
            plant: self.plant,
            ..plan
        };
        plan
    }

    /// Runs one seed after the other, on several threads, until a bug is found or the job is done. Of several bugs
    /// found at once, returns the one with the lowest seed.
    fn run(&self, progress: &Progress) -> (Summary, u64, Option<(u64, Finding)>) {
        let next = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let state = Mutex::new((Summary::default(), 0, None::<(u64, Finding)>));
        let worker = || {
            while !stop.load(Ordering::Relaxed) && self.until.is_none_or(|at| Instant::now() < at) {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if self.runs.is_some_and(|runs| n >= runs) {
                    return;
                }
                let seed = self.first.wrapping_add(n);
                let plan = self.plan(seed);
                let steps = Steps::new(seed, &plan).take(self.steps as usize);
                let verdict = guard::run(plan, steps);
                let Ok(mut state) = state.lock() else {
                    return;
                };
                state.1 += 1;
                match verdict {
                    Verdict::Sound(summary) => state.0.add(&summary),
                    Verdict::Bug(finding) => {
                        stop.store(true, Ordering::Relaxed);
                        if state.2.as_ref().is_none_or(|(lower, _)| *lower > seed) {
                            state.2 = Some((seed, finding));
                        }
                    }
                }
                progress.at(state.1, state.0.tally.faults);
            }
        };
        thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(worker);
            }
        });
        state.into_inner().unwrap_or_default()
    }
}

/// Runs `foreswap lab torture`.
///
/// # Errors
///
/// Standard output or the file of `--shrink` cannot be written.
pub fn torture(
    args: &TortureArgs,
    out: &mut impl Write,
    err: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.replay {
        let read = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot be read: {error}; expected what --shrink wrote"));
        return match read.and_then(|text| file::read(&text)) {
            Ok((plan, steps)) => replay(args, path.display().to_string(), plan, steps, out),
            Err(error) => {
                writeln!(err, "foreswap lab: {}: {error}", path.display())?;
                Ok(ExitCode::from(2))
            }
        };
    }
    let job = Job::new(args);
    if !args.json {
        writeln!(
            out,
            "seeds from {}, {} steps each",
            job.first,
            crate::size::count(job.steps)
        )?;
        out.flush()?;
    }
    let began = Instant::now();
    let progress = Progress::new();
    let (summary, runs, found) = job.run(&progress);
    progress.end();
    let mut report = Report::new(&job, &summary, runs, began.elapsed());
    if let Some((seed, finding)) = found {
        let families = if job.families { " --families" } else { "" };
        let steps = job.steps;
        let command = format!("foreswap lab torture{families} --seed {seed} --steps {steps}");
        #[cfg(feature = "planted")]
        let command = match job.plant {
            Some(bug) => {
                let name = serde_json::to_value(bug)?;
                format!("{command} --plant {}", name.as_str().unwrap_or_default())
            }
            None => command,
        };
        report.found(seed, &finding, command);
        if let Some(path) = &args.shrink {
            let plan = job.plan(seed);
            let steps = Steps::new(seed, &plan)
                .take(finding.step as usize)
                .collect();
            let path = path
                .clone()
                .unwrap_or_else(|| format!("torture-{seed}.jsonl").into());
            report.shrunk(shrink(plan, steps, finding, path)?);
        }
    }
    report.write(args.json, out)
}

fn shrink(plan: Plan, steps: Vec<Step>, finding: Finding, path: PathBuf) -> anyhow::Result<Shrunk> {
    let case = Case {
        plan,
        steps,
        finding,
    };
    let (case, runs) = Shrinker::new(case, SHRINKING).shrink();
    let text = file::write(&case.plan, &case.steps).context("the steps as text")?;
    std::fs::write(&path, text)
        .with_context(|| format!("{}: cannot be written", path.display()))?;
    Ok(Shrunk::new(case, runs, &path))
}

fn replay(
    args: &TortureArgs,
    name: String,
    plan: Plan,
    steps: Vec<Step>,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let count = steps.len() as u64;
    let verdict = guard::run(plan.clone(), steps.clone().into_iter());
    let (summary, finding) = match verdict {
        Verdict::Sound(summary) => (*summary, None),
        Verdict::Bug(finding) => (Summary::default(), Some(finding)),
    };
    let mut report = Report::of_file(&name, count, &summary, began.elapsed());
    if let Some(finding) = finding {
        report.found(0, &finding, format!("foreswap lab torture --replay {name}"));
        if let Some(path) = &args.shrink {
            let path = path
                .clone()
                .unwrap_or_else(|| format!("{name}.small").into());
            report.shrunk(shrink(plan, steps, finding, path)?);
        }
    }
    report.write(args.json, out)
}
