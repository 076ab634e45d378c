//! Plots of a report: errors and overlaps by layer.

use super::Source;
use crate::ab::table::{Table, number};
use crate::report::chart::{Chart, Line};

/// File names and SVG texts.
pub fn plots(runs: &[Source]) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (i, run) in runs.iter().enumerate() {
        if !matches!(run.command.as_str(), "ab" | "diff-layers") {
            continue;
        }
        let error = lines(run.table("layers"), "excess", f64::max);
        if !error.is_empty() {
            let chart = Chart {
                title: format!("Largest error over its floor, by layer ({})", run.path),
                x: "layer".into(),
                y: "excess".into(),
                logarithmic: true,
                lines: error,
            };
            out.push((format!("error-by-layer-{}.svg", i + 1), chart.svg()));
        }
        let overlap = lines(run.table("index"), "local_overlap", f64::min);
        if !overlap.is_empty() {
            let chart = Chart {
                title: format!("Selection shared with golden, by layer ({})", run.path),
                x: "layer".into(),
                y: "overlap".into(),
                logarithmic: false,
                lines: overlap,
            };
            out.push((format!("overlap-by-layer-{}.svg", i + 1), chart.svg()));
        }
    }
    out
}

/// A line a run of the table: the worst of the column in every layer.
fn lines(t: Option<&Table>, column: &str, worse: fn(f64, f64) -> f64) -> Vec<Line> {
    let Some(t) = t else { return Vec::new() };
    let mut out: Vec<Line> = Vec::new();
    for r in &t.rows {
        let (Some(x), Some(y)) = (number(t.cell(r, "layer")), number(t.cell(r, column))) else { continue };
        let name = t.cell(r, "run");
        let at = match out.iter().position(|l| l.name == name) {
            Some(i) => i,
            None => {
                out.push(Line { name: name.into(), points: Vec::new() });
                out.len() - 1
            }
        };
        match out[at].points.iter_mut().find(|p| p.0 == x) {
            Some(p) => p.1 = worse(p.1, y),
            None => out[at].points.push((x, y)),
        }
    }
    out
}
