//! What each tap is computed from, and what that says about a row: does it hang on a selection
//! that could have gone the other way, and how finely were its inputs stored?

use crate::checkpoint::safetensors::Dtype;
use crate::checkpoint::{Config, LayerKind};
use crate::engine::dump::Dump;
use crate::model::{Axis, Tap, TapId};
use std::collections::HashMap;

/// A direct input of a tap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A tap of the same layer (or of the head).
    Tap(Tap),
    /// The streams that enter the layer, or the head.
    Streams,
}

/// Taps that `tap` is computed from.
pub fn sources(tap: Tap) -> &'static [Source] {
    use Source::{Streams, Tap as T};
    match tap {
        Tap::EmbedOut => &[],
        Tap::AttnPre | Tap::AttnPost | Tap::AttnComb | Tap::HeadIn => &[Streams],
        Tap::AttnIn => &[Streams, T(Tap::AttnPre)],
        Tap::AttnQ
        | Tap::AttnKv
        | Tap::CompressorKv
        | Tap::IndexerQ
        | Tap::IndexerK
        | Tap::IndexerWeights => &[T(Tap::AttnIn)],
        Tap::IndexerScores => &[T(Tap::IndexerQ), T(Tap::IndexerK), T(Tap::IndexerWeights)],
        Tap::IndexTopk => &[T(Tap::IndexerScores)],
        Tap::AttnLse | Tap::AttnOut => {
            &[T(Tap::AttnQ), T(Tap::AttnKv), T(Tap::CompressorKv), T(Tap::IndexTopk)]
        }
        Tap::AttnProj => &[T(Tap::AttnOut)],
        Tap::Mid => &[Streams, T(Tap::AttnPost), T(Tap::AttnComb), T(Tap::AttnProj)],
        Tap::FfnPre | Tap::FfnPost | Tap::FfnComb => &[T(Tap::Mid)],
        Tap::FfnIn => &[T(Tap::Mid), T(Tap::FfnPre)],
        Tap::RouterLogits | Tap::SharedOut => &[T(Tap::FfnIn)],
        Tap::RouterTopk => &[T(Tap::RouterLogits)],
        Tap::RouterWeights => &[T(Tap::RouterLogits), T(Tap::RouterTopk)],
        Tap::ExpertsOut => &[T(Tap::FfnIn), T(Tap::RouterTopk), T(Tap::RouterWeights)],
        Tap::FfnOut => &[T(Tap::ExpertsOut), T(Tap::SharedOut)],
        Tap::LayerOut => &[T(Tap::Mid), T(Tap::FfnPost), T(Tap::FfnComb), T(Tap::FfnOut)],
        Tap::Logits => &[T(Tap::HeadIn)],
    }
}

/// The direct inputs of `id` in a model, as taps.
pub fn inputs(id: TapId, c: &Config) -> Vec<TapId> {
    let streams = match id.layer {
        Some(0) => TapId { layer: None, tap: Tap::EmbedOut },
        Some(l) => TapId { layer: Some(l - 1), tap: Tap::LayerOut },
        None => TapId { layer: Some(c.num_hidden_layers.saturating_sub(1)), tap: Tap::LayerOut },
    };
    let spec = id.layer.map(|l| c.layers[l]);
    let exists = |t: Tap| match t {
        Tap::CompressorKv => spec.is_some_and(|s| s.ratio > 0),
        Tap::IndexTopk | Tap::IndexerScores => spec.is_some_and(|s| s.kind == LayerKind::Csa),
        // Experts of a hash layer come from the token, not from the logits.
        Tap::RouterLogits => id.tap != Tap::RouterTopk || !spec.is_some_and(|s| s.hash),
        _ => true,
    };
    sources(id.tap)
        .iter()
        .filter_map(|s| match *s {
            Source::Streams => Some(streams),
            Source::Tap(t) => exists(t).then_some(TapId { layer: id.layer, tap: t }),
        })
        .collect()
}

/// Unit roundoff of the formats that `id` and the dumped taps it is recomputed from are stored in
/// (0: as good as f32). A tap stored in bf16 is a rounded input of everything downstream of it,
/// whatever the precision of the run was.
pub fn storage(id: TapId, dump: &Dump, c: &Config, memo: &mut HashMap<TapId, f64>) -> f64 {
    let own = |id: TapId| match dump.dtype(id) {
        Some(Dtype::Bf16) => 2f64.powi(-8),
        Some(Dtype::F16) => 2f64.powi(-11),
        _ => 0.0,
    };
    if let Some(u) = memo.get(&id) {
        return *u;
    }
    let mut u = own(id);
    for i in inputs(id, c) {
        u = u.max(if dump.has(i) { own(i) } else { storage(i, dump, c, memo) });
    }
    memo.insert(id, u);
    u
}

/// Rows whose value hangs on a choice between near ties that the dump does not show.
#[derive(Debug, Default)]
pub struct Unstable {
    rows: HashMap<Tap, Vec<bool>>,
    streams: Vec<bool>,
}

impl Unstable {
    /// The rows `row0..row0 + n` of `id`; call in execution order, before [`Unstable::leave`].
    /// `window` and `ratio` are those of the layer.
    pub fn reach(&self, id: TapId, row0: usize, n: usize, window: usize, ratio: usize) -> Vec<bool> {
        let any = |v: &[bool], a: usize, b: usize| v[a.min(v.len())..b.min(v.len())].contains(&true);
        let mut out = vec![false; n];
        for s in sources(id.tap) {
            let (v, from) = match *s {
                Source::Streams => (&self.streams, Tap::LayerOut),
                Source::Tap(t) => match self.rows.get(&t) {
                    Some(v) => (v, t),
                    None => continue,
                },
            };
            if !v.contains(&true) {
                continue;
            }
            let r = ratio.max(1);
            for (i, o) in out.iter_mut().enumerate() {
                let p = row0 + i;
                *o |= match (id.tap.axis(), from.axis()) {
                    // Entry j pools window j and, where windows overlap, window j - 1.
                    (Axis::Entry, Axis::Token) => any(v, p.saturating_sub(1) * r, (p + 1) * r),
                    (Axis::Token, Axis::Entry) => any(v, 0, (p + 1) / r),
                    _ if from == Tap::AttnKv => any(v, (p + 1).saturating_sub(window), p + 1),
                    _ => any(v, p, p + 1),
                };
            }
        }
        out
    }

    /// True if row `r` of what `tap` hands on is unstable.
    pub fn at(&self, tap: Tap, r: usize) -> bool {
        self.rows.get(&tap).is_some_and(|v| v.get(r) == Some(&true))
    }

    /// Records what goes on downstream of `id`: nothing where the dump's own values do.
    pub fn leave(&mut self, id: TapId, row0: usize, rows: &[bool], forced: impl Fn(usize) -> bool) {
        let v = self.rows.entry(id.tap).or_default();
        v.resize(v.len().max(row0 + rows.len()), false);
        for (i, r) in rows.iter().enumerate() {
            v[row0 + i] = *r && !forced(row0 + i);
        }
    }

    /// The layer is over: its streams enter the next one.
    pub fn end_layer(&mut self) {
        self.streams = self.rows.remove(&Tap::LayerOut).unwrap_or_default();
        self.rows.clear();
    }
}
