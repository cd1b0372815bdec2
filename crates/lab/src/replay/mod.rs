//! `foreswap lab replay`: a trace with other memory sizes and policies.
//!
//! The shipped core runs on a small simulated machine, one combination per run, as many in parallel as there are
//! CPUs. A run depends neither on the clock of this machine nor on other runs: the same trace gives the same bytes.

mod area;
pub mod device;
mod elsewhere;
pub mod machine;
mod min;
mod pages;
mod report;
mod with_servers;
pub mod world;
#[cfg(feature = "ablate")]
pub mod worth;

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use foreswap_core::ReclaimPolicy;
use foreswap_core::readahead::Policy;

use crate::jobs;
use crate::on_file;
use crate::progress::Progress;
use crate::size;
use crate::trace::{Source, SourceOptions};
use device::{Device, Kind};
pub use elsewhere::Request;
use machine::{Figures, Machine, Setup};
use min::Min;
use report::Report;
use world::System;

/// The least simulated memory, in pages (1 MiB).
const LEAST: u64 = 256;

/// `foreswap lab replay`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct ReplayArgs {
    /// A trace: of `run --trace`, CSV, or libCacheSim's oracleGeneral
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    #[command(flatten)]
    source: SourceOptions,

    /// Memory sizes, such as 256M,512M,1G
    #[arg(long, required = true, value_name = "SIZES", value_delimiter = ',', value_parser = memory)]
    memory: Vec<u64>,

    /// Readahead policies to try
    #[arg(
        long,
        value_enum,
        value_name = "POLICIES",
        value_delimiter = ',',
        default_value = "streams"
    )]
    readahead: Vec<Readahead>,

    /// Huge page policies to try
    #[arg(
        long,
        value_enum,
        value_name = "MODES",
        value_delimiter = ',',
        default_value = "adaptive"
    )]
    thp: Vec<Thp>,

    /// Orders of eviction to try
    #[arg(
        long,
        value_enum,
        value_name = "POLICIES",
        value_delimiter = ',',
        default_value = "clock"
    )]
    reclaim: Vec<Reclaim>,

    /// Largest readahead window, in pages [default: each policy's own]
    #[arg(long, value_name = "PAGES", value_parser = clap::value_parser!(u32).range(1..=512))]
    max_window: Option<u32>,

    /// The device of the swap area
    #[arg(long, value_enum, value_name = "DEVICE", default_value = "virtio")]
    device: Kind,

    /// Its latency in nanoseconds, instead of the device's own
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(..=10_000_000_000))]
    latency: Option<u64>,

    /// Its bandwidth in bytes per second, instead of the device's own
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    bandwidth: Option<u64>,

    /// A task's work between two touches, in nanoseconds
    #[arg(long, value_name = "NS", default_value = "1000", value_parser = clap::value_parser!(u64).range(..=10_000_000_000))]
    think: u64,

    /// Runs at a time [default: the number of CPUs]
    #[arg(long, value_name = "J", value_parser = jobs::count)]
    jobs: Option<NonZeroUsize>,

    /// Draw the times to an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Example:
  foreswap lab replay job.trace --memory 512M,1G --readahead streams,vma,none --thp adaptive,never

The engine's own memory manager runs on a simulated machine in virtual time: each task and the
engine have a CPU of their own, and one device holds the swap area. The first touch of a page fills
it; all processes share one memory. File reads are counted and left out. The times of the trace are
not used. Every size is tried with every policy and every mode of huge pages; the machine always has
a huge page. Two runs of the same trace print the same, whatever --jobs says.

`of MIN` is the share of the major faults that Belady's MIN would have in as much memory: the order of eviction
of one that knows the trace. It reads no page ahead, so that only runs with --readahead none stay below 100 %.

A trace of `run --trace` lacks the touches of pages that were mapped: it says less of memory sizes
below the limit under which it was recorded.

The exit status is 2 when the trace cannot be read, is damaged, or cannot be replayed.";

/// `--readahead`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Readahead {
    /// The next pages of every stream of touches
    Streams,
    /// Neighbours by address; more of them while they are used
    Vma,
    /// Neighbours on the swap area
    Cluster,
    /// Along the direction and stride of the last faults
    Trend,
    /// Only the page itself
    None,
}

impl Readahead {
    /// The core's policy, with the windows of `foreswap run`.
    fn policy(self, max_window: Option<u32>) -> Policy {
        match self {
            Readahead::Streams => Policy::Streams(max_window.unwrap_or(512)),
            Readahead::Vma => Policy::Vma(max_window.unwrap_or(8).min(32)),
            Readahead::Cluster => Policy::Cluster(max_window.unwrap_or(8)),
            Readahead::Trend => Policy::Trend(max_window.unwrap_or(32)),
            Readahead::None => Policy::None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Readahead::Streams => "streams",
            Readahead::Vma => "vma",
            Readahead::Cluster => "cluster",
            Readahead::Trend => "trend",
            Readahead::None => "none",
        }
    }
}

/// `--thp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Thp {
    /// Wherever they are possible
    Always,
    /// Where memory is touched in order
    Adaptive,
    /// Only pages of 4 KiB
    Never,
}

impl Thp {
    fn mode(self) -> foreswap_core::Thp {
        match self {
            Thp::Always => foreswap_core::Thp::Always,
            Thp::Adaptive => foreswap_core::Thp::Adaptive,
            Thp::Never => foreswap_core::Thp::Never,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Thp::Always => "always",
            Thp::Adaptive => "adaptive",
            Thp::Never => "never",
        }
    }
}

/// `--reclaim`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Reclaim {
    /// References that a sweep takes
    Clock,
    /// Two lists, and refault distance
    Lru,
    /// The order of coming, and refault distance
    Generations,
    /// A small and a main queue
    #[value(name = "s3fifo")]
    S3Fifo,
}

impl Reclaim {
    fn policy(self) -> ReclaimPolicy {
        match self {
            Reclaim::Clock => ReclaimPolicy::Clock,
            Reclaim::Lru => ReclaimPolicy::Lru,
            Reclaim::Generations => ReclaimPolicy::Generations,
            Reclaim::S3Fifo => ReclaimPolicy::S3Fifo,
        }
    }

    fn name(self) -> &'static str {
        self.policy().name()
    }
}

fn memory(text: &str) -> Result<u64, String> {
    match size::pages(text)? {
        pages if pages < LEAST => Err(format!(
            "too little to work in; the least is {}",
            size::humane(LEAST)
        )),
        // The size of the simulated area.
        pages if pages > u64::from(area::SLOTS) => Err(format!(
            "more than is simulated; the most is {}",
            size::humane(u64::from(area::SLOTS))
        )),
        pages => Ok(pages),
    }
}

/// The settings of one run.
#[derive(Clone, Copy)]
struct Combination {
    /// In pages.
    memory: u64,
    readahead: Readahead,
    thp: Thp,
    reclaim: Reclaim,
}

/// One run.
struct Run {
    of: Combination,
    figures: Figures,
    /// Misses of Belady's MIN; `None`: the trace is too long.
    min: Option<u64>,
    cut_off: bool,
}

/// The misses of MIN with each memory size.
fn misses_of_min(args: &ReplayArgs) -> anyhow::Result<Option<Vec<u64>>> {
    let wrong = on_file(&args.trace);
    let mut source = Source::open(&args.trace, &args.source).map_err(&wrong)?;
    let mut min = Min::default();
    while let Some(record) = source.next().map_err(&wrong)? {
        min.record(&record);
    }
    Ok(min.misses(&args.memory))
}

fn replay_one(
    args: &ReplayArgs,
    setup: Setup,
    mut progress: Progress,
) -> anyhow::Result<(Figures, bool)> {
    let wrong = on_file(&args.trace);
    let mut source = Source::open(&args.trace, &args.source).map_err(&wrong)?;
    let mut machine = Machine::new(setup);
    let mut records = 0u64;
    let place = |records: u64| format!("{}, record {records}", args.trace.display());
    while let Some(record) = source.next().map_err(&wrong)? {
        records += 1;
        machine
            .record(&record)
            .map_err(anyhow::Error::msg)
            .with_context(|| place(records))?;
        progress.record(|| source.progress().0);
    }
    let figures = machine
        .finish()
        .map_err(anyhow::Error::msg)
        .with_context(|| place(records))?;
    progress.at(source.progress().0);
    Ok((figures, source.was_cut_off()))
}

/// Replays all combinations and reports to `out`; remarks go to `err`.
///
/// # Errors
///
/// The trace is damaged or cannot be replayed, or something cannot be written.
pub fn replay(args: &ReplayArgs, out: &mut impl Write, err: &mut impl Write) -> anyhow::Result<()> {
    let mut device = Device::of(args.device);
    if let Some(latency) = args.latency {
        (device.read, device.write) = (latency, latency);
    }
    device.bandwidth = args.bandwidth.unwrap_or(device.bandwidth);
    let mut combinations = Vec::new();
    for &memory in &args.memory {
        for &readahead in &args.readahead {
            for &thp in &args.thp {
                combinations.extend(args.reclaim.iter().map(|&reclaim| Combination {
                    memory,
                    readahead,
                    thp,
                    reclaim,
                }));
            }
        }
    }
    let wrong = on_file(&args.trace);
    let (_, bytes) = Source::open(&args.trace, &args.source)
        .map_err(wrong)?
        .progress();
    let progress = Progress::over(bytes * combinations.len() as u64);
    let run = |of: &Combination| {
        let setup = Setup {
            memory: of.memory,
            readahead: of.readahead.policy(args.max_window),
            thp: of.thp.mode(),
            reclaim: of.reclaim.policy(),
            device,
            think: args.think,
            cpus: 0,
            system: System::default(),
            #[cfg(feature = "ablate")]
            heuristics: Default::default(),
        };
        replay_one(args, setup, progress.clone()).map(|(figures, cut_off)| Run {
            of: *of,
            figures,
            min: None,
            cut_off,
        })
    };
    let runs = jobs::each(jobs::number(args.jobs), &combinations, run);
    progress.end();
    let mut runs = runs.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(misses) = misses_of_min(args)? {
        for run in &mut runs {
            let sizes = args.memory.iter().zip(&misses);
            let of_size = sizes.into_iter().find(|(size, _)| **size == run.of.memory);
            run.min = of_size.map(|(_, &misses)| misses);
        }
    }

    let limit = Source::open(&args.trace, &args.source)
        .map_err(on_file(&args.trace))?
        .header()
        .limit;
    let report = Report {
        trace: args.trace.display().to_string(),
        device,
        think: args.think,
        limit,
        runs: &runs,
    };
    if let Some(path) = &args.plot {
        crate::write_file(path, report.plot().svg().as_bytes())?;
    }
    if args.json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        report.table(out)?;
    }
    out.flush()?;
    report.remarks(err)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ReplayArgs,
    }

    fn run(words: &[&str]) -> Result<String, String> {
        let cli = Cli::try_parse_from(std::iter::once("replay").chain(words.iter().copied()));
        let args = cli.map_err(|error| error.to_string())?.args;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        replay(&args, &mut out, &mut err).map_err(|error| format!("{error:#}"))?;
        Ok(String::from_utf8(out).expect("text"))
    }

    #[test]
    fn all_combinations_are_run_and_give_the_same_each_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.csv");
        let lines: String = (0..9000).map(|n| format!("{}\n", n % 1500)).collect();
        std::fs::write(&path, format!("page\n{lines}")).expect("written");
        let (path, plot) = (path.to_str().expect("text"), folder.path().join("p.svg"));
        let words = [
            path,
            "--memory",
            "2M,4M,16M",
            "--readahead",
            "vma,cluster,trend,streams,none",
            "--plot",
            plot.to_str().expect("text"),
        ];
        let text = run(&words).expect("replayed");
        assert_eq!(
            text.lines().filter(|line| line.contains(" MiB ")).count(),
            15,
            "{text}"
        );
        assert_eq!(run(&words).expect("replayed"), text);
        let drawn = std::fs::read_to_string(plot).expect("drawn");
        assert_eq!(drawn.matches("<polyline").count(), 5);

        let json =
            run(&[path, "--memory", "2M,16M", "--readahead", "none", "--json"]).expect("replayed");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let runs = json["runs"].as_array().expect("runs");
        assert_eq!(runs[0]["touches"].as_u64(), Some(9000));
        assert!(runs[0]["faults_major"].as_u64() > Some(3000));
        assert_eq!(runs[1]["faults_major"].as_u64(), Some(0));
        assert!(runs[0]["elapsed_s"].as_f64() > runs[1]["elapsed_s"].as_f64());
    }

    #[test]
    fn huge_pages_are_tried_as_asked_and_jobs_change_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.csv");
        let lines: String = (0..30_000).map(|n| format!("{}\n", n % 9000)).collect();
        std::fs::write(&path, format!("page\n{lines}")).expect("written");
        let (path, plot) = (path.to_str().expect("text"), folder.path().join("p.svg"));
        let plot = plot.to_str().expect("text");
        let all = |more: &[&str]| {
            let words = [
                path,
                "--memory",
                "16M,64M",
                "--thp",
                "always,adaptive,never",
            ];
            run(&[&words, more].concat()).expect("replayed")
        };
        let text = all(&["--jobs", "1"]);
        for jobs in ["2", "5"] {
            assert_eq!(all(&["--jobs", jobs]), text);
        }
        for thp in ["always", "adaptive", "never"] {
            let named = |line: &&str| line.split_whitespace().any(|word| word == thp);
            assert_eq!(text.lines().filter(named).count(), 2, "{text}");
        }
        let json = all(&["--json", "--plot", plot]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let huge = |n: usize| json["runs"][n]["huge_swap_out"].as_u64();
        assert!(huge(0) > Some(0) && huge(1) > Some(0), "{json}");
        assert_eq!(
            (huge(2), &json["runs"][2]["thp"]),
            (Some(0), &"never".into())
        );
        let drawn = std::fs::read_to_string(plot).expect("drawn");
        assert!(drawn.contains(">streams, adaptive</text>"), "{drawn}");
    }

    #[test]
    fn orders_of_eviction_are_compared_with_min() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.csv");
        let lines: String = (0..9000).map(|n| format!("{}\n", n % 600)).collect();
        std::fs::write(&path, format!("page\n{lines}")).expect("written");
        let path = path.to_str().expect("text");
        let all = "clock,lru,generations,s3fifo";
        let words = [
            path,
            "--memory",
            "2M,4M",
            "--readahead",
            "none",
            "--thp",
            "never",
            "--reclaim",
        ];
        let json = run(&[&words[..], &[all, "--json"]].concat()).expect("replayed");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        for (n, reclaim) in all.split(',').enumerate() {
            let (small, large) = (&json["runs"][n], &json["runs"][n + 4]);
            assert_eq!(small["reclaim"], reclaim);
            let share = small["min_ratio"].as_f64().expect("a share");
            assert!(share > 0.05 && share < 1.0, "{small}");
            assert_eq!(
                (large["min_misses"].as_u64(), large["min_ratio"].as_f64()),
                (Some(0), None)
            );
        }
        let text = run(&[&words[..], &[all]].concat()).expect("replayed");
        assert!(
            text.contains("of MIN") && text.contains("generations"),
            "{text}"
        );
    }

    #[test]
    fn wrong_words_are_named() {
        for (words, expected) in [
            (["t.csv", "--memory", "64K"], "'64K'"),
            (["t.csv", "--memory", "9T"], "'9T'"),
            (["t.csv", "--memory", "1M,x"], "'x'"),
            (
                ["/nowhere.csv", "--memory", "1M"],
                "/nowhere.csv: cannot be read",
            ),
        ] {
            let error = run(&words).expect_err("refused");
            assert!(error.contains(expected), "{error}");
        }
        for (option, value, expected) in [
            ("--readahead", "best", "streams"),
            ("--thp", "sometimes", "always, adaptive, never"),
            ("--thp", "never,", "always, adaptive, never"),
            ("--jobs", "0", "from 1 to 1024"),
        ] {
            let error = run(&["t.csv", "--memory", "1M", option, value]).expect_err("refused");
            assert!(
                error.contains(option) && error.contains(expected),
                "{error}"
            );
        }
    }

    #[test]
    fn a_record_that_cannot_be_replayed_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.csv");
        std::fs::write(&path, "page\n1\n0x1000000000\n").expect("written");
        let error = run(&[path.to_str().expect("text"), "--memory", "1M"]).expect_err("refused");
        assert!(
            error.contains("t.csv, record 3: page 0x1000000000 cannot be replayed"),
            "{error}"
        );
    }
}
