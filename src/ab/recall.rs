//! Recall of planted facts in every run of an experiment: all runs answer the same questions in one pass.

use super::config::Experiment;
use super::measure::Run;
use super::table::Table;
use crate::checkpoint::Checkpoint;
use crate::engine::Progress;
use crate::error::Result;
use crate::kernels::{Ops, Spec};
use crate::metrics::interval::{mcnemar_exact, wilson95};
use crate::model::OuterWeights;
use crate::needle::record::{Record, Width};
use crate::needle::work::{Path, pass};
use crate::needle::{Grid, Kind, Language, ctx};
use std::sync::Arc;

/// What golden is called in `recall.csv`.
const GOLDEN: &str = "golden";

/// Columns of `recall.csv`: one row a run and context. `golden_only` and `run_only` count the trials that only one of
/// the two got right.
const COLUMNS: [&str; 11] =
    ["run", "ctx", "n", "not_run", "hits", "recall", "lower", "upper", "golden_only", "run_only", "p"];

/// Depths of the facts.
const DEPTHS: [f64; 3] = [0.1, 0.5, 0.9];
/// Trials a length and depth where the config names none.
const TRIALS: usize = 12;
/// Questions of a haystack and cell.
const QUESTIONS: usize = 3;

/// The table before anything was measured.
pub fn no_table() -> Table {
    Table { name: "recall".into(), columns: COLUMNS.map(str::to_owned).to_vec(), rows: Vec::new() }
}

/// The grid of an experiment, if it has one.
///
/// # Errors
/// Exit 2: lengths that make no sense, or that the model cannot take.
pub fn grid(exp: &Experiment, positions: usize) -> Result<Option<Grid>> {
    let Some(n) = &exp.needle else { return Ok(None) };
    let trials = n.trials.unwrap_or(TRIALS).max(1);
    let grid = Grid {
        kind: Kind::Passkey,
        ctx: ctx::parse(&n.ctx)?,
        depths: DEPTHS.to_vec(),
        trials,
        questions: QUESTIONS.min(trials),
        seed: n.seed,
        custom: None,
    };
    grid.check(positions)?;
    Ok(Some(grid))
}

/// Grades `runs` and appends a row each and context; golden's come first where `golden` says so.
pub fn measure<O: Ops + Clone + Send + 'static>(
    ops: &O,
    ckpt: &Arc<Checkpoint>,
    outer: &OuterWeights<O>,
    exp: &Experiment,
    grid: &Grid,
    runs: &[Run],
    golden: bool,
    table: &mut Table,
    progress: &dyn Progress,
) -> Result<()> {
    let layers = &ckpt.config().layers;
    let mut paths = vec![Path::new(GOLDEN, &Spec::default().plan(exp.golden, layers)?, Width::Native)?];
    let graded: Vec<&Run> = runs.iter().filter(|r| r.set != 0).collect();
    for r in &graded {
        let plan = r.kernels.parse::<Spec>()?.plan(exp.golden, layers)?;
        paths.push(Path::new(&r.name, &plan, Width::Native)?);
    }
    let language = Language::of(ckpt)?;
    // A haystack at a time: what is kept of it is a row a trial.
    let mut records: Vec<Record> = Vec::new();
    for d in 0..grid.documents() {
        let found = pass(ops, ckpt, outer, &language, grid, d..d + 1, &paths, progress)?;
        records.extend(found.into_iter().flatten());
    }
    let names = golden.then_some(GOLDEN).into_iter().chain(graded.iter().map(|r| r.name.as_str()));
    for name in names {
        for ctx in &grid.ctx {
            table.rows.push(row(name, *ctx, &records));
        }
    }
    Ok(())
}

fn row(name: &str, ctx: usize, records: &[Record]) -> Vec<String> {
    let here = |path: &str| -> Vec<Option<bool>> {
        let own = records.iter().filter(|r| r.place.ctx == ctx && r.path == path);
        own.map(|r| r.outcome.as_ref().ok().map(|o| o.exact())).collect()
    };
    let (base, own) = (here(GOLDEN), here(name));
    let both: Vec<(bool, bool)> = base.iter().zip(&own).filter_map(|(a, b)| Some(((*a)?, (*b)?))).collect();
    let n = own.iter().flatten().count() as u64;
    let hits = own.iter().flatten().filter(|x| **x).count() as u64;
    let (lower, upper) = wilson95(hits, n);
    let golden_only = both.iter().filter(|(a, b)| *a && !*b).count() as u64;
    let run_only = both.iter().filter(|(a, b)| !*a && *b).count() as u64;
    // Nothing that was run has no recall.
    let rate = if n == 0 { String::new() } else { (hits as f64 / n as f64).to_string() };
    let bound = |x: f64| if n == 0 { String::new() } else { x.to_string() };
    vec![
        name.into(),
        ctx.to_string(),
        n.to_string(),
        (own.len() as u64 - n).to_string(),
        hits.to_string(),
        rate,
        bound(lower),
        bound(upper),
        golden_only.to_string(),
        run_only.to_string(),
        mcnemar_exact(golden_only, run_only).to_string(),
    ]
}
