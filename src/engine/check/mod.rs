//! Every operation alone against golden, at a real model's sizes on seeded synthetic data.
//!
//! No checkpoint and no forward pass: a `Bench` holds weights, `Bench::case` makes the data of
//! one case, and the closure it returns calls the operations of [`Ops`] with whatever knobs it is
//! given. It is called four times: with golden's knobs, with the path's, with the path's declared
//! formats alone (the floor of an ideal kernel) and with everything in bf16 (how much this data
//! moves when arithmetic is that coarse, hence by scaling what f32 itself costs).

mod attention;
mod compressor;
mod data;
mod dense;
mod experts;
mod indexer;
mod judge;
mod mhc;
mod router;
mod sizes;

pub use judge::CheckRow;
pub use sizes::{Case, LAYERS, Sizes};

use super::compare::{NOISE, short};
use super::pass::Progress;
use crate::error::{Error, ErrorKind, Result};
use crate::kernels::knobs::Knobs;
use crate::kernels::presets::Known;
use crate::kernels::values::Hadamard;
use crate::kernels::{Index, KnobPlan, Mat, Ops, Phase, Site};
use crate::metrics::{Limits, Status};
use data::Gen;
use rayon::prelude::*;
use serde::Serialize;
use sizes::Dims;

/// A path to check.
#[derive(Debug, Clone)]
pub struct CheckPath {
    /// Name in reports: a preset's, or the spec itself.
    pub name: String,
    /// Its settings for a model of the layers [`sizes::LAYERS`], decode phase.
    pub plan: KnobPlan,
    /// What it is known to get wrong.
    pub known: &'static [Known],
}

/// What to check.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// The paths.
    pub paths: Vec<CheckPath>,
    /// Seed of weights and data.
    pub seed: u64,
    /// Sizes of the operations.
    pub sizes: Sizes,
    /// Cases; those that mean nothing to an operation are skipped for it.
    pub cases: Vec<Case>,
    /// Limits on excess.
    pub limits: Limits,
}

/// What became of one path.
#[derive(Debug, Clone, Serialize)]
pub struct PathResult {
    /// Its name.
    pub name: String,
    /// Settings that are not golden's.
    pub knobs: Vec<String>,
    /// Sites checked: those it sets, or all if it is golden itself.
    pub sites: Vec<String>,
    /// Worst status of its rows; those that are known to be suspect count as elevated.
    pub status: Status,
    /// Not a bit of any output differs from golden.
    pub identical: bool,
    /// Sites it sets where no operation alone changed a bit.
    pub unread: Vec<String>,
    /// Its rows, by operation and case.
    pub rows: Vec<CheckRow>,
}

/// The result of a check.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// Worst status; rows that are known to be suspect count as elevated.
    pub status: Status,
    /// One sentence.
    pub why: String,
    /// One result a path.
    pub paths: Vec<PathResult>,
}

/// One output of an operation.
struct Tap {
    /// `site.output`.
    op: &'static str,
    /// Terms of the longest sum on the way to it.
    sum: usize,
    value: Value,
}

enum Value {
    Tensor(Mat),
    Chosen(Selection),
}

/// Chosen ids and the scores they were chosen by.
struct Selection {
    ids: Index,
    /// Selection scores of every row; `None`: the ids come from a table.
    scores: Option<Mat>,
    /// Ids `0..visible` may be chosen, by row.
    visible: Vec<usize>,
    /// How many must be.
    width: usize,
}

impl Tap {
    fn tensor(op: &'static str, sum: usize, m: Mat) -> Tap {
        Tap { op, sum, value: Value::Tensor(m) }
    }
}

/// An operation on fixed data, to be run with any knobs.
type Run<'a, O> = Box<dyn Fn(&O, &Knobs) -> Result<Vec<Tap>> + Sync + 'a>;

/// An operation with its weights.
trait Bench<O: Ops> {
    /// The operation on the data of `case`; `None` if the case means nothing to it.
    fn case(&self, ops: &O, case: Case) -> Result<Option<Run<'_, O>>>;
}

/// Which bench is made when, and by whose knobs it runs.
struct Kind<O: Ops> {
    site: Site,
    /// Layer of [`sizes::LAYERS`] whose knobs count.
    layer: Option<usize>,
    make: fn(&O, &Dims, Gen) -> Box<dyn Bench<O>>,
}

fn kinds<O: Ops + 'static>() -> Vec<Kind<O>> {
    let k = |site, layer, make| Kind { site, layer, make };
    use sizes::{CSA, HASH, HCA};
    vec![
        k(Site::Embed, None, |o, d, g| Box::new(dense::Embed::new(o, d, g))),
        k(Site::Mhc, Some(CSA), |o, d, g| Box::new(mhc::Streams::new(o, d, g))),
        k(Site::Attn, Some(CSA), |_, d, g| Box::new(attention::Attention::new(d, g))),
        k(Site::KvCache, Some(CSA), |_, d, g| Box::new(dense::Cache::new(d, g))),
        k(Site::Compressor, Some(CSA), |o, d, g| Box::new(compressor::Pooling::new(o, d, g, true))),
        k(Site::Compressor, Some(HCA), |o, d, g| Box::new(compressor::Pooling::new(o, d, g, false))),
        k(Site::Indexer, Some(CSA), |o, d, g| Box::new(indexer::Scoring::new(o, d, g))),
        k(Site::Topk, Some(CSA), |_, d, g| Box::new(indexer::Selecting::new(d, g))),
        k(Site::Router, Some(CSA), |o, d, g| Box::new(router::Router::new(o, d, g))),
        k(Site::Router, Some(HASH), |o, d, g| Box::new(router::Hash::new(o, d, g))),
        k(Site::Experts, Some(CSA), |o, d, g| Box::new(experts::Experts::new(o, d, g))),
        k(Site::Linear, Some(CSA), |o, d, g| Box::new(dense::Linear::new(o, d, g))),
        k(Site::Head, None, |o, d, g| Box::new(dense::Head::new(o, d, g))),
    ]
}

/// The knobs of `plan` for the layer `layer` of [`sizes::LAYERS`].
fn knobs(plan: &KnobPlan, layer: Option<usize>) -> Knobs {
    plan.at(layer, Phase::Decode)
}

/// An ideal kernel of the formats of `k`. A rotation of index queries and keys alike changes no
/// exact score; it is a part of the format, as it decides which numbers are rounded.
fn formats(k: &Knobs) -> Knobs {
    let mut f = k.formats_only();
    if k.indexer.hadamard == Hadamard::Both {
        f.indexer.hadamard = Hadamard::Both;
    }
    f
}

/// Checks every path.
pub fn check<O: Ops + 'static>(ops: &O, options: &CheckOptions, progress: &dyn Progress) -> Result<Check> {
    let kinds: Vec<Kind<O>> = kinds();
    let mut paths: Vec<PathResult> = options.paths.iter().map(|p| begin(p, &kinds)).collect();
    let mut noise = Knobs::default();
    for (path, value) in NOISE {
        noise.set(path, value)?;
    }
    let dims = Dims::new(options.sizes);
    progress.begin("checking operations", kinds.len() * options.cases.len());
    for kind in &kinds {
        let touched: Vec<usize> =
            (0..paths.len()).filter(|i| paths[*i].sites.iter().any(|s| s == kind.site.name())).collect();
        let bench = (!touched.is_empty()).then(|| (kind.make)(ops, &dims, Gen::new(options.seed)));
        for case in &options.cases {
            progress.step();
            let Some(run) = bench.as_ref().map(|b| b.case(ops, *case)).transpose()?.flatten() else {
                continue;
            };
            let golden = run(ops, &Knobs::default())?;
            let coarse = run(ops, &noise)?;
            let rows: Vec<Vec<CheckRow>> = touched
                .par_iter()
                .map(|i| {
                    let k = knobs(&options.paths[*i].plan, kind.layer);
                    let lanes = judge::Lanes {
                        golden: &golden,
                        measured: &run(ops, &k)?,
                        format: &run(ops, &formats(&k))?,
                        noise: &coarse,
                    };
                    Ok(lanes.rows(kind.site, *case, &options.limits))
                })
                .collect::<Result<_>>()?;
            for (i, mut rows) in touched.iter().zip(rows) {
                rows.iter_mut().for_each(|r| r.known = known(r, options.paths[*i].known));
                paths[*i].rows.extend(rows);
            }
        }
    }
    progress.end();
    if paths.iter().all(|p| p.rows.is_empty()) {
        return Err(Error::new(ErrorKind::NothingCompared, "no operation of these sites has these cases")
            .hint("leave --cases out to run all of them"));
    }
    paths.iter_mut().for_each(finish);
    let (status, why) = conclusion(&paths);
    Ok(Check { status, why, paths })
}

fn begin<O: Ops>(p: &CheckPath, kinds: &[Kind<O>]) -> PathResult {
    let moved = |k: &&Kind<O>| !knobs(&p.plan, k.layer).is_golden_at(k.site);
    let mut sites: Vec<String> = kinds.iter().filter(moved).map(|k| k.site.to_string()).collect();
    sites.dedup();
    let mut settings = Vec::new();
    for k in kinds {
        for s in knobs(&p.plan, k.layer).diff(&Knobs::default()) {
            if !settings.contains(&s) {
                settings.push(s);
            }
        }
    }
    if sites.is_empty() {
        sites = Site::ALL.iter().map(|s| s.to_string()).collect();
    }
    let name = p.name.clone();
    PathResult {
        name,
        knobs: settings,
        sites,
        status: Status::Ok,
        identical: true,
        unread: Vec::new(),
        rows: Vec::new(),
    }
}

/// The reason for a suspect row, if it is known.
fn known(r: &CheckRow, list: &[Known]) -> Option<String> {
    let here = |k: &&Known| k.op == r.op && k.cases.contains(&r.case.as_str());
    let k = list.iter().find(here).filter(|_| r.status == Status::Suspect)?;
    Some(format!("{} ({})", k.why, k.source))
}

fn finish(p: &mut PathResult) {
    p.status = p.rows.iter().map(CheckRow::surprise).max().unwrap_or(Status::Ok);
    p.identical = p.rows.iter().all(|r| r.identical);
    let silent = |site: &&String| p.rows.iter().filter(|r| r.site == **site).all(|r| r.identical);
    p.unread = if p.knobs.is_empty() { Vec::new() } else { p.sites.iter().filter(silent).cloned().collect() };
}

fn conclusion(paths: &[PathResult]) -> (Status, String) {
    let rows = || paths.iter().flat_map(|p| p.rows.iter().map(move |r| (p, r)));
    let (total, status) = (rows().count(), rows().map(|(_, r)| r.surprise()).max().unwrap_or(Status::Ok));
    let of = |s: Status| rows().filter(|(_, r)| r.known.is_none() && r.status == s).count();
    let worst = rows()
        .filter(|(_, r)| r.surprise() == status)
        .reduce(|a, b| if b.1.weight() > a.1.weight() { b } else { a });
    let Some((p, r)) = worst else { return (status, String::new()) };
    let size = match (&r.findings.first(), r.overlap, r.excess) {
        (Some(f), _, _) => f.to_string(),
        (None, Some(o), _) => {
            format!("overlap {o:.4}, {} real flips, {} near ties", r.real_flips, r.near_tie_flips)
        }
        (None, None, Some(e)) => {
            let alone = r.row_excess.filter(|x| *x > 4.0 * e.max(1.0));
            let row = alone.map_or(String::new(), |x| format!(", {} on one row", short(x)));
            format!("excess {}{row}", short(e))
        }
        _ => String::new(),
    };
    let most = format!("{} {} in case {}: {size}", p.name, r.op, r.case);
    let why = match status {
        Status::Ok => format!("{total} rows are within what formats explain; most: {most}"),
        _ => format!(
            "{} of {total} rows suspect, {} elevated, {} suspect as known; worst: {most}",
            of(Status::Suspect),
            of(Status::Elevated),
            rows().filter(|(_, r)| r.known.is_some()).count()
        ),
    };
    (status, why)
}
