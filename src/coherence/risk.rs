//! Section B: what was measured about each suspect, the worst first.

use super::Source;
use crate::ab::table::{Table, number};
use crate::kernels::Spec;
use serde::Serialize;
use serde_json::Value;

/// One suspect: a toggle of an experiment, a site of a comparison, a path of a needle grid.
#[derive(Debug, Clone, Serialize)]
pub struct Risk {
    /// What it is.
    pub name: String,
    /// Sites it acts at.
    pub site: String,
    /// `suspect`, `elevated`, `ok`: as the gates or the comparison judged it.
    pub status: String,
    /// True if it was on, changed bits, and everything held.
    pub exonerated: bool,
    /// Largest excess of any tap.
    pub excess: Option<f64>,
    /// KL(golden‖it), nats a position.
    pub kl: Option<f64>,
    /// Positions behind the KL.
    pub n: Option<f64>,
    /// Share of positions that keep their most likely token.
    pub top1: Option<f64>,
    /// Least overlap of a layer's selection with golden's, from equal inputs.
    pub overlap: Option<f64>,
    /// Recall minus golden's.
    pub recall: Option<f64>,
    /// The run.
    pub run: String,
}

/// Every suspect of every run.
pub fn risks(runs: &[Source]) -> Vec<Risk> {
    let mut out = Vec::new();
    for run in runs {
        match run.command.as_str() {
            "ab" => toggles(&mut out, run),
            "diff-layers" => sites(&mut out, run),
            "needle" => paths(&mut out, run),
            _ => {}
        }
    }
    let badness = |r: &Risk| {
        let level = ["ok", "elevated", "suspect"].iter().position(|s| *s == r.status).unwrap_or(0);
        (level, -r.recall.unwrap_or(0.0), r.kl.unwrap_or(0.0), r.excess.unwrap_or(0.0))
    };
    out.sort_by(|a, b| {
        let (a, b) = (badness(a), badness(b));
        b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)).then(b.2.total_cmp(&a.2)).then(b.3.total_cmp(&a.3))
    });
    out
}

/// The measured cells of a column in the wanted rows.
fn cells(t: Option<&Table>, column: &str, want: impl Fn(&Table, &[String]) -> bool) -> Vec<f64> {
    let rows = t.into_iter().flat_map(|t| t.rows.iter().map(move |r| (t, r)));
    rows.filter(|(t, r)| want(t, r)).filter_map(|(t, r)| number(t.cell(r, column))).collect()
}

fn largest(t: Option<&Table>, column: &str, want: impl Fn(&Table, &[String]) -> bool) -> Option<f64> {
    cells(t, column, want).into_iter().max_by(f64::total_cmp)
}

fn least(t: Option<&Table>, column: &str, want: impl Fn(&Table, &[String]) -> bool) -> Option<f64> {
    cells(t, column, want).into_iter().min_by(f64::total_cmp)
}

/// Smaller of two where both are there.
fn smaller(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn toggles(out: &mut Vec<Risk>, run: &Source) {
    let conclusion = &run.summary["conclusion"];
    let blamed: Vec<&str> =
        conclusion["suspect"]["toggles"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for e in conclusion["effects"].as_array().into_iter().flatten() {
        let name = e["toggle"].as_str().unwrap_or_default();
        let kernels = e["kernels"].as_str().unwrap_or_default();
        let sites: Vec<String> = kernels
            .parse::<Spec>()
            .map(|s| s.sites().iter().map(ToString::to_string).collect())
            .unwrap_or_default();
        let of = |t: &Table, r: &[String]| t.cell(r, "run") == name;
        let fails = e["fails_alone"] == Value::Bool(true) || blamed.contains(&name);
        let logits = run.table("logits");
        let n = logits
            .map(|t| t.rows.iter().filter(|r| of(t, r)).filter_map(|r| number(t.cell(r, "rows"))).sum());
        out.push(Risk {
            name: name.into(),
            site: sites.join(", "),
            status: if fails { "suspect" } else { "ok" }.into(),
            exonerated: !fails && e["inert"] == Value::Bool(false),
            excess: largest(run.table("layers"), "excess", of),
            kl: e["kl"].as_f64(),
            n,
            top1: e["top1"].as_f64(),
            overlap: smaller(
                least(run.table("index"), "local_overlap", of),
                least(run.table("router"), "local_overlap", of),
            ),
            recall: e["recall"].as_f64(),
            run: run.path.clone(),
        });
    }
}

fn sites(out: &mut Vec<Risk>, run: &Source) {
    let Some(layers) = run.table("layers") else { return };
    let dump = run.summary["mode"] == "dump";
    let mut names: Vec<&str> = Vec::new();
    for r in &layers.rows {
        let s = layers.cell(r, "site");
        if !names.contains(&s) {
            names.push(s);
        }
    }
    if run.table("index").is_some_and(|t| !t.rows.is_empty()) {
        names.push("topk");
    }
    for site in names {
        let of = |t: &Table, r: &[String]| {
            let s = t.cell(r, "site");
            if t.name == "index" {
                site == "topk"
            } else if t.name == "router" {
                site == "router"
            } else {
                s == site
            }
        };
        let all = ["layers", "index", "router"].iter().filter_map(|n| run.table(n));
        let status = all
            .flat_map(|t| t.rows.iter().filter(|r| of(t, r)).map(|r| t.cell(r, "status")).collect::<Vec<_>>())
            .max_by_key(|s| ["ok", "elevated", "suspect"].iter().position(|x| x == s))
            .unwrap_or("ok");
        let changed = largest(Some(layers), "max_abs", of).is_some_and(|m| m > 0.0);
        out.push(Risk {
            name: if dump {
                format!("the dump's {site}")
            } else {
                format!("{site} of {}", run.summary["kernels"].as_str().unwrap_or(""))
            },
            site: site.into(),
            status: status.into(),
            exonerated: status == "ok" && changed,
            excess: largest(Some(layers), "excess", of),
            kl: None,
            n: None,
            top1: None,
            overlap: smaller(
                least(run.table("index"), "local_overlap", of),
                least(run.table("router"), "local_overlap", of),
            ),
            recall: None,
            run: run.path.clone(),
        });
    }
}

fn paths(out: &mut Vec<Risk>, run: &Source) {
    for d in run.summary["diagnosis"].as_array().into_iter().flatten() {
        let path = d["path"].as_str().unwrap_or_default();
        let cause = d["cause"].as_str().unwrap_or_default();
        let fine = matches!(cause, "nothing-wrong" | "undecided");
        let recall = run.summary["pairs"].as_array().into_iter().flatten().find(|p| {
            p["ctx"].is_null()
                && p["second"][0] == d["path"]
                && p["first"][0] == "golden"
                && p["second"][1] == p["first"][1]
        });
        let share = |k: &str| recall.and_then(|p| p[k].as_f64());
        let loss = match (share("only_first"), share("only_second"), share("n")) {
            (Some(a), Some(b), Some(n)) if n > 0.0 => Some((b - a) / n),
            _ => None,
        };
        out.push(Risk {
            name: format!("recall of {path}"),
            site: match cause {
                "ranking-broken" | "ranking-worse" => "indexer",
                "selected-not-used" => "attn",
                "cache-mask-chunk" => "kv_cache",
                _ => "",
            }
            .into(),
            status: if fine { "ok" } else { "suspect" }.into(),
            exonerated: cause == "nothing-wrong",
            excess: None,
            kl: None,
            n: share("n"),
            top1: None,
            overlap: None,
            recall: loss,
            run: run.path.clone(),
        });
    }
}
