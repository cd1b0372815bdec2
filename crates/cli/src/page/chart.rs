//! Charts over time or memory, as inline SVG.
//!
//! The picture is stretched to the width of the screen and has no text: labels are HTML beside it, so that they have the
//! size of text on a telephone as well. Series differ by colour, and by being filled, drawn or dashed.

use std::fmt::Write;

use maud::{Markup, html};

use super::axis::{Axis, Unit};

/// Units of the picture on each side.
const SIDE: f64 = 1000.0;

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A filled area.
    Area,
    /// A line.
    Line,
    /// A thin dashed line.
    Dashed,
}

/// A series: values by time or memory.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: &'static str,
    /// Its colour: 1 to 4, as in the style sheet.
    pub colour: u8,
    /// How it is drawn.
    pub style: Style,
    /// The points. A value holds from the point before to its own, if `steps`.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Its heading.
    pub title: &'static str,
    /// One sentence for those who do not see it.
    pub summary: String,
    /// The horizontal axis.
    pub x: Axis,
    /// What the vertical axis counts.
    pub unit: Unit,
    /// The series, the first at the back.
    pub series: Vec<Series>,
    /// Values hold over an interval: rates do, levels do not.
    pub steps: bool,
}

/// The path of a line. Points that are not told apart are left out.
fn path(chart: &Chart, y: &Axis, series: &Series) -> String {
    let mut path = String::new();
    let mut last = (-1, -1);
    for (x, value) in &series.points {
        let x = (chart.x.place(*x) * SIDE).round() as i32;
        let down = ((1.0 - y.place(*value)) * SIDE).round() as i32;
        if (x, down) == last {
            continue;
        }
        let _ = match path.is_empty() {
            true if series.style == Style::Area => write!(path, "M{x} {SIDE}V{down}"),
            true => write!(path, "M{x} {down}"),
            false if chart.steps => write!(path, "V{down}H{x}"),
            false => write!(path, "L{x} {down}"),
        };
        last = (x, down);
    }
    if series.style == Style::Area && !path.is_empty() {
        let _ = write!(path, "V{SIDE}Z");
    }
    path
}

/// The labels below a picture.
pub fn x_labels(axis: &Axis) -> Markup {
    html! {
        div .x aria-hidden="true" {
            @for (number, tick) in axis.ticks.iter().enumerate() {
                @let place = axis.place(*tick) * 100.0;
                span .minor[number % 2 == 1 && axis.ticks.len() > 4] .last[place > 96.0] style=(format!("left:{place:.2}%")) { (axis.label(*tick)) }
            }
        }
    }
}

impl Chart {
    /// The chart with its heading and legend.
    pub fn draw(&self) -> Markup {
        let values = self.series.iter().flat_map(|series| &series.points);
        let most = values.map(|&(_, value)| value).fold(0.0, f64::max);
        let y = Axis::up_to(most, self.unit);
        html! {
            figure .chart {
                figcaption {
                    h3 { (self.title) }
                    ul .legend {
                        @for series in &self.series {
                            li { span class=(format!("key c{} {:?}", series.colour, series.style)) {} (series.name) }
                        }
                    }
                }
                div .plot {
                    div .y aria-hidden="true" {
                        @for tick in &y.ticks {
                            span style=(format!("bottom:{:.2}%", y.place(*tick) * 100.0)) { (y.label(*tick)) }
                        }
                    }
                    svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-label=(self.summary) {
                        @for tick in &y.ticks {
                            @let down = (1.0 - y.place(*tick)) * SIDE;
                            line .rule x1="0" x2="1000" y1=(format!("{down:.0}")) y2=(format!("{down:.0}")) {}
                        }
                        @for series in &self.series {
                            path class=(format!("c{} {:?}", series.colour, series.style)) d=(path(self, &y, series)) {}
                        }
                    }
                    (x_labels(&self.x))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_where_the_axes_say() {
        let chart = |steps, style| Chart {
            title: "Memory",
            summary: "Up & down".into(),
            x: Axis::within(0.0, 10.0, Unit::Time),
            unit: Unit::Count,
            series: vec![Series {
                name: "held",
                colour: 1,
                style,
                points: vec![(0.0, 0.0), (5.0, 10.0), (5.0, 10.0), (10.0, 5.0)],
            }],
            steps,
        };
        let line = chart(false, Style::Line).draw().into_string();
        assert!(line.contains("d=\"M0 1000L500 0L1000 500\""), "{line}");
        assert!(
            line.contains("aria-label=\"Up &amp; down\"") && line.contains(">10</span>"),
            "{line}"
        );
        let area = chart(true, Style::Area).draw().into_string();
        assert!(
            area.contains("d=\"M0 1000V1000V0H500V500H1000V1000Z\""),
            "{area}"
        );
        let empty = Chart {
            series: Vec::new(),
            ..chart(false, Style::Line)
        };
        assert!(!empty.draw().into_string().contains("NaN"));
    }
}
