//! Settings that change no bit: a knob nobody reads in this run must not look like a clean bill.

use super::candidate::CandidateOptions;
use crate::checkpoint::Checkpoint;
use crate::engine::pass::{Quiet, for_each_layer};
use crate::engine::session::{LaneObserver, Session};
use crate::error::Result;
use crate::kernels::knobs::Override;
use crate::kernels::{Index, KnobPlan, Mat, Ops};
use crate::model::{OuterWeights, TapAt, TapId};
use std::collections::HashMap;
use std::sync::Arc;

/// Lanes a probe run may have; a plan with more settings is probed in groups.
const LANES: usize = 12;

/// The candidate's settings whose removal changes no bit of any tap, every operation being fed
/// golden's inputs. Leaving one out, rather than trying it alone, is fair to knobs that need
/// another one to act.
pub fn inert_settings<O: Ops + Clone + Send + 'static>(
    ops: &O,
    ckpt: &Arc<Checkpoint>,
    outer: &OuterWeights<O>,
    tokens: &[u32],
    options: &CandidateOptions,
) -> Result<Vec<String>> {
    let own = options.golden.overrides.len();
    let mut probes = Vec::new();
    for (i, o) in options.candidate.overrides.iter().enumerate().skip(own) {
        for (j, (path, value)) in o.settings.iter().enumerate() {
            let mut plan = options.candidate.clone();
            plan.overrides[i].settings.remove(j);
            probes.push((format!("{path}={value}{}", scope(o)), plan));
        }
    }
    let mut inert = Vec::new();
    for group in probes.chunks(LANES) {
        let plans: Vec<KnobPlan> = [options.golden.clone(), options.candidate.clone()]
            .into_iter()
            .chain(group.iter().map(|(_, p)| p.clone()))
            .collect();
        let c = options.config.as_ref().unwrap_or(ckpt.config());
        let session = Session::new(ops, c, tokens, options.schedule)?;
        let mut probe = Probe { differs: vec![false; plans.len()], ..Default::default() };
        let mut lanes = session.embed_lanes(outer, &plans, &mut probe)?;
        for_each_layer(ops, ckpt, &Quiet, |i, w| session.layer_lanes(w, i, &mut lanes, &mut probe))?;
        session.head_lanes(outer, &lanes, &mut probe)?;
        let same = group.iter().zip(&probe.differs[2..]).filter(|(_, d)| !**d);
        inert.extend(same.map(|((name, _), _)| name.clone()));
    }
    Ok(inert)
}

fn scope(o: &Override) -> String {
    let layers = o.layers.as_ref().map_or(String::new(), |l| {
        let l: Vec<String> = l.iter().map(ToString::to_string).collect();
        format!("@{}", l.join("+"))
    });
    let phase = o.phase.map_or(String::new(), |p| format!("@{p}"));
    layers + &phase
}

/// Lane 0 is golden, lane 1 the whole candidate, each further lane the candidate less a setting.
/// After every tap golden's values go on in all of them.
#[derive(Default)]
struct Probe {
    golden: HashMap<TapId, Mat>,
    full: HashMap<TapId, Mat>,
    golden_ids: HashMap<TapId, Index>,
    full_ids: HashMap<TapId, Index>,
    differs: Vec<bool>,
}

fn same_bits(a: &Mat, b: &Mat) -> bool {
    a.data.len() == b.data.len() && a.data.iter().zip(&b.data).all(|(x, y)| x.to_bits() == y.to_bits())
}

impl<O: Ops> LaneObserver<O> for Probe {
    fn wants_scores(&self, _: usize, _: usize) -> bool {
        false
    }
    fn tensor(&mut self, lane: usize, ops: &O, at: TapAt, t: &mut O::T) -> Result<()> {
        let m = ops.download(t);
        match lane {
            0 => {
                self.golden.insert(at.id, m);
                return Ok(());
            }
            1 => {
                self.full.insert(at.id, m);
            }
            _ => self.differs[lane] |= !self.full.get(&at.id).is_some_and(|f| same_bits(f, &m)),
        }
        if let Some(g) = self.golden.get(&at.id) {
            *t = ops.upload(g.clone());
        }
        Ok(())
    }
    fn index(&mut self, lane: usize, at: TapAt, ids: &mut Index) -> Result<()> {
        match lane {
            0 => {
                self.golden_ids.insert(at.id, ids.clone());
                return Ok(());
            }
            1 => {
                self.full_ids.insert(at.id, ids.clone());
            }
            _ => self.differs[lane] |= self.full_ids.get(&at.id) != Some(ids),
        }
        if let Some(g) = self.golden_ids.get(&at.id) {
            *ids = g.clone();
        }
        Ok(())
    }
}
