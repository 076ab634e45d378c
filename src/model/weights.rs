//! The weights of one layer, of the embedding and of the head, prepared for a backend.

use crate::kernels::Ops;
use crate::kernels::ops::{ExpertSource, HyperConnection, Mlp};

/// A compressor (of attention or of the indexer).
pub struct CompressorWeights<O: Ops> {
    /// Values, `[coff·d, D]`.
    pub wkv: O::W,
    /// Gates, same shape.
    pub wgate: O::W,
    /// Position bias `[ratio, coff·d]`.
    pub ape: Vec<f32>,
    /// Norm weight `[d]`.
    pub norm: Vec<f32>,
    /// Entry width `d`.
    pub dim: usize,
}

/// The lightning indexer of a CSA layer.
pub struct IndexerWeights<O: Ops> {
    /// Queries `[Hi·Ci, q_lora]`.
    pub wq_b: O::W,
    /// Head weights `[Hi, D]`.
    pub weights_proj: O::W,
    /// Keys.
    pub compressor: CompressorWeights<O>,
}

/// Everything one layer computes with.
pub struct LayerWeights<O: Ops> {
    /// Mixing before attention.
    pub hc_attn: HyperConnection<O::W>,
    /// Mixing before the experts.
    pub hc_ffn: HyperConnection<O::W>,
    /// Norm of the attention input.
    pub attn_norm: Vec<f32>,
    /// Norm of the expert input.
    pub ffn_norm: Vec<f32>,
    /// Query latent `[q_lora, D]`.
    pub wq_a: O::W,
    /// Norm of the query latent.
    pub q_norm: Vec<f32>,
    /// Queries `[H·C, q_lora]`.
    pub wq_b: O::W,
    /// Keys/values `[C, D]`.
    pub wkv: O::W,
    /// Norm of keys/values.
    pub kv_norm: Vec<f32>,
    /// Sink logits `[H]`.
    pub sinks: Vec<f32>,
    /// Output latent, one weight a group.
    pub wo_a: Vec<O::W>,
    /// Output `[D, G·R]`.
    pub wo_b: O::W,
    /// Present where the ratio is not 0.
    pub compressor: Option<CompressorWeights<O>>,
    /// Present in CSA layers.
    pub indexer: Option<IndexerWeights<O>>,
    /// Router `[E, D]`.
    pub gate: O::W,
    /// Correction bias of routed layers.
    pub gate_bias: Option<Vec<f32>>,
    /// Expert ids by token, `[V, topk]`, of hash layers.
    pub tid2eid: Option<Vec<i32>>,
    /// Routed experts.
    pub experts: Box<dyn ExpertSource<O::W>>,
    /// The shared expert.
    pub shared: Mlp<O::W>,
}

/// Weights outside the layers.
pub struct OuterWeights<O: Ops> {
    /// Embedding `[V, D]`.
    pub embed: O::T,
    /// Final collapse.
    pub hc_head: HyperConnection<O::W>,
    /// Final norm.
    pub norm: Vec<f32>,
    /// Output projection `[V, D]`.
    pub head: O::W,
}
