//! The seeds' published figures, and the distance of simulated figures from them.
//!
//! The figures are in `data/published.json` only. They are read here for printing and comparison; code that computes
//! a figure cannot see them.

use serde::{Deserialize, Serialize};

/// One seed.
#[derive(Clone, Debug, Deserialize)]
pub struct Seed {
    /// Its name on the command line.
    pub seed: String,
    /// The document.
    pub document: String,
    /// Its tables.
    pub tables: Vec<Table>,
}

/// One table of a seed.
#[derive(Clone, Debug, Deserialize)]
pub struct Table {
    /// Its subject.
    pub name: String,
    /// The source of the noise.
    pub source: String,
    /// Its rows.
    pub rows: Vec<Row>,
    /// The results that hold, those that do not, and why.
    pub notes: Vec<String>,
}

/// One row, with its published figures.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    /// The key of its simulated figure.
    pub key: String,
    /// The seed's label.
    pub label: String,
    /// The unit of both figures. `%` is compared in points.
    pub unit: String,
    /// Before.
    pub base: f64,
    /// After.
    pub optimized: f64,
    /// Changes up to this many percent (or points) are noise.
    pub noise: f64,
    /// One of the seed's headlines.
    #[serde(default)]
    pub headline: bool,
}

/// A change between two figures.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(tag = "unit", content = "value", rename_all = "lowercase")]
pub enum Change {
    /// In percent.
    Percent(f64),
    /// Between percentages, in points.
    Points(f64),
    /// As a factor.
    Times(f64),
}

impl Change {
    /// The change between two figures of a unit.
    pub fn between(unit: &str, base: f64, optimized: f64) -> Self {
        let ratio = optimized / base;
        if base == optimized {
            Change::none(unit)
        } else if unit == "%" {
            Change::Points(optimized - base)
        } else if ratio.is_finite() && (0.5..=2.0).contains(&ratio) {
            Change::Percent(100.0 * (ratio - 1.0))
        } else {
            Change::Times(ratio)
        }
    }

    fn none(unit: &str) -> Self {
        match unit {
            "%" => Change::Points(0.0),
            _ => Change::Percent(0.0),
        }
    }

    /// In percent or points, to compare with the noise.
    fn size(self) -> f64 {
        match self {
            Change::Percent(n) | Change::Points(n) => n,
            Change::Times(n) => 100.0 * (n - 1.0),
        }
    }

    fn ratio(self) -> f64 {
        1.0 + self.size() / 100.0
    }
}

/// The relation of a simulated change to the published one.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As published, within 5 points or a factor of 1.5.
    Holds,
    /// In the same direction.
    Direction,
    /// The published change is noise.
    Noise,
    /// In the other direction, or none.
    Fails,
}

/// The distance of a simulated change from the published one.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(tag = "unit", content = "value", rename_all = "lowercase")]
pub enum Distance {
    /// In percentage points.
    Points(f64),
    /// If the published change is a multiple: the larger of both divided by the smaller.
    Factor(f64),
}

impl Row {
    /// The published change.
    pub fn change(&self) -> Change {
        Change::between(&self.unit, self.base, self.optimized)
    }

    /// The distance of a simulated change, and its verdict.
    pub fn judge(&self, simulated: Change) -> (Distance, Verdict) {
        let published = self.change();
        let distance = match published {
            Change::Times(_) => {
                let ratio = simulated.ratio() / published.ratio();
                Distance::Factor(if ratio < 1.0 { 1.0 / ratio } else { ratio })
            }
            _ => Distance::Points(simulated.size() - published.size()),
        };
        let near = match distance {
            Distance::Points(n) => n.abs() <= 5.0,
            Distance::Factor(n) => n <= 1.5,
        };
        let same = simulated.size() * published.size() > 0.0;
        let verdict = if published.size().abs() <= self.noise {
            Verdict::Noise
        } else if near && same {
            Verdict::Holds
        } else if same && simulated.size().abs() > 1.0 {
            Verdict::Direction
        } else {
            Verdict::Fails
        };
        (distance, verdict)
    }
}

/// All seeds with tables.
///
/// # Errors
///
/// The data file is damaged; it is built in, and a test reads it.
pub fn seeds() -> Result<Vec<Seed>, serde_json::Error> {
    serde_json::from_str(include_str!("../../data/published.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(unit: &str, base: f64, optimized: f64, noise: f64) -> Row {
        Row {
            key: String::new(),
            label: String::new(),
            unit: unit.into(),
            base,
            optimized,
            noise,
            headline: false,
        }
    }

    #[test]
    fn changes_are_judged_by_distance_direction_and_noise() {
        for (row, simulated, verdict) in [
            (
                row("s", 10.0, 12.0, 5.0),
                Change::Percent(23.0),
                Verdict::Holds,
            ),
            (
                row("s", 10.0, 12.0, 5.0),
                Change::Percent(80.0),
                Verdict::Direction,
            ),
            (
                row("s", 10.0, 12.0, 5.0),
                Change::Percent(-1.0),
                Verdict::Fails,
            ),
            (
                row("s", 10.0, 12.0, 5.0),
                Change::Percent(0.5),
                Verdict::Fails,
            ),
            (
                row("s", 10.0, 10.4, 5.0),
                Change::Percent(-9.0),
                Verdict::Noise,
            ),
            (
                row("s", 10.0, 30.0, 5.0),
                Change::Times(2.1),
                Verdict::Holds,
            ),
            (
                row("s", 10.0, 30.0, 5.0),
                Change::Times(6.0),
                Verdict::Direction,
            ),
            (
                row("s", 98.0, 2.0, 5.0),
                Change::Times(0.025),
                Verdict::Holds,
            ),
            (
                row("s", 98.0, 2.0, 5.0),
                Change::Percent(-40.0),
                Verdict::Direction,
            ),
            (
                row("%", 50.0, 99.0, 1.0),
                Change::Points(46.0),
                Verdict::Holds,
            ),
        ] {
            assert_eq!(row.judge(simulated).1, verdict, "{row:?} {simulated:?}");
        }
    }

    #[test]
    fn a_multiple_is_one_from_twice_on_and_percentages_change_by_points() {
        assert_eq!(Change::between("s", 10.0, 15.0), Change::Percent(50.0));
        assert_eq!(Change::between("s", 10.0, 30.0), Change::Times(3.0));
        assert_eq!(Change::between("s", 10.0, 1.0), Change::Times(0.1));
        assert_eq!(Change::between("%", 10.0, 90.0), Change::Points(80.0));
        assert_eq!(Change::between("s", 0.0, 0.0), Change::Percent(0.0));
    }

    #[test]
    fn the_data_file_can_be_read_and_every_key_comes_once() {
        let seeds = seeds().expect("readable");
        let rows = seeds.iter().flat_map(|s| &s.tables).flat_map(|t| &t.rows);
        let mut keys: Vec<&str> = rows.map(|row| row.key.as_str()).collect();
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }
}
