//! Plots of a grid as SVG. Everything a colour says is said by a number or a pattern too: they read in black and white.

use super::chart::escaped;
use crate::needle::ctx::short;
use crate::needle::identity::Identity;
use crate::needle::record::Width;
use crate::needle::summary::{Recall, Summary};
use std::fmt::Write;

const FONT: &str = "font-family='sans-serif' font-size='12'";

/// Name and content of every plot: a heatmap of each path and width, and the curves of ranks of each path.
pub fn needle(id: &Identity, paths: &[(String, Width)], s: &Summary) -> Vec<(String, String)> {
    let mut plots = Vec::new();
    for (i, (path, width)) in paths.iter().enumerate() {
        let own: Vec<&Recall> =
            s.recall.iter().filter(|r| r.path == *path && r.topk == width.label()).collect();
        plots.push((format!("recall-{i}-{}", width.label()), heatmap(id, path, *width, &own)));
    }
    let mut names: Vec<&String> = paths.iter().map(|(n, _)| n).collect();
    names.dedup();
    for (i, path) in names.iter().enumerate() {
        if s.ceiling.iter().any(|c| c.path == **path) {
            plots.push((format!("width-{i}"), widths(id, path, paths, s)));
        }
        if s.ranks.iter().any(|r| r.path == **path) {
            plots.push((format!("ranks-{i}"), ranks(id, path, s)));
        }
    }
    plots
}

fn open(width: usize, height: usize, title: &str) -> String {
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' {FONT}>\n\
         <title>{title}</title>\n<rect width='{width}' height='{height}' fill='white'/>\n\
         <text x='10' y='20' font-size='14'>{title}</text>\n",
        title = escaped(title)
    )
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let _ = writeln!(svg, "<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{}</text>", escaped(words));
}

/// Rate by context (columns) and depth (rows); cells surely below the limit are hatched.
fn heatmap(id: &Identity, path: &str, width: Width, recall: &[&Recall]) -> String {
    const CELL: (usize, usize) = (92, 50);
    let (left, top) = (70, 62);
    let w = left + CELL.0 * id.grid.ctx.len() + 20;
    let h = top + CELL.1 * id.grid.depths.len() + 50;
    let title = format!("Recall, {path}, index_topk {}", width.label());
    let mut svg = open(w.max(420), h, &title);
    svg.push_str(
        "<defs><pattern id='below' width='6' height='6' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>\
         <line x1='0' y1='0' x2='0' y2='6' stroke='black' stroke-opacity='0.35' stroke-width='1.5'/></pattern></defs>\n",
    );
    text(&mut svg, 10.0, 50.0, "start", "depth");
    for (c, ctx) in id.grid.ctx.iter().enumerate() {
        let x = left + c * CELL.0;
        text(&mut svg, (x + CELL.0 / 2) as f64, 50.0, "middle", &short(*ctx));
        for (d, depth) in id.grid.depths.iter().enumerate() {
            let y = top + d * CELL.1;
            if c == 0 {
                text(&mut svg, 60.0, (y + CELL.1 / 2 + 4) as f64, "end", &depth.to_string());
            }
            let Some(cell) = recall.iter().find(|r| r.ctx == *ctx && r.depth == Some(*depth)) else {
                continue;
            };
            let r = &cell.rate;
            // Light where recall is high, so that black text is readable on all of it.
            let grey = r.rate.map_or(255, |p| 150 + (105.0 * p).round() as u32);
            let mut rect = |fill: &str| {
                let _ = writeln!(
                    svg,
                    "<rect x='{x}' y='{y}' width='{}' height='{}' fill='{fill}' stroke='black' stroke-width='0.5'/>",
                    CELL.0, CELL.1
                );
            };
            rect(&format!("rgb({grey},{grey},{grey})"));
            if r.fails(id.reliable) {
                rect("url(#below)");
            }
            let mid = (x + CELL.0 / 2) as f64;
            match r.rate {
                None => text(&mut svg, mid, (y + 29) as f64, "middle", "not run"),
                Some(p) => {
                    text(&mut svg, mid, (y + 21) as f64, "middle", &format!("{p:.2}  n {}", r.n));
                    text(&mut svg, mid, (y + 39) as f64, "middle", &format!("{:.2} to {:.2}", r.low, r.high));
                }
            }
        }
    }
    let note = format!("context in tokens; Wilson 95 %; hatched: surely below {}", id.reliable);
    text(&mut svg, 10.0, (h - 15) as f64, "start", &note);
    svg + "</svg>\n"
}

/// Line patterns and marks that tell curves apart without colour.
const DASHES: [&str; 6] = ["none", "7 3", "2 3", "9 3 2 3", "14 4", "1 2"];

/// A frame with a logarithmic x axis in powers of two.
struct Frame {
    svg: String,
    x: (f64, f64),
}

const BOX: (f64, f64, f64, f64) = (60.0, 52.0, 440.0, 290.0);

impl Frame {
    fn new(title: &str, xlabel: &str, ylabel: &str, x: (u32, u32)) -> Frame {
        let mut svg = open(760, 400, title);
        let (l, t, w, h) = BOX;
        let _ = writeln!(svg, "<rect x='{l}' y='{t}' width='{w}' height='{h}' fill='none' stroke='black'/>");
        text(&mut svg, l + w / 2.0, t + h + 38.0, "middle", xlabel);
        text(&mut svg, 10.0, t - 6.0, "start", ylabel);
        let x = (f64::from(x.0.max(1)).log2(), f64::from(x.1.max(x.0.max(1) + 1)).log2());
        let mut f = Frame { svg, x };
        let every = (((x.1 - x.0) / 10.0).ceil()).max(1.0);
        let mut p = x.0.ceil();
        while p <= x.1 {
            let at = f.at(p.exp2());
            text(&mut f.svg, at, t + h + 18.0, "middle", &short(p.exp2() as usize));
            p += every;
        }
        f
    }
    fn at(&self, v: f64) -> f64 {
        BOX.0 + BOX.2 * (v.max(1.0).log2() - self.x.0) / (self.x.1 - self.x.0)
    }
    fn ytick(&mut self, y: f64, label: &str) {
        let py = BOX.1 + BOX.3 * (1.0 - y);
        let _ = writeln!(
            self.svg,
            "<line x1='{}' y1='{py:.1}' x2='{}' y2='{py:.1}' stroke='black' stroke-opacity='0.15'/>",
            BOX.0,
            BOX.0 + BOX.2
        );
        text(&mut self.svg, BOX.0 - 6.0, py + 4.0, "end", label);
    }
    /// A curve with `y` in 0..=1 of the box, and its entry in the legend.
    fn curve(&mut self, n: usize, label: &str, points: &[(f64, f64)], marks: bool) {
        let place = |f: &Frame, p: &(f64, f64)| (f.at(p.0), BOX.1 + BOX.3 * (1.0 - p.1.clamp(0.0, 1.0)));
        let dash = DASHES[n % DASHES.len()];
        let ly = BOX.1 + 14.0 + 18.0 * n as f64;
        let lx = BOX.0 + BOX.2 + 14.0;
        if marks {
            for p in points {
                let (x, y) = place(self, p);
                let _ = writeln!(
                    self.svg,
                    "<circle cx='{x:.1}' cy='{y:.1}' r='3.5' fill='white' stroke='black'/>"
                );
            }
            let _ = writeln!(
                self.svg,
                "<circle cx='{:.1}' cy='{:.1}' r='3.5' fill='white' stroke='black'/>",
                lx + 15.0,
                ly - 4.0
            );
        } else {
            let line: Vec<String> = points
                .iter()
                .map(|p| {
                    let (x, y) = place(self, p);
                    format!("{x:.1},{y:.1}")
                })
                .collect();
            let style = format!("fill='none' stroke='black' stroke-width='1.5' stroke-dasharray='{dash}'");
            let _ = writeln!(self.svg, "<polyline points='{}' {style}/>", line.join(" "));
            let _ = writeln!(
                self.svg,
                "<line x1='{lx}' y1='{:.1}' x2='{:.1}' y2='{:.1}' {style}/>",
                ly - 4.0,
                lx + 30.0,
                ly - 4.0
            );
        }
        text(&mut self.svg, lx + 36.0, ly, "start", label);
    }
    fn done(self) -> String {
        self.svg + "</svg>\n"
    }
}

/// Estimated ceiling against the width, one curve a context, with what was measured as circles.
fn widths(id: &Identity, path: &str, paths: &[(String, Width)], s: &Summary) -> String {
    let own: Vec<_> = s.ceiling.iter().filter(|c| c.path == path).collect();
    let most = own.iter().map(|c| c.width).max().unwrap_or(2);
    let title = format!("Recall against index_topk, {path}: lines estimated from ranks, circles measured");
    let mut f = Frame::new(&title, "index_topk", "recall", (1, most));
    for i in 0..=5 {
        f.ytick(f64::from(i) / 5.0, &format!("{:.1}", f64::from(i) / 5.0));
    }
    let mut n = 0;
    for ctx in &id.grid.ctx {
        let points: Vec<(f64, f64)> = own
            .iter()
            .filter(|c| c.ctx == *ctx)
            .filter_map(|c| Some((f64::from(c.width), c.rate.rate?)))
            .collect();
        if !points.is_empty() {
            f.curve(n, &format!("{} tokens", short(*ctx)), &points, false);
            n += 1;
        }
    }
    let measured: Vec<(f64, f64)> = s
        .recall
        .iter()
        .filter(|r| r.path == path && r.depth.is_none())
        .filter_map(|r| {
            let width = paths.iter().find(|(p, w)| p == path && w.label() == r.topk)?.1;
            let entries = width.entries(id.index_topk);
            Some(((entries <= most as usize).then_some(entries as f64)?, r.rate.rate?))
        })
        .collect();
    f.curve(n, "measured, every context", &measured, true);
    f.done()
}

/// Median and 90th percentile of the rank against the context, by layer, with the width.
fn ranks(id: &Identity, path: &str, s: &Summary) -> String {
    let topk = s.ranks.iter().find(|r| r.path == path && r.topk == "native").or(s.ranks.first());
    let topk = topk.map_or("native", |r| r.topk.as_str());
    let own: Vec<_> = s.ranks.iter().filter(|r| r.path == path && r.topk == topk).collect();
    let ctx = |r: &&&_| -> f64 {
        let r: &crate::needle::summary::LayerRanks = r;
        r.ctx as f64
    };
    let (first, last) = (id.grid.ctx.first().copied().unwrap_or(1), id.grid.ctx.last().copied().unwrap_or(2));
    let top = own.iter().map(|r| r.visible).max().unwrap_or(2).max(2);
    let title = format!("Rank of the fact in the index, {path}, index_topk {topk}");
    let mut f = Frame::new(&title, "context", "rank", (first as u32, last as u32));
    let y = |v: f64| v.max(1.0).log2() / f64::from(top).log2();
    let mut p = 1u32;
    while p <= top {
        f.ytick(y(f64::from(p)), &p.to_string());
        p = p.saturating_mul(4);
    }
    let mut n = 0;
    for layer in &id.csa_layers {
        for (name, p90) in [("median", false), ("90th percentile", true)] {
            let points: Vec<(f64, f64)> = own
                .iter()
                .filter(|r| r.layer == Some(*layer))
                .map(|r| (ctx(&r), y(f64::from(if p90 { r.p90 } else { r.median }))))
                .collect();
            // A figure of more curves than line patterns would not be readable.
            if n < DASHES.len() - 1 && !points.is_empty() {
                f.curve(n, &format!("layer {layer}, {name}"), &points, false);
                n += 1;
            }
        }
    }
    let width = Width::parse(topk).map_or(id.index_topk, |w| w.entries(id.index_topk)).min(top as usize);
    let line = [(first as f64, y(width as f64)), (last as f64, y(width as f64))];
    f.curve(n, &format!("selected: {width}"), &line, false);
    f.done()
}
