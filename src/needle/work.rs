//! Grading documents, a few at a time, and handing the records over as soon as they are there.

use super::grid::{Grid, Trial};
use super::language::Language;
use super::record::{Outcome, Record, Width};
use crate::checkpoint::Checkpoint;
use crate::engine::Progress;
use crate::engine::grid::{self as engine_grid, GridCost, GridPath, Job};
use crate::error::{Error, Result};
use crate::fnv::Fnv;
use crate::kernels::{KnobPlan, Ops};
use crate::model::OuterWeights;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Checkpoints below this size are read again for every document: that costs nothing, and results are kept sooner.
const SMALL_CHECKPOINT: u64 = 1 << 30;

/// More entries than any context has; the largest number a knob takes.
const EVERY_ENTRY: u32 = 1 << 20;

/// A path of the grid, with the names it has in files.
#[derive(Debug, Clone)]
pub struct Path {
    /// `golden`, or a candidate's spec.
    pub name: String,
    /// Selection width.
    pub width: Width,
    /// Its knobs, the width included.
    pub plan: KnobPlan,
}

impl Path {
    /// `name` with `plan` at `width`.
    pub fn new(name: &str, plan: &KnobPlan, width: Width) -> Result<Path> {
        let mut plan = plan.clone();
        let k = match width {
            Width::Native => None,
            Width::Fixed(k) => Some(k),
            // The engine takes no more than there are.
            Width::All => Some(EVERY_ENTRY),
        };
        if let Some(k) = k {
            plan.push(None, None, &[("topk.width".into(), k.to_string())])?;
        }
        Ok(Path { name: name.into(), width, plan })
    }
}

/// What a run will cost.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Documents of each pass over the weights, in order.
    pub passes: Vec<Range<usize>>,
    /// Trials that can be graded, of all paths together once.
    pub run: usize,
    /// Trials that cannot.
    pub not_run: usize,
    /// Tokens of all prompts.
    pub tokens: u64,
    /// Tokens computed, a path.
    pub computed: u64,
    /// Bytes of the largest pass.
    pub bytes: u64,
    /// Hash of every prompt of every document, whichever are planned.
    pub prompts: String,
    /// Length and tokens of a short prompt, for a test of speed.
    pub sample: Option<Job>,
}

fn jobs(trials: &[Trial]) -> Vec<Job> {
    trials
        .iter()
        .filter_map(|t| Some(Job { document: t.place.document, ..t.asked.as_ref().ok()?.job.clone() }))
        .collect()
}

/// What one document costs.
struct Costs {
    hash: Fnv,
    run: usize,
    not_run: usize,
    cost: GridCost,
    sample: Option<Job>,
}

/// A prompt of about this length tells the speed.
const SAMPLE: usize = 1024;

/// Plans `documents` (all, or a shard's), so that no pass needs more than `memory` bytes.
pub fn plan(
    checkpoint: &Checkpoint,
    language: &Language,
    grid: &Grid,
    documents: Range<usize>,
    paths: usize,
    memory: Option<u64>,
) -> Result<Plan> {
    let costs: Vec<Costs> = (0..grid.documents())
        .into_par_iter()
        .map(|d| {
            let planned = documents.contains(&d);
            let jobs = jobs(&grid.trials_of(language, d, planned)?);
            let words = jobs.iter().flat_map(|j| j.tokens.iter().copied().chain([j.answer_from as u32]));
            Ok(Costs {
                hash: Fnv::of(words.flat_map(u32::to_le_bytes)),
                run: jobs.len(),
                not_run: grid.places(d).len() - jobs.len(),
                cost: if planned {
                    engine_grid::cost(checkpoint.config(), &jobs, paths)
                } else {
                    GridCost::default()
                },
                sample: jobs.into_iter().min_by_key(|j| j.answer_from.abs_diff(SAMPLE)),
            })
        })
        .collect::<Result<_>>()?;
    let stored: u64 = checkpoint.inventory().bytes_total;
    let mut out = Plan {
        prompts: Fnv::of(costs.iter().flat_map(|c| c.hash.bytes())).hex(),
        sample: costs.first().and_then(|c| c.sample.clone()),
        ..Plan::default()
    };
    let mut open: Option<(Range<usize>, u64)> = None;
    for d in documents {
        let Costs { cost, run, not_run, .. } = costs[d];
        out.run += run;
        out.not_run += not_run;
        out.tokens += cost.tokens;
        out.computed += cost.computed;
        if let Some(limit) = memory.filter(|m| cost.bytes > *m) {
            return Err(Error::usage(format!(
                "haystack {d} with {paths} paths needs {} bytes of streams and caches, --memory allows {limit}",
                cost.bytes
            ))
            .hint("shorten --ctx, compare fewer kernels or widths at once, or raise --memory"));
        }
        let together = match &open {
            Some((_, bytes)) => stored >= SMALL_CHECKPOINT && memory.is_none_or(|m| bytes + cost.bytes <= m),
            None => false,
        };
        match &mut open {
            Some((range, bytes)) if together => {
                range.end = d + 1;
                *bytes += cost.bytes;
            }
            _ => {
                out.passes.extend(open.take().map(|(r, _)| r));
                open = Some((d..d + 1, cost.bytes));
            }
        }
        out.bytes = out.bytes.max(open.as_ref().map_or(0, |(_, b)| *b));
    }
    out.passes.extend(open.map(|(r, _)| r));
    Ok(out)
}

/// Grades the documents of one pass: records of all paths, in the order of every file.
pub fn pass<O: Ops + Clone + Send + 'static>(
    ops: &O,
    checkpoint: &Arc<Checkpoint>,
    outer: &OuterWeights<O>,
    language: &Language,
    grid: &Grid,
    documents: Range<usize>,
    paths: &[Path],
    progress: &dyn Progress,
) -> Result<Vec<Vec<Record>>> {
    let trials: Vec<Vec<Trial>> =
        documents.into_par_iter().map(|d| grid.trials_of(language, d, false)).collect::<Result<_>>()?;
    let all: Vec<Job> = trials.iter().flat_map(|t| jobs(t)).collect();
    let named: Vec<GridPath> = paths
        .iter()
        .map(|p| GridPath { name: format!("{} {}", p.name, p.width.label()), plan: p.plan.clone() })
        .collect();
    let mut graded = if all.is_empty() {
        Vec::new()
    } else {
        engine_grid::grade(ops, checkpoint, outer, &all, &named, progress)?
    }
    .into_iter();
    let mut out = Vec::new();
    for document in trials {
        let mut records = Vec::new();
        for trial in document {
            let results = if trial.asked.is_ok() { graded.next() } else { None };
            for (i, path) in paths.iter().enumerate() {
                let outcome = match (&trial.asked, &results) {
                    (Err(why), _) => Err(why.clone()),
                    (Ok(asked), Some(results)) => Ok(Outcome {
                        prompt_tokens: asked.job.answer_from,
                        needle: asked.needle.clone(),
                        sources: asked.job.sources.iter().map(|r| r.start).collect(),
                        tokens: results[i].tokens.clone(),
                        ranks: results[i].ranks.clone(),
                    }),
                    (Ok(_), None) => {
                        return Err(Error::bug("the engine graded fewer jobs than it was given"));
                    }
                };
                records.push(Record {
                    place: trial.place,
                    path: path.name.clone(),
                    width: path.width,
                    outcome,
                });
            }
        }
        out.push(records);
    }
    Ok(out)
}
