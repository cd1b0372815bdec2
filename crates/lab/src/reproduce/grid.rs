//! Tables for a terminal and as Markdown.

use std::fmt::Write as _;

/// A table: names on the left, figures to the right of them.
pub struct Grid<const N: usize> {
    /// The column headings.
    pub head: [&'static str; N],
    /// The first columns that hold names.
    pub names: usize,
    /// The rows.
    pub rows: Vec<[String; N]>,
}

impl<const N: usize> Grid<N> {
    /// In columns.
    pub fn text(&self) -> String {
        let head = self.head.map(str::to_owned);
        let rows = || std::iter::once(&head).chain(&self.rows);
        let widths = [(); N];
        let mut n = 0;
        let widths = widths.map(|()| {
            n += 1;
            let cells = rows().map(|row| row[n - 1].chars().count());
            cells.max().unwrap_or(0)
        });
        let mut out = String::new();
        for row in rows() {
            let mut line = String::new();
            for (n, (cell, width)) in row.iter().zip(widths).enumerate() {
                let _ = match n < self.names {
                    true => write!(line, "{cell:<width$}  "),
                    false => write!(line, "{cell:>width$}  "),
                };
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out
    }

    /// With title and machine above, and a legend of the columns below; for a terminal.
    pub fn text_of(&self, title: &str, machine: &str, legend: &str) -> String {
        format!("{title} ({machine})\n\n{}\n{legend}\n", self.text())
    }

    /// As [`Grid::text_of`], as Markdown.
    pub fn markdown_of(&self, title: &str, machine: &str, legend: &str) -> String {
        let rows = self.markdown();
        format!("## {title}\n\n{machine}.\n\n{rows}\n{legend}\n")
    }

    /// As a Markdown table.
    pub fn markdown(&self) -> String {
        let mut out = format!("| {} |\n|", self.head.join(" | "));
        for n in 0..N {
            out.push_str(if n < self.names { " --- |" } else { " ---: |" });
        }
        out.push('\n');
        for row in &self.rows {
            let _ = writeln!(out, "| {} |", row.join(" | "));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_left_and_figures_right() {
        let row = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        let grid = Grid {
            head: ["who", "n"],
            names: 1,
            rows: vec![row("a", "100"), row("bcdé", "7")],
        };
        assert_eq!(grid.text(), "who     n\na     100\nbcdé    7\n");
        let markdown = "| who | n |\n| --- | ---: |\n| a | 100 |\n| bcdé | 7 |\n";
        assert_eq!(grid.markdown(), markdown);
    }
}
