//! Every prompt through every path, one layer at a time.

use super::grade::token_grade;
use super::rank::Ranks;
use super::tree::{Class, Tree};
use super::walk::Walk;
use super::{Graded, GridCost, GridPath, Job};
use crate::checkpoint::{Checkpoint, Config};
use crate::engine::interrupt;
use crate::engine::load::keeps_experts;
use crate::engine::pass::{Progress, for_each_layer};
use crate::engine::session::{BLOCK_TOKENS, FFN_TOKENS, KNOB_TOKENS, check_tokens};
use crate::error::{Error, Result};
use crate::kernels::{Index, KnobPlan, Knobs, Ops, Phase};
use crate::model::layer::ffn_half;
use crate::model::{Block, LayerCtx, LayerWeights, OuterWeights, RopeTables, Silent, outer};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// What `jobs` cost through `paths` paths that share prefixes.
pub fn cost(config: &Config, jobs: &[Job], paths: usize) -> GridCost {
    let trees = trees(jobs, true);
    let computed: usize = trees.iter().map(|t| t.tokens.len()).sum();
    let stream = config.hc_mult * config.hidden_size;
    // A layer's cache, twice where the prompt branches: window keys, and entries of both kinds in a CSA layer.
    let token: usize = config.head_dim
        + config
            .layers
            .iter()
            .map(|l| (config.head_dim + config.index_head_dim) / l.ratio.max(1))
            .max()
            .unwrap_or(0);
    let longest = trees.iter().map(|t| t.longest).max().unwrap_or(0);
    GridCost {
        tokens: jobs.iter().map(|j| j.tokens.len() as u64 - 1).sum(),
        computed: computed as u64,
        bytes: 4 * (computed * stream * paths + 2 * longest * token) as u64,
    }
}

/// Grades every job on every path: `[job][path]`.
///
/// Shared prefixes change no bit of a path whose knobs round values only. A path whose knobs look at what a block
/// holds sees the blocks of the tree: they depend on the prompts of the document and on nothing else.
///
/// # Errors
/// Exit 3 for a job without prompt or answer, with a token outside the vocabulary, or longer than the model's
/// positions.
pub fn grade<O: Ops + Clone + Send + 'static>(
    ops: &O,
    ckpt: &Arc<Checkpoint>,
    outer: &OuterWeights<O>,
    jobs: &[Job],
    paths: &[GridPath],
    progress: &dyn Progress,
) -> Result<Vec<Vec<Graded>>> {
    let config = ckpt.config();
    for (i, j) in jobs.iter().enumerate() {
        check_job(config, j).map_err(|e| e.context(format!("prompt {i} of the grid")))?;
    }
    let shared = trees(jobs, true);
    let alone = if paths.iter().any(|p| reuses(&p.plan)) { trees(jobs, false) } else { Vec::new() };
    let longest = shared.iter().map(|t| t.longest).max().unwrap_or(0);
    let grid = Grid { ops, config, jobs, ropes: RopeTables::new(config, longest) };
    let mut lanes: Vec<Lane<O>> = Vec::new();
    for p in paths {
        let trees = if reuses(&p.plan) { &alone } else { &shared };
        lanes.push(grid.lane(outer, &p.plan, trees)?);
    }
    let mut out = vec![vec![Graded::default(); paths.len()]; jobs.len()];
    let steps: usize = lanes.iter().map(|l| l.trees.len()).sum();
    progress.begin("grading prompts", steps * config.num_hidden_layers);
    let last = config.num_hidden_layers - 1;
    for_each_layer(ops, ckpt, &super::super::Quiet, |i, w| {
        for (p, lane) in lanes.iter_mut().enumerate() {
            for tree in 0..lane.trees.len() {
                let mut ranks = grid.layer(w, i, i == last, lane, tree)?;
                for (job, _) in &lane.trees[tree].jobs {
                    out[*job][p].ranks.append(ranks.entry(*job).or_default());
                }
                progress.step();
            }
        }
        Ok(())
    })?;
    for (p, lane) in lanes.iter().enumerate() {
        grid.head(outer, lane, |job, grades| out[job][p].tokens = grades)?;
    }
    progress.end();
    Ok(out)
}

fn check_job(c: &Config, j: &Job) -> Result<()> {
    if j.answer_from == 0 || j.answer_from >= j.tokens.len() {
        return Err(Error::input(format!(
            "an answer from token {} of {} leaves no prompt or no answer",
            j.answer_from,
            j.tokens.len()
        )));
    }
    check_tokens(c, &j.tokens)
}

/// One tree a document, or one a job.
fn trees(jobs: &[Job], share: bool) -> Vec<Tree> {
    let mut groups: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for (i, j) in jobs.iter().enumerate() {
        groups.entry((j.document, if share { 0 } else { i })).or_default().push(i);
    }
    groups.values().map(|g| Tree::new(g.iter().map(|i| (*i, &jobs[*i])))).collect()
}

/// A layer that takes another layer's selection finds it by position: a prompt must stand alone.
pub(super) fn reuses(plan: &KnobPlan) -> bool {
    plan.mentions("topk.reuse")
}

/// True if a path computes the same bits however its tokens are cut into blocks and steps: its knobs only round, or
/// choose another width, in every phase alike.
fn steady(plan: &KnobPlan) -> bool {
    let format = |path: &str| path == "topk.width" || Knobs::declares_format(path);
    plan.overrides.iter().all(|o| o.phase.is_none() && o.settings.iter().all(|(p, _)| format(p)))
}

/// One path through all documents.
struct Lane<'a, O: Ops> {
    plan: &'a KnobPlan,
    steady: bool,
    trees: &'a [Tree],
    /// Residual streams, a tree: `[rows, S·D]`.
    x: Vec<O::T>,
    /// What the last CSA layer selected, for plans that reuse it.
    chosen: Vec<Option<Index>>,
}

pub(super) struct Grid<'a, O: Ops> {
    pub ops: &'a O,
    pub config: &'a Config,
    pub jobs: &'a [Job],
    pub ropes: RopeTables,
}

/// Phase a served model computes these tokens in.
pub(super) fn phase(class: Class) -> Phase {
    if class == Class::Answer { Phase::Decode } else { Phase::Prefill }
}

impl<O: Ops + Clone + Send + 'static> Grid<'_, O> {
    fn lane<'l>(
        &self,
        outer: &OuterWeights<O>,
        plan: &'l KnobPlan,
        trees: &'l [Tree],
    ) -> Result<Lane<'l, O>> {
        let mut lane = Lane {
            plan,
            steady: steady(plan),
            trees,
            x: Vec::new(),
            chosen: trees.iter().map(|_| None).collect(),
        };
        for tree in trees {
            let mut x = self.ops.zeros(tree.tokens.len(), self.config.hc_mult * self.config.hidden_size);
            for (phase, range) in self.runs(&lane, tree, |_| true) {
                let k = plan.at(None, phase);
                for r in pieces(range, BLOCK_TOKENS * rayon::current_num_threads()) {
                    let ids = &tree.tokens[r.clone()];
                    let rows =
                        outer::embed(self.ops, outer, self.config, ids, r.start, phase, &k, &mut Silent)?;
                    self.ops.write(&mut x, r.start, &rows);
                }
            }
            lane.x.push(x);
        }
        Ok(lane)
    }

    /// The rows of the wanted classes, in runs of one phase; a steady path is the same in both.
    fn runs(&self, lane: &Lane<O>, tree: &Tree, want: impl Fn(Class) -> bool) -> Vec<(Phase, Range<usize>)> {
        if lane.steady {
            return tree.ranges(want).into_iter().map(|r| (Phase::Prefill, r)).collect();
        }
        let of = |p: Phase| tree.ranges(|c| want(c) && phase(c) == p).into_iter().map(move |r| (p, r));
        of(Phase::Prefill).chain(of(Phase::Decode)).collect()
    }

    /// One path through one layer of one document; ranks of the facts, by job.
    fn layer(
        &self,
        w: &LayerWeights<O>,
        layer: usize,
        last: bool,
        lane: &mut Lane<O>,
        tree: usize,
    ) -> Result<BTreeMap<usize, Vec<super::FactRank>>> {
        let t = &lane.trees[tree];
        let mut walk = Walk {
            grid: self,
            w,
            ctx: LayerCtx {
                config: self.config,
                layer,
                ropes: &self.ropes,
                tokens: &t.tokens,
                total: t.longest,
            },
            last,
            tree: t,
            plan: lane.plan,
            steady: lane.steady,
            x: &mut lane.x[tree],
            ranks: Ranks::new(self.config, layer, self.jobs, t),
            chosen: lane.chosen[tree].take(),
        };
        for root in &t.roots {
            walk.visit(*root, None)?;
        }
        let (ranks, chosen) = (walk.ranks.found, walk.chosen);
        lane.chosen[tree] = chosen;
        self.experts(w, layer, last, lane, tree)?;
        Ok(ranks)
    }

    /// The expert half: rows of any node side by side, so that an expert is decoded as rarely as possible.
    fn experts(
        &self,
        w: &LayerWeights<O>,
        layer: usize,
        last: bool,
        lane: &mut Lane<O>,
        tree: usize,
    ) -> Result<()> {
        let t = &lane.trees[tree];
        let runs = self.runs(lane, t, |c| !last || c != Class::Prompt);
        let each = if keeps_experts(self.config) { FFN_TOKENS.0 } else { FFN_TOKENS.1 };
        let most = if lane.steady { each * rayon::current_num_threads() } else { KNOB_TOKENS.1 };
        for want in [Phase::Prefill, Phase::Decode] {
            let mut waiting: Vec<Range<usize>> = Vec::new();
            let mut n = 0;
            for r in runs.iter().filter(|(p, _)| *p == want).flat_map(|(_, r)| pieces(r.clone(), most)) {
                if n + r.len() > most {
                    self.expert_block(w, layer, lane, tree, want, &waiting)?;
                    waiting.clear();
                    n = 0;
                }
                n += r.len();
                waiting.push(r);
            }
            if n > 0 {
                self.expert_block(w, layer, lane, tree, want, &waiting)?;
            }
        }
        Ok(())
    }

    /// The expert half of some rows at once.
    fn expert_block(
        &self,
        w: &LayerWeights<O>,
        layer: usize,
        lane: &mut Lane<O>,
        tree: usize,
        phase: Phase,
        rows: &[Range<usize>],
    ) -> Result<()> {
        interrupt::check()?;
        let (ops, t) = (self.ops, &lane.trees[tree]);
        let tokens: Vec<u32> = rows.iter().flat_map(|r| &t.tokens[r.clone()]).copied().collect();
        let x = gather(ops, &lane.x[tree], rows);
        let ctx =
            LayerCtx { config: self.config, layer, ropes: &self.ropes, tokens: &tokens, total: t.longest };
        let b = Block { from: 0, to: tokens.len(), phase, chunk_start: true, read: true };
        let k = lane.plan.at(Some(layer), phase);
        let y = ffn_half(ops, w, &ctx, x, &b, &k, &mut Silent)?;
        let mut at = 0;
        for r in rows {
            let part = ops.slice(&y, at, at + r.len());
            ops.write(&mut lane.x[tree], r.start, &part);
            at += r.len();
        }
        Ok(())
    }

    /// Grades of every job of a path; logits live for a few rows at a time.
    fn head(
        &self,
        outer: &OuterWeights<O>,
        lane: &Lane<O>,
        mut done: impl FnMut(usize, Vec<super::TokenGrade>),
    ) -> Result<()> {
        for (t, x) in lane.trees.iter().zip(&lane.x) {
            let mut asked: HashMap<usize, Vec<(usize, usize)>> = HashMap::new();
            for (slot, (_, rows)) in t.jobs.iter().enumerate() {
                rows.iter().enumerate().for_each(|(i, r)| asked.entry(*r).or_default().push((slot, i)));
            }
            let mut grades: Vec<Vec<Option<super::TokenGrade>>> =
                t.jobs.iter().map(|(_, rows)| vec![None; rows.len()]).collect();
            let runs = self.runs(lane, t, |c| c != Class::Prompt);
            for (phase, r) in
                runs.into_iter().flat_map(|(p, r)| pieces(r, HEAD_ROWS).into_iter().map(move |r| (p, r)))
            {
                interrupt::check()?;
                let k = lane.plan.at(None, phase);
                let rows = self.ops.slice(x, r.start, r.end);
                let y = outer::head(self.ops, outer, self.config, &rows, 0, phase, &k, &mut Silent)?;
                let y = self.ops.retrieve(y);
                for (i, row) in r.enumerate() {
                    for (slot, answer) in asked.get(&row).map_or(&[][..], Vec::as_slice) {
                        let j = &self.jobs[t.jobs[*slot].0];
                        let (position, expected) =
                            (j.answer_from - 1 + answer, j.tokens[j.answer_from + answer]);
                        grades[*slot][*answer] = Some(token_grade(y.row(i), position, expected));
                    }
                }
            }
            for ((job, _), g) in t.jobs.iter().zip(grades) {
                done(*job, g.into_iter().flatten().collect());
            }
        }
        Ok(())
    }
}

/// Rows whose logits are kept at once.
const HEAD_ROWS: usize = 64;

/// A range in pieces of at most `most`.
pub(super) fn pieces(range: Range<usize>, most: usize) -> Vec<Range<usize>> {
    range.clone().step_by(most.max(1)).map(|a| a..(a + most).min(range.end)).collect()
}

/// Copies of some rows side by side.
fn gather<O: Ops>(ops: &O, x: &O::T, rows: &[Range<usize>]) -> O::T {
    let mut out = ops.slice(x, rows[0].start, rows[0].end);
    for r in &rows[1..] {
        ops.append(&mut out, &ops.slice(x, r.start, r.end));
    }
    out
}
