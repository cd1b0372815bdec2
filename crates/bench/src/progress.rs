//! A progress bar, on a terminal only.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The turns of a bench, and the current one.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    total: Cell<u64>,
}

impl Progress {
    /// A bar over `total` turns; nothing where standard error is no terminal.
    pub fn over(total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total);
            let style = ProgressStyle::with_template(
                "{spinner} [{bar:30}] {pos}/{len} {msg} ({elapsed}, {eta} left)",
            );
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self {
            bar,
            total: Cell::new(total),
        }
    }

    /// Shows the current activity.
    pub fn say(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// Time passes.
    pub fn tick(&self) {
        if let Some(bar) = &self.bar {
            bar.tick();
        }
    }

    /// One turn is done.
    pub fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Turns that will not be run after all.
    pub fn shrink(&self, turns: u64) {
        let total = self.total.get().saturating_sub(turns);
        self.total.set(total);
        if let Some(bar) = &self.bar {
            bar.set_length(total);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
