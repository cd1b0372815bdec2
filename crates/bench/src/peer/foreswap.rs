//! A turn under `foreswap run`, with the statistics that it leaves.

use std::ffi::OsString;

use anyhow::Context;
use serde_json::Value;

use super::{Figures, Scratch, Session, Turn, child, derive};
use crate::progress::Progress;

/// How foreswap is run.
#[derive(Debug, Clone, Default)]
pub struct ForeswapOptions {
    /// `--readahead`, if not its default.
    pub readahead: Option<String>,
    /// Further options of `foreswap run`.
    pub more: Vec<String>,
}

/// Statistics whose meaning other peers share: their name here and there.
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
    /// `command` under `foreswap run`, as the session says.
    pub fn of(session: &Session, command: &[OsString]) -> Self {
        let statistics = Scratch::new(&std::env::temp_dir(), "stats.json");
        let mut line =
            session.own_command(&["run".to_owned(), "--memory".to_owned(), size(session.limit)]);
        let mut put = |word: &str| line.push(OsString::from(word));
        let areas_named = session
            .foreswap
            .more
            .iter()
            .any(|word| word.starts_with("--swap"));
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
        put("--");
        line.extend_from_slice(command);
        Self { statistics, line }
    }

    /// What the run left, once it has ended: its figures, and all of it.
    pub fn statistics(&self) -> anyhow::Result<(Figures, Value)> {
        let path = &self.statistics.0;
        let text = std::fs::read(path)
            .with_context(|| format!("foreswap left no statistics in {}", path.display()))?;
        let statistics: Value =
            serde_json::from_slice(&text).context("foreswap's statistics are broken")?;
        Ok((figures_of(&statistics), statistics))
    }
}

/// Runs `command` under `foreswap run`.
pub fn turn(session: &Session, command: &[OsString], progress: &Progress) -> anyhow::Result<Turn> {
    let run = Run::of(session, command);
    let finished = child::run(&run.line, None, progress)?;
    let (mut figures, statistics) = run.statistics()?;
    figures.insert("elapsed_ns".to_owned(), finished.elapsed.as_nanos() as f64);
    Ok(Turn {
        output: finished.output,
        figures,
        details: Some(statistics),
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
    fn whole_mebibytes_are_written_as_such() {
        assert_eq!(size(256 << 20), "256M");
        assert_eq!(size(4096), "4096");
    }
}
