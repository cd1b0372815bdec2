//! Line plots as SVG. The same lines give the same bytes.

use std::fmt::Write as _;

/// One line.
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points, x rising.
    pub points: Vec<(f64, f64)>,
    /// Dashed.
    pub dashed: bool,
}

/// The quantity of the x axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Axis {
    /// A size in pages.
    Memory,
    /// A count of things with this name.
    Count(&'static str),
}

impl Axis {
    fn name(self) -> &'static str {
        match self {
            Axis::Memory => "memory",
            Axis::Count(name) => name,
        }
    }

    fn label(self, value: u64) -> String {
        match self {
            Axis::Memory => crate::size::humane(value),
            Axis::Count(_) => crate::size::count(value),
        }
    }
}

/// A plot: the x axis is logarithmic, y starts at 0.
pub struct Plot {
    /// Its title.
    pub title: String,
    /// The x axis.
    pub x: Axis,
    /// Beside the y axis.
    pub y_name: String,
    /// The lines.
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 64.0;
/// Lines with up to this many points have each point marked.
const MARKED: usize = 32;
/// Colours that also differ for the colour-blind (Okabe and Ito).
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A round step that divides `most` into about five.
fn step(most: f64) -> f64 {
    let raw = most / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    factors
        .into_iter()
        .map(|f| f * power)
        .find(|s| *s >= raw)
        .unwrap_or(raw)
}

/// Plots below each other, in one picture.
pub fn stacked(plots: &[Plot]) -> String {
    let mut out = head(HEIGHT * plots.len() as f64);
    for (n, plot) in plots.iter().enumerate() {
        let _ = writeln!(out, "<g transform=\"translate(0 {})\">", HEIGHT * n as f64);
        plot.draw(&mut out);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

/// The begin of a picture, which is light or dark as the reader prefers.
fn head(height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <style>@media (prefers-color-scheme: dark) {{ .paper {{ fill: #0d1117 }} text {{ fill: #f0f6fc }} \
         .grid {{ stroke: #30363d }} .axis {{ stroke: #9198a1 }} [stroke=\"#000000\"] {{ stroke: #ffffff }} \
         [fill=\"#000000\"] {{ fill: #ffffff }} }}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\" class=\"paper\"/>\n"
    )
}

impl Plot {
    /// The picture.
    pub fn svg(&self) -> String {
        let mut out = head(HEIGHT);
        self.draw(&mut out);
        out.push_str("</svg>\n");
        out
    }

    fn draw(&self, out: &mut String) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let least = points().map(|p| p.0).fold(f64::INFINITY, f64::min).max(1.0);
        let least = if least.is_finite() {
            least.log2().floor()
        } else {
            0.0
        };
        let most = points().map(|p| p.0).fold(2.0, f64::max).log2();
        let most = most.ceil().max(least + 1.0);
        let high = points().map(|p| p.1).fold(0.0, f64::max);
        let high = if high > 0.0 { high } else { 1.0 };
        let step = step(high);
        let high = (high / step - 1e-9).ceil() * step;
        let x = |v: f64| {
            LEFT + (v.max(1.0).log2().max(least) - least) / (most - least) * (WIDTH - LEFT - RIGHT)
        };
        let y = |v: f64| HEIGHT - BOTTOM - v / high * (HEIGHT - TOP - BOTTOM);
        // What the lines say, for those who do not see them.
        let told = self.lines.iter().filter(|line| line.points.len() <= MARKED);
        let told = told.map(|line| {
            let points = line.points.iter();
            let points: Vec<String> = points.map(|(x, y)| format!("{x} {y:.3}")).collect();
            format!("{}: {}", line.name, points.join(", "))
        });
        let told: Vec<String> = told.collect();
        let _ = writeln!(
            out,
            "<desc>{}; {}</desc>\n<text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>",
            escape(&self.title),
            escape(&told.join("; ")),
            escape(&self.title)
        );
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let ticks = (high / step).round() as u32;
        for n in 0..=ticks {
            let value = f64::from(n) * step;
            let at = y(value);
            let decimals = (-step.log10().floor()).max(0.0) as usize;
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#dddddd\" class=\"grid\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value:.decimals$}</text>",
                LEFT - 8.0,
                at + 4.0
            );
        }
        let powers = most as i32 - least as i32;
        let every = (powers + 9) / 10;
        for power in (least as i32..=most as i32).step_by(every.max(1) as usize) {
            let at = x(2f64.powi(power));
            let label = self.x.label(1 << power.clamp(0, 62));
            let _ = writeln!(
                out,
                "<line x1=\"{at:.1}\" y1=\"{bottom}\" x2=\"{at:.1}\" y2=\"{}\" stroke=\"#333333\" class=\"axis\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                bottom + 5.0,
                bottom + 20.0
            );
        }
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{bottom}\" stroke=\"#333333\" class=\"axis\"/>\n\
             <text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
             <text x=\"16\" y=\"{TOP}\" dy=\"-8\">{}</text>",
            (LEFT + right) / 2.0,
            bottom + 42.0,
            escape(self.x.name()),
            escape(&self.y_name)
        );
        // The legend is where the lines are lower.
        let middle = f64::midpoint(least, most);
        let highest = |is_left: bool| {
            let of_side = points().filter(|p| (p.0.max(1.0).log2() < middle) == is_left);
            of_side.map(|p| p.1).fold(0.0, f64::max)
        };
        let legend = if highest(true) < highest(false) {
            LEFT + 12.0
        } else {
            right - 190.0
        };
        for (n, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            let dashes = if line.dashed {
                " stroke-dasharray=\"6 4\""
            } else {
                ""
            };
            let mut path = String::new();
            for &(px, py) in &line.points {
                let _ = write!(path, "{:.1},{:.1} ", x(px), y(py));
            }
            if line.points.len() <= MARKED {
                for &(px, py) in &line.points {
                    let (cx, cy) = (x(px), y(py));
                    let _ = writeln!(
                        out,
                        "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\" fill=\"{colour}\"/>"
                    );
                }
            }
            let at = TOP + 8.0 + 18.0 * n as f64;
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>\n\
                 <line x1=\"{:.1}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                path.trim_end(),
                legend,
                legend + 30.0,
                legend + 38.0,
                at + 4.0,
                escape(&line.name)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_drawn_and_named() {
        let line = |name: &str, points: &[(f64, f64)]| Line {
            name: name.into(),
            points: points.to_vec(),
            dashed: false,
        };
        let plot = Plot {
            title: "a < b".into(),
            x: Axis::Memory,
            y_name: "misses".into(),
            lines: vec![line("one", &[(1.0, 0.5), (1024.0, 0.0)]), line("two", &[])],
        };
        let svg = plot.svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a &lt; b") && svg.contains(">one</text>") && svg.contains("4 MiB"));
        assert!(
            svg.contains("one: 1 0.500, 1024 0.000; two: </desc>"),
            "{svg}"
        );
        // The first point is at the upper left, the last at the lower right.
        assert!(
            svg.contains(&format!(
                "points=\"{LEFT:.1},{TOP:.1} {:.1},{:.1}\"",
                WIDTH - RIGHT,
                HEIGHT - BOTTOM
            )),
            "{svg}"
        );
        let counted = Plot {
            x: Axis::Count("threads"),
            ..plot
        };
        let svg = counted.svg();
        assert!(svg.contains(">1,024</text>") && svg.contains(">threads</text>"));
        let empty = Plot {
            title: String::new(),
            x: Axis::Memory,
            y_name: String::new(),
            lines: Vec::new(),
        };
        assert!(!empty.svg().contains("NaN"));
    }

    #[test]
    fn plots_are_below_each_other_and_have_their_legends_beside_the_lines() {
        let plot = |points: [(f64, f64); 2]| Plot {
            title: "t".into(),
            x: Axis::Count("clients"),
            y_name: String::new(),
            lines: vec![Line {
                name: "one".into(),
                points: points.to_vec(),
                dashed: false,
            }],
        };
        let svg = stacked(&[
            plot([(1.0, 9.0), (1000.0, 1.0)]),
            plot([(1.0, 1.0), (1000.0, 9.0)]),
        ]);
        assert_eq!(svg.matches("<svg ").count(), 1);
        assert!(svg.contains("viewBox=\"0 0 760 920\"") && svg.contains("translate(0 460)"));
        let x = |n: usize| {
            let name = svg.match_indices(">one</text>").nth(n).expect("a name").0;
            let start = svg[..name].rfind("<text x=\"").expect("its place") + 9;
            svg[start..]
                .split('"')
                .next()
                .and_then(|x| x.parse::<f64>().ok())
        };
        assert!(x(0) > Some(380.0) && x(1) < Some(380.0), "{svg}");
    }
}
