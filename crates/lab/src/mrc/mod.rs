//! `foreswap lab mrc`: the memory that a program needs.
//!
//! The miss-ratio curve of a trace under LRU: exact, from stack distances, and of a sample (SHARDS). Each method
//! reads the file separately, in parallel.

mod curve;
mod report;
mod shards;
mod stack;
mod walk;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use crate::progress::Progress;
use crate::size;
use crate::trace::{Record, Source, SourceOptions};
use crate::{FileError, on_file};
pub use curve::Curve;
use report::Report;
use shards::{Counted, Counter, Sample};
use walk::{Totals, Walk};

/// `foreswap lab mrc`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct MrcArgs {
    /// A trace: of `run --trace`, CSV, or libCacheSim's oracleGeneral
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    #[command(flatten)]
    source: SourceOptions,

    /// Memory sizes of the table, such as 256M,512M,1G [default: fractions of the trace's memory]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size::pages)]
    memory: Vec<u64>,

    /// Sample this fraction of the pages (SHARDS of a fixed rate), such as 0.01
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<f64>,

    /// Sample this many pages (SHARDS of a fixed size) [default: 8192, unless --rate is given]
    #[arg(long, value_name = "PAGES", value_parser = clap::value_parser!(u32).range(1..))]
    samples: Option<u32>,

    /// Sample only: needs less memory and time, but the error is unknown
    #[arg(long)]
    no_exact: bool,

    /// Draw the curves to an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Example:
  foreswap lab mrc job.trace --plot job.svg

`misses` counts every touch that does not find its page in a memory of that size which keeps the
pages touched last (LRU). `again` leaves out the first touch of each page, which misses in any
memory. A page that was discarded or unmapped counts as new at its next touch.

A trace of `run --trace` has only what the engine saw, so its curve begins at the limit of that run,
and counts the touches that were recorded: record with as little memory as you can.

Speed goes to standard error. The exit status is 2 when the trace cannot be read or is damaged.";

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1.0 => Ok(rate),
        _ => Err("expected a part of the pages, above 0 and up to 1, such as 0.01".into()),
    }
}

/// The curve of a recorded run, counted while its records come in, in bounded memory: a sample of a fixed size, which is
/// exact while the evicted pages fit in it.
pub struct RunningCurve {
    walk: Walk,
}

impl RunningCurve {
    /// Of a run with a limit of `limit` pages. At most `samples` evicted pages are followed.
    pub fn new(limit: u64, samples: usize) -> Self {
        let counter = Counter::new(Sample::Size(samples), limit);
        Self {
            walk: Walk::new(counter, true),
        }
    }

    /// The next record. That of a task that has not started counts for the first address space.
    pub fn record(&mut self, record: &Record) {
        self.walk.record(record);
    }

    /// The curve, from the limit on.
    pub fn finish(self) -> Curve {
        self.walk.finish().0.finish().curve
    }
}

/// The result of one method.
pub(crate) struct Counts {
    sample: Sample,
    counted: Counted,
    totals: Totals,
    cut_off: bool,
    took: Duration,
}

fn count(
    path: &Path,
    options: &SourceOptions,
    sample: Sample,
    mut progress: Progress,
) -> Result<Counts, FileError> {
    let started = Instant::now();
    let wrong = on_file(path);
    let mut source = Source::open(path, options).map_err(&wrong)?;
    let limit = source.header().limit;
    let mut walk = Walk::new(Counter::new(sample, limit), limit > 0);
    while let Some(record) = source.next().map_err(&wrong)? {
        walk.record(&record);
        progress.record(|| source.progress().0);
    }
    progress.at(source.progress().0);
    let (counter, totals) = walk.finish();
    Ok(Counts {
        sample,
        counted: counter.finish(),
        totals,
        cut_off: source.was_cut_off(),
        took: started.elapsed(),
    })
}

/// Counts and reports to `out`; speed and remarks go to `err`.
///
/// # Errors
///
/// The trace is damaged, or something cannot be written.
pub fn mrc(args: &MrcArgs, out: &mut impl Write, err: &mut impl Write) -> anyhow::Result<()> {
    let mut samples = Vec::new();
    if !args.no_exact {
        samples.push(Sample::All);
    }
    samples.extend(args.rate.map(Sample::Rate));
    let size = args.samples.or(args.rate.is_none().then_some(8192));
    samples.extend(size.map(|size| Sample::Size(size as usize)));

    let (_, bytes) = Source::open(&args.trace, &args.source)
        .map_err(on_file(&args.trace))?
        .progress();
    let progress = Progress::over(bytes * samples.len() as u64);
    let results: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = samples
            .into_iter()
            .map(|sample| {
                let progress = progress.clone();
                scope.spawn(move || count(&args.trace, &args.source, sample, progress))
            })
            .collect();
        let ended = runs.into_iter().map(|run| match run.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect::<Result<_, _>>()
    })?;
    progress.end();

    let report = Report::new(&args.trace, &args.memory, &results);
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
    use crate::trace::{Event, Found, Target, convert};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: MrcArgs,
    }

    fn run(words: &[&str]) -> String {
        let args = Cli::parse_from(std::iter::once("mrc").chain(words.iter().copied())).args;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        mrc(&args, &mut out, &mut err).expect("counted");
        String::from_utf8(out).expect("text")
    }

    /// Misses of a memory of `size` pages that keeps the most recently touched pages.
    fn misses(touches: &[u64], size: usize) -> usize {
        let (mut memory, mut misses) = (Vec::new(), 0);
        for page in touches {
            match memory.iter().position(|p| p == page) {
                Some(at) => drop(memory.remove(at)),
                None => misses += 1,
            }
            memory.insert(0, *page);
            memory.truncate(size);
        }
        misses
    }

    #[test]
    fn the_exact_curve_is_that_of_a_simulated_memory() {
        let mut state = 5u64;
        let touches: Vec<u64> = (0..20_000)
            .map(|n| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                match state >> 62 {
                    0 => n % 300,
                    1 => (state >> 33) % 300,
                    _ => (state >> 33) % 40,
                }
            })
            .collect();
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
        let lines: String = touches.iter().map(|page| format!("{page}\n")).collect();
        std::fs::write(at("t.csv"), format!("page\n{lines}")).expect("written");
        // Through the other format, to read both.
        let (from, to) = (at("t.csv"), at("t.trace"));
        let mut source = Source::open(from.as_ref(), &SourceOptions::default()).expect("open");
        let records = convert(&mut source, from.as_ref(), to.as_ref(), Target::Foreswap);
        assert_eq!(records.expect("written"), 20_001);
        let sizes = "4K,40K,160K,400K,800K,1200K";
        let text = run(&[&to, "--json", "--memory", sizes, "--plot", &at("t.svg")]);
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let exact = &json["curves"][0];
        assert_eq!(exact["method"], "exact");
        for point in exact["points"].as_array().expect("points") {
            let size = point["memory_bytes"].as_u64().expect("a number") / 4096;
            let ratio = point["miss_ratio"].as_f64().expect("a number");
            let expected = misses(&touches, size as usize);
            assert_eq!(
                (ratio * touches.len() as f64).round() as usize,
                expected,
                "{size} pages"
            );
        }
        assert_eq!(exact["points"].as_array().map(Vec::len), Some(6));
        assert!(
            json["curves"][1]["error"]["mean"]
                .as_f64()
                .expect("a number")
                < 0.02
        );
        assert!(Path::new(&at("t.svg")).metadata().expect("drawn").len() > 1000);
    }

    fn csv(folder: &Path, text: &str) -> String {
        let path = folder.join("t.csv");
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    }

    /// 10 pages in memory, 20 away in the order 0 to 19: page 15 returns after 4 others were evicted after it, and
    /// would have stayed in 15 pages.
    #[test]
    fn a_recorded_run_is_counted_from_its_limit_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.trace");
        let file = std::fs::File::create(&path).expect("a file");
        let mut writer = crate::trace::TraceWriter::new(file, crate::trace::Header { limit: 10 })
            .expect("written");
        let start = crate::trace::Start {
            space: 0,
            pid: 0,
            tid: 0,
            parent: None,
        };
        let vpn = foreswap_core::units::Vpn;
        let touch = |page, found| Event::Touch {
            page: vpn(page),
            found,
            write: false,
        };
        let mut events = vec![Event::Start(start)];
        events.extend((0..30).map(|page| touch(page, Found::New)));
        events.push(Event::Evicted(vpn(0)..vpn(20)));
        events.push(touch(15, Found::Away));
        events.push(touch(3, Found::Kept));
        events.push(Event::Prefetched(vpn(19)..vpn(20)));
        for event in events {
            let record = crate::trace::Record {
                time: 0,
                task: 0,
                event,
            };
            writer.push(&record).expect("written");
        }
        writer.finish().expect("written");
        let text = run(&[
            path.to_str().expect("text"),
            "--json",
            "--memory",
            "32K,40K,44K,56K,60K",
        ]);
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let exact = &json["curves"][0];
        assert_eq!(
            (exact["touches"].as_f64(), exact["first_touches"].as_f64()),
            (Some(33.0), Some(30.0))
        );
        let points = exact["points"].as_array().expect("points").iter();
        let found: Vec<_> = points
            .map(|p| {
                (
                    p["memory_bytes"].as_u64(),
                    p["again_ratio"].as_f64().map(|r| (r * 33.0).round()),
                )
            })
            .collect();
        // Below the limit the curve is unknown. Page 19 needs 11 pages, page 15 needs 15.
        let expected = [(40, 2.0), (44, 1.0), (56, 1.0), (60, 0.0)];
        assert_eq!(found, expected.map(|(kib, n)| (Some(kib << 10), Some(n))));
    }

    #[test]
    fn freed_pages_need_no_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = "page,op,pages\n1,,\n2,,\n3,,\n2,discard,2\n2,,\n1,,\n0,unmap,4\n1,,\n";
        let json = run(&[&csv(folder.path(), text), "--json", "--memory", "8K"]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let exact = &json["curves"][0];
        assert_eq!(
            (exact["touches"].as_f64(), exact["first_touches"].as_f64()),
            (Some(6.0), Some(5.0))
        );
        assert_eq!(exact["points"][0]["again_ratio"].as_f64(), Some(0.0));
        assert_eq!(exact["enough_bytes"].as_u64(), Some(8192));
    }

    #[test]
    fn the_table_answers_the_question() {
        let folder = tempfile::tempdir().expect("a folder");
        let lines: String = (0..4000).map(|n| format!("{}\n", n % 100)).collect();
        let text = run(&[&csv(folder.path(), &format!("page\n{lines}"))]);
        let answer = "Needed for 5 % of misses (first touches aside): 400 KiB; for 1 %: 400 KiB; for none: 400 KiB.";
        assert!(
            text.contains(
                "4,000 touches, 1 task\n100 of them are the first of their page (2.50 %)"
            ),
            "{text}"
        );
        assert!(
            text.contains("SHARDS 8192 pages: error 0.00 % in the mean"),
            "{text}"
        );
        assert!(text.ends_with(&format!("{answer}\n")), "{text}");
    }
}
