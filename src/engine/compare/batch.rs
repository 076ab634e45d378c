//! Many paths against golden: one lockstep pass for all that share a golden, which runs once for
//! them, and several passes at a time.

use super::against::kind;
use super::candidate::Candidate;
use super::floor::{FloorRule, RowErrs};
use super::judge::verdict;
use super::observer::Comparer;
use super::precision::Precision;
use super::rows::Judging;
use super::subject::{Seat, Subject};
use super::{NOISE, Role};
use crate::checkpoint::{Checkpoint, Config};
use crate::engine::pass::{Progress, Quiet, for_each_layer};
use crate::engine::session::{Lane, Schedule, Session};
use crate::error::Result;
use crate::kernels::values::Hadamard;
use crate::kernels::{KnobPlan, Ops, Phase};
use crate::metrics::Limits;
use crate::model::OuterWeights;
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What paths share: the sequence, golden, and how tokens are fed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Setting {
    /// The sequence.
    pub tokens: Vec<u32>,
    /// Golden's own knobs.
    pub golden: KnobPlan,
    /// How tokens are fed.
    pub schedule: Schedule,
    /// Limits on excess.
    pub limits: Limits,
    /// Configuration instead of the checkpoint's (a lower clamp exercises the clamp).
    pub config: Option<Config>,
    /// Measure the taps of this phase only.
    pub only: Option<Phase>,
}

/// How much of a path is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Everything: propagated, isolated, and where errors are born.
    Full,
    /// What the verdict hangs on: where errors are born, in the layers that have knobs of their own. In
    /// every other layer each operation is golden's, on golden's inputs. Total and isolated errors are
    /// not measured, and rows of other layers are left out.
    Verdict,
}

impl Scope {
    fn roles(self) -> &'static [Role] {
        match self {
            Scope::Full => &[Role::Total, Role::Layer, Role::Local, Role::Format],
            Scope::Verdict => &[Role::Local, Role::Format],
        }
    }
}

/// A path to measure.
#[derive(Debug, Clone)]
pub struct Path {
    /// Its knobs, golden's included.
    pub plan: KnobPlan,
    /// How much of it is run.
    pub scope: Scope,
}

/// Paths of one setting.
#[derive(Debug, Clone)]
pub struct Group {
    /// What they share.
    pub setting: Setting,
    /// The paths.
    pub paths: Vec<Path>,
}

/// Paths of one pass at most: more share golden's cost no better, and leave too few passes to
/// divide among threads.
const PATHS: usize = 24;

/// Bytes that the lanes of all passes under way may hold.
const LANE_BYTES: usize = 2 << 30;

/// Compares every path of every group with its golden; results in the order of the groups. As many
/// passes are under way as there are threads; what they find does not depend on it.
pub fn against_candidates<O: Ops + Clone + Send + 'static>(
    ops: &O,
    ckpt: &Arc<Checkpoint>,
    outer: &OuterWeights<O>,
    groups: &[Group],
    progress: &dyn Progress,
) -> Result<Vec<Vec<Candidate>>> {
    let threads = rayon::current_num_threads();
    let c = ckpt.config();
    let mut passes: Vec<(usize, usize, &[Path])> = Vec::new();
    for (g, group) in groups.iter().enumerate() {
        // Streams of a lane, and about as much again for its caches and the operation it is in.
        let lane = group.setting.tokens.len() * c.hc_mult * c.hidden_size * size_of::<f32>() * 3;
        let lanes = LANE_BYTES / threads / lane.max(1);
        let room = lanes.saturating_sub(2) / Scope::Full.roles().len();
        let each = room.clamp(1, PATHS);
        passes.extend(group.paths.chunks(each).enumerate().map(|(i, p)| (g, i * each, p)));
    }
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // Not one task a pass: a thread that waits for weights takes over another task, and would pile
    // up passes without end.
    (0..threads.min(passes.len())).into_par_iter().with_max_len(1).try_for_each(|_| {
        while let Some(&(g, first, paths)) = passes.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = pass(ops, ckpt, outer, &groups[g].setting, paths, &Quiet)?;
            paths.iter().for_each(|_| progress.step());
            done.lock().expect("no panic while held").push((g, first, found));
        }
        Ok(())
    })?;
    let mut done = done.into_inner().expect("no panic while held");
    done.sort_unstable_by_key(|(g, first, _)| (*g, *first));
    let mut out: Vec<Vec<Candidate>> = groups.iter().map(|_| Vec::new()).collect();
    done.into_iter().for_each(|(g, _, found)| out[g].extend(found));
    Ok(out)
}

/// One lockstep pass of golden, `paths` and the noise.
pub(super) fn pass<O: Ops + Clone + Send + 'static>(
    ops: &O,
    ckpt: &Arc<Checkpoint>,
    outer: &OuterWeights<O>,
    setting: &Setting,
    paths: &[Path],
    progress: &dyn Progress,
) -> Result<Vec<Candidate>> {
    let c = setting.config.as_ref().unwrap_or(ckpt.config());
    let rule = FloorRule::new(Precision::F32.unit_roundoff(), c.hc_mult * c.hidden_size);
    let session = Session::new(ops, c, &setting.tokens, setting.schedule)?;
    let (seats, plans) = line_up(&setting.golden, paths)?;
    let mut cmp = Comparer::new(seats, None, c, rule, &setting.tokens);
    cmp.only = setting.only;
    progress.begin("comparing layers", c.num_hidden_layers);
    let mut lanes = session.embed_lanes(outer, &plans, &mut cmp)?;
    for_each_layer(ops, ckpt, progress, |i, w| {
        cmp.bias = w.gate_bias.clone();
        seat(&mut lanes, &cmp.seats, &setting.golden, paths, Some(i));
        let rotation = |p: &KnobPlan| p.at(Some(i), Phase::Prefill).indexer.hadamard;
        for (s, p) in cmp.subjects.iter_mut().zip(paths) {
            s.unrotate = rotation(&p.plan) == Hadamard::Both && rotation(&setting.golden) == Hadamard::None;
        }
        session.layer_lanes(w, i, &mut lanes, &mut cmp)?;
        cmp.name_structures(i);
        cmp.end_layer();
        Ok(())
    })?;
    seat(&mut lanes, &cmp.seats, &setting.golden, paths, None);
    session.head_lanes(outer, &lanes, &mut cmp)?;
    progress.end();
    Ok(cmp.subjects.iter().zip(paths).map(|(s, _)| conclude(s, &cmp, &setting.limits)).collect())
}

/// What each lane is for, and its knobs: golden, the lanes of every path, the noise.
fn line_up(golden: &KnobPlan, paths: &[Path]) -> Result<(Vec<Seat>, Vec<KnobPlan>)> {
    let mut noise = golden.clone();
    let settings: Vec<_> = NOISE.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    noise.push(None, None, &settings)?;
    let mut seats = vec![Seat { role: Role::Golden, subject: 0 }];
    let mut plans = vec![golden.clone()];
    for (subject, path) in paths.iter().enumerate() {
        for &role in path.scope.roles() {
            seats.push(Seat { role, subject });
            plans.push(match role {
                Role::Format => path.plan.formats_only(golden),
                _ => path.plan.clone(),
            });
        }
    }
    seats.push(Seat { role: Role::Noise, subject: 0 });
    plans.push(noise);
    Ok((seats, plans))
}

/// Gives every lane but the free ones golden's streams, and decides which of them layer `layer` (or
/// the head) is run for.
fn seat<O: Ops>(
    lanes: &mut [Lane<O>],
    seats: &[Seat],
    golden: &KnobPlan,
    paths: &[Path],
    layer: Option<usize>,
) {
    let own = |p: &KnobPlan| {
        // A selection that is reused must have been made, in whatever layer.
        let phases = [Phase::Prefill, Phase::Decode];
        p.mentions("topk.reuse") || phases.iter().any(|f| p.at(layer, *f) != golden.at(layer, *f))
    };
    let (first, rest) = lanes.split_first_mut().expect("golden's lane");
    let mut any = false;
    for (lane, seat) in rest.iter_mut().zip(&seats[1..]) {
        lane.idle = match seat.role {
            Role::Noise => !any,
            _ => paths[seat.subject].scope == Scope::Verdict && !own(&lane.plan),
        };
        any |= !lane.idle;
        if seat.role != Role::Total && !lane.idle {
            lane.x = first.x.clone();
        }
    }
}

fn conclude(s: &Subject, cmp: &Comparer, limits: &Limits) -> Candidate {
    let none = RowErrs::default();
    let rows = s.taps.values().map(|(id, acc)| {
        let noise = cmp.noise.get(id).unwrap_or(&none);
        let judging = Judging { rule: cmp.rule, noise, steps: None, limits, isolated: true };
        acc.finish(*id, kind(*id, cmp.config), &judging)
    });
    let rows: Vec<_> = rows.collect();
    Candidate {
        verdict: verdict(&rows, "its declared formats explain", |_| None),
        rows,
        logits: s.logits.finish(),
        identical: s.taps.values().all(|(_, acc)| acc.same()),
    }
}
