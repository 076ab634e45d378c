//! Golden against a candidate: the same weights and prompt, other knobs.

use super::batch::{Path, Scope, Setting, pass};
use super::judge::Verdict;
use super::rows::TapRow;
use crate::checkpoint::{Checkpoint, Config};
use crate::engine::pass::Progress;
use crate::engine::session::Schedule;
use crate::error::Result;
use crate::kernels::{KnobPlan, Ops};
use crate::metrics::Limits;
use crate::metrics::logits::LogitStats;
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

/// Runs golden and the candidate over `tokens` side by side.
pub fn against_candidate<O: Ops + Clone + Send + 'static>(
    ops: &O,
    ckpt: &Arc<Checkpoint>,
    outer: &OuterWeights<O>,
    tokens: &[u32],
    options: &CandidateOptions,
    progress: &dyn Progress,
) -> Result<Candidate> {
    let setting = Setting {
        tokens: tokens.to_vec(),
        golden: options.golden.clone(),
        schedule: options.schedule,
        limits: options.limits,
        config: options.config.clone(),
        only: None,
    };
    let path = Path { plan: options.candidate.clone(), scope: Scope::Full };
    let found = pass(ops, ckpt, outer, &setting, &[path], progress)?;
    Ok(found.into_iter().next().expect("one path, one result"))
}
