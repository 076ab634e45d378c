//! From the tables of an experiment to a verdict: which gates fail in which run, what each toggle does, and which set
//! of toggles is to blame. A function of the tables alone, so a stored run can be judged again under other gates.

use super::gate::{Gate, GateResult};
use super::measure::{AA, Run};
use super::table::{Table, number};
use super::toggles::{self, Set};
use crate::error::{Error, Result};
use crate::metrics::interval::mcnemar_exact;
use serde::Serialize;
use std::collections::BTreeMap;

/// A gate in a run.
#[derive(Debug, Clone, Serialize)]
pub struct Judged {
    /// The run; empty for a gate that names its runs itself.
    pub run: String,
    /// What the gate came to.
    #[serde(flatten)]
    pub result: GateResult,
    /// True if it holds.
    pub passed: bool,
}

/// What one toggle does.
#[derive(Debug, Clone, Serialize)]
pub struct Effect {
    /// The toggle.
    pub toggle: String,
    /// Its kernels.
    pub kernels: String,
    /// True if it changed no bit of any tap.
    pub inert: bool,
    /// True if a gate fails with it alone.
    pub fails_alone: bool,
    /// True if gates fail with everything on but not without it.
    pub cures: bool,
    /// Mean KL(golden‖run) with it alone, nats, over all prompts and phases.
    pub kl: f64,
    /// Standard error of it.
    pub kl_se: f64,
    /// What it adds to the KL of everything together: all − all but it, nats.
    pub kl_among_all: f64,
    /// Share of positions whose most likely token stays, alone.
    pub top1: f64,
    /// Largest excess, alone, over all taps.
    pub excess: f64,
    /// Recall with it alone, minus golden's; not measured without needles.
    pub recall: Option<f64>,
    /// McNemar's exact p of that difference.
    pub recall_p: Option<f64>,
}

/// The set of toggles that is to blame, and where it breaks first.
#[derive(Debug, Clone, Serialize)]
pub struct Suspect {
    /// Toggles that must be on together.
    pub toggles: Vec<String>,
    /// Run that shows it.
    pub run: String,
    /// Site its first error is born at, if the comparison names one.
    pub site: Option<String>,
    /// Layer of it.
    pub layer: Option<usize>,
    /// Tap of it.
    pub tap: Option<String>,
    /// Phases it shows in.
    pub phases: Vec<String>,
    /// In words.
    pub why: String,
}

/// The conclusion of an experiment.
#[derive(Debug, Clone, Serialize)]
pub struct Conclusion {
    /// True if every gate holds in every run and A/A changed no bit.
    pub passed: bool,
    /// True if golden against itself changed no bit.
    pub aa_identical: bool,
    /// The smallest failing set found, if any run fails.
    pub suspect: Option<Suspect>,
    /// Every gate in every run.
    pub gates: Vec<Judged>,
    /// What each toggle does.
    pub effects: Vec<Effect>,
    /// Pairs that fail together and not alone.
    pub interactions: Vec<[String; 2]>,
}

/// The rows of one run.
fn of_run(tables: &[Table], run: &str) -> Vec<Table> {
    tables
        .iter()
        .map(|t| Table {
            rows: t.rows.iter().filter(|r| t.cell(r, "run") == run).cloned().collect(),
            ..t.clone()
        })
        .collect()
}

/// Judges every gate: in every run but A/A, or once where its `where` names the runs.
pub fn gates(
    gates: &[Gate],
    runs: &[Run],
    tables: &[Table],
    baseline: Option<&[Table]>,
) -> Result<Vec<Judged>> {
    let mut out = Vec::new();
    let mut push = |run: &str, result: GateResult| {
        let passed = result.passed();
        out.push(Judged { run: run.into(), result, passed });
    };
    for r in runs.iter().filter(|r| r.set != 0) {
        let own = of_run(tables, &r.name);
        for g in gates.iter().filter(|g| !g.names_runs()) {
            push(&r.name, g.judge(&own, baseline)?);
        }
    }
    for g in gates.iter().filter(|g| g.names_runs()) {
        push("", g.judge(tables, baseline)?);
    }
    Ok(out)
}

/// True if a gate fails in the run of each set; a gate that names its runs itself fails those of its broken rows.
pub fn failing(runs: &[Run], judged: &[Judged]) -> BTreeMap<Set, bool> {
    let fails = |r: &Run| {
        judged.iter().filter(|j| !j.passed).any(|j| {
            let names = |b: &super::gate::Broken| b.row.split(" | ").next() == Some(r.name.as_str());
            j.run == r.name || (j.run.is_empty() && j.result.broken.iter().any(names))
        })
    };
    runs.iter().filter(|r| r.set != 0).map(|r| (r.set, fails(r))).collect()
}

/// Everything that follows from the tables. `found` is what a bisect found, if one was made.
pub fn conclude(
    names: &[String],
    kernels: &[String],
    runs: &[Run],
    tables: &[Table],
    judged: Vec<Judged>,
    found: Option<Set>,
) -> Result<Conclusion> {
    let table = |name: &str| {
        tables
            .iter()
            .find(|t| t.name == name)
            .ok_or_else(|| Error::input(format!("the run has no table {name}.csv")))
    };
    let (verdicts, logits, layers) = (table("runs")?, table("logits")?, table("layers")?);
    let recall = tables.iter().find(|t| t.name == "recall");
    let fails = failing(runs, &judged);
    let rows = |t: &'_ Table, run: &str| -> Vec<Vec<String>> {
        t.rows.iter().filter(|r| t.cell(r, "run") == run).cloned().collect()
    };
    let identical = |run: &str| rows(verdicts, run).iter().all(|r| verdicts.cell(r, "identical") == "true");
    let aa_identical = identical(AA) && !rows(verdicts, AA).is_empty();
    let n = names.len();
    let of_set = |s: Set| runs.iter().find(|r| r.set == s).map(|r| r.name.as_str());
    let kl = |s: Set| of_set(s).map_or((f64::NAN, f64::NAN, f64::NAN), |run| pooled(logits, run));
    let mut effects = Vec::new();
    for i in 0..n {
        let (alone, without) = (1 << i, toggles::all(n) & !(1 << i));
        let run = of_set(alone).unwrap_or_default();
        let (mean, se, top1) = kl(alone);
        let excess = rows(layers, run)
            .iter()
            .filter_map(|r| number(layers.cell(r, "excess")))
            .max_by(f64::total_cmp)
            .unwrap_or(f64::NAN);
        let paired = recall.and_then(|t| paired(t, run));
        let base = if without == 0 { 0.0 } else { kl(without).0 };
        effects.push(Effect {
            toggle: names[i].clone(),
            kernels: kernels[i].clone(),
            inert: identical(run),
            fails_alone: fails.get(&alone).copied().unwrap_or(false),
            cures: n > 1 && fails.get(&toggles::all(n)) == Some(&true) && fails.get(&without) == Some(&false),
            kl: mean,
            kl_se: se,
            kl_among_all: kl(toggles::all(n)).0 - base,
            top1,
            excess,
            recall: paired.map(|p| p.0),
            recall_p: paired.map(|p| p.1),
        });
    }
    let interactions = toggles::interactions(&fails)
        .into_iter()
        .map(|(a, b)| [names[a].clone(), names[b].clone()])
        .collect();
    // The smallest failing set that was run; toggles that fail alone come one by one, in order.
    let smallest = || fails.iter().filter(|(_, f)| **f).map(|(s, _)| *s).min_by_key(|s| (s.count_ones(), *s));
    let suspect = found.or_else(smallest).map(|s| suspect(s, names, runs, verdicts, &judged));
    Ok(Conclusion {
        passed: aa_identical && judged.iter().all(|j| j.passed),
        aa_identical,
        suspect,
        gates: judged,
        effects,
        interactions,
    })
}

/// Mean KL, its standard error, and the top-1 rate of a run over prompts and phases, by their positions.
fn pooled(t: &Table, run: &str) -> (f64, f64, f64) {
    let (mut n, mut sum, mut var, mut agree) = (0.0, 0.0, 0.0, 0.0);
    for r in t.rows.iter().filter(|r| t.cell(r, "run") == run) {
        let get = |c: &str| number(t.cell(r, c)).unwrap_or(f64::NAN);
        let rows = get("rows");
        n += rows;
        sum += rows * get("mean_kl");
        var += (rows * get("mean_kl_se")).powi(2);
        agree += get("top1_agree");
    }
    (sum / n, var.sqrt() / n, agree / n)
}

/// Recall of a run minus golden's over the same trials, and McNemar's p.
fn paired(t: &Table, run: &str) -> Option<(f64, f64)> {
    let (mut n, mut only_golden, mut only_run) = (0.0, 0.0, 0.0);
    for r in t.rows.iter().filter(|r| t.cell(r, "run") == run) {
        let get = |c: &str| number(t.cell(r, c));
        n += get("n")?;
        only_golden += get("golden_only")?;
        only_run += get("run_only")?;
    }
    (n > 0.0).then(|| ((only_run - only_golden) / n, mcnemar_exact(only_golden as u64, only_run as u64)))
}

fn suspect(s: Set, names: &[String], runs: &[Run], verdicts: &Table, judged: &[Judged]) -> Suspect {
    let toggles: Vec<String> = toggles::members(s).map(|i| names[i].clone()).collect();
    let run = runs.iter().find(|r| r.set == s).map_or(String::new(), |r| r.name.clone());
    let of_run: Vec<_> = verdicts.rows.iter().filter(|r| verdicts.cell(r, "run") == run).collect();
    let worst = |r: &&&Vec<String>| match verdicts.cell(r, "status") {
        "suspect" => 2,
        "elevated" => 1,
        _ => 0,
    };
    // The first of the worst, in the order of prompts and phases.
    let row = of_run.iter().rev().max_by_key(worst).filter(|r| worst(r) > 0);
    let cell = |c: &str| row.map(|r| verdicts.cell(r, c).to_owned()).filter(|c| !c.is_empty());
    let phases = of_run
        .iter()
        .filter(|r| row.is_some_and(|x| worst(r) == worst(&x)))
        .map(|r| verdicts.cell(r, "phase").to_owned())
        .fold(Vec::new(), |mut all: Vec<String>, p| {
            if !all.contains(&p) {
                all.push(p);
            }
            all
        });
    let broken: Vec<&str> =
        judged.iter().filter(|j| !j.passed && j.run == run).map(|j| j.result.gate.as_str()).collect();
    let why = match cell("why") {
        Some(why) => why,
        None if broken.is_empty() => "a gate over several runs fails in it".into(),
        None => format!("no tap is off by more than its formats explain; broken: {}", broken.join("; ")),
    };
    Suspect {
        toggles,
        site: cell("site"),
        layer: cell("layer").and_then(|l| l.parse().ok()),
        tap: cell("tap"),
        phases,
        why,
        run,
    }
}
