//! Faults: named wrong points in knob space, one line of data each, used as positive controls;
//! and harmless points that must not raise an alarm.
//!
//! The classes are those of public reports: A index scoring, B top-k, C cache layout, D state
//! between chunks and steps, E attention masks, merge and sink, F rotary policy, G compressor,
//! H hyper-connections, I router and scaling, J clamp, K formats.

use super::knobs::{Phase, Site};
use super::presets::{settings, sites};
use crate::checkpoint::{LayerKind, LayerSpec};

/// The layers a fault can be planted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// Every layer.
    Any,
    /// Layers without compressed entries.
    Window,
    /// Layers with compressed entries.
    Compressed,
    /// Layers with an indexer.
    Csa,
    /// Layers routed by the hash table.
    Hash,
    /// Layers routed by the router's logits.
    Routed,
}

impl Where {
    /// The word in lists.
    pub fn name(self) -> &'static str {
        match self {
            Where::Any => "any",
            Where::Window => "window",
            Where::Compressed => "compressed",
            Where::Csa => "csa",
            Where::Hash => "hash",
            Where::Routed => "routed",
        }
    }
    /// True if it can be planted in a layer of that kind.
    pub fn holds(self, layer: &LayerSpec) -> bool {
        match self {
            Where::Any => true,
            Where::Window => layer.kind == LayerKind::Window,
            Where::Compressed => layer.kind != LayerKind::Window,
            Where::Csa => layer.kind == LayerKind::Csa,
            Where::Hash => layer.hash,
            Where::Routed => !layer.hash,
        }
    }
}

/// What a run needs for the fault to change a bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Any prompt.
    Nothing,
    /// A prompt longer than the window.
    PastWindow,
    /// A prompt above the identity horizon, where the indexer ranks.
    Horizon,
    /// A second prefill chunk, or decode steps.
    Chunks,
    /// Decode steps.
    Decode,
    /// Equal scores at the cut.
    Ties,
    /// Activations beyond the clamp.
    Clamp,
    /// More than 256 experts.
    Experts,
    /// A checkpoint with another `index_topk`.
    Width,
}

impl Needs {
    /// The word in lists.
    pub fn name(self) -> &'static str {
        match self {
            Needs::Nothing => "nothing",
            Needs::PastWindow => "prompt > window",
            Needs::Horizon => "prompt > horizon",
            Needs::Chunks => "chunks or decode",
            Needs::Decode => "decode",
            Needs::Ties => "equal scores at the cut",
            Needs::Clamp => "activations > clamp",
            Needs::Experts => "> 256 experts",
            Needs::Width => "index_topk != 512",
        }
    }
}

/// A wrong (or harmless) point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Name in a kernel spec.
    pub name: &'static str,
    /// Class letter.
    pub class: char,
    /// Layers it can be planted in.
    pub layers: Where,
    /// Phase it is confined to; `None` = both.
    pub phase: Option<Phase>,
    /// What a run needs to show it.
    pub needs: Needs,
    /// `site.knob=value`, comma separated; the first one names the guilty site.
    pub settings: &'static str,
    /// What it looks like.
    pub looks: &'static str,
}

impl Fault {
    /// The settings, one by one.
    pub fn settings(&self) -> Vec<(String, String)> {
        settings(self.settings)
    }
    /// The site to blame.
    pub fn site(&self) -> Site {
        sites(&self.settings()[..1])[0]
    }
    /// The fault or control of that name.
    pub fn find(name: &str) -> Option<&'static Fault> {
        FAULTS.iter().chain(CONTROLS).find(|f| f.name == name)
    }
}

use Needs::*;
use Where::*;
const DECODE: Option<Phase> = Some(Phase::Decode);

const fn f(
    name: &'static str,
    class: char,
    layers: Where,
    phase: Option<Phase>,
    needs: Needs,
    settings: &'static str,
    looks: &'static str,
) -> Fault {
    Fault { name, class, layers, phase, needs, settings, looks }
}

/// Every fault the knobs can express.
#[rustfmt::skip]
pub const FAULTS: &[Fault] = &[
    f("hadamard_q_only", 'A', Csa, None, Horizon, "indexer.hadamard=q_only", "ranking carries no information; text stays fluent"),
    f("hadamard_k_only", 'A', Csa, None, Horizon, "indexer.hadamard=k_only", "as hadamard_q_only, from the writer's side"),
    f("hadamard_none_fp4", 'A', Csa, None, Horizon, "indexer.hadamard=none,indexer.q_dtype=mxfp4,indexer.k_dtype=mxfp4", "outlier channels dominate the fp4 blocks; overlap drops"),
    f("relu_off", 'A', Csa, None, Horizon, "indexer.relu=off", "negative products pull scores down; wrong members"),
    f("idx_rope_pairing_swap", 'A', Csa, None, Horizon, "indexer.pairing=half_split,indexer.key_pairing=half_split", "consistent but untrained rotation; overlap falls with distance"),
    f("idx_rope_pairing_swap_q", 'A', Csa, None, Horizon, "indexer.pairing=half_split", "query and key rotate differently"),
    f("idx_rope_pairing_swap_k", 'A', Csa, None, Horizon, "indexer.key_pairing=half_split", "key and query rotate differently"),
    f("idx_rope_off", 'A', Csa, None, Horizon, "indexer.pairing=off,indexer.key_pairing=off", "scores blind to distance"),
    f("idx_rope_off_on_queries", 'A', Csa, None, Horizon, "indexer.pairing=off", "grows with position"),
    f("idx_rope_off_on_keys", 'A', Csa, None, Horizon, "indexer.key_pairing=off", "grows with position"),
    f("causal_limit_q_div_r", 'A', Csa, None, Nothing, "indexer.visible=q_div_r", "the entry closing at this token is missing, every fourth token"),
    f("ks_ke_shift", 'A', Csa, None, Nothing, "indexer.visible=one_future", "an entry of the future is chosen"),
    f("dot_fp8", 'A', Csa, None, Horizon, "indexer.dot_dtype=fp8_row", "scores coarse, members near the cut wrong"),
    f("coarse_fp16_cap", 'B', Csa, None, Horizon, "topk.coarse_bits=8,topk.coarse_cap=16", "valid, unique ids, wrong members; later entries lost"),
    f("tie_arrival_order", 'B', Csa, None, Ties, "topk.tie=high", "differs only where scores are equal at the cut"),
    f("width_silently_512", 'B', Csa, None, Width, "topk.width=512", "the default width replaces the checkpoint's"),
    f("width_too_narrow", 'B', Csa, None, Horizon, "topk.width=32", "the lower ranks are never seen; recall falls with length"),
    f("idx_pool_not_carried", 'D', Csa, None, Chunks, "indexer.carry=off", "second chunk finds no index keys of the first"),
    f("restore_without_idxk", 'D', Csa, DECODE, Decode, "indexer.carry=off", "decode ranks restored entries by zero keys"),
    f("compressor_state_lost", 'D', Compressed, None, Chunks, "compressor.carry=off", "entries at chunk borders pooled from a part of their window"),
    f("compressor_state_lost_in_decode", 'D', Compressed, DECODE, Decode, "compressor.carry=off", "every entry born in decode sees one token"),
    f("compressed_branch_masked", 'E', Compressed, None, Nothing, "attn.compressed=off", "fluent from the window alone; the past is gone"),
    f("compressed_branch_masked_in_decode", 'E', Compressed, DECODE, Decode, "attn.compressed=off", "prefill right, answers forget"),
    f("window_one_short", 'E', Any, None, PastWindow, "attn.window=one_short", "small; the oldest window key is missing"),
    f("window_one_long", 'E', Any, None, PastWindow, "attn.window=one_long", "small; one key too many"),
    f("window_unlimited", 'E', Any, None, PastWindow, "attn.window=unlimited", "grows with position"),
    f("lse_base_mismatch", 'E', Any, None, Nothing, "attn.lse_base_mismatch=on,attn.splits=8", "splits with large LSE win too much; LSE off by a factor"),
    f("sink_dropped", 'E', Any, None, Nothing, "attn.sink=dropped", "output norms too large; plain in the LSE"),
    f("sink_twice", 'E', Any, None, Nothing, "attn.sink=twice", "output norms too small; plain in the LSE"),
    f("sink_per_split", 'E', Any, None, Nothing, "attn.sink=per_split,attn.splits=8", "as sink_twice, once for every split"),
    f("sink_scaled", 'E', Any, None, Nothing, "attn.sink=scaled", "sink logit multiplied by the softmax scale"),
    f("p_fp4", 'E', Any, None, Nothing, "attn.p_dtype=mxfp4", "small probabilities vanish"),
    f("partial_fp8", 'E', Any, None, Nothing, "attn.partial_dtype=fp8_row,attn.splits=8", "merge of coarsely stored partials"),
    f("logits_fp8", 'E', Any, None, Nothing, "attn.logits_dtype=fp8_row", "coarse attention logits"),
    f("theta_swap", 'F', Any, None, Nothing, "linear.rope=swapped", "grows with position"),
    f("theta_swap_ratio0", 'F', Window, None, Nothing, "linear.rope=swapped", "grows with position, window layers only"),
    f("rope_pairing_swap", 'F', Any, None, Nothing, "linear.pairing=half_split", "every layer, from the second token on"),
    f("rope_off", 'F', Any, None, Nothing, "linear.pairing=off", "order of the window is lost"),
    f("derotate_off", 'F', Any, None, Nothing, "attn.derotate=off", "rope dims of the output turn with position"),
    f("comp_rope_pos_index", 'F', Compressed, None, Nothing, "compressor.entry_pos=index", "entries look nearer to the start than they are"),
    f("comp_rope_pos_last", 'F', Compressed, None, Nothing, "compressor.entry_pos=last", "entries shifted by a window"),
    f("comp_rope_pairing_swap", 'F', Compressed, None, Nothing, "compressor.pairing=half_split", "entries rotate unlike window keys"),
    f("comp_rope_off", 'F', Compressed, None, Nothing, "compressor.pairing=off", "entries carry no position"),
    f("overlap_off", 'G', Csa, None, Nothing, "compressor.overlap=off", "every entry but the first pools half its tokens"),
    f("overlap_off_in_decode", 'G', Csa, DECODE, Decode, "compressor.overlap=off", "entries right in prefill, wrong when born in decode"),
    f("ape_off", 'G', Compressed, None, Nothing, "compressor.ape=off", "pooling weights blind to the place in the window"),
    f("comb_transposed", 'H', Any, None, Nothing, "mhc.comb=transposed", "every layer, short prompts too"),
    f("sinkhorn_5_iters", 'H', Any, None, Nothing, "mhc.sinkhorn_iters=5", "small and everywhere: rows of comb do not sum to 1"),
    f("sinkhorn_1_iter", 'H', Any, None, Nothing, "mhc.sinkhorn_iters=1", "comb is a softmax, not doubly stochastic"),
    f("sublayer_norm_missing", 'H', Any, None, Nothing, "mhc.sublayer_norm=off", "sub-layer inputs of the wrong scale"),
    f("scale_0x", 'I', Any, None, Nothing, "router.scale=never", "weights of a token sum to 1"),
    f("scale_2x", 'I', Any, None, Nothing, "router.scale=twice", "weights of a token sum to the factor squared"),
    f("scale_hash_layers_only", 'I', Routed, None, Nothing, "router.scale=never", "weights sum to the factor in hash layers only"),
    f("scale_0x_hash_layers", 'I', Hash, None, Nothing, "router.scale=never", "weights sum to 1 in hash layers only"),
    f("runner_scale_0x", 'I', Any, None, Nothing, "experts.scale=never", "router right, routed sum too small by the factor"),
    f("runner_scale_2x", 'I', Any, None, Nothing, "experts.scale=twice", "router right, routed sum too large by the factor"),
    f("scale_prefill_only", 'I', Any, DECODE, Decode, "experts.scale=never", "decode lacks the factor that prefill has"),
    f("router_bias_off", 'I', Routed, None, Nothing, "router.bias=off", "experts chosen by raw score"),
    f("router_bf16", 'I', Routed, None, Nothing, "router.logits_dtype=bf16,router.in_dtype=bf16", "expert choice flips at small margins"),
    f("tid2eid_bf16", 'I', Hash, None, Experts, "router.table=bf16", "odd expert ids above 256 merge into even ones"),
    f("clamp_off_shared", 'J', Any, None, Clamp, "experts.clamp=off_shared", "shared expert too large where activations exceed the clamp"),
    f("clamp_off_routed", 'J', Any, None, Clamp, "experts.clamp=off_routed", "routed experts too large where activations exceed the clamp"),
];

/// Harmless points: a run with one of them must stay quiet.
#[rustfmt::skip]
pub const CONTROLS: &[Fault] = &[
    f("mhc_w_bf16", 'H', Any, None, Nothing, "mhc.w_dtype=bf16", "mixing weights stored in bf16"),
    f("mhc_split_k", 'H', Any, None, Nothing, "mhc.split_k=16", "order of sums only"),
    f("splits_only", 'E', Any, None, Nothing, "attn.splits=8", "order of sums only"),
    f("tiles_only", 'E', Any, None, Nothing, "attn.tile=64", "order of sums only"),
    f("partials_bf16", 'E', Any, None, Nothing, "attn.partial_dtype=bf16,attn.splits=8", "partial outputs stored in bf16"),
    f("p_fp8", 'E', Any, None, Nothing, "attn.p_dtype=fp8_row", "probabilities in fp8"),
    f("state_bf16", 'G', Compressed, None, Nothing, "compressor.state_dtype=bf16", "pending compressor state in bf16"),
    f("clamp_after_silu", 'J', Any, None, Clamp, "experts.clamp=after_silu", "the clamp moved behind the activation"),
    f("weight_after_w2", 'I', Any, None, Nothing, "experts.weight_site=after_w2", "routing weight after w2 instead of before it"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Knobs;
    use crate::kernels::presets::PRESETS;

    /// Catches a fault with a misspelt knob, a value it does not take, or no effect at all.
    #[test]
    fn every_fault_is_valid_and_moves_a_knob() {
        for f in FAULTS.iter().chain(CONTROLS) {
            let mut k = Knobs::default();
            for (path, value) in f.settings() {
                k.set(&path, &value).unwrap_or_else(|e| panic!("{}: {e}", f.name));
            }
            assert_eq!(f.settings().len(), f.settings.split(',').count(), "{}", f.name);
            assert_ne!(k, Knobs::default(), "{} is golden", f.name);
            assert!(!k.is_golden_at(f.site()), "{} does not touch {}", f.name, f.site());
            assert!(('A'..='K').contains(&f.class));
        }
    }

    /// Catches a fault that the floor pays for: one made of declared formats alone can never be
    /// told from a quantised kernel. The two listed ones show by overlap against their golden.
    #[test]
    fn a_fault_is_more_than_a_declared_format() {
        let only: Vec<&str> = FAULTS
            .iter()
            .filter(|f| {
                let mut k = Knobs::default();
                f.settings().iter().for_each(|(p, v)| k.set(p, v).unwrap());
                k == k.formats_only()
            })
            .map(|f| f.name)
            .collect();
        assert_eq!(only, ["hadamard_none_fp4", "router_bf16"]);
    }

    /// Catches a name that means two things in a kernel spec.
    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = FAULTS.iter().chain(CONTROLS).map(|f| f.name).collect();
        names.extend(PRESETS.iter().map(|p| p.name));
        names.extend(Site::ALL.iter().map(|s| s.name()));
        names.extend(["all", "none", "prefill", "decode"]);
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
    }
}
