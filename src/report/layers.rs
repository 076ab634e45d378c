//! CSV files of a layer comparison. Columns are documented in `docs/formats.md`.

use super::run_dir::RunDir;
use crate::engine::compare::TapRow;
use crate::error::Result;
use serde_json::Value;

/// Columns of `layers.csv`.
pub const LAYERS: &[&str] = &[
    "tap",
    "layer",
    "kind",
    "site",
    "rel_l2",
    "max_abs",
    "max_rel",
    "cosine",
    "calc_diff",
    "isolated_rel_l2",
    "local_rel_l2",
    "floor",
    "excess",
    "row_excess",
    "worst_row",
    "inherited",
    "unstable_rows",
    "n",
    "status",
    "findings",
    "note",
];

/// Columns of `index.csv` and `router.csv`.
pub const INDEX: &[&str] = &[
    "tap",
    "layer",
    "overlap",
    "isolated_overlap",
    "local_overlap",
    "jaccard",
    "rows",
    "ranked_rows",
    "mass_lost",
    "max_mass_lost",
    "local_mass_lost",
    "near_tie_flips",
    "real_flips",
    "sentinel_inside",
    "duplicate",
    "out_of_range",
    "wrong_count_rows",
    "status",
];

/// Columns of `logits.csv`.
pub const LOGITS: &[&str] = &[
    "rows",
    "mean_kl",
    "mean_kl_se",
    "max_kl",
    "max_kl_row",
    "top1_agree",
    "top1_rate",
    "mean_top5_overlap",
    "mean_delta_logprob",
    "worst_delta_logprob",
];

/// Writes `layers.csv`, `index.csv`, `router.csv` and `logits.csv`.
pub fn write(dir: &RunDir, rows: &[TapRow], object: &Value) -> Result<()> {
    dir.csv("layers.csv", LAYERS, numbers_of(rows))?;
    dir.csv("index.csv", INDEX, sets_of(rows, "index.topk"))?;
    dir.csv("router.csv", INDEX, sets_of(rows, "router.topk"))?;
    dir.csv("logits.csv", LOGITS, object.get("logits").map(logits_of))
}

/// The rows of `layers.csv`: one a tap that holds numbers.
pub fn numbers_of(rows: &[TapRow]) -> Vec<Vec<String>> {
    rows.iter().filter(|r| r.index.is_none()).map(numbers).collect()
}

/// The rows of `index.csv` (`index.topk`) or `router.csv` (`router.topk`): one a tap that holds ids.
pub fn sets_of(rows: &[TapRow], suffix: &str) -> Vec<Vec<String>> {
    rows.iter().filter(|r| r.tap.ends_with(suffix)).filter_map(sets).collect()
}

/// The row of `logits.csv`.
pub fn logits_of(stats: &Value) -> Vec<String> {
    LOGITS.iter().map(|k| cell(stats.get(*k))).collect()
}

fn cell(v: Option<&Value>) -> String {
    match v {
        Some(Value::Null) | None => String::new(),
        Some(Value::String(s)) => s.clone(),
        Some(v) => v.to_string(),
    }
}

fn optional<T: ToString>(v: Option<T>) -> String {
    v.map_or(String::new(), |v| v.to_string())
}

fn numbers(r: &TapRow) -> Vec<String> {
    // A tap without elements (no entry exists yet) was not measured.
    let e = |v: f64| if r.n == 0 { String::new() } else { format!("{v:e}") };
    vec![
        r.tap.clone(),
        optional(r.layer),
        r.kind.into(),
        r.site.clone(),
        e(r.rel_l2),
        e(r.max_abs),
        e(r.max_rel),
        e(r.cosine),
        e(r.calc_diff),
        optional(r.isolated_rel_l2.map(e)),
        e(r.local_rel_l2),
        e(r.floor),
        e(r.excess),
        e(r.row_excess),
        optional(r.worst_row),
        r.inherited.to_string(),
        r.unstable_rows.to_string(),
        r.n.to_string(),
        r.status.to_string(),
        r.findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        r.note.clone().unwrap_or_default(),
    ]
}

fn sets(r: &TapRow) -> Option<Vec<String>> {
    let i = r.index.as_ref()?;
    Some(vec![
        r.tap.clone(),
        optional(r.layer),
        i.overlap.to_string(),
        optional(i.isolated_overlap),
        i.local_overlap.to_string(),
        i.jaccard.to_string(),
        i.rows.to_string(),
        i.ranked_rows.to_string(),
        optional(i.mass_lost),
        optional(i.max_mass_lost),
        optional(i.local_mass_lost),
        i.near_tie_flips.to_string(),
        i.real_flips.to_string(),
        i.sentinel_inside.to_string(),
        i.duplicate.to_string(),
        i.out_of_range.to_string(),
        i.wrong_count_rows.to_string(),
        r.status.to_string(),
    ])
}
