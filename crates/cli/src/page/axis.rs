//! Axes with round numbers, for sizes, counts, parts and times.

use std::time::Duration;

use crate::report::grouped;
use crate::size::exact;

/// The most intervals of an axis.
const MOST: f64 = 5.0;

/// What an axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Bytes per second.
    Rate,
    /// Things, or things per second.
    Count,
    /// Percent.
    Percent,
    /// Seconds.
    Time,
}

/// An axis from 0, or from `least`.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Its first value.
    pub least: f64,
    /// Its last value.
    pub most: f64,
    /// Values with a label.
    pub ticks: Vec<f64>,
    unit: Unit,
}

/// Seconds that clocks are divided into.
const TIMES: [f64; 22] = [
    1.0,
    2.0,
    5.0,
    10.0,
    15.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    900.0,
    1800.0,
    3600.0,
    7200.0,
    10_800.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    432_000.0,
    864_000.0,
    1_728_000.0,
];

/// A step of 1, 2 or 5 times a power of ten.
fn decimal(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    steps
        .into_iter()
        .find(|&step| step >= least * 0.999)
        .unwrap_or(least)
}

fn step(range: f64, unit: Unit) -> f64 {
    let least = range / MOST;
    match unit {
        Unit::Bytes | Unit::Rate => least.max(1.0).log2().ceil().exp2(),
        Unit::Count => decimal(least).max(1.0),
        Unit::Percent => decimal(least),
        Unit::Time => {
            let mut times = TIMES.into_iter();
            let large = times.find(|&time| time >= least);
            large
                .filter(|_| least > 0.5)
                .unwrap_or_else(|| decimal(least))
        }
    }
}

impl Axis {
    /// From 0 to `most` or a little further, where a label is.
    pub fn up_to(most: f64, unit: Unit) -> Self {
        let least = match unit {
            Unit::Bytes | Unit::Rate => 4096.0,
            Unit::Count => 1.0,
            Unit::Percent => 1.0,
            Unit::Time => 1e-6,
        };
        let most = most.max(least);
        let step = step(most, unit);
        let steps = (most / step * 0.9999).ceil().max(1.0);
        Self {
            least: 0.0,
            most: steps * step,
            ticks: (0..=steps as u32).map(|n| f64::from(n) * step).collect(),
            unit,
        }
    }

    /// Exactly from `least` to `most`.
    pub fn within(least: f64, most: f64, unit: Unit) -> Self {
        let most = most.max(least + 1e-6);
        let step = step(most - least, unit);
        let first = (least / step * 0.9999).ceil();
        let ticks = (0..).map(|n| (first + f64::from(n)) * step);
        Self {
            least,
            most,
            ticks: ticks.take_while(|&tick| tick <= most * 1.000_01).collect(),
            unit,
        }
    }

    /// The place of a value, 0 to 1.
    pub fn place(&self, value: f64) -> f64 {
        ((value - self.least) / (self.most - self.least)).clamp(0.0, 1.0)
    }

    /// The label of a value.
    pub fn label(&self, value: f64) -> String {
        let whole = value.round() as u64;
        match self.unit {
            Unit::Bytes if whole == 0 => "0".to_owned(),
            Unit::Bytes => exact(whole),
            Unit::Rate => match whole {
                0 => "0".to_owned(),
                _ => format!("{}/s", exact(whole)),
            },
            Unit::Count => grouped(whole),
            Unit::Percent => format!("{} %", trimmed(value, 2)),
            Unit::Time => self.time(value),
        }
    }

    /// All labels of times have the unit of the step.
    fn time(&self, seconds: f64) -> String {
        if seconds == 0.0 {
            return "0".to_owned();
        }
        let step = self
            .ticks
            .get(1)
            .map_or(1.0, |second| second - self.ticks[0]);
        let (unit, name) = match step {
            step if step >= 86_400.0 => (86_400.0, "d"),
            step if step >= 3600.0 => (3600.0, "h"),
            step if step >= 60.0 => (60.0, "min"),
            step if step >= 0.1 => (1.0, "s"),
            _ => (1e-3, "ms"),
        };
        format!("{} {name}", trimmed(seconds / unit, 3))
    }
}

/// With as few digits behind the point as needed, at most `digits`.
fn trimmed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A time in words: `850 ms`, `12.3 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`.
pub fn spoken(time: Duration) -> String {
    let seconds = time.as_secs();
    let two = |large: u64, name: &str, small: u64, less: &str| match small {
        0 => format!("{large} {name}"),
        _ => format!("{large} {name} {small} {less}"),
    };
    match seconds {
        0 if time.as_millis() < 10 => format!("{} ms", trimmed(time.as_secs_f64() * 1e3, 1)),
        0 => format!("{} ms", time.as_millis()),
        1..100 => format!("{} s", trimmed(time.as_secs_f64(), 1)),
        100..3600 => two(seconds / 60, "min", seconds % 60, "s"),
        3600..86_400 => two(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks.iter().map(|&tick| axis.label(tick)).collect()
    }

    #[test]
    fn labels_are_round() {
        let up_to = |most, unit| labels(&Axis::up_to(most, unit)).join(" | ");
        assert_eq!(
            up_to(300e6, Unit::Bytes),
            "0 | 64 MiB | 128 MiB | 192 MiB | 256 MiB | 320 MiB"
        );
        assert_eq!(
            up_to(2.0 * 1024.0 * 1024.0, Unit::Rate),
            "0 | 512 KiB/s | 1 MiB/s | 1.5 MiB/s | 2 MiB/s"
        );
        assert_eq!(
            up_to(41_000.0, Unit::Count),
            "0 | 10,000 | 20,000 | 30,000 | 40,000 | 50,000"
        );
        assert_eq!(up_to(0.0, Unit::Count), "0 | 1");
        assert_eq!(
            up_to(97.3, Unit::Percent),
            "0 % | 20 % | 40 % | 60 % | 80 % | 100 %"
        );
        let within = |least, most, unit| labels(&Axis::within(least, most, unit)).join(" | ");
        assert_eq!(within(0.0, 5.8, Unit::Time), "0 | 2 s | 4 s");
        assert_eq!(
            within(0.0, 0.21, Unit::Time),
            "0 | 50 ms | 100 ms | 150 ms | 200 ms"
        );
        assert_eq!(
            within(0.0, 4.0 * 3600.0, Unit::Time),
            "0 | 1 h | 2 h | 3 h | 4 h"
        );
        let mib = f64::from(1 << 20);
        assert_eq!(
            within(256.0 * mib, 900.0 * mib, Unit::Bytes),
            "256 MiB | 512 MiB | 768 MiB"
        );
    }

    #[test]
    fn values_have_their_place() {
        let axis = Axis::within(10.0, 20.0, Unit::Count);
        assert_eq!(
            [5.0, 10.0, 15.0, 99.0].map(|value| axis.place(value)),
            [0.0, 0.0, 0.5, 1.0]
        );
    }

    #[test]
    fn times_in_words() {
        let spoken = |ms| spoken(Duration::from_millis(ms));
        assert_eq!(
            [0, 4, 850, 5_800, 60_000].map(spoken),
            ["0 ms", "4 ms", "850 ms", "5.8 s", "60 s"]
        );
        assert_eq!(
            [250_000, 7_500_000, 7_200_000].map(spoken),
            ["4 min 10 s", "2 h 5 min", "2 h"]
        );
        assert_eq!(spoken(277_000_000), "3 d 4 h");
    }
}
