//! A line chart as SVG that can be read in black and white: lines differ in dash and marker, not in colour.

/// A line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Points in the order they are joined.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Title.
    pub title: String,
    /// Name of the horizontal axis.
    pub x: String,
    /// Name of the vertical axis, with its unit.
    pub y: String,
    /// The vertical axis is logarithmic; values of 0 and below stand at its lower end.
    pub logarithmic: bool,
    /// Lines.
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
/// Left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 36.0, 190.0, 44.0);
const DASHES: [&str; 5] = ["", "6 3", "2 3", "8 3 2 3", "12 4"];

/// Text that XML would read as markup.
pub(super) fn escaped(s: &str) -> String {
    s.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;")
}

impl Chart {
    /// The chart as SVG. The same chart gives the same bytes.
    pub fn svg(&self) -> String {
        let finite = |p: &&(f64, f64)| p.0.is_finite() && p.1.is_finite();
        let points: Vec<&(f64, f64)> = self.lines.iter().flat_map(|l| &l.points).filter(finite).collect();
        let (x0, x1) = span(points.iter().map(|p| p.0));
        let positive = points.iter().map(|p| p.1).filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min);
        let floor = if positive.is_finite() { positive } else { 1.0 };
        let scale = |y: f64| if self.logarithmic { y.max(floor).log10() } else { y };
        let (y0, y1) = span(points.iter().map(|p| scale(p.1)));
        let (left, top, right, bottom) = MARGIN;
        let at_x = |x: f64| left + (x - x0) / (x1 - x0) * (WIDTH - left - right);
        let at_y = |y: f64| HEIGHT - bottom - (y - y0) / (y1 - y0) * (HEIGHT - top - bottom);
        let mut s = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"11\" fill=\"black\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
             <text x=\"{left}\" y=\"20\" font-size=\"13\">{}</text>\n",
            escaped(&self.title)
        );
        let (axis_y, axis_x) = (HEIGHT - bottom, WIDTH - right);
        s += &format!("<path d=\"M{left} {top}V{axis_y}H{axis_x}\" fill=\"none\" stroke=\"black\"/>\n");
        for i in 0..=4 {
            let y = y0 + (y1 - y0) * f64::from(i) / 4.0;
            let label = if self.logarithmic { format!("{:.1e}", 10f64.powf(y)) } else { format!("{y:.3}") };
            s += &format!(
                "<path d=\"M{left} {0:.1}H{axis_x}\" stroke=\"#ccc\"/><text x=\"{1:.1}\" y=\"{2:.1}\" \
                 text-anchor=\"end\">{label}</text>\n",
                at_y(y),
                left - 6.0,
                at_y(y) + 4.0
            );
        }
        let ticks = ((x1 - x0).round() as usize).clamp(1, 8);
        for i in 0..=ticks {
            let x = (x0 + (x1 - x0) * i as f64 / ticks as f64).round();
            s += &format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x}</text>\n",
                at_x(x),
                axis_y + 16.0
            );
        }
        s += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n<text x=\"14\" y=\"{:.1}\" \
             transform=\"rotate(-90 14 {:.1})\" text-anchor=\"middle\">{}</text>\n",
            (left + axis_x) / 2.0,
            HEIGHT - 8.0,
            escaped(&self.x),
            (top + axis_y) / 2.0,
            (top + axis_y) / 2.0,
            escaped(&self.y)
        );
        for (i, line) in self.lines.iter().enumerate() {
            let dash = DASHES[i % DASHES.len()];
            let path: Vec<String> = line
                .points
                .iter()
                .filter(finite)
                .map(|p| format!("{:.1} {:.1}", at_x(p.0), at_y(scale(p.1))))
                .collect();
            if path.is_empty() {
                continue;
            }
            s += &format!(
                "<path d=\"M{}\" fill=\"none\" stroke=\"black\" stroke-dasharray=\"{dash}\"/>\n",
                path.join("L")
            );
            for p in &path {
                let (x, y) = p.split_once(' ').unwrap_or_default();
                s += &marker(i, x.parse().unwrap_or(0.0), y.parse().unwrap_or(0.0));
            }
            let y = top + 8.0 + 16.0 * i as f64;
            s += &format!(
                "<path d=\"M{:.1} {y:.1}h28\" stroke=\"black\" stroke-dasharray=\"{dash}\"/>",
                axis_x + 12.0
            );
            s += &marker(i, axis_x + 26.0, y);
            s += &format!(
                "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                axis_x + 46.0,
                y + 4.0,
                escaped(if line.name.is_empty() { "candidate" } else { &line.name })
            );
        }
        s + "</svg>\n"
    }
}

/// A span that is not empty.
fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (a, b) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
    match (a.is_finite(), a < b) {
        (false, _) => (0.0, 1.0),
        (true, false) => (a - 0.5, a + 0.5),
        _ => (a, b),
    }
}

fn marker(i: usize, x: f64, y: f64) -> String {
    let fill = if (i / 4).is_multiple_of(2) { "black" } else { "white" };
    match i % 4 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{fill}\" stroke=\"black\"/>\n"),
        1 => format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"6\" height=\"6\" fill=\"{fill}\" stroke=\"black\"/>\n",
            x - 3.0,
            y - 3.0
        ),
        2 => format!("<path d=\"M{x:.1} {:.1}l3.5 6h-7z\" fill=\"{fill}\" stroke=\"black\"/>\n", y - 3.5),
        _ => {
            format!("<path d=\"M{x:.1} {:.1}l4 4l-4 4l-4 -4z\" fill=\"{fill}\" stroke=\"black\"/>\n", y - 4.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(logarithmic: bool, points: &[(f64, f64)]) -> String {
        let lines = vec![Line { name: "a<b".into(), points: points.to_vec() }];
        Chart { title: "t & u".into(), x: "layer".into(), y: "excess".into(), logarithmic, lines }.svg()
    }

    /// Catches coordinates that are no numbers (one point, equal values, zeros on a logarithmic axis, NaN), and names
    /// that break the XML.
    #[test]
    fn any_values_give_a_chart() {
        let cases: [&[(f64, f64)]; 5] = [
            &[],
            &[(3.0, 0.0)],
            &[(0.0, 2.0), (1.0, 2.0)],
            &[(0.0, 0.0), (1.0, 1e-7), (2.0, 5e9)],
            &[(0.0, f64::NAN), (1.0, f64::INFINITY), (2.0, 1.0)],
        ];
        for points in cases {
            for log in [false, true] {
                let s = chart(log, points);
                assert!(!s.contains("NaN") && !s.contains("inf"), "{points:?}\n{s}");
                assert!(s.contains("t &amp; u") && !s.contains("a<b"));
                assert!(s.starts_with("<svg") && s.ends_with("</svg>\n"));
            }
        }
        assert_eq!(chart(true, cases[3]), chart(true, cases[3]));
    }
}
