//! Embedding and head: what stands before the first and after the last layer.

use super::layer::hc_shape;
use super::taps::{Observer, Tap, TapAt, TapId};
use super::weights::OuterWeights;
use crate::checkpoint::Config;
use crate::error::Result;
use crate::kernels::knobs::Knobs;
use crate::kernels::{Ops, Phase};

/// First streams of the tokens `ids` at positions `pos0..`: `[n, S·D]`. The tap shows one stream,
/// they are equal.
pub fn embed<O: Ops>(
    ops: &O,
    w: &OuterWeights<O>,
    c: &Config,
    ids: &[u32],
    pos0: usize,
    phase: Phase,
    k: &Knobs,
    obs: &mut dyn Observer<O>,
) -> Result<O::T> {
    let mut one = ops.embed(&w.embed, ids, &k.embed);
    let id = TapId { layer: None, tap: Tap::EmbedOut };
    obs.tensor(ops, TapAt { id, row0: pos0, phase }, &mut one)?;
    Ok(ops.broadcast(&one, c.hc_mult))
}

/// Collapse, norm and logits of the streams `x [n, S·D]` of positions `pos0..`.
pub fn head<O: Ops>(
    ops: &O,
    w: &OuterWeights<O>,
    c: &Config,
    x: &O::T,
    pos0: usize,
    phase: Phase,
    k: &Knobs,
    obs: &mut dyn Observer<O>,
) -> Result<O::T> {
    let s = hc_shape(c);
    let mix = ops.mhc_mix(x, &w.hc_head, &s, &k.mhc);
    let y = ops.mhc_collapse(x, &mix.pre, &s, &k.mhc);
    let mut y = ops.rms_norm(&y, &w.norm, c.rms_norm_eps, k.mhc.stream_dtype);
    obs.tensor(ops, TapAt { id: TapId { layer: None, tap: Tap::HeadIn }, row0: pos0, phase }, &mut y)?;
    let mut logits = ops.logits(&y, &w.head, &k.head);
    obs.tensor(ops, TapAt { id: TapId { layer: None, tap: Tap::Logits }, row0: pos0, phase }, &mut logits)?;
    Ok(logits)
}
