//! The forward pass of one layer, written once over [`Ops`].
//!
//! Attention runs over blocks of tokens against caches, so whole prefill, chunked prefill and
//! decode are the same code called with blocks of different sizes. Over 400 lines because it is one
//! concept: the dataflow of a layer read from top to bottom, nothing of it elsewhere.

use super::stray::{self, Stray};
use super::taps::{Observer, Tap, TapAt, TapId};
use super::weights::{CompressorWeights, LayerWeights};
use crate::checkpoint::{Config, LayerSpec, Rope, Yarn};
use crate::error::Result;
use crate::kernels::knobs::{CompressorKnobs, Knobs};
use crate::kernels::ops::{AttnShape, HcShape, IndexShape, MoeShape, PoolShape, Side};
use crate::kernels::rope::RopeTable;
use crate::kernels::values::{Fmt, Pairing, RopeTableChoice};
use crate::kernels::{Index, Mat, Ops, Phase, index};
use std::sync::OnceLock;

/// A run of consecutive positions that goes through a layer at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// First position.
    pub from: usize,
    /// One past the last position.
    pub to: usize,
    /// Phase.
    pub phase: Phase,
    /// True if a prefill chunk as the user sees it (or a decode step) starts here. Blocks that
    /// only bound memory do not, and nothing may depend on them.
    pub chunk_start: bool,
    /// False where nobody reads what the layer makes of these positions: attention then computes
    /// only what later positions read of them (keys, values, entries) and hands the streams back
    /// as they came. So it is for most of a prompt in the last layer.
    pub read: bool,
}

/// The YaRN scaling of the released models.
const RELEASED_YARN: Yarn =
    Yarn { factor: 16.0, original_max_position_embeddings: 65536, beta_fast: 32.0, beta_slow: 1.0 };

/// Rotary tables of a run.
#[derive(Debug, Default)]
pub struct RopeTables {
    /// Layers without compressed entries.
    pub main: RopeTable,
    /// Layers with them.
    pub compress: RopeTable,
    /// Made when first asked for: the main table with the YaRN scaling of the other one, or of the released models.
    yarn: OnceLock<RopeTable>,
    main_rope: Option<(Rope, usize, usize)>,
}

impl RopeTables {
    /// Tables for positions `0..positions`.
    pub fn new(c: &Config, positions: usize) -> Self {
        RopeTables {
            main: RopeTable::new(&c.rope_main, c.qk_rope_head_dim, positions),
            compress: RopeTable::new(&c.rope_compress, c.qk_rope_head_dim, positions),
            yarn: OnceLock::new(),
            main_rope: Some((
                Rope { yarn: c.rope_compress.yarn.or(Some(RELEASED_YARN)), ..c.rope_main },
                c.qk_rope_head_dim,
                positions,
            )),
        }
    }
    /// The main path's table with YaRN where the model has none.
    fn yarn(&self) -> &RopeTable {
        self.yarn.get_or_init(|| match &self.main_rope {
            Some((rope, dims, positions)) => RopeTable::new(rope, *dims, *positions),
            None => RopeTable::default(),
        })
    }
}

/// What a layer needs to know besides weights and knobs.
pub struct LayerCtx<'a> {
    /// The model's configuration.
    pub config: &'a Config,
    /// The layer's number.
    pub layer: usize,
    /// Rotary tables.
    pub ropes: &'a RopeTables,
    /// Token ids; row `from` of a block belongs to `tokens[from]`.
    pub tokens: &'a [u32],
    /// Tokens of the whole sequence.
    pub total: usize,
}

impl LayerCtx<'_> {
    fn spec(&self) -> LayerSpec {
        self.config.layers[self.layer]
    }
    fn id(&self, tap: Tap) -> TapId {
        TapId { layer: Some(self.layer), tap }
    }
}

/// Constants of the hyper-connections of `c`.
pub fn hc_shape(c: &Config) -> HcShape {
    HcShape {
        streams: c.hc_mult,
        hidden: c.hidden_size,
        iters: c.hc_sinkhorn_iters,
        norm_eps: c.rms_norm_eps,
        hc_eps: c.hc_eps,
    }
}

/// What attention keeps between blocks of one sequence.
pub struct LayerCache<O: Ops> {
    /// Window keys/values of every position so far.
    kv: O::T,
    /// Compressed entries so far.
    comp: O::T,
    /// Index keys so far.
    keys: O::Keys,
    /// Pending tokens of the compressor.
    pool: O::Pool,
    /// Pending tokens of the indexer's compressor.
    index_pool: O::Pool,
    /// What only wrong kernels look at.
    stray: Stray<O>,
}

impl<O: Ops> LayerCache<O> {
    /// An empty cache.
    pub fn new(ops: &O, c: &Config) -> Self {
        LayerCache {
            kv: ops.upload(Mat::zeros(0, c.head_dim)),
            comp: ops.upload(Mat::zeros(0, c.head_dim)),
            keys: ops.keys(c.index_head_dim),
            pool: O::Pool::default(),
            index_pool: O::Pool::default(),
            stray: Stray::new(ops),
        }
    }
    /// Lets a layer that reuses a selection find the one of the CSA layer before it, and keeps its own for the next.
    pub fn reuse(&mut self, previous: Option<Index>) {
        self.stray.previous = previous;
        self.stray.keep = true;
    }
    /// A copy, for another continuation of the same tokens.
    pub fn fork(&self) -> Self {
        LayerCache {
            kv: self.kv.clone(),
            comp: self.comp.clone(),
            keys: self.keys.clone(),
            pool: self.pool.clone(),
            index_pool: self.index_pool.clone(),
            stray: self.stray.clone(),
        }
    }
    /// Compressed entries so far `[N, C]`, as attention reads them.
    pub fn compressed(&self) -> &O::T {
        &self.comp
    }
    /// The selection kept for the next CSA layer: this layer's, or what it was given.
    pub fn selection(self) -> Option<Index> {
        self.stray.own.or(self.stray.previous)
    }
}

/// Fires taps of one block.
struct Taps<'a, O: Ops> {
    ops: &'a O,
    obs: &'a mut dyn Observer<O>,
    phase: Phase,
}

impl<O: Ops> Taps<'_, O> {
    fn tensor(&mut self, id: TapId, row0: usize, t: &mut O::T) -> Result<()> {
        self.obs.tensor(self.ops, TapAt { id, row0, phase: self.phase }, t)
    }
    fn index(&mut self, id: TapId, row0: usize, ids: &mut Index) -> Result<()> {
        self.obs.index(TapAt { id, row0, phase: self.phase }, ids)
    }
}

/// Attention half of a layer for the streams `x [n, S·D]` of block `b`; returns
/// the streams after it. Blocks of one sequence must come in order.
pub fn attention_half<O: Ops>(
    ops: &O,
    w: &LayerWeights<O>,
    ctx: &LayerCtx,
    cache: &mut LayerCache<O>,
    x: O::T,
    b: &Block,
    k: &Knobs,
    obs: &mut dyn Observer<O>,
) -> Result<O::T> {
    let c = ctx.config;
    let spec = ctx.spec();
    let hc = hc_shape(c);
    let wants_scores = obs.wants_scores(ctx.layer);
    let (pos0, mut taps) = (b.from, Taps { ops, obs, phase: b.phase });

    let mut mix = ops.mhc_mix(&x, &w.hc_attn, &hc, &k.mhc);
    taps.tensor(ctx.id(Tap::AttnPre), pos0, &mut mix.pre)?;
    taps.tensor(ctx.id(Tap::AttnPost), pos0, &mut mix.post)?;
    taps.tensor(ctx.id(Tap::AttnComb), pos0, &mut mix.comb)?;
    let mut a = ops.mhc_collapse(&x, &mix.pre, &hc, &k.mhc);
    if k.mhc.sublayer_norm {
        a = ops.rms_norm(&a, &w.attn_norm, c.rms_norm_eps, k.mhc.stream_dtype);
    }
    taps.tensor(ctx.id(Tap::AttnIn), pos0, &mut a)?;

    let (own, other) = if spec.ratio == 0 {
        (&ctx.ropes.main, &ctx.ropes.compress)
    } else {
        (&ctx.ropes.compress, &ctx.ropes.main)
    };
    let table = match k.linear.rope {
        RopeTableChoice::Config => own,
        RopeTableChoice::Swapped => other,
        RopeTableChoice::Yarn => ctx.ropes.yarn(),
    };
    let coarse = (k.linear.rope_dtype != Fmt::F32).then(|| table.rounded(k.linear.rope_dtype));
    let table = coarse.as_ref().unwrap_or(table);
    if b.chunk_start {
        cache.stray.chunk_from = pos0;
    }
    let (heads, eps, dtype) = (c.num_attention_heads, c.rms_norm_eps, k.linear.out_dtype);

    let mut queries = None;
    if b.read {
        let qr = ops.linear(&a, &w.wq_a, &k.linear);
        let qr = ops.rms_norm(&qr, &w.q_norm, eps, dtype);
        let q = ops.linear(&qr, &w.wq_b, &k.linear);
        let q = ops.head_norm(q, heads, eps, &k.linear);
        let mut q = ops.rope(q, heads, table, pos0, k.linear.pairing, dtype);
        taps.tensor(ctx.id(Tap::AttnQ), pos0, &mut q)?;
        queries = Some((qr, q));
    }

    let kv = ops.linear(&a, &w.wkv, &k.linear);
    let kv = ops.rms_norm(&kv, &w.kv_norm, eps, dtype);
    let kv = ops.rope(kv, 1, table, pos0, k.linear.pairing, dtype);
    let mut kv = ops.kv_store(kv, pos0, c.qk_rope_head_dim, k.kv_cache.window, &k.kv_cache);
    if !k.kv_cache.ring_carry && b.chunk_start && b.phase == Phase::Prefill {
        stray::lose_lap(ops, &mut cache.kv, pos0, c.sliding_window, c.head_dim);
    }
    if k.kv_cache.ring_shift > 0 {
        kv = cache.stray.shifted(ops, &cache.kv, kv, k.kv_cache.ring_shift as usize, c.head_dim);
    }
    taps.tensor(ctx.id(Tap::AttnKv), pos0, &mut kv)?;
    ops.append(&mut cache.kv, &kv);

    if let Some(cw) = &w.compressor {
        let overlap = w.indexer.is_some();
        let entry0 = ops.rows(&cache.comp);
        let pairing = k.compressor.pairing;
        let new =
            pool(ops, &a, cw, &mut cache.pool, b, spec.ratio, overlap, own, pairing, eps, &k.compressor);
        let mut new = ops.kv_store(new, entry0, c.qk_rope_head_dim, k.kv_cache.compressed, &k.kv_cache);
        taps.tensor(ctx.id(Tap::CompressorKv), entry0, &mut new)?;
        ops.append(&mut cache.comp, &new);
    }

    let mut chosen = None;
    if let Some(iw) = &w.indexer {
        let ih = c.index_n_heads;
        let ik = &k.indexer;
        let s = IndexShape {
            heads: ih,
            dim: c.index_head_dim,
            ratio: spec.ratio,
            topk: c.index_topk,
            chunk_from: cache.stray.chunk_from,
        };

        let mut index_q = None;
        if let Some((qr, _)) = &queries {
            let qi = ops.index_proj(qr, &iw.wq_b, 1.0, ik);
            let qi = ops.rope(qi, ih, own, pos0, ik.pairing, ik.in_dtype);
            let mut qi = ops.index_encode(qi, ih, Side::Query, ik)?;
            taps.tensor(ctx.id(Tap::IndexerQ), pos0, &mut qi)?;
            index_q = Some(qi);
        }

        let entry0 = ops.keys_len(&cache.keys);
        if !ik.carry && b.chunk_start && pos0 > 0 {
            ops.keys_forget(&mut cache.keys);
        }
        // The indexer's own compressor shares the formats of the compressor site, never its
        // semantic settings: those belong to the entries attention reads.
        let ck = CompressorKnobs {
            in_dtype: k.compressor.in_dtype,
            state_dtype: k.compressor.state_dtype,
            out_dtype: k.compressor.out_dtype,
            ..CompressorKnobs::default()
        };
        let ki = pool(
            ops,
            &a,
            &iw.compressor,
            &mut cache.index_pool,
            b,
            spec.ratio,
            true,
            own,
            ik.key_pairing,
            eps,
            &ck,
        );
        let mut ki = ops.index_encode(ki, 1, Side::Key, ik)?;
        taps.tensor(ctx.id(Tap::IndexerK), entry0, &mut ki)?;
        ops.keys_append(&mut cache.keys, &ki);

        if let Some(qi) = index_q {
            let scale = 1.0 / ((c.index_head_dim * ih) as f32).sqrt();
            let mut wi = ops.index_proj(&a, &iw.weights_proj, scale, ik);
            taps.tensor(ctx.id(Tap::IndexerWeights), pos0, &mut wi)?;

            let width = index::width(ctx.total / spec.ratio, &s, &k.topk);
            let mut ids = if wants_scores {
                let mut scores = ops.index_scores(&qi, &wi, &cache.keys, pos0, &s, ik);
                taps.tensor(ctx.id(Tap::IndexerScores), pos0, &mut scores)?;
                ops.topk(&scores, pos0, width, &s, ik, &k.topk)
            } else {
                ops.index_topk(&qi, &wi, &cache.keys, pos0, width, &s, ik, &k.topk)
            };
            cache.stray.reuse(&mut ids, pos0, k.topk.reuse);
            taps.index(ctx.id(Tap::IndexTopk), pos0, &mut ids)?;
            cache.stray.keep(&ids);
            chosen = Some(ids);
        }
    }

    let Some((_, q)) = queries else { return Ok(x) };
    let s =
        AttnShape { heads, dim: c.head_dim, window: c.sliding_window, ratio: spec.ratio, sinks: &w.sinks };
    let (o, mut lse) = ops.attention(&q, &cache.kv, &cache.comp, chosen.as_ref(), pos0, &s, &k.attn);
    taps.tensor(ctx.id(Tap::AttnLse), pos0, &mut lse)?;
    let mut o = ops.derope(o, heads, table, pos0, &k.attn);
    taps.tensor(ctx.id(Tap::AttnOut), pos0, &mut o)?;

    let o = ops.grouped_linear(&o, &w.wo_a, &k.linear);
    let mut y = ops.linear(&o, &w.wo_b, &k.linear);
    taps.tensor(ctx.id(Tap::AttnProj), pos0, &mut y)?;

    let mut x = ops.mhc_expand(x, &mix, &y, &hc, &k.mhc);
    taps.tensor(ctx.id(Tap::Mid), pos0, &mut x)?;
    Ok(x)
}

/// Projects and pools one block for one of the two compressors of a layer.
fn pool<O: Ops>(
    ops: &O,
    x: &O::T,
    w: &CompressorWeights<O>,
    state: &mut O::Pool,
    b: &Block,
    ratio: usize,
    overlap: bool,
    rope: &RopeTable,
    pairing: Pairing,
    eps: f32,
    k: &CompressorKnobs,
) -> O::T {
    let kv = ops.compress_proj(x, &w.wkv, k);
    let gate = ops.compress_proj(x, &w.wgate, k);
    let s = PoolShape { ratio, dim: w.dim, overlap, ape: &w.ape, norm: &w.norm, eps, rope, pairing };
    if !k.carry && b.chunk_start {
        *state = O::Pool::default();
    }
    ops.compress(state, &kv, &gate, b.from, &s, k)
}

/// Expert half of a layer for the streams `x [n, S·D]` of block `b`.
pub fn ffn_half<O: Ops>(
    ops: &O,
    w: &LayerWeights<O>,
    ctx: &LayerCtx,
    x: O::T,
    b: &Block,
    k: &Knobs,
    obs: &mut dyn Observer<O>,
) -> Result<O::T> {
    let c = ctx.config;
    let hc = hc_shape(c);
    let moe = MoeShape {
        limit: c.swiglu_limit,
        factor: c.routed_scaling_factor,
        topk: c.num_experts_per_tok,
        batch: if b.phase == Phase::Decode { 1 } else { ctx.total },
    };
    let (pos0, mut taps) = (b.from, Taps { ops, obs, phase: b.phase });

    let mut mix = ops.mhc_mix(&x, &w.hc_ffn, &hc, &k.mhc);
    taps.tensor(ctx.id(Tap::FfnPre), pos0, &mut mix.pre)?;
    taps.tensor(ctx.id(Tap::FfnPost), pos0, &mut mix.post)?;
    taps.tensor(ctx.id(Tap::FfnComb), pos0, &mut mix.comb)?;
    let mut f = ops.mhc_collapse(&x, &mix.pre, &hc, &k.mhc);
    if k.mhc.sublayer_norm {
        f = ops.rms_norm(&f, &w.ffn_norm, c.rms_norm_eps, k.mhc.stream_dtype);
    }
    taps.tensor(ctx.id(Tap::FfnIn), pos0, &mut f)?;

    let mut logits = ops.router_logits(&f, &w.gate, &k.router);
    taps.tensor(ctx.id(Tap::RouterLogits), pos0, &mut logits)?;
    let tokens = &ctx.tokens[pos0..pos0 + ops.rows(&f)];
    let table = w.tid2eid.as_deref().map(|t| (t, tokens));
    let mut ids = ops.router_select(&logits, w.gate_bias.as_deref(), table, &moe, &k.router);
    taps.index(ctx.id(Tap::RouterTopk), pos0, &mut ids)?;
    let mut weights = ops.router_weights(&logits, &ids, w.gate_bias.as_deref(), &moe, &k.router);
    taps.tensor(ctx.id(Tap::RouterWeights), pos0, &mut weights)?;

    let mut routed = ops.experts(&f, &ids, &weights, w.experts.as_ref(), &moe, &k.experts)?;
    taps.tensor(ctx.id(Tap::ExpertsOut), pos0, &mut routed)?;
    let mut shared = ops.shared(&f, &w.shared, &moe, &k.experts);
    taps.tensor(ctx.id(Tap::SharedOut), pos0, &mut shared)?;
    let mut y = ops.add(&routed, &shared, &k.experts);
    taps.tensor(ctx.id(Tap::FfnOut), pos0, &mut y)?;

    let mut x = ops.mhc_expand(x, &mix, &y, &hc, &k.mhc);
    taps.tensor(ctx.id(Tap::LayerOut), pos0, &mut x)?;
    Ok(x)
}
