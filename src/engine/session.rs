//! One sequence going through one layer at a time, for any number of paths.
//!
//! The loop over layers belongs to the caller (it is layer-major: load a layer, run every path
//! through it, compare, drop it); this module runs one path through one layer.

use super::interrupt;
use super::load::keeps_experts;
use crate::checkpoint::Config;
use crate::error::{Error, Result};
use crate::kernels::mat::TASK_ROWS;
use crate::kernels::{Index, KnobPlan, Ops, Phase};
use crate::model::layer::{attention_half, ffn_half};
use crate::model::{
    Block, LayerCache, LayerCtx, LayerWeights, Observer, OuterWeights, RopeTables, TapAt, outer,
};

/// Tokens of one internal block, a thread. Every golden op is local to a token (or to a compressed
/// entry), so this bounds memory and changes no bit. Small enough that the streams of a block of
/// the built-in model stay in the second-level caches from one operation to the next, and a whole
/// number of tasks.
pub(super) const BLOCK_TOKENS: usize = 3 * TASK_ROWS;

/// As above for the expert half, where experts stay decoded between blocks, and where every block
/// decodes them anew.
pub(super) const FFN_TOKENS: (usize, usize) = (6 * TASK_ROWS, 48 * TASK_ROWS);

/// Tokens of one block, and of one block of the expert half, of layers in which a path has knobs set. Some knobs look
/// at what a block holds (a future token, the entries there are, the rows of an expert): what they do must not depend
/// on the number of threads.
pub(super) const KNOB_TOKENS: (usize, usize) = (1024, 4096);

/// One path of a lockstep run.
pub struct Lane<O: Ops> {
    /// Its knobs.
    pub plan: KnobPlan,
    /// Its residual streams `[T, S·D]`.
    pub x: O::T,
    /// It sits the next layer (or the head) out.
    pub idle: bool,
    /// What the last CSA layer selected, kept only for plans in which a layer reuses it.
    chosen: Option<Index>,
}

impl<O: Ops> Lane<O> {
    /// A path at its first layer.
    pub fn new(plan: KnobPlan, x: O::T) -> Self {
        Lane { plan, x, idle: false, chosen: None }
    }
}

/// Sees the taps of every lane; lanes of a block come in order.
pub trait LaneObserver<O: Ops> {
    /// True if lane `lane` should materialise the index scores of `layer`.
    fn wants_scores(&self, lane: usize, layer: usize) -> bool;
    /// A tensor tap of a lane.
    fn tensor(&mut self, lane: usize, ops: &O, at: TapAt, t: &mut O::T) -> Result<()>;
    /// An index tap of a lane.
    fn index(&mut self, lane: usize, at: TapAt, ids: &mut Index) -> Result<()>;
}

/// Shows one lane's taps to a [`LaneObserver`].
struct InLane<'a, O: Ops> {
    lane: usize,
    obs: &'a mut dyn LaneObserver<O>,
}

impl<O: Ops> Observer<O> for InLane<'_, O> {
    fn wants_scores(&self, layer: usize) -> bool {
        self.obs.wants_scores(self.lane, layer)
    }
    fn tensor(&mut self, ops: &O, at: TapAt, t: &mut O::T) -> Result<()> {
        self.obs.tensor(self.lane, ops, at, t)
    }
    fn index(&mut self, at: TapAt, ids: &mut Index) -> Result<()> {
        self.obs.index(self.lane, at, ids)
    }
}

/// A single path as a lane.
struct OneLane<'a, O: Ops>(&'a mut dyn Observer<O>);

impl<O: Ops> LaneObserver<O> for OneLane<'_, O> {
    fn wants_scores(&self, _: usize, layer: usize) -> bool {
        self.0.wants_scores(layer)
    }
    fn tensor(&mut self, _: usize, ops: &O, at: TapAt, t: &mut O::T) -> Result<()> {
        self.0.tensor(ops, at, t)
    }
    fn index(&mut self, _: usize, at: TapAt, ids: &mut Index) -> Result<()> {
        self.0.index(at, ids)
    }
}

/// How the tokens are fed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Prefill chunk as the user sees it (state is carried over its borders); 0 = one shot.
    pub chunk: usize,
    /// Positions at the end that run through the decode phase one by one.
    pub decode_last: usize,
}

impl Schedule {
    /// The blocks of `t` tokens, at most `block` tokens in each.
    pub fn blocks(&self, t: usize, block: usize) -> Vec<Block> {
        let prefill = t - self.decode_last.min(t);
        let chunk = if self.chunk == 0 { prefill.max(1) } else { self.chunk };
        let mut out = Vec::new();
        for c in (0..prefill).step_by(chunk) {
            let end = (c + chunk).min(prefill);
            for from in (c..end).step_by(block) {
                let to = (from + block).min(end);
                out.push(Block { from, to, phase: Phase::Prefill, chunk_start: from == c, read: true });
            }
        }
        out.extend((prefill..t).map(|p| Block {
            from: p,
            to: p + 1,
            phase: Phase::Decode,
            chunk_start: true,
            read: true,
        }));
        out
    }
}

/// Fails unless `config` can run `tokens`.
pub(super) fn check_tokens(config: &Config, tokens: &[u32]) -> Result<()> {
    if tokens.is_empty() {
        return Err(Error::input("the prompt is empty").hint("give at least one token"));
    }
    if let Some((i, t)) = tokens.iter().enumerate().find(|(_, t)| **t as usize >= config.vocab_size) {
        return Err(Error::input(format!(
            "token id {t} at position {i} is outside the vocabulary of {} ids",
            config.vocab_size
        ))
        .hint("the prompt was tokenised for another model"));
    }
    if tokens.len() > config.max_position_embeddings {
        return Err(Error::input(format!(
            "the prompt has {} tokens, the model has {} positions",
            tokens.len(),
            config.max_position_embeddings
        ))
        .hint("shorten the prompt, or use a checkpoint with more positions"));
    }
    Ok(())
}

/// A sequence and everything that does not depend on the path.
pub struct Session<'a, O: Ops> {
    /// The backend.
    pub ops: &'a O,
    /// The model's configuration.
    pub config: &'a Config,
    /// The sequence.
    pub tokens: &'a [u32],
    schedule: Schedule,
    ropes: RopeTables,
}

impl<'a, O: Ops> Session<'a, O> {
    /// Checks the tokens against the model and prepares tables.
    pub fn new(ops: &'a O, config: &'a Config, tokens: &'a [u32], schedule: Schedule) -> Result<Self> {
        check_tokens(config, tokens)?;
        Ok(Session { ops, config, tokens, schedule, ropes: RopeTables::new(config, tokens.len()) })
    }

    /// The blocks that embedding and head are computed in.
    pub fn blocks(&self) -> Vec<Block> {
        self.schedule.blocks(self.tokens.len(), BLOCK_TOKENS * rayon::current_num_threads())
    }

    /// [`Session::embed`] for every lane, block by block.
    pub fn embed_lanes(
        &self,
        w: &OuterWeights<O>,
        plans: &[KnobPlan],
        obs: &mut dyn LaneObserver<O>,
    ) -> Result<Vec<Lane<O>>> {
        let mut lanes: Vec<Lane<O>> = plans.iter().map(|p| Lane::new(p.clone(), self.no_streams())).collect();
        for b in self.blocks() {
            for (i, lane) in lanes.iter_mut().enumerate() {
                let k = lane.plan.at(None, b.phase);
                let ids = &self.tokens[b.from..b.to];
                let mut tap = InLane { lane: i, obs };
                let rows = outer::embed(self.ops, w, self.config, ids, b.from, b.phase, &k, &mut tap)?;
                self.ops.write(&mut lane.x, b.from, &rows);
            }
        }
        Ok(lanes)
    }

    /// Head of every lane, block by block; the logits go to the observer only.
    pub fn head_lanes(
        &self,
        w: &OuterWeights<O>,
        lanes: &[Lane<O>],
        obs: &mut dyn LaneObserver<O>,
    ) -> Result<()> {
        for b in self.blocks() {
            for (i, lane) in lanes.iter().enumerate().filter(|(_, l)| !l.idle) {
                interrupt::check()?;
                let k = lane.plan.at(None, b.phase);
                let rows = self.ops.slice(&lane.x, b.from, b.to);
                let mut tap = InLane { lane: i, obs };
                outer::head(self.ops, w, self.config, &rows, b.from, b.phase, &k, &mut tap)?;
            }
        }
        Ok(())
    }

    /// First residual streams `[T, S·D]`.
    pub fn embed(&self, w: &OuterWeights<O>, plan: &KnobPlan, obs: &mut dyn Observer<O>) -> Result<O::T> {
        let mut x = self.no_streams();
        for b in self.blocks() {
            let k = plan.at(None, b.phase);
            let ids = &self.tokens[b.from..b.to];
            let rows = outer::embed(self.ops, w, self.config, ids, b.from, b.phase, &k, obs)?;
            self.ops.write(&mut x, b.from, &rows);
        }
        Ok(x)
    }

    /// Room for the streams of every token.
    fn no_streams(&self) -> O::T {
        self.ops.zeros(self.tokens.len(), self.config.hc_mult * self.config.hidden_size)
    }

    /// Runs one path through layer `layer`.
    pub fn layer(
        &self,
        w: &LayerWeights<O>,
        layer: usize,
        lane: &mut Lane<O>,
        obs: &mut dyn Observer<O>,
    ) -> Result<()> {
        self.layer_lanes(w, layer, std::slice::from_mut(lane), &mut OneLane(obs))
    }

    /// Runs several paths through one layer in lockstep, block by block, so that their taps can be
    /// compared without keeping more than a block of them. Every lane's streams are replaced by
    /// those after the layer, block by block: nothing reads another block's streams.
    pub fn layer_lanes(
        &self,
        w: &LayerWeights<O>,
        layer: usize,
        lanes: &mut [Lane<O>],
        obs: &mut dyn LaneObserver<O>,
    ) -> Result<()> {
        let ctx = LayerCtx {
            config: self.config,
            layer,
            ropes: &self.ropes,
            tokens: self.tokens,
            total: self.tokens.len(),
        };
        let knobs = lanes.iter().any(|l| l.plan.overrides.iter().any(|o| !o.settings.is_empty()));
        let mut caches: Vec<_> = lanes.iter().map(|_| LayerCache::new(self.ops, self.config)).collect();
        for (lane, cache) in lanes.iter_mut().zip(&mut caches) {
            if lane.plan.mentions("topk.reuse") {
                cache.reuse(lane.chosen.take());
            }
        }
        let blocks =
            if knobs { self.schedule.blocks(self.tokens.len(), KNOB_TOKENS.0) } else { self.blocks() };
        for b in blocks {
            for (i, lane) in lanes.iter_mut().enumerate().filter(|(_, l)| !l.idle) {
                interrupt::check()?;
                let k = lane.plan.at(Some(layer), b.phase);
                let rows = self.ops.slice(&lane.x, b.from, b.to);
                let mut tap = InLane { lane: i, obs };
                let y = attention_half(self.ops, w, &ctx, &mut caches[i], rows, &b, &k, &mut tap)?;
                self.ops.write(&mut lane.x, b.from, &y);
            }
        }
        for (lane, cache) in lanes.iter_mut().zip(caches) {
            lane.chosen = cache.selection();
        }
        for b in self.ffn_blocks(knobs) {
            for (i, lane) in lanes.iter_mut().enumerate().filter(|(_, l)| !l.idle) {
                interrupt::check()?;
                let k = lane.plan.at(Some(layer), b.phase);
                let rows = self.ops.slice(&lane.x, b.from, b.to);
                let y = ffn_half(self.ops, w, &ctx, rows, &b, &k, &mut InLane { lane: i, obs })?;
                self.ops.write(&mut lane.x, b.from, &y);
            }
        }
        Ok(())
    }

    /// Blocks of the expert half: large where a block decodes its experts.
    fn ffn_blocks(&self, knobs: bool) -> Vec<Block> {
        let t = self.tokens.len();
        let prefill = t - self.schedule.decode_last.min(t);
        let each = if keeps_experts(self.config) { FFN_TOKENS.0 } else { FFN_TOKENS.1 };
        let tokens = if knobs { KNOB_TOKENS.1 } else { each * rayon::current_num_threads() };
        let mut out = Vec::new();
        for (a, z, phase) in [(0, prefill, Phase::Prefill), (prefill, t, Phase::Decode)] {
            for from in (a..z).step_by(tokens) {
                let to = (from + tokens).min(z);
                out.push(Block { from, to, phase, chunk_start: from == a, read: true });
            }
        }
        out
    }

    /// Logits `[to − from, V]` of the positions `from..to` from the final streams `x [T, S·D]`.
    pub fn head(
        &self,
        w: &OuterWeights<O>,
        x: &O::T,
        from: usize,
        plan: &KnobPlan,
        obs: &mut dyn Observer<O>,
    ) -> Result<O::T> {
        let mut out = self.ops.zeros(self.tokens.len().saturating_sub(from), self.config.vocab_size);
        for b in self.blocks().into_iter().filter(|b| b.to > from) {
            interrupt::check()?;
            let k = plan.at(None, b.phase);
            let b0 = b.from.max(from);
            let rows = self.ops.slice(x, b0, b.to);
            let y = outer::head(self.ops, w, self.config, &rows, b0, b.phase, &k, obs)?;
            self.ops.write(&mut out, b0 - from, &y);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a token that is fed twice, never, or in the wrong phase.
    #[test]
    fn blocks_cover_every_position_once() {
        for t in [1, 2, 7, 1024, 1025, 3000] {
            for chunk in [0, 1, 3, 1000, 5000] {
                for decode_last in [0, 1, 5, 9999] {
                    let b = Schedule { chunk, decode_last }.blocks(t, KNOB_TOKENS.0);
                    assert_eq!(b[0].from, 0);
                    assert_eq!(b.last().unwrap().to, t);
                    assert!(b.windows(2).all(|w| w[0].to == w[1].from));
                    let decoded = b.iter().filter(|b| b.phase == Phase::Decode).count();
                    assert_eq!(decoded, decode_last.min(t));
                }
            }
        }
    }
}
