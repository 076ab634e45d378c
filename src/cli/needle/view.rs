//! The report of a grid for a terminal: verdict, evidence, tables.

use super::outcome::Outcome;
use crate::cli::table::{Column, grouped, table, wrapped};
use crate::needle::ctx::short;
use crate::needle::record::Width;
use crate::needle::stats::Rate;
use std::path::Path;

/// Depth columns that fit beside the others.
const DEPTHS: usize = 5;
/// Width columns that fit.
const WIDTHS: usize = 7;

/// The whole report.
pub fn text(o: &Outcome, dir: &Path) -> String {
    let mut t = diagnosis(o);
    t += &ranges(o);
    for (path, width) in &o.paths {
        t += &recall(o, path, *width);
    }
    t += &by_width(o);
    t += &ranks(o);
    t += &ceiling(o);
    t += &wrapped(
        "Intervals: Wilson, 95 %. Trials of one haystack share its text; widths and kernels share their trials.",
        0,
    );
    t += &format!("\nwrote {}: needle.csv, rank.csv, summary.json, manifest.json, plots/\n", dir.display());
    t
}

fn diagnosis(o: &Outcome) -> String {
    let mut t = String::new();
    let first = o.verdict().map(|d| d.path.clone()).unwrap_or_default();
    let mut all: Vec<_> = o.diagnoses.iter().collect();
    all.sort_by_key(|d| d.path != first);
    for d in all {
        t += &wrapped(&format!("{}: {} - {}", d.cause.words().to_uppercase(), d.path, d.headline), 0);
        for e in &d.evidence {
            let text = wrapped(e, 4);
            t += &format!("  - {}", text.trim_start());
        }
        t += &format!("  next: {}\n\n", d.next);
    }
    t
}

fn label(o: &Outcome, topk: &str) -> String {
    match topk {
        "native" => format!("{} (native)", o.id.index_topk),
        other => other.into(),
    }
}

fn rate(r: &Rate) -> String {
    match r.rate {
        None => "not run".into(),
        Some(p) => format!("{p:.3}\n{}-{}", share(r.low), share(r.high)),
    }
}

/// `.93`; `1.0` for the whole.
fn share(v: f64) -> String {
    let s = format!("{v:.2}");
    s.strip_prefix('0').map_or("1.0".into(), str::to_owned)
}

fn ranges(o: &Outcome) -> String {
    let mut t = String::from("Reliable range\n\n");
    let rows = o.summary.ranges.iter().map(|r| {
        let to = |c: Option<usize>| c.map_or("-".into(), short);
        vec![
            r.path.clone(),
            label(o, &r.topk),
            r.horizon.map_or("-".into(), |h| if h > 1 << 40 { "all".into() } else { grouped(h as u64) }),
            to(r.reliable.surely_to),
            to(r.reliable.perhaps_to),
            r.reliable.more.map_or("-".into(), grouped),
        ]
    });
    t += &table(
        &[
            ("path", Column::Prose),
            ("index_topk", Column::Number),
            ("horizon", Column::Number),
            ("surely to", Column::Number),
            ("perhaps to", Column::Number),
            ("trials to settle", Column::Number),
        ],
        rows,
    );
    t + "\n\n"
}

fn recall(o: &Outcome, path: &str, width: Width) -> String {
    let mut t = format!("Recall, {path}, index_topk {}\n\n", label(o, &width.label()));
    for depths in o.id.grid.depths.chunks(DEPTHS) {
        let names: Vec<String> = depths.iter().map(|d| format!("at {d}")).collect();
        let mut columns = vec![("context", Column::Number), ("n", Column::Number), ("all", Column::Number)];
        columns.extend(names.iter().map(|n| (n.as_str(), Column::Number)));
        let own = || o.summary.recall.iter().filter(|r| r.path == path && r.topk == width.label());
        let rows = o.id.grid.ctx.iter().map(|ctx| {
            let here = || own().filter(move |r| r.ctx == *ctx);
            let all = here().find(|r| r.depth.is_none());
            let mut row = vec![
                short(*ctx),
                all.map_or(String::new(), |r| r.rate.n.to_string()),
                all.map_or(String::new(), |r| rate(&r.rate)),
            ];
            for d in depths {
                row.push(here().find(|r| r.depth == Some(*d)).map_or(String::new(), |r| rate(&r.rate)));
            }
            row
        });
        t += &table(&columns, rows);
        t += "\n\n";
    }
    t
}

fn by_width(o: &Outcome) -> String {
    let mut widths: Vec<Width> = o.paths.iter().map(|(_, w)| *w).collect();
    widths.sort_by_key(|w| w.entries(o.id.index_topk));
    widths.dedup();
    if widths.len() < 2 {
        return String::new();
    }
    let mut t = String::from("Recall against index_topk, all depths\n\n");
    let mut names: Vec<&String> = o.paths.iter().map(|(n, _)| n).collect();
    names.dedup();
    for path in names {
        for widths in widths.chunks(WIDTHS) {
            let heads: Vec<String> = widths.iter().map(|w| label(o, &w.label())).collect();
            let mut columns = vec![("context", Column::Number)];
            columns.extend(heads.iter().map(|h| (h.as_str(), Column::Number)));
            let rows = o.id.grid.ctx.iter().map(|ctx| {
                let mut row = vec![short(*ctx)];
                row.extend(widths.iter().map(|w| {
                    let found = o.summary.recall.iter().find(|r| {
                        r.path == *path && r.topk == w.label() && r.ctx == *ctx && r.depth.is_none()
                    });
                    found.map_or(String::new(), |r| rate(&r.rate).replace('\n', "  "))
                }));
                row
            });
            t += &format!("{path}\n{}\n\n", table(&columns, rows));
        }
    }
    t
}

fn ranks(o: &Outcome) -> String {
    if o.summary.ranks.is_empty() {
        return String::new();
    }
    let rows = o.summary.ranks.iter().filter(|r| r.topk == judged(o)).map(|r| {
        vec![
            r.path.clone(),
            short(r.ctx),
            r.layer.map_or("best".into(), |l| l.to_string()),
            r.n.to_string(),
            grouped(u64::from(r.visible)),
            r.median.to_string(),
            r.p90.to_string(),
            format!("{:.4}", r.quantile),
            format!("{:.3}", r.selected),
        ]
    });
    let t = table(
        &[
            ("path", Column::Prose),
            ("context", Column::Number),
            ("layer", Column::Number),
            ("n", Column::Number),
            ("visible", Column::Number),
            ("median", Column::Number),
            ("p90", Column::Number),
            ("rank/visible", Column::Number),
            ("selected", Column::Number),
        ],
        rows,
    );
    format!(
        "Rank of the fact in the index, index_topk {}\n\n{t}\nn: answer tokens. best: the better of the layers, token by token.\n\n",
        label(o, judged(o))
    )
}

fn judged(o: &Outcome) -> &str {
    o.diagnoses.first().map_or("native", |d| d.topk.as_str())
}

fn ceiling(o: &Outcome) -> String {
    let widths: Vec<u32> = {
        let mut w: Vec<u32> = o.summary.ceiling.iter().map(|c| c.width).collect();
        w.sort_unstable();
        w.dedup();
        w
    };
    if widths.is_empty() {
        return String::new();
    }
    let mut t =
        String::from("Recall ceiling against index_topk: an estimate, from ranks at the native width\n\n");
    let mut names: Vec<&String> = o.summary.ceiling.iter().map(|c| &c.path).collect();
    names.dedup();
    for path in names {
        let at = |ctx: usize, w: u32| {
            o.summary.ceiling.iter().find(|c| c.path == *path && c.ctx == ctx && c.width == w)
        };
        // From the first width that is of any use.
        let used: Vec<u32> = widths
            .iter()
            .copied()
            .filter(|w| o.id.grid.ctx.iter().any(|c| at(*c, *w).is_some_and(|c| c.rate.hits * 20 > c.rate.n)))
            .take(11)
            .collect();
        let heads: Vec<String> = used.iter().map(u32::to_string).collect();
        let mut columns = vec![("context", Column::Number)];
        columns.extend(heads.iter().map(|h| (h.as_str(), Column::Number)));
        let rows = o.id.grid.ctx.iter().map(|ctx| {
            let mut row = vec![short(*ctx)];
            row.extend(used.iter().map(|w| {
                at(*ctx, *w).and_then(|c| c.rate.rate).map_or(String::new(), |p| format!("{p:.3}"))
            }));
            row
        });
        t += &format!("{path}\n{}\n", table(&columns, rows));
        if let Some((_, Some(k))) = o.summary.width_needed.iter().find(|(n, _)| n == path) {
            t += &format!("smallest width estimated to reach {} at every context: {k}\n", o.id.reliable);
        }
        t += "\n";
    }
    t
}
