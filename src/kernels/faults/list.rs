//! The faults and the harmless points themselves, one line each: name, class, site that must be named, layers, phase,
//! needs, settings, what it looks like.

use super::Fault;
use super::Needs::{self, *};
use super::Where::{self, *};
use crate::kernels::knobs::Phase;
use crate::kernels::knobs::Site::{self, *};

const DECODE: Option<Phase> = Some(Phase::Decode);

const fn f(
    name: &'static str,
    class: char,
    found: Site,
    layers: Where,
    phase: Option<Phase>,
    needs: Needs,
    settings: &'static str,
    looks: &'static str,
) -> Fault {
    Fault { name, class, found, layers, phase, needs, settings, both: "", looks }
}

/// With settings that golden needs, too.
const fn on(both: &'static str, fault: Fault) -> Fault {
    Fault { both, ..fault }
}

/// The indexer of golden `qat`.
const FP4_INDEX: &str = "indexer.hadamard=both,indexer.q_dtype=mxfp4,indexer.k_dtype=mxfp4";
/// Saturation within reach of a small model: no activation of the built-in model exceeds the configured clamp.
const LOW_CLAMP: &str = "experts.limit_percent=1";
/// Overflow within reach of a small model.
const LOUD_LOGITS: &str = "router.logit_gain=200";
/// Entries in fp8 on both sides.
const FP8_CACHE: &str = "kv_cache.window=fp8_64,kv_cache.compressed=fp8_64,kv_cache.rope_bf16=on";
/// Scores so coarse that many are equal.
const COARSE_SCORES: &str = "indexer.score_dtype=fp8_row";

/// Every fault the knobs can express.
#[rustfmt::skip]
pub const FAULTS: &[Fault] = &[
    f("hadamard_q_only", 'A', Indexer, Csa, None, Horizon, "indexer.hadamard=q_only", "ranking carries no information; text stays fluent"),
    f("hadamard_k_only", 'A', Indexer, Csa, None, Horizon, "indexer.hadamard=k_only", "as hadamard_q_only, from the writer's side"),
    on(FP4_INDEX, f("hadamard_none_fp4", 'A', Indexer, Csa, None, Horizon, "indexer.hadamard=none", "outlier channels dominate the fp4 blocks; overlap drops")),
    f("relu_off", 'A', Indexer, Csa, None, Horizon, "indexer.relu=off", "negative products pull scores down; wrong members"),
    f("idx_rope_pairing_swap", 'A', Indexer, Csa, None, Horizon, "indexer.pairing=half_split,indexer.key_pairing=half_split", "consistent but untrained rotation; overlap falls with distance"),
    f("idx_rope_pairing_swap_q", 'A', Indexer, Csa, None, Horizon, "indexer.pairing=half_split", "query and key rotate differently"),
    f("idx_rope_pairing_swap_k", 'A', Indexer, Csa, None, Horizon, "indexer.key_pairing=half_split", "key and query rotate differently"),
    f("idx_rope_off", 'A', Indexer, Csa, None, Horizon, "indexer.pairing=off,indexer.key_pairing=off", "scores blind to distance"),
    f("idx_rope_off_on_queries", 'A', Indexer, Csa, None, Horizon, "indexer.pairing=off", "grows with position"),
    f("idx_rope_off_on_keys", 'A', Indexer, Csa, None, Horizon, "indexer.key_pairing=off", "grows with position"),
    f("idxk_layout_interleaved", 'A', Indexer, Csa, None, Horizon, "indexer.key_layout=interleaved", "keys hold their own values in another order; ranking is noise"),
    f("causal_limit_q_div_r", 'A', Indexer, Csa, None, Horizon, "indexer.visible=q_div_r", "the entry closing at this token is missing, every fourth token"),
    f("causal_limit_one_future", 'A', Topk, Csa, None, Horizon, "indexer.visible=one_future", "an entry of the future is chosen"),
    f("ks_ke_shift", 'A', Indexer, Csa, None, Horizon, "indexer.visible=shifted", "entry 0 is never scored, an entry of the future is"),
    f("raw_len_instead_of_compressed", 'A', Topk, Csa, None, Horizon, "indexer.visible=raw_length", "entries of the future are chosen, more of them in prefill"),
    f("early_exit_one_block_early", 'A', Indexer, Csa, None, Horizon, "indexer.early_exit=one_block", "the newest entries are never chosen"),
    f("early_exit_stale_buffer", 'A', Indexer, Csa, None, Horizon, "indexer.early_exit=stale_buffer", "the newest entries rank by the scores of the block before"),
    f("early_exit_zero_buffer", 'A', Indexer, Csa, None, Horizon, "indexer.early_exit=zero_buffer", "the newest entries all score 0"),
    f("oob_sentinel_zero", 'A', Topk, Csa, None, Horizon, "indexer.sentinel=zero", "entries that do not exist yet beat negative scores"),
    f("short_path_by_batch_min", 'A', Topk, Csa, None, Horizon, "topk.short_path=batch_min", "above the horizon the oldest entries are taken unranked"),
    f("reuse_topk_n_layers", 'A', Topk, Csa, None, Horizon, "topk.reuse=layer", "later CSA layers hold the selection of the one before; the first is right"),
    f("reuse_topk_previous_token", 'A', Topk, Csa, None, Horizon, "topk.reuse=token", "selection lags by a token"),
    f("dot_fp8", 'A', Indexer, Csa, None, Horizon, "indexer.dot_dtype=fp8_row", "scores coarse, members near the cut wrong"),
    f("coarse_fp16_cap", 'B', Topk, Csa, None, Horizon, "topk.coarse_bits=8,topk.coarse_cap=16", "valid, unique ids, wrong members; later entries lost"),
    f("coarse_fp16_cap_arrival", 'B', Topk, Csa, None, Horizon, "topk.coarse_bits=8,topk.coarse_cap=16,topk.seed=7", "as coarse_fp16_cap, members change from run to run"),
    f("sentinel_inside_prefix", 'B', Topk, Csa, None, Nothing, "topk.output=sentinel_inside", "a -1 before the last valid id"),
    f("uninitialised_tail", 'B', Topk, Csa, None, Nothing, "topk.output=uninitialised_tail", "ids after the last valid one: duplicates, ids of the future"),
    f("nan_row", 'B', Topk, Csa, None, Horizon, "topk.output=nan_rows", "some rows hold the oldest entries unranked"),
    f("width_silently_512", 'B', Topk, Csa, None, Width, "topk.width=512", "the default width replaces the checkpoint's"),
    f("width_halved", 'B', Topk, Csa, None, Horizon, "topk.halved=on", "half the entries; recall falls with length"),
    f("width_too_narrow", 'B', Topk, Csa, None, Horizon, "topk.width=8", "the lower ranks are never seen; recall falls with length"),
    f("kv_layout_interleaved", 'C', KvCache, Any, None, Nothing, "kv_cache.layout=interleaved,kv_cache.window=fp8_64,kv_cache.compressed=fp8_64,kv_cache.rope_bf16=on", "entries read across record borders: garbage from the second slot of a page on"),
    f("ring_shift", 'C', KvCache, Any, None, Nothing, "kv_cache.ring_shift=1", "window entries of the neighbour's position"),
    f("ring_shift_far", 'C', KvCache, Any, None, Nothing, "kv_cache.ring_shift=16", "window entries of a position far away"),
    f("int32_wrap", 'C', Attn, Csa, None, PastWindow, "attn.entry_wrap=4", "late entries read early ones"),
    f("idx_pool_not_carried", 'D', Indexer, Csa, None, HorizonChunks, "indexer.carry=off", "second chunk finds no index keys of the first"),
    f("restore_without_idxk", 'D', Indexer, Csa, DECODE, HorizonDecode, "indexer.carry=off", "decode ranks restored entries by zero keys"),
    f("window_ring_stale_on_hit", 'D', Attn, Any, None, Chunk, "kv_cache.ring_carry=off", "the first tokens of a chunk see a window from a lap before"),
    f("compressor_state_lost", 'D', Compressor, Compressed, None, Chunks, "compressor.carry=off", "entries at chunk borders pooled from a part of their window"),
    f("compressor_state_lost_in_decode", 'D', Compressor, Compressed, DECODE, Decode, "compressor.carry=off", "every entry born in decode sees one token"),
    f("compressed_branch_masked", 'E', Attn, Compressed, None, Nothing, "attn.compressed=off", "fluent from the window alone; the past is gone"),
    f("compressed_branch_masked_in_decode", 'E', Attn, Compressed, DECODE, Decode, "attn.compressed=off", "prefill right, answers forget"),
    f("window_one_short", 'E', Attn, Any, None, PastWindow, "attn.window=one_short", "small; the oldest window key is missing"),
    f("window_one_long", 'E', Attn, Any, None, PastWindow, "attn.window=one_long", "small; one key too many"),
    f("window_one_future", 'E', Attn, Any, None, Nothing, "attn.window=one_future", "prefill sees the next token; decode does not"),
    f("window_unlimited", 'E', Attn, Any, None, PastWindow, "attn.window=unlimited", "grows with position"),
    f("lse_base_mismatch", 'E', Attn, Any, None, Nothing, "attn.lse_base_mismatch=on,attn.splits=8", "splits with large LSE win too much; LSE off by a factor"),
    f("sink_dropped", 'E', Attn, Any, None, Nothing, "attn.sink=dropped", "output norms too large; plain in the LSE"),
    f("sink_twice", 'E', Attn, Any, None, Nothing, "attn.sink=twice", "output norms too small; plain in the LSE"),
    f("sink_per_split", 'E', Attn, Any, None, Nothing, "attn.sink=per_split,attn.splits=8", "as sink_twice, once for every split"),
    f("sink_per_pass", 'E', Attn, Compressed, None, Nothing, "attn.sink=per_split,attn.passes=two", "window and compressed pass both count the sink"),
    f("sink_scaled", 'E', Attn, Any, None, Nothing, "attn.sink=scaled", "sink logit multiplied by the softmax scale"),
    f("sink_rank_slice", 'E', Attn, Any, None, Nothing, "attn.sink=rank_slice", "the second half of the heads has the first half's sinks"),
    f("softmax_mscale", 'E', Attn, Any, None, Nothing, "attn.scale=mscale", "attention too sharp everywhere"),
    f("lanes_beyond_length", 'E', Attn, Any, None, Nothing, "attn.lanes=garbage,attn.tile=64", "depends on the length modulo the tile; LSE too large"),
    f("masked_split_valid", 'E', Attn, Any, None, Nothing, "attn.empty=zero,attn.splits=8,attn.split_rule=page", "splits without keys weigh as if their LSE were 0"),
    f("empty_marker_plus_inf", 'E', Attn, Any, None, Nothing, "attn.empty=pos_inf,attn.splits=8,attn.split_rule=page", "NaN wherever a split saw no key"),
    f("minus_one_reads_entry_0", 'E', Attn, Csa, None, Nothing, "attn.invalid=entry_zero", "entry 0 counts once for every empty slot, below the horizon"),
    f("p_fp4", 'E', Attn, Any, None, Nothing, "attn.p_dtype=mxfp4", "small probabilities vanish"),
    f("partial_fp8", 'E', Attn, Any, None, Nothing, "attn.partial_dtype=fp8_row,attn.splits=8", "merge of coarsely stored partials"),
    f("logits_fp8", 'E', Attn, Any, None, Nothing, "attn.logits_dtype=fp8_row", "coarse attention logits"),
    f("theta_swap", 'F', Linear, Any, None, Nothing, "linear.rope=swapped", "grows with position"),
    f("theta_swap_ratio0", 'F', Linear, Window, None, Nothing, "linear.rope=swapped", "grows with position, window layers only"),
    f("yarn_on_ratio0", 'F', Linear, Window, None, PastWindow, "linear.rope=yarn", "slow dims turn too slowly; grows with position"),
    f("rope_pairing_swap", 'F', Linear, Any, None, Nothing, "linear.pairing=half_split", "every layer, from the second token on"),
    f("rope_off", 'F', Linear, Any, None, Nothing, "linear.pairing=off", "order of the window is lost"),
    f("derotate_off", 'F', Attn, Any, None, Nothing, "attn.derotate=off", "rope dims of the output turn with position"),
    f("comp_rope_pos_index", 'F', Compressor, Compressed, None, Window128, "compressor.entry_pos=index", "entries look nearer to the start than they are"),
    f("comp_rope_pos_last", 'F', Compressor, Compressed, None, Window128, "compressor.entry_pos=last", "entries shifted by a window"),
    f("comp_rope_pairing_swap", 'F', Compressor, Csa, None, Nothing, "compressor.pairing=half_split", "entries rotate unlike window keys"),
    f("comp_rope_off", 'F', Compressor, Csa, None, Nothing, "compressor.pairing=off", "entries carry no position"),
    f("overlap_off", 'G', Compressor, Csa, None, Nothing, "compressor.overlap=off", "every entry but the first pools half its tokens"),
    f("overlap_series_swapped", 'G', Compressor, Csa, None, Nothing, "compressor.overlap=swapped", "every entry pooled from the other half of the columns"),
    f("overlap_off_in_decode", 'G', Compressor, Csa, DECODE, Decode, "compressor.overlap=off", "entries right in prefill, wrong when born in decode"),
    f("ape_off", 'G', Compressor, Compressed, None, Window128, "compressor.ape=off", "pooling weights blind to the place in the window"),
    f("ape_phase", 'G', Compressor, Compressed, None, Window128, "compressor.ape_phase=1", "pooling weights of the neighbouring place"),
    f("row_zero_at_boundary", 'G', Compressor, Compressed, None, Window128, "compressor.boundary=zero", "entries at multiples of 128 tokens hold zeros"),
    f("row_nan_at_boundary", 'G', Compressor, Compressed, None, Window128, "compressor.boundary=nan", "NaN from the first multiple of 128 tokens on"),
    f("comb_transposed", 'H', Mhc, Any, None, Nothing, "mhc.comb=transposed", "every layer, short prompts too"),
    f("sinkhorn_5_iters", 'H', Mhc, Any, None, Nothing, "mhc.sinkhorn_iters=5", "small and everywhere: rows of comb do not sum to 1"),
    f("sinkhorn_1_iter", 'H', Mhc, Any, None, Nothing, "mhc.sinkhorn_iters=1", "comb is a softmax, not doubly stochastic"),
    f("post_factor_1", 'H', Mhc, Any, None, Nothing, "mhc.post=one", "sub-layer outputs enter the streams at half size"),
    f("hc_eps_large", 'H', Mhc, Any, None, Nothing, "mhc.eps=large", "pre too large by a constant"),
    f("sublayer_norm_missing", 'H', Mhc, Any, None, Nothing, "mhc.sublayer_norm=off", "sub-layer inputs of the wrong scale"),
    f("scale_0x", 'I', Router, Any, None, Nothing, "router.scale=never", "weights of a token sum to 1"),
    f("scale_2x", 'I', Router, Any, None, Nothing, "router.scale=twice", "weights of a token sum to the factor squared"),
    f("scale_hash_layers_only", 'I', Router, Routed, None, Nothing, "router.scale=never", "weights sum to the factor in hash layers only"),
    f("scale_0x_hash_layers", 'I', Router, Hash, None, Nothing, "router.scale=never", "weights sum to 1 in hash layers only"),
    f("runner_scale_0x", 'I', Experts, Any, None, Nothing, "experts.scale=never", "router right, routed sum too small by the factor"),
    f("runner_scale_2x", 'I', Experts, Any, None, Nothing, "experts.scale=twice", "router right, routed sum too large by the factor"),
    f("scale_large_prefill_only", 'I', Experts, Any, None, Large, "experts.scale=twice,experts.scale_above=64", "short prompts and decode right, long prefill off by the factor"),
    f("scale_prefill_only", 'I', Experts, Any, DECODE, Decode, "experts.scale=never", "decode lacks the factor that prefill has"),
    f("weights_not_normalised", 'I', Router, Any, None, Nothing, "router.renorm=off", "weight sums differ from token to token"),
    f("router_bias_off", 'I', Router, Routed, None, Nothing, "router.bias=off", "experts chosen by raw score"),
    f("router_bias_in_weights", 'I', Router, Routed, None, Nothing, "router.bias_in_weights=on", "experts right, their weights shifted"),
    f("router_bf16", 'I', Router, Any, None, Nothing, "router.score_dtype=bf16", "expert choice flips at small margins, weights coarse"),
    on(LOUD_LOGITS, f("softplus_naive", 'I', Router, Any, None, Overflow, "router.softplus=naive", "NaN weights where a logit exceeds 88")),
    f("tid2eid_bf16", 'I', Router, Hash, None, Nothing, "router.table=coarse", "odd expert ids of the upper half merge into even ones"),
    f("tid2eid_bf16_exact", 'I', Router, Hash, None, ManyExperts, "router.table=bf16", "odd expert ids above 256 merge into even ones"),
    on(LOW_CLAMP, f("clamp_off_shared", 'J', Experts, Any, None, Clamp, "experts.clamp=off_shared", "shared expert too large where activations exceed the clamp")),
    on(LOW_CLAMP, f("clamp_off_routed", 'J', Experts, Any, None, Clamp, "experts.clamp=off_routed", "routed experts too large where activations exceed the clamp")),
    on(LOW_CLAMP, f("clamp_gate_both_sides", 'J', Experts, Any, None, Clamp, "experts.clamp=symmetric", "gates below the negative clamp are cut")),
    on(LOW_CLAMP, f("clamp_gate_off", 'J', Experts, Any, None, Clamp, "experts.clamp=gate_off", "only the up projection is clamped")),
    on(LOW_CLAMP, f("clamp_up_off", 'J', Experts, Any, None, Clamp, "experts.clamp=up_off", "only the gate is clamped")),
    f("quant_then_ceil", 'K', KvCache, Any, None, Nothing, "kv_cache.quant=then_ceil,kv_cache.window=fp8_64,kv_cache.compressed=fp8_64", "blocks of 64 too large by a factor between 1 and 2"),
    f("ue8m0_byte_as_value", 'K', KvCache, Any, None, Nothing, "kv_cache.quant=byte_as_value,kv_cache.window=fp8_64,kv_cache.compressed=fp8_64", "blocks of 64 gigantic: 119 in place of 2^-8"),
    f("fnuz_bits", 'K', KvCache, Any, None, Nothing, "kv_cache.quant=fnuz_bits,kv_cache.window=fp8_64,kv_cache.compressed=fp8_64", "half of every value, NaN for -0"),
    f("linear_quant_then_ceil", 'K', Linear, Any, None, Nothing, "linear.quant=then_ceil,linear.in_dtype=fp8_128", "projections too large by a factor between 1 and 2"),
    f("linear_ue8m0_byte_as_value", 'K', Linear, Any, None, Nothing, "linear.quant=byte_as_value,linear.in_dtype=fp8_128", "output projection gigantic; norms hide it before attention"),
    f("experts_quant_then_ceil", 'K', Experts, Any, None, Nothing, "experts.quant=then_ceil,experts.in_dtype=fp8_128", "experts too large by a factor of 1 to 4"),
    f("experts_ue8m0_byte_as_value", 'K', Experts, Any, None, Nothing, "experts.quant=byte_as_value,experts.in_dtype=fp8_128", "experts gigantic"),
    f("nvfp4_alpha_gate_up_swap", 'K', Experts, Any, None, Nothing, "experts.alpha=swapped", "gate and up off by inverse constants near 1"),
    f("input_scale_twice", 'K', Experts, Any, None, Nothing, "experts.alpha=input_scale_twice,experts.w_dtype=nvfp4,experts.in_dtype=nvfp4", "experts vanish"),
    f("rows_ge_m_zero", 'K', Experts, Any, None, Large, "experts.max_rows=8", "tokens late in an expert's list get nothing from it"),
    f("embed_scaled", 'N', Embed, Any, None, Nothing, "embed.scaled=on", "streams too large from the start"),
    f("logit_softcap", 'N', Head, Any, None, Nothing, "head.softcap=10", "the largest logits are flattened; argmax survives"),
];

/// Harmless points: a run with one of them must stay quiet.
#[rustfmt::skip]
pub const CONTROLS: &[Fault] = &[
    f("mhc_w_bf16", 'H', Mhc, Any, None, Nothing, "mhc.w_dtype=bf16", "mixing weights stored in bf16"),
    f("mhc_split_k", 'H', Mhc, Any, None, Nothing, "mhc.split_k=16", "order of sums only"),
    f("split_sum_order", 'H', Mhc, Any, None, Nothing, "mhc.split_k=16,mhc.split_order=7", "order of sums only, drawn from a seed"),
    f("splits_only", 'E', Attn, Any, None, Nothing, "attn.splits=8", "order of sums only"),
    f("splits_by_page", 'E', Attn, Any, None, Nothing, "attn.splits=4,attn.split_rule=page", "order of sums only, empty splits among them"),
    f("tiles_only", 'E', Attn, Any, None, Nothing, "attn.tile=64", "order of sums only"),
    f("two_passes", 'E', Attn, Any, None, Nothing, "attn.passes=two", "order of sums only"),
    f("lse_base_2", 'E', Attn, Any, None, Nothing, "attn.lse_base=two,attn.exp_base=two,attn.splits=8", "another base, the same everywhere"),
    f("partials_bf16", 'E', Attn, Any, None, Nothing, "attn.partial_dtype=bf16,attn.splits=8,attn.out_dtype=bf16", "partial outputs stored in bf16"),
    f("p_fp8", 'E', Attn, Any, None, Nothing, "attn.p_dtype=fp8_row,attn.v_dtype=fp8_row,attn.out_dtype=bf16", "probabilities in fp8 beside values in fp8"),
    on(FP8_CACHE, f("kv_pages", 'C', KvCache, Any, None, Nothing, "kv_cache.layout=paged", "fp8 entries through real bytes and pages")),
    f("fold_scale", 'A', Indexer, Csa, None, Horizon, "indexer.fold_scale=on,indexer.q_dtype=fp8_row", "query scale folded into the head weight"),
    f("state_bf16", 'G', Compressor, Compressed, None, Nothing, "compressor.state_dtype=bf16", "pending compressor state in bf16"),
    f("clamp_after_silu", 'J', Experts, Any, None, Nothing, "experts.clamp=after_silu,experts.in_dtype=bf16,experts.w_dtype=bf16,experts.out_dtype=bf16", "the clamp moved behind the activation: silu(10) = 9.9995 becomes 10"),
    on(COARSE_SCORES, f("tie_arrival_order", 'B', Topk, Csa, None, Ties, "topk.tie=arrival,topk.seed=7", "equal scores in the order of arrival: near ties flip, and another seed flips others; seen by repeating a run")),
    f("weight_after_w2", 'I', Experts, Any, None, Nothing, "experts.weight_site=after_w2", "routing weight after w2 instead of before it"),
    f("yarn_on_ratio0_short", 'F', Linear, Window, None, Short, "linear.rope=yarn,linear.in_dtype=bf16,linear.w_dtype=bf16,linear.out_dtype=bf16,attn.qk_dtype=bf16,attn.out_dtype=bf16", "YaRN where there is none: slow dims only, below bf16 at short positions"),
];
