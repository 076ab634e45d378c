//! Golden against a candidate: the same weights and prompt, other knobs.

use super::against::{kind, name_structures};
use super::floor::FloorRule;
use super::judge::{Verdict, verdict};
use super::observer::Comparer;
use super::precision::Precision;
use super::rows::{Judging, TapRow};
use super::{NOISE, Role};
use crate::checkpoint::{Checkpoint, Config};
use crate::engine::pass::{Progress, for_each_layer};
use crate::engine::session::{Schedule, Session};
use crate::error::Result;
use crate::kernels::values::Hadamard;
use crate::kernels::{KnobPlan, Mat, Ops, Phase};
use crate::metrics::Limits;
use crate::metrics::logits::{LogitAccum, LogitStats, compare_row};
use crate::model::OuterWeights;
use serde::Serialize;
use std::sync::Arc;

/// How to compare.
#[derive(Debug, Clone)]
pub struct CandidateOptions {
    /// Golden's own knobs.
    pub golden: KnobPlan,
    /// The candidate's knobs, golden's included.
    pub candidate: KnobPlan,
    /// How tokens are fed.
    pub schedule: Schedule,
    /// Limits on excess.
    pub limits: Limits,
    /// Configuration instead of the checkpoint's (a lower clamp exercises the clamp).
    pub config: Option<Config>,
}

/// The comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Candidate {
    /// The conclusion.
    pub verdict: Verdict,
    /// One row a tap, in execution order.
    pub rows: Vec<TapRow>,
    /// Logits, propagated.
    pub logits: LogitStats,
    /// True if not a bit of any tap differs from golden.
    pub identical: bool,
}

const ROLES: [Role; 6] = [Role::Golden, Role::Total, Role::Layer, Role::Local, Role::Format, Role::Noise];

/// Runs golden and the candidate over `tokens` side by side.
pub fn against_candidate<O: Ops + Clone + Send + 'static>(
    ops: &O,
    ckpt: &Arc<Checkpoint>,
    outer: &OuterWeights<O>,
    tokens: &[u32],
    options: &CandidateOptions,
    progress: &dyn Progress,
) -> Result<Candidate> {
    let c = options.config.as_ref().unwrap_or(ckpt.config());
    let rule = FloorRule::new(Precision::F32.unit_roundoff(), c.hc_mult * c.hidden_size);
    let session = Session::new(ops, c, tokens, options.schedule)?;
    let mut noise = options.golden.clone();
    let settings: Vec<_> = NOISE.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    noise.push(None, None, &settings)?;
    let cand = options.candidate.clone();
    let plans = [
        options.golden.clone(),
        cand.clone(),
        cand.clone(),
        cand.clone(),
        cand.formats_only(&options.golden),
        noise,
    ];
    let mut cmp = Comparer::new(ROLES.to_vec(), None, c, rule, tokens.len());
    progress.begin("comparing layers", c.num_hidden_layers);
    let mut lanes = session.embed_lanes(outer, &plans, &mut cmp)?;
    for_each_layer(ops, ckpt, progress, |i, w| {
        cmp.bias = w.gate_bias.clone();
        lanes[2].x = lanes[0].x.clone();
        let rotation = |p: &KnobPlan| p.at(Some(i), Phase::Prefill).indexer.hadamard;
        cmp.unrotate = rotation(&cand) == Hadamard::Both && rotation(&options.golden) == Hadamard::None;
        session.layer_lanes(w, i, &mut lanes, &mut cmp)?;
        name_structures(&mut cmp, i, c);
        cmp.end_layer();
        Ok(())
    })?;
    lanes[2].x = lanes[0].x.clone();
    let from = 0;
    session.head_lanes(outer, &lanes, &mut cmp)?;
    let quiet = &mut crate::model::Silent;
    let golden = ops.download(&session.head(outer, &lanes[0].x, from, &options.golden, quiet)?);
    let measured = ops.download(&session.head(outer, &lanes[1].x, from, &options.candidate, quiet)?);
    progress.end();
    let rows: Vec<TapRow> = cmp
        .taps
        .values()
        .map(|(id, acc)| {
            acc.finish(
                *id,
                kind(*id, c),
                &Judging { rule, steps: None, limits: &options.limits, isolated: true },
            )
        })
        .collect();
    let same = |r: &TapRow| match &r.index {
        Some(i) => i.overlap == 1.0 && r.findings.is_empty(),
        // A tap without elements (no entry yet) measured nothing and differs in nothing.
        None => (r.n == 0 || r.max_abs == 0.0) && r.findings.is_empty(),
    };
    let identical = rows.iter().all(same);
    let v = verdict(&rows, "its declared formats explain", |_| None);
    Ok(Candidate { verdict: v, logits: logit_stats(&golden, &measured, tokens), rows, identical })
}

/// Logit statistics over all positions; the actual next token is known for all but the last.
fn logit_stats(golden: &Mat, measured: &Mat, tokens: &[u32]) -> LogitStats {
    let mut acc = LogitAccum::default();
    for r in 0..golden.rows {
        let next = tokens.get(r + 1).map(|t| *t as usize);
        acc.push(&compare_row(measured.row(r), golden.row(r), next));
    }
    acc.finish()
}
