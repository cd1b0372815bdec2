//! The seeds' tables with the simulated figures beside the published ones: as text, Markdown, JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;

use super::experiment::Figures;
use super::published::{Change, Distance, Row, Seed, Verdict};

/// One row, compared.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The seed's label.
    pub label: String,
    /// Of all figures.
    pub unit: String,
    /// One of the seed's headlines.
    pub headline: bool,
    /// The published figures.
    pub published: Pair,
    /// The simulated figures; none if the model lacks them.
    pub simulated: Option<Pair>,
    /// From the published change to the simulated one.
    pub distance: Option<Distance>,
    /// The verdict.
    pub verdict: Option<Verdict>,
    /// foreswap's own best policy on the same machine and workload.
    pub foreswap: Option<f64>,
    /// Its change from the simulated base.
    pub foreswap_change: Option<Change>,
}

/// Base and optimized.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pair {
    /// Before.
    pub base: f64,
    /// After.
    pub optimized: f64,
    /// The change.
    pub change: Change,
}

/// One table.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Its subject.
    pub name: String,
    /// Machine and scale.
    pub machine: String,
    /// The source of the noise.
    pub source: String,
    /// Its rows.
    pub rows: Vec<Compared>,
    /// The results that hold, those that do not, and why.
    pub notes: Vec<String>,
}

/// One seed.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its name.
    pub seed: String,
    /// The document.
    pub document: String,
    /// Its tables.
    pub tables: Vec<Table>,
}

impl Compared {
    fn new(row: &Row, [base, optimized, ours]: &[Figures; 3]) -> Self {
        let pair = |base: f64, optimized: f64| Pair {
            base,
            optimized,
            change: Change::between(&row.unit, base, optimized),
        };
        let found = base.get(&row.key).zip(optimized.get(&row.key));
        let simulated = found.map(|(&base, &optimized)| pair(base, optimized));
        let judged = simulated.map(|pair| row.judge(pair.change));
        let foreswap = ours.get(&row.key).copied();
        let change = |(pair, ours): (Pair, f64)| Change::between(&row.unit, pair.base, ours);
        Compared {
            label: row.label.clone(),
            unit: row.unit.clone(),
            headline: row.headline,
            published: pair(row.base, row.optimized),
            simulated,
            distance: judged.map(|(distance, _)| distance),
            verdict: judged.map(|(_, verdict)| verdict),
            foreswap,
            foreswap_change: simulated.zip(foreswap).map(change),
        }
    }
}

impl Report {
    /// The seed's tables beside the simulated figures; `machines` has the machine of each experiment, by name.
    pub fn new(
        seed: &Seed,
        figures: &[Figures; 3],
        machines: &BTreeMap<&'static str, String>,
    ) -> Self {
        let machine = |table: &super::published::Table| {
            let experiments = table
                .rows
                .iter()
                .filter_map(|row| row.key.split('/').next());
            let machines: BTreeSet<_> = experiments.filter_map(|name| machines.get(name)).collect();
            let machines: Vec<&str> = machines.into_iter().map(String::as_str).collect();
            machines.join("; ")
        };
        let table = |table: &super::published::Table| Table {
            name: table.name.clone(),
            machine: machine(table),
            source: table.source.clone(),
            notes: table.notes.clone(),
            rows: table
                .rows
                .iter()
                .map(|row| Compared::new(row, figures))
                .collect(),
        };
        Report {
            seed: seed.seed.clone(),
            document: seed.document.clone(),
            tables: seed.tables.iter().map(table).collect(),
        }
    }
}

/// Four digits, or as many as the integer part has.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        n if n >= 1000.0 => 0,
        n if n >= 100.0 => 1,
        n if n >= 10.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn change(change: Change) -> String {
    match change {
        Change::Percent(n) => format!("{n:+.1} %"),
        Change::Points(n) => format!("{n:+.1} points"),
        Change::Times(n) if n.is_infinite() => "from none".into(),
        Change::Times(0.0) => "to none".into(),
        Change::Times(n) => format!("x {}", number(n)),
    }
}

fn distance(distance: Distance) -> String {
    match distance {
        Distance::Factor(n) | Distance::Points(n) if n.is_infinite() => "none in one".into(),
        Distance::Points(n) => format!("{n:+.1} points"),
        Distance::Factor(n) => format!("factor {}", number(n)),
    }
}

const fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Direction => "direction holds",
        Verdict::Noise => "(noise)",
        Verdict::Fails => "does not hold",
    }
}

const HEADER: [&str; 10] = [
    "row",
    "published",
    "",
    "change",
    "simulated",
    "",
    "change",
    "distance",
    "",
    "foreswap",
];
const BELOW: [&str; 10] = [
    "",
    "base",
    "optimized",
    "",
    "base",
    "optimized",
    "",
    "",
    "",
    "",
];

fn cells(row: &Compared) -> [String; 10] {
    let unit = if row.unit.is_empty() {
        String::new()
    } else {
        format!(" [{}]", row.unit)
    };
    let star = if row.headline { "*" } else { "" };
    let none = || "not modelled".to_owned();
    let ours = match (row.foreswap, row.foreswap_change) {
        (Some(value), Some(by)) => format!("{} ({})", number(value), change(by)),
        (Some(value), None) => number(value),
        _ => String::new(),
    };
    [
        format!("{}{unit}{star}", row.label),
        number(row.published.base),
        number(row.published.optimized),
        change(row.published.change),
        row.simulated.map_or_else(none, |pair| number(pair.base)),
        row.simulated
            .map_or_else(String::new, |pair| number(pair.optimized)),
        row.simulated
            .map_or_else(String::new, |pair| change(pair.change)),
        row.distance.map_or_else(String::new, distance),
        row.verdict.map_or("", verdict).to_owned(),
        ours,
    ]
}

/// In lines of up to 100 characters.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + length + 1 > 100 {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}

const LEGEND: &str = "\
* a headline of the seed. Distance: from the published change to the simulated one. Holds: within 5
points, or a factor of 1.5 of a multiple. foreswap: its own policy on the same machine and work, the
same for all tables, huge pages included where memory is touched in order; with the change from the
simulated base.";

/// As text for a terminal.
pub fn text(reports: &[Report]) -> String {
    let mut out = String::new();
    for report in reports {
        let _ = writeln!(out, "{}: {}", report.seed, report.document);
        for table in &report.tables {
            let _ = writeln!(
                out,
                "\n{} ({})\n{}\n",
                table.name, table.machine, table.source
            );
            let head = [HEADER, BELOW].map(|line| line.map(str::to_owned));
            let rows: Vec<[String; 10]> = head
                .into_iter()
                .chain(table.rows.iter().map(cells))
                .collect();
            let width = |n: usize| rows.iter().map(|row| row[n].chars().count()).max();
            let widths: Vec<usize> = (0..10).map(|n| width(n).unwrap_or(0)).collect();
            for row in &rows {
                let mut line = String::new();
                for (n, (cell, width)) in row.iter().zip(&widths).enumerate() {
                    let _ = match n {
                        0 | 8 => write!(line, "{cell:<width$}  "),
                        _ => write!(line, "{cell:>width$}  "),
                    };
                }
                let _ = writeln!(out, "{}", line.trim_end());
            }
            for note in &table.notes {
                let _ = writeln!(out, "\n{}", wrapped(note));
            }
        }
        let _ = writeln!(out);
    }
    let _ = writeln!(out, "{LEGEND}");
    out
}

/// As Markdown.
pub fn markdown(reports: &[Report]) -> String {
    let mut out = String::new();
    for report in reports {
        let _ = writeln!(out, "## {}\n\n{}", report.seed, report.document);
        for table in &report.tables {
            let _ = writeln!(
                out,
                "\n### {}\n\n{}; {}.\n",
                table.name, table.machine, table.source
            );
            let head = [
                "row",
                "base",
                "optimized",
                "change",
                "simulated base",
                "simulated optimized",
                "change",
                "distance",
                "verdict",
                "foreswap",
            ];
            let _ = writeln!(out, "| {} |", head.join(" | "));
            let _ = writeln!(out, "| --- |{}", " ---: |".repeat(9));
            for row in &table.rows {
                let row = cells(row).map(|cell| cell.replace('*', "\\*").replace('|', "\\|"));
                let _ = writeln!(out, "| {} |", row.join(" | "));
            }
            for note in &table.notes {
                let _ = writeln!(out, "\n{note}");
            }
        }
        let _ = writeln!(out);
    }
    let _ = writeln!(out, "{}", LEGEND.replacen('*', "\\*", 1));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (123_456.0, "123456"),
            (98.04, "98.04"),
            (1.0, "1"),
            (0.0256, "0.026"),
            (410.25, "410.2"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_figure_that_is_not_modelled_says_so() {
        let seeds = super::super::published::seeds().expect("readable");
        let none = [Figures::new(), Figures::new(), Figures::new()];
        let machines = ["usemem", "linpack"].map(|name| (name, format!("where {name} ran")));
        let report = Report::new(&seeds[0], &none, &machines.into());
        assert_eq!(report.tables[0].machine, "where usemem ran");
        assert_eq!(report.tables[1].machine, "where linpack ran");
        assert!(
            report.tables[0]
                .rows
                .iter()
                .all(|row| row.verdict.is_none())
        );
        let reports = [report];
        assert!(text(&reports).contains("not modelled"));
        assert!(markdown(&reports).contains("not modelled"));
    }
}
