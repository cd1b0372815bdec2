//! The table of peers: one line each, columns aligned.

use super::{PeerReport, Target};

/// How a figure is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    /// A plain number.
    #[default]
    Number,
    /// A plain number, to the tenth.
    Tenths,
    /// A plain ratio.
    Ratio,
    /// A plain number, written in thousands.
    Thousands,
    /// A plain number, written in millions.
    Millions,
    /// Bytes, written as 10^9 of them (per second, where the title says so).
    Gigabytes,
    /// Nanoseconds, written as seconds.
    Seconds,
    /// Bytes, written as kibibytes.
    Kibibytes,
    /// Nanoseconds, written as microseconds.
    Microseconds,
    /// Nanoseconds, written as milliseconds.
    Milliseconds,
    /// Bytes, written as mebibytes (per second, where the title says so).
    Mebibytes,
}

impl Unit {
    /// The value alone.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Number => format!("{value:.0}"),
            Self::Tenths => format!("{value:.1}"),
            Self::Ratio if (0.99..1.0).contains(&value) => format!("{value:.5}"),
            Self::Ratio => format!("{value:.3}"),
            Self::Thousands => format!("{:.1}", value / 1e3),
            Self::Millions => format!("{:.1}", value / 1e6),
            Self::Gigabytes => format!("{:.1}", value / 1e9),
            Self::Seconds => format!("{:.2}", value / 1e9),
            Self::Kibibytes => format!("{:.0}", value / 1024.0),
            Self::Microseconds => format!("{:.2}", value / 1e3),
            Self::Milliseconds => format!("{:.2}", value / 1e6),
            Self::Mebibytes => format!("{:.0}", value / f64::from(1 << 20)),
        }
    }

    /// The value with its unit's name.
    pub fn with_name(self, value: f64) -> String {
        let name = match self {
            Self::Number | Self::Tenths | Self::Ratio => "",
            Self::Thousands => " thousand",
            Self::Millions => " million",
            Self::Gigabytes => " GB",
            Self::Seconds => " s",
            Self::Kibibytes => " KiB",
            Self::Microseconds => " us",
            Self::Milliseconds => " ms",
            Self::Mebibytes => " MiB",
        };
        self.text(value) + name
    }
}

/// A column of the table.
#[derive(Debug, Clone)]
pub struct Column {
    title: &'static str,
    figure: &'static str,
    unit: Unit,
    extremes: bool,
}

impl Column {
    /// The median of a figure.
    pub fn median(title: &'static str, figure: &'static str, unit: Unit) -> Self {
        Self {
            title,
            figure,
            unit,
            extremes: false,
        }
    }

    /// The median of a figure, and its extremes over the turns.
    pub fn spread(title: &'static str, figure: &'static str, unit: Unit) -> Self {
        Self {
            extremes: true,
            ..Self::median(title, figure, unit)
        }
    }

    fn cell(&self, peer: &PeerReport) -> String {
        match peer.figures.get(self.figure) {
            None => "-".to_owned(),
            Some(spread) if self.extremes && peer.turns.len() > 1 => format!(
                "{} ({}..{})",
                self.unit.text(spread.median),
                self.unit.text(spread.min),
                self.unit.text(spread.max)
            ),
            Some(spread) => self.unit.text(spread.median),
        }
    }
}

/// The table.
pub fn text(columns: &[Column], peers: &[PeerReport]) -> String {
    let mut rows = vec![
        std::iter::once("peer".to_owned())
            .chain(columns.iter().map(|column| column.title.to_owned()))
            .collect::<Vec<_>>(),
    ];
    for peer in peers {
        let name = std::iter::once(peer.peer.clone());
        rows.push(match &peer.not_run {
            Some(reason) => name.chain([format!("not run: {reason}")]).collect(),
            None => name
                .chain(columns.iter().map(|column| column.cell(peer)))
                .collect(),
        });
    }
    aligned(&rows, columns.len() + 1)
}

/// The table of targets and figures.
pub fn targets(targets: &[Target]) -> String {
    let titles = ["figure", "found", "asked", "verdict"].map(str::to_owned);
    let mut rows = vec![titles.to_vec()];
    rows.extend(targets.iter().map(|target| {
        let [found, asked, verdict] = target.words();
        vec![target.what.clone(), found, asked, verdict]
    }));
    aligned(&rows, titles.len())
}

/// Lines of `columns` cells, the first to the left, the others to the right.
fn aligned(rows: &[Vec<String>], columns: usize) -> String {
    // A reason spans the columns and widens none.
    let whole: Vec<&Vec<String>> = rows.iter().filter(|row| row.len() == columns).collect();
    let width = |i: usize| whole.iter().map(|row| row[i].len()).max().unwrap_or(0);
    let first = rows.iter().map(|row| row[0].len()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let mut line = format!("{:first$}", row[0]);
        for (i, cell) in row.iter().enumerate().skip(1) {
            if row.len() == columns {
                line.push_str(&format!("  {cell:>width$}", width = width(i)));
            } else {
                line.push_str(&format!("  {cell}"));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_aligned() {
        let targets = [
            Target::at_least("a", 3.0, Unit::Ratio, Some(3.25)),
            Target::at_most("longer", 0.5, Unit::Ratio, None),
        ];
        let text = super::targets(&targets);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(words, ["a", "3.250", "at", "least", "3.000", "reached"]);
        assert!(lines[2].ends_with("unknown: a peer was not run"), "{text}");
        assert_eq!(lines[1].len(), lines[2].len());
    }

    #[test]
    fn columns_are_aligned() {
        let peers = [
            PeerReport::of("a", [[("ns", 1000.0)]]),
            PeerReport::of("longer", [123_456.0, 1000.0].map(|ns| [("ns", ns)])),
            PeerReport::not_run("c", "a reason that is quite long".to_owned()),
        ];
        let text = text(&[Column::spread("us", "ns", Unit::Microseconds)], &peers);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1].len(), lines[2].len());
        assert!(lines[2].ends_with("62.23 (1.00..123.46)"), "{text}");
        assert_eq!(lines[3], "c       not run: a reason that is quite long");
    }
}
