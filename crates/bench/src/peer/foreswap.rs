//! A turn under `foreswap run`, with its statistics.

use std::ffi::OsString;

use anyhow::Context;
use serde_json::Value;

use super::passes::{Moved, Passes};
use super::{Counting, Figures, Scratch, Session, Turn, child, derive};
use crate::progress::Progress;
use crate::system::device::Device;

/// How foreswap is run.
#[derive(Debug, Clone, Default)]
pub struct ForeswapOptions {
    /// `--readahead`, if not its default.
    pub readahead: Option<String>,
    /// Further options of `foreswap run`.
    pub more: Vec<String>,
}

impl ForeswapOptions {
    /// The areas that the options name.
    pub fn areas(&self) -> impl Iterator<Item = &str> {
        let words = self.more.iter().enumerate();
        words.filter_map(|(at, word)| match word.as_str() {
            "--swap" => self.more.get(at + 1).map(String::as_str),
            word => word.strip_prefix("--swap="),
        })
    }

    /// Whether compressed memory is an area.
    pub fn has_ram(&self) -> bool {
        self.areas().any(|area| area.starts_with("ram:"))
    }
}

/// Statistics that other peers have too: their name there and here.
const SHARED: [(&str, &str); 5] = [
    ("readahead_hit_ratio", "hit_ratio"),
    ("swap_in_bytes", "swap_in_bytes"),
    ("swap_out_bytes", "swap_out_bytes"),
    ("faults_major", "major_faults"),
    ("peak_resident_bytes", "peak_bytes"),
];

/// A run of foreswap, and the file of its statistics.
pub struct Run {
    statistics: Scratch,
    /// `foreswap run` with the command behind it.
    pub line: Vec<OsString>,
}

impl Run {
    /// `command` under `foreswap run`, with the options of the session and further ones.
    pub fn with(session: &Session, options: &[&str], command: &[OsString]) -> Self {
        let statistics = Scratch::new(&std::env::temp_dir(), "stats.json");
        let mut line =
            session.own_command(&["run".to_owned(), "--memory".to_owned(), size(session.limit)]);
        let mut put = |word: &str| line.push(OsString::from(word));
        let areas_named = session.foreswap.areas().next().is_some();
        put("--stats");
        line.push(statistics.0.clone().into_os_string());
        if !areas_named {
            line.push(OsString::from("--swap"));
            line.push(session.directory.clone().into_os_string());
        }
        let mut put = |word: &str| line.push(OsString::from(word));
        put("--quiet");
        if let Some(policy) = &session.foreswap.readahead {
            put("--readahead");
            put(policy);
        }
        session.foreswap.more.iter().for_each(|word| put(word));
        options.iter().for_each(|word| put(word));
        put("--");
        line.extend_from_slice(command);
        Self { statistics, line }
    }

    /// The statistics of the run, once it has ended: its figures, and the full object.
    pub fn statistics(&self) -> anyhow::Result<(Figures, Value)> {
        let path = &self.statistics.0;
        let text = std::fs::read(path)
            .with_context(|| format!("foreswap left no statistics in {}", path.display()))?;
        let statistics: Value =
            serde_json::from_slice(&text).context("foreswap's statistics are broken")?;
        Ok((figures_of(&statistics), statistics))
    }
}

/// Runs `command` under `foreswap run`, with further `options`.
pub fn turn(
    session: &Session,
    options: &[&str],
    command: &[OsString],
    counting: Counting,
    progress: &Progress,
) -> anyhow::Result<Turn> {
    let run = Run::with(session, options, command);
    let directory = session.area_directory();
    let device = directory.and_then(|directory| Device::under(directory).ok());
    let mut passes = Passes::new(device.as_ref());
    let finished = match counting {
        Counting::Whole => child::run(&run.line, None, session.timeout, progress),
        Counting::Passes => child::run_marked(&run.line, None, progress, |pid, moment| {
            passes.count(moment, moved(session, pid, progress)?);
            Ok(())
        }),
    }?;
    let (mut figures, statistics) = run.statistics()?;
    figures.extend(passes.figures());
    figures.insert("elapsed_ns".to_owned(), finished.elapsed.as_nanos() as f64);
    Ok(Turn {
        output: finished.output,
        figures,
        details: Some(statistics),
    })
}

/// The pages that the run of this supervisor has moved so far, by its control socket.
fn moved(session: &Session, supervisor: u32, progress: &Progress) -> anyhow::Result<Option<Moved>> {
    let words = ["ps", "--json", &supervisor.to_string()].map(str::to_owned);
    let listed = child::run(&session.own_command(&words), None, None, progress)
        .context("the run cannot be asked what it has read and written")?;
    let runs: Value = serde_json::from_slice(&listed.output).context("`foreswap ps` is broken")?;
    Ok(moved_of(&runs[0]["totals"]))
}

fn moved_of(totals: &Value) -> Option<Moved> {
    Some(Moved {
        in_bytes: totals["swap_in_bytes"].as_u64()?,
        out_bytes: totals["swap_out_bytes"].as_u64()?,
    })
}

/// All numbers of the statistics as `stats.KEY`, and the shared ones by their names.
fn figures_of(statistics: &Value) -> Figures {
    let mut figures = Figures::new();
    for (key, value) in statistics.as_object().into_iter().flatten() {
        if let Some(number) = value.as_f64() {
            figures.insert(format!("stats.{key}"), number);
            if let Some((_, shared)) = SHARED.iter().find(|(name, _)| name == key) {
                figures.insert((*shared).to_owned(), number);
            }
        }
    }
    derive(&mut figures);
    figures
}

/// A size as `--memory` takes it.
pub fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) {
        format!("{}M", bytes >> 20)
    } else {
        bytes.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_figures_have_shared_names() {
        let statistics = serde_json::json!({
            "readahead_hit_ratio": 0.75, "swap_in_bytes": 4096, "fault_ns_p50": 40000,
            "window_histogram": {"8": 3}, "vmas": [],
        });
        let figures = figures_of(&statistics);
        assert_eq!(figures["hit_ratio"], 0.75);
        assert_eq!(figures["swap_in_bytes"], 4096.0);
        assert_eq!(figures["stats.fault_ns_p50"], 40000.0);
        assert!(!figures.contains_key("stats.vmas"));
    }

    #[test]
    fn moved_bytes_are_in_the_totals_of_a_run() {
        let runs =
            serde_json::json!([{ "totals": { "swap_in_bytes": 8192, "swap_out_bytes": 4096 } }]);
        let moved = moved_of(&runs[0]["totals"]).unwrap();
        assert_eq!((moved.in_bytes, moved.out_bytes), (8192, 4096));
        // A version that has no totals, and no run at all.
        assert!(moved_of(&serde_json::json!([{ "totals": null }])[0]["totals"]).is_none());
        assert!(moved_of(&serde_json::json!([])[0]["totals"]).is_none());
    }

    #[test]
    fn areas_are_named_in_either_way() {
        let areas = |words: &[&str]| {
            let options = ForeswapOptions {
                readahead: None,
                more: words.iter().map(|word| (*word).to_owned()).collect(),
            };
            let areas: Vec<String> = options.areas().map(str::to_owned).collect();
            (areas.join(" "), options.has_ram())
        };
        assert_eq!(
            areas(&["--swap-size=1G", "--quiet"]),
            (String::new(), false)
        );
        assert_eq!(
            areas(&["--swap=/a", "--swap", "/b"]),
            ("/a /b".to_owned(), false)
        );
        assert_eq!(
            areas(&["--swap=ram:1G,lz4"]),
            ("ram:1G,lz4".to_owned(), true)
        );
    }

    #[test]
    fn whole_mebibytes_are_written_as_such() {
        assert_eq!(size(256 << 20), "256M");
        assert_eq!(size(4096), "4096");
    }
}
