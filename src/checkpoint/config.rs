//! The model's configuration, in our own words: what every other layer of the crate reads.
//!
//! Reading `config.json` (three dialects) is `read`'s job; this file holds the plain data and the rules any dialect must obey.

mod keys;
mod read;
mod rope;
mod schedule;
#[cfg(test)]
mod tests;

pub(super) use read::read;

use crate::error::{Error, Result};

/// What a layer attends to beside its sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerKind {
    /// Nothing: sliding window only (ratio 0).
    Window,
    /// Overlapping compressor, indexer and top-k (ratio 4 in released models).
    Csa,
    /// Non-overlapping compressor, every visible entry attended (ratio 128 in released models).
    Hca,
}

impl LayerKind {
    /// Short name used in tables: `window`, `csa`, `hca`.
    pub fn name(self) -> &'static str {
        match self {
            LayerKind::Window => "window",
            LayerKind::Csa => "csa",
            LayerKind::Hca => "hca",
        }
    }
}

/// One layer of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerSpec {
    /// What it attends to.
    pub kind: LayerKind,
    /// Tokens a compressed entry summarises; 0 for [`LayerKind::Window`].
    pub ratio: usize,
    /// Experts come from the token-id table instead of the router's top-k.
    pub hash: bool,
}

/// YaRN frequency scaling. There is no mscale in this family: cos and sin are never multiplied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// Context extension factor.
    pub factor: f64,
    /// Context length before the extension.
    pub original_max_position_embeddings: usize,
    /// Rotations above which a frequency is kept.
    pub beta_fast: f64,
    /// Rotations below which a frequency is divided by `factor`.
    pub beta_slow: f64,
}

/// One rotary table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Base.
    pub theta: f64,
    /// Scaling, if any.
    pub yarn: Option<Yarn>,
}

/// What `quantization_config` says about weights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuantConfig {
    /// Rows and columns under one FP8 scale, where the config says it.
    pub weight_block_size: Option<[usize; 2]>,
    /// `expert_dtype`, where the config says it.
    pub expert_dtype: Option<String>,
}

/// The architecture and its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Rows of embedding and head.
    pub vocab_size: usize,
    /// D.
    pub hidden_size: usize,
    /// Trunk layers, drafter stages excluded.
    pub num_hidden_layers: usize,
    /// H.
    pub num_attention_heads: usize,
    /// Width of a head, rope dims included.
    pub head_dim: usize,
    /// Trailing dims of a head that rotate.
    pub qk_rope_head_dim: usize,
    /// Width of the query latent.
    pub q_lora_rank: usize,
    /// Groups of the output projection.
    pub o_groups: usize,
    /// Width of one group's output latent.
    pub o_lora_rank: usize,
    /// Positions a token sees uncompressed, itself included.
    pub sliding_window: usize,
    /// One entry a trunk layer.
    pub layers: Vec<LayerSpec>,
    /// Rotary table of window layers.
    pub rope_main: Rope,
    /// Rotary table of compressed layers.
    pub rope_compress: Rope,
    /// Indexer heads (0 in a model without CSA layers that does not say).
    pub index_n_heads: usize,
    /// Width of an indexer head.
    pub index_head_dim: usize,
    /// Compressed entries a token may select.
    pub index_topk: usize,
    /// Residual streams, S.
    pub hc_mult: usize,
    /// Sinkhorn iterations, the initial softmax included.
    pub hc_sinkhorn_iters: usize,
    /// mHC epsilon.
    pub hc_eps: f32,
    /// Epsilon of every RMS statistic.
    pub rms_norm_eps: f32,
    /// Expert width, I.
    pub moe_intermediate_size: usize,
    /// E.
    pub n_routed_experts: usize,
    /// Always 1 in this family.
    pub n_shared_experts: usize,
    /// Experts a token is routed to.
    pub num_experts_per_tok: usize,
    /// What the routed weights of any token sum to.
    pub routed_scaling_factor: f32,
    /// Clamp of gate (above) and up (both sides); `None` switches it off.
    pub swiglu_limit: Option<f32>,
    /// Longest context the model claims.
    pub max_position_embeddings: usize,
    /// First token of a prompt.
    pub bos_token_id: Option<u32>,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<u32>,
    /// Drafter layers the config announces (never run here).
    pub num_nextn_predict_layers: usize,
    /// What the config says about weight formats.
    pub quant: QuantConfig,
    /// `model_type` as written, or `deepseek_v4` where the dialect has none.
    pub model_type: String,
    /// Which dialect(s) the file speaks: `release`, `transformers`, `inference`, joined by `+`.
    pub dialect: String,
    /// Keys of the file nobody here understands. They are reported, never guessed at.
    pub unknown_keys: Vec<String>,
}

impl Config {
    /// The identity horizon in tokens: below it every visible entry is selected, so the indexer's ranking is invisible.
    /// `None` without CSA layers. With several CSA ratios (no released model) the smallest counts.
    pub fn horizon(&self) -> Option<usize> {
        self.csa_ratio().map(|r| r.saturating_mul(self.index_topk))
    }

    /// The ratio of the CSA layers.
    pub fn csa_ratio(&self) -> Option<usize> {
        self.layers.iter().filter(|l| l.kind == LayerKind::Csa).map(|l| l.ratio).min()
    }

    /// Whether any layer compresses.
    pub fn has_compressed(&self) -> bool {
        self.layers.iter().any(|l| l.kind != LayerKind::Window)
    }

    /// Rows of an mHC mixing matrix: S pre, S post, S·S comb.
    pub fn hc_rows(&self) -> usize {
        (2 + self.hc_mult) * self.hc_mult
    }

    /// The rotary table of a layer.
    pub fn rope(&self, layer: usize) -> &Rope {
        if self.layers[layer].kind == LayerKind::Window { &self.rope_main } else { &self.rope_compress }
    }

    /// Rules that relate one number to another. Ranges of single numbers are checked where they are read,
    /// tightly enough that no product of dimensions overflows.
    pub(super) fn validate(&self) -> Result<()> {
        let fail = |message: String, hint: &str| Err(Error::input(message).hint(hint));
        if !self.num_attention_heads.is_multiple_of(self.o_groups) {
            return fail(
                format!(
                    "num_attention_heads {} is not divisible by o_groups {}",
                    self.num_attention_heads, self.o_groups
                ),
                "each output group takes the same number of consecutive heads",
            );
        }
        if self.qk_rope_head_dim > self.head_dim {
            return fail(
                format!(
                    "qk_rope_head_dim {} is larger than head_dim {}",
                    self.qk_rope_head_dim, self.head_dim
                ),
                "the rotary dims are the last ones of a head",
            );
        }
        if !self.qk_rope_head_dim.is_multiple_of(2) {
            return fail(
                format!("the number of rotary dims, {}, is odd", self.qk_rope_head_dim),
                "rotation acts on pairs: check qk_rope_head_dim, or head_dim times partial_rotary_factor",
            );
        }
        if self.num_experts_per_tok > self.n_routed_experts {
            return fail(
                format!(
                    "num_experts_per_tok {} is larger than n_routed_experts {}",
                    self.num_experts_per_tok, self.n_routed_experts
                ),
                "a token cannot be routed to more experts than there are",
            );
        }
        if self.csa_ratio().is_some() && self.index_head_dim < self.qk_rope_head_dim {
            return fail(
                format!(
                    "index_head_dim {} is smaller than the {} rotary dims",
                    self.index_head_dim, self.qk_rope_head_dim
                ),
                "the indexer rotates the same number of trailing dims",
            );
        }
        let experts = self.num_hidden_layers.checked_mul(self.n_routed_experts);
        if experts.is_none_or(|n| n > MAX_EXPERTS_TOTAL) {
            return fail(
                format!(
                    "{} layers of {} experts is more than this tool accepts",
                    self.num_hidden_layers, self.n_routed_experts
                ),
                "the largest released model has 61 layers of 384",
            );
        }
        Ok(())
    }
}

/// Bounds the work a config alone can ask for (a walk over all expected tensor names).
const MAX_EXPERTS_TOTAL: usize = 1 << 20;
