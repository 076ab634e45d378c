//! Everything a report's template can name.

use super::inventory::{Kernel, inventory};
use super::isolation::{Principal, Step, not_tested, principal, steps};
use super::plots::plots;
use super::risk::{Risk, risks};
use super::source::{Source, read_all};
use crate::error::{Error, ErrorKind, Result};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;

/// A report: what the template sees, and the plots that lie beside it.
#[derive(Debug, Clone)]
pub struct Report {
    /// The template's variables.
    pub context: Value,
    /// Plots: file name and SVG.
    pub plots: Vec<(String, String)>,
}

#[derive(Serialize)]
struct Context {
    headline: String,
    principal: Option<Principal>,
    model: String,
    fingerprint: String,
    inventory: Vec<Kernel>,
    risks: Vec<Risk>,
    questions: Vec<Value>,
    steps: Vec<Step>,
    next: String,
    evidence: Evidence,
    sensitivity: Option<Value>,
    plots: Vec<String>,
    runs: Vec<Value>,
    not_tested: Vec<String>,
}

#[derive(Serialize)]
struct Evidence {
    /// Verdicts of comparisons: one row a run and phase.
    verdicts: Vec<Value>,
    /// Broken gates.
    broken: Vec<Value>,
    /// Recall by path, width and context.
    recall: Vec<Value>,
}

/// Reads the runs and puts together what they say.
///
/// # Errors
/// Exit 3 for an unreadable run or runs of different models, exit 5 without any run.
pub fn build<P: AsRef<Path>>(dirs: &[P]) -> Result<Report> {
    if dirs.is_empty() {
        return Err(Error::new(ErrorKind::NothingCompared, "a report needs at least one run directory"));
    }
    let runs = read_all(dirs)?;
    let first = principal(&runs);
    let sensitivity = runs.iter().find(|r| r.command == "selftest").map(sensitivity);
    let compared = runs.iter().any(|r| matches!(r.command.as_str(), "ab" | "diff-layers" | "needle"));
    let headline = match &first {
        Some(p) => {
            let place = match (p.site.as_str(), p.layer) {
                ("", _) => String::new(),
                (s, Some(l)) => format!(", site {s}, first at layer {l}"),
                (s, None) => format!(", site {s}"),
            };
            format!("Principal suspect: {}{place}.", p.what)
        }
        None if !compared => {
            "Nothing was compared: no run of ab, diff-layers or needle is among the runs.".into()
        }
        None => {
            let proof = match &sensitivity {
                Some(s) => format!(
                    "A fault would have shown: the selftest planted {} fault kinds in this model and found {}.",
                    s["kinds"], s["kinds_found"]
                ),
                None => {
                    "How large a fault would have shown is not known: no selftest is among the runs.".into()
                }
            };
            format!("No principal suspect: nothing wrong was found. {proof}")
        }
    };
    let next = first.as_ref().map_or_else(|| next(&runs), |p| p.next.clone());
    let plots = plots(&runs);
    let get = |r: &Source, k: &str| {
        let places = [Some(&r.manifest), Some(&r.summary), r.manifest.get("identity")];
        places.into_iter().find_map(|v| v?.get(k)).cloned().unwrap_or(Value::Null)
    };
    let model = runs.iter().map(|r| get(r, "model")).find(Value::is_string);
    let context = Context {
        headline,
        model: model.and_then(|m| m.as_str().map(str::to_owned)).unwrap_or_default(),
        fingerprint: runs[0].fingerprint().into(),
        inventory: inventory(&runs)?,
        risks: risks(&runs),
        questions: questions(&runs),
        steps: steps(&runs),
        next,
        evidence: evidence(&runs),
        sensitivity,
        plots: plots.iter().map(|(n, _)| n.clone()).collect(),
        runs: runs
            .iter()
            .enumerate()
            .map(|(i, r)| {
                json!({
                    "n": i + 1, "path": r.path, "command": r.command, "version": get(r, "version"),
                    "golden": get(r, "golden"), "kernels": get(r, "kernels"),
                    "prompts": r.manifest.get("prompts").or(r.manifest.get("prompt")).cloned(),
                })
            })
            .collect(),
        not_tested: not_tested(&runs),
        principal: first,
    };
    let context = serde_json::to_value(context).map_err(|e| Error::bug(e.to_string()))?;
    Ok(Report { context, plots })
}

/// What to do where nothing is wrong: the first question nobody asked.
fn next(runs: &[Source]) -> String {
    let has = |c: &str| runs.iter().any(|r| r.command == c);
    if !has("ab") && !has("diff-layers") {
        "dsv4 ab".into()
    } else if !has("needle") {
        "dsv4 needle".into()
    } else if !has("selftest") {
        "dsv4 selftest --out DIR".into()
    } else {
        "dsv4 diff-layers --against DUMP (tensors of the engine itself; docs/formats.md names them)".into()
    }
}

fn sensitivity(run: &Source) -> Value {
    let keep = ["passed", "kinds", "kinds_found", "aa_runs", "aa_alarms", "oracle"];
    let mut v: Value = keep
        .iter()
        .map(|k| (k.to_string(), run.summary[*k].clone()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    v["run"] = json!(run.path);
    v
}

fn questions(runs: &[Source]) -> Vec<Value> {
    let of = |r: &Source| {
        let mut q = r.summary["questions"].as_array().cloned().unwrap_or_default();
        q.retain(Value::is_object);
        q.into_iter()
            .map(|mut q| {
                q["run"] = json!(r.path);
                q
            })
            .collect::<Vec<_>>()
    };
    runs.iter().filter(|r| r.command == "inspect").flat_map(of).collect()
}

fn evidence(runs: &[Source]) -> Evidence {
    let mut e = Evidence { verdicts: Vec::new(), broken: Vec::new(), recall: Vec::new() };
    for r in runs {
        match r.command.as_str() {
            "ab" => {
                if let Some(t) = r.table("runs") {
                    for row in &t.rows {
                        let mut v = json!({"source": r.path});
                        for c in ["run", "prompt", "phase", "status", "layer", "site", "tap"] {
                            v[c] = json!(t.cell(row, c));
                        }
                        e.verdicts.push(v);
                    }
                }
                for g in r.summary["conclusion"]["gates"].as_array().into_iter().flatten() {
                    if g.is_object() && g["passed"] == Value::Bool(false) {
                        let mut v = g.clone();
                        v["source"] = json!(r.path);
                        v["rows_broken"] = json!(g["broken"].as_array().map_or(0, Vec::len));
                        v["first"] = g["broken"][0].clone();
                        e.broken.push(v);
                    }
                }
            }
            "diff-layers" => {
                let v = &r.summary["verdict"];
                let s = |k: &str| v[k].as_str().unwrap_or_default();
                let layer = v["layer"].as_u64().map_or(String::new(), |l| l.to_string());
                let run = r.summary["kernels"].as_str().unwrap_or("dump");
                e.verdicts.push(json!({
                    "source": r.path, "run": run, "prompt": "0", "phase": "", "status": s("status"), "layer": layer,
                    "site": s("site"), "tap": s("tap"),
                }));
            }
            "needle" => {
                let rows = r.summary["recall"].as_array().into_iter().flatten();
                for c in rows.filter(|c| c.is_object() && c["depth"].is_null()) {
                    let mut v = c.clone();
                    v["source"] = json!(r.path);
                    e.recall.push(v);
                }
            }
            _ => {}
        }
    }
    e
}
