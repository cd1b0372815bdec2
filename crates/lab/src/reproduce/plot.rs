//! The published and the simulated change of each row, as bars.

use std::fmt::Write as _;

use super::published::Change;
use super::report::{Compared, Report};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 330.0;
const ROW: f64 = 34.0;
const BAR: f64 = 11.0;

/// The length of a change's bar, from -1 to 1: a tenth is the left end of the scale, ten times the right end.
fn reach(change: Change) -> f64 {
    let ratio = match change {
        Change::Percent(n) | Change::Points(n) => 1.0 + n / 100.0,
        Change::Times(n) => n,
    };
    // Without a logarithm, whose last bit depends on the machine: nine parts of a ratio's excess.
    if ratio >= 1.0 {
        (ratio - 1.0).min(9.0) / 9.0
    } else {
        (1.0 - 1.0 / ratio.max(0.1)).max(-9.0) / 9.0
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// All rows of all tables as one picture.
pub fn svg(reports: &[Report]) -> String {
    let mut body = String::new();
    let mut y = 30.0;
    for report in reports {
        for table in &report.tables {
            let name = escape(&format!("{}: {}", report.seed, table.name));
            let _ = writeln!(
                body,
                r##"<text x="10" y="{y:.0}" font-weight="bold">{name}</text>"##
            );
            y += 10.0;
            for row in &table.rows {
                bars(&mut body, row, y);
                y += ROW;
            }
            y += 26.0;
        }
    }
    let middle = LEFT + (WIDTH - LEFT) / 2.0;
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0}" height="{height:.0}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
<line x1="{middle:.0}" y1="20" x2="{middle:.0}" y2="{y:.0}" stroke="black"/>
{body}<text x="10" y="{legend:.0}"><tspan fill="#888888">published</tspan>, <tspan fill="#1f77b4">simulated</tspan>: change from base to optimized; the ends are a tenth and ten times</text>
</svg>
"##,
        height = y + 30.0,
        legend = y + 14.0,
    )
}

fn bars(body: &mut String, row: &Compared, y: f64) {
    let half = (WIDTH - LEFT) / 2.0 - 10.0;
    let middle = LEFT + (WIDTH - LEFT) / 2.0;
    let label = escape(&row.label);
    let text = y + 16.0;
    let _ = writeln!(body, r##"<text x="20" y="{text:.0}">{label}</text>"##);
    let changes = [
        (Some(row.published.change), "#888888"),
        (row.simulated.map(|pair| pair.change), "#1f77b4"),
    ];
    for (n, (change, colour)) in changes.into_iter().enumerate() {
        let Some(change) = change else { continue };
        let length = half * reach(change);
        let x = middle + length.min(0.0);
        let y = y + 4.0 + BAR * n as f64;
        let width = length.abs().max(1.0);
        let _ = writeln!(
            body,
            r##"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{BAR:.0}" fill="{colour}"/>"##
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reach_grows_with_the_change_and_is_bounded() {
        let all = [0.01, 0.1, 0.5, 0.9, 1.0, 1.1, 2.0, 10.0, 1000.0];
        let reaches = all.map(|n| reach(Change::Times(n)));
        assert!(reaches.is_sorted(), "{reaches:?}");
        assert_eq!((reaches[0], reaches[4], reaches[8]), (-1.0, 0.0, 1.0));
    }
}
