//! The operations the forward pass is written over.
//!
//! One method an op, the knobs of its site as an argument. Implementations: [`super::Cpu`]
//! (golden and every emulation; a GPU backend implements the same trait with the same knobs).
//! Shapes: `n` rows of this call, `T` tokens so far, `N` compressed entries so far, `D` hidden,
//! `S` streams, `H` heads, `C` head dim.

use super::knobs::*;
use super::mat::{Index, Mat};
use super::rope::RopeTable;
use super::values::{Fmt, Pairing};
use crate::error::Result;
use std::sync::Arc;

/// Mixing weights of one hyper-connection: `fn [(2+S)S, S·D]` (or `[S, S·D]` for the head).
#[derive(Debug, Clone)]
pub struct HyperConnection<W> {
    /// Mixing matrix.
    pub f: W,
    /// Added after scaling, one a mix.
    pub base: Vec<f32>,
    /// Scales of pre, post and comb (of pre alone for the head).
    pub scale: Vec<f32>,
}

/// Constants of the hyper-connections.
#[derive(Debug, Clone, Copy)]
pub struct HcShape {
    /// Streams `S`.
    pub streams: usize,
    /// Hidden size `D`.
    pub hidden: usize,
    /// Configured Sinkhorn iterations.
    pub iters: usize,
    /// `rms_norm_eps`.
    pub norm_eps: f32,
    /// `hc_eps`.
    pub hc_eps: f32,
}

/// Output of the mixing step: `pre [n,S]`, `post [n,S]`, `comb [n,S·S]`.
#[derive(Debug, Clone)]
pub struct Mix<T> {
    /// Weights of the collapse, eps included.
    pub pre: T,
    /// Weights of the sub-layer output.
    pub post: T,
    /// Doubly stochastic mixing of the streams, `[j,k]` from stream `j` to `k`.
    pub comb: T,
}

/// What the compressor needs besides its input.
pub struct PoolShape<'a> {
    /// Tokens per entry.
    pub ratio: usize,
    /// Entry width.
    pub dim: usize,
    /// The previous window takes part (two series of columns).
    pub overlap: bool,
    /// Position bias `[ratio, coff·dim]`.
    pub ape: &'a [f32],
    /// Weight of the norm, `[dim]`.
    pub norm: &'a [f32],
    /// `rms_norm_eps`.
    pub eps: f32,
    /// Rotary table of the layer.
    pub rope: &'a RopeTable,
    /// Pairing of the rotation.
    pub pairing: Pairing,
}

/// Constants of attention.
pub struct AttnShape<'a> {
    /// Heads.
    pub heads: usize,
    /// Head dim.
    pub dim: usize,
    /// Window size, the token itself included.
    pub window: usize,
    /// Compression ratio, 0 = no compressed entries.
    pub ratio: usize,
    /// Sink logits, one a head.
    pub sinks: &'a [f32],
}

/// Constants of the indexer.
#[derive(Debug, Clone, Copy)]
pub struct IndexShape {
    /// Index heads.
    pub heads: usize,
    /// Index head dim.
    pub dim: usize,
    /// Compression ratio.
    pub ratio: usize,
    /// Entries kept.
    pub topk: usize,
    /// First position of the chunk (or decode step) this call belongs to.
    pub chunk_from: usize,
}

/// A side of the index product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Queries.
    Query,
    /// Keys.
    Key,
}

/// A SwiGLU expert: `w1` gate, `w3` up `[I,D]`, `w2` down `[D,I]`.
#[derive(Debug, Clone)]
pub struct Mlp<W> {
    /// Gate projection.
    pub w1: W,
    /// Down projection.
    pub w2: W,
    /// Up projection.
    pub w3: W,
}

/// Where routed experts come from: decoded on demand, one at a time.
pub trait ExpertSource<W>: Send + Sync {
    /// Expert `e` of the layer.
    fn expert(&self, e: usize) -> Result<Arc<Mlp<W>>>;
    /// Number of routed experts.
    fn count(&self) -> usize;
}

/// Constants of the experts.
#[derive(Debug, Clone, Copy)]
pub struct MoeShape {
    /// SwiGLU clamp, if any.
    pub limit: Option<f32>,
    /// `routed_scaling_factor`.
    pub factor: f32,
    /// Experts per token.
    pub topk: usize,
    /// Tokens of the prefill, or of the decode step, that this call is a part of.
    pub batch: usize,
}

/// The operations of the architecture.
pub trait Ops: Sync {
    /// A tensor on the device, `[rows, cols]`.
    type T: Clone + Send + Sync;
    /// A weight prepared for products.
    type W: Send + Sync;
    /// A growing list of index keys.
    type Keys: Clone + Send + Sync;
    /// Pending rows of a compressor between calls.
    type Pool: Clone + Default + Send + Sync;

    /// Prepares a row-major `[n, k]` weight.
    fn weight(&self, n: usize, k: usize, data: &[f32]) -> Self::W;
    /// Brings a host matrix to the device.
    fn upload(&self, m: Mat) -> Self::T;
    /// Brings a tensor to the host.
    fn download(&self, t: &Self::T) -> Mat;
    /// A tensor of zeros, to be overwritten.
    fn zeros(&self, rows: usize, cols: usize) -> Self::T;
    /// Brings a tensor that is not needed on the device any more to the host.
    fn retrieve(&self, t: Self::T) -> Mat {
        self.download(&t)
    }
    /// Rows of `t`.
    fn rows(&self, t: &Self::T) -> usize;
    /// Copies rows `from..to`.
    fn slice(&self, t: &Self::T, from: usize, to: usize) -> Self::T;
    /// Appends the rows of `rows` to `cache`.
    fn append(&self, cache: &mut Self::T, rows: &Self::T);

    /// Overwrites the rows of `t` from `at` on with `rows`.
    fn write(&self, t: &mut Self::T, at: usize, rows: &Self::T);

    /// Embedding rows of token ids: `[n, D]`.
    fn embed(&self, table: &Self::T, ids: &[u32], k: &EmbedKnobs) -> Self::T;
    /// Copies `[n, D]` into `S` equal streams `[n, S·D]`.
    fn broadcast(&self, x: &Self::T, streams: usize) -> Self::T;
    /// Mixing weights from streams `[n, S·D]`.
    fn mhc_mix(&self, x: &Self::T, w: &HyperConnection<Self::W>, s: &HcShape, k: &MhcKnobs) -> Mix<Self::T>;
    /// `Σ_j pre_j · x_j`: `[n, D]`.
    fn mhc_collapse(&self, x: &Self::T, pre: &Self::T, s: &HcShape, k: &MhcKnobs) -> Self::T;
    /// `x'_k = post_k · y + Σ_j comb[j,k] · x_j`: `[n, S·D]`.
    fn mhc_expand(&self, x: Self::T, mix: &Mix<Self::T>, y: &Self::T, s: &HcShape, k: &MhcKnobs) -> Self::T;
    /// RMS norm with weight over whole rows, result rounded to `dtype`.
    fn rms_norm(&self, x: &Self::T, weight: &[f32], eps: f32, dtype: Fmt) -> Self::T;
    /// `x · wᵀ`.
    fn linear(&self, x: &Self::T, w: &Self::W, k: &LinearKnobs) -> Self::T;
    /// Group `g` of the columns of `x` times `w[g]`, results side by side.
    fn grouped_linear(&self, x: &Self::T, w: &[Self::W], k: &LinearKnobs) -> Self::T;
    /// Unweighted RMS norm of every head of `[n, H·C]`.
    fn head_norm(&self, x: Self::T, heads: usize, eps: f32, k: &LinearKnobs) -> Self::T;
    /// Rotates the trailing dims of every head; row `r` is at position `pos0 + r`.
    fn rope(
        &self,
        x: Self::T,
        heads: usize,
        table: &RopeTable,
        pos0: usize,
        pairing: Pairing,
        dtype: Fmt,
    ) -> Self::T;
    /// Rotates back.
    fn derope(&self, x: Self::T, heads: usize, table: &RopeTable, pos0: usize, k: &AttnKnobs) -> Self::T;
    /// What a reader of the cache gets for what was written; the first row is entry `row0`.
    fn kv_store(&self, x: Self::T, row0: usize, rope_dims: usize, format: Fmt, k: &KvCacheKnobs) -> Self::T;
    /// Adds `n` projected tokens (values and gates without bias) at position `pos0` and returns
    /// the entries they complete: `[new, dim]`, rotated.
    fn compress(
        &self,
        state: &mut Self::Pool,
        kv: &Self::T,
        gate: &Self::T,
        pos0: usize,
        s: &PoolShape,
        k: &CompressorKnobs,
    ) -> Self::T;
    /// Product of the compressor's projections, computed from the normed input.
    fn compress_proj(&self, x: &Self::T, w: &Self::W, k: &CompressorKnobs) -> Self::T;
    /// Product of the indexer's projections.
    fn index_proj(&self, x: &Self::T, w: &Self::W, scale: f32, k: &IndexerKnobs) -> Self::T;
    /// Hadamard rotation and format of index queries or keys, `heads` vectors a row.
    fn index_encode(&self, x: Self::T, heads: usize, side: Side, k: &IndexerKnobs) -> Result<Self::T>;
    /// An empty list of index keys of width `dim`.
    fn keys(&self, dim: usize) -> Self::Keys;
    /// Appends encoded keys.
    fn keys_append(&self, keys: &mut Self::Keys, rows: &Self::T);
    /// Number of keys in the list.
    fn keys_len(&self, keys: &Self::Keys) -> usize;
    /// Loses the content of every key so far (a writer the reader does not find).
    fn keys_forget(&self, keys: &mut Self::Keys);
    /// Scores of every entry so far, `[n, N]`, −inf where not visible.
    fn index_scores(
        &self,
        q: &Self::T,
        w: &Self::T,
        keys: &Self::Keys,
        pos0: usize,
        s: &IndexShape,
        k: &IndexerKnobs,
    ) -> Self::T;
    /// The `width` best entries by given scores `[n, N]`.
    fn topk(
        &self,
        scores: &Self::T,
        pos0: usize,
        width: usize,
        s: &IndexShape,
        k: &IndexerKnobs,
        t: &TopkKnobs,
    ) -> Index;
    /// [`Ops::index_scores`] then [`Ops::topk`] without keeping the scores.
    fn index_topk(
        &self,
        q: &Self::T,
        w: &Self::T,
        keys: &Self::Keys,
        pos0: usize,
        width: usize,
        s: &IndexShape,
        k: &IndexerKnobs,
        t: &TopkKnobs,
    ) -> Index;
    /// Attention of `q [n, H·C]` at `pos0` over the window rows of `kv [T, C]` and entries of
    /// `comp [N, C]` (`index`: the chosen ones, `None`: all visible). Returns the output before
    /// the inverse rotation `[n, H·C]` and the LSE, sink included, `[n, H]`.
    fn attention(
        &self,
        q: &Self::T,
        kv: &Self::T,
        comp: &Self::T,
        index: Option<&Index>,
        pos0: usize,
        s: &AttnShape,
        k: &AttnKnobs,
    ) -> (Self::T, Self::T);
    /// Router logits `[n, E]`.
    fn router_logits(&self, x: &Self::T, w: &Self::W, k: &RouterKnobs) -> Self::T;
    /// The chosen experts: by hash table row of the token, else by `sqrt(softplus)` plus bias.
    fn router_select(
        &self,
        logits: &Self::T,
        bias: Option<&[f32]>,
        table: Option<(&[i32], &[u32])>,
        s: &MoeShape,
        k: &RouterKnobs,
    ) -> Index;
    /// Normalised, scaled weights of the chosen experts `[n, topk]`. The correction bias has no part in them.
    fn router_weights(
        &self,
        logits: &Self::T,
        ids: &Index,
        bias: Option<&[f32]>,
        s: &MoeShape,
        k: &RouterKnobs,
    ) -> Self::T;
    /// Weighted sum of the routed experts, in ascending expert id.
    fn experts(
        &self,
        x: &Self::T,
        ids: &Index,
        weights: &Self::T,
        source: &dyn ExpertSource<Self::W>,
        s: &MoeShape,
        k: &ExpertsKnobs,
    ) -> Result<Self::T>;
    /// The shared expert.
    fn shared(&self, x: &Self::T, mlp: &Mlp<Self::W>, s: &MoeShape, k: &ExpertsKnobs) -> Self::T;
    /// Routed plus shared.
    fn add(&self, a: &Self::T, b: &Self::T, k: &ExpertsKnobs) -> Self::T;
    /// Logits `[n, V]`.
    fn logits(&self, x: &Self::T, w: &Self::W, k: &HeadKnobs) -> Self::T;
}
