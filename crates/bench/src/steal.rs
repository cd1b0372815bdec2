//! CPU time that this machine wanted and the host gave to others. A virtual machine that gets less of it in one turn
//! than in the next says nothing about the peers. Figures of such turns are marked.

use std::fs;

use crate::peer::Figures;

/// The figure's name: a share of all CPUs' time, 0 to 1.
pub const STOLEN: &str = "stolen_share";
/// A turn with at least this share is marked.
pub const MUCH: f64 = 0.02;

/// All CPUs' time since the machine started, in the kernel's ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuTime {
    all: u64,
    stolen: u64,
}

impl CpuTime {
    /// The current value; `None` if /proc/stat does not have it.
    pub fn now() -> Option<Self> {
        Self::of(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// From the text of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; the following numbers are
    /// included in the first two.
    fn of(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Result<Vec<u64>, _> =
            fields.split_whitespace().take(8).map(str::parse).collect();
        let ticks = ticks.ok().filter(|ticks| ticks.len() == 8)?;
        Some(Self {
            all: ticks.iter().sum(),
            stolen: ticks[7],
        })
    }

    /// Adds to `figures` the time stolen since.
    pub fn note(self, figures: &mut Figures) {
        if let Some(now) = Self::now().filter(|now| now.all > self.all) {
            let share = now.stolen.saturating_sub(self.stolen) as f64 / (now.all - self.all) as f64;
            figures.insert(STOLEN.to_owned(), share);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_proc_stat_is_read() {
        let stat = "cpu  10 1 20 60 5 0 1 3 4 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let expected = CpuTime {
            all: 100,
            stolen: 3,
        };
        assert_eq!(CpuTime::of(stat), Some(expected));
        assert_eq!(CpuTime::of("cpu 1 2 3\n"), None);
        assert_eq!(CpuTime::of("intr 1"), None);
        assert!(CpuTime::now().is_some());
    }
}
