//! Which taps a model has for a sequence, and their shapes: known before anything runs.

use crate::checkpoint::{Config, LayerKind};
use crate::kernels::ops::IndexShape;
use crate::kernels::{KnobPlan, Phase, index};
use crate::model::{Axis, Tap, TapId};

/// Shape of the whole tap for a sequence of `tokens`, rows first; `None` if the layer has no such
/// tap or not a single compressed entry exists yet.
pub fn shape(id: TapId, c: &Config, tokens: usize, plan: &KnobPlan) -> Option<Vec<usize>> {
    let (t, d, s) = (tokens, c.hidden_size, c.hc_mult);
    let layer = id.layer.map(|l| c.layers.get(l).copied()).unwrap_or_default();
    let kind = layer.map(|l| l.kind);
    let entries = layer.map_or(0, |l| t.checked_div(l.ratio).unwrap_or(0));
    let compressed = kind.is_some_and(|k| k != LayerKind::Window) && entries > 0;
    let indexed = kind == Some(LayerKind::Csa);
    if id.tap.layered() != layer.is_some() {
        return None;
    }
    let (heads, dim) = (c.num_attention_heads, c.head_dim);
    let (ih, ic) = (c.index_n_heads, c.index_head_dim);
    Some(match id.tap {
        Tap::EmbedOut | Tap::HeadIn => vec![t, d],
        Tap::AttnPre | Tap::AttnPost | Tap::FfnPre | Tap::FfnPost => vec![t, s],
        Tap::AttnComb | Tap::FfnComb => vec![t, s, s],
        Tap::AttnIn | Tap::AttnProj | Tap::FfnIn | Tap::ExpertsOut | Tap::SharedOut | Tap::FfnOut => {
            vec![t, d]
        }
        Tap::AttnQ | Tap::AttnOut => vec![t, heads, dim],
        Tap::AttnKv => vec![t, dim],
        Tap::CompressorKv => compressed.then(|| vec![entries, dim])?,
        Tap::IndexerQ => indexed.then(|| vec![t, ih, ic])?,
        Tap::IndexerK => (indexed && compressed).then(|| vec![entries, ic])?,
        Tap::IndexerWeights => indexed.then(|| vec![t, ih])?,
        Tap::IndexerScores => (indexed && compressed).then(|| vec![t, entries])?,
        Tap::IndexTopk => {
            let shape =
                IndexShape { heads: ih, dim: ic, ratio: layer?.ratio, topk: c.index_topk, chunk_from: 0 };
            // A plan may give the phases different widths; the wider one holds both.
            let width = [Phase::Prefill, Phase::Decode]
                .map(|p| index::width(entries, &shape, &plan.at(id.layer, p).topk))
                .into_iter()
                .max();
            (indexed && compressed).then(|| vec![t, width.unwrap_or(0)])?
        }
        Tap::AttnLse => vec![t, heads],
        Tap::Mid | Tap::LayerOut => vec![t, s, d],
        Tap::RouterLogits => vec![t, c.n_routed_experts],
        Tap::RouterTopk | Tap::RouterWeights => vec![t, c.num_experts_per_tok],
        Tap::Logits => vec![t, c.vocab_size],
    })
}

/// Every tap that exists for a sequence of `tokens`, with its shape, in execution order.
pub fn all(c: &Config, tokens: usize, plan: &KnobPlan) -> Vec<(TapId, Vec<usize>)> {
    let layers = (0..c.num_hidden_layers).map(Some).chain([None]);
    let mut taps: Vec<_> = layers
        .flat_map(|layer| Tap::ALL.iter().map(move |tap| TapId { layer, tap: *tap }))
        .filter_map(|id| shape(id, c, tokens, plan).map(|s| (id, s)))
        .collect();
    taps.sort_by_key(|(id, _)| id.order());
    taps
}

/// True if the rows of the tap are tokens: the ones a dump of a suffix cuts.
pub fn by_token(tap: Tap) -> bool {
    tap.axis() == Axis::Token
}
