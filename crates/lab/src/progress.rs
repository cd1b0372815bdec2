//! The progress of a long run, on a terminal only.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Records between two updates.
const EVERY: u32 = 1 << 14;

/// A bar over the bytes read; nothing if standard error is not a terminal. Clones show the same bar.
#[derive(Clone)]
pub struct Progress {
    bar: Option<ProgressBar>,
    told: u64,
    records: u32,
}

impl Progress {
    /// A bar over `bytes`.
    pub fn over(bytes: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(bytes);
            let style = ProgressStyle::with_template(
                "{spinner} [{bar:30}] {bytes}/{total_bytes} ({elapsed}, {eta} left)",
            );
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Progress {
            bar,
            told: 0,
            records: 0,
        }
    }

    /// A record was read; `position` returns the bytes that this reader has read in all.
    pub fn record(&mut self, position: impl FnOnce() -> u64) {
        self.records += 1;
        if self.records == EVERY {
            self.records = 0;
            self.at(position());
        }
    }

    /// This reader has read `position` bytes in all.
    pub fn at(&mut self, position: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(position.saturating_sub(self.told));
        }
        self.told = position;
    }

    /// The input is read completely.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
