//! The knobs themselves, site by site. A line: name, type, golden value, class, what it does, where kernels differ.

use super::{Class, KnobDef, Site};
use crate::kernels::values::*;

knobs! {
    /// Token embedding.
    EmbedKnobs embed Embed {
        dtype: Fmt = Fmt::F32, Format, "dtype of the embedded rows and so of the first residual streams", "bf16 in every engine";
        scaled: bool = false, Semantic, "rows are multiplied by the root of the hidden size", "embedding code of another model family";
    }
    /// Manifold-constrained hyper-connections: mixing weights, Sinkhorn, residual streams.
    MhcKnobs mhc Mhc {
        x_dtype: Fmt = Fmt::F32, Format, "dtype of the streams as input of the mixing GEMM", "tf32 or split bf16 in SGLang and vLLM, f32 in the official script";
        w_dtype: Fmt = Fmt::F32, Format, "dtype of the mixing weights hc_*_fn", "as x_dtype";
        mix_dtype: Fmt = Fmt::F32, Format, "dtype that pre, post and comb are rounded to", "bf16 post and comb in transformers, f32 elsewhere";
        stream_dtype: Fmt = Fmt::F32, Format, "dtype of the residual streams and of the collapsed, normed sub-layer input", "bf16 in every engine";
        split_k: u32 = 1, Internal, "partial sums of the mixing GEMM along K, added in order", "split-K mixing kernels: 24 outputs leave most of a GPU idle otherwise";
        split_order: u32 = 0, Internal, "seed of the order in which the partial sums of split_k arrive; 0 = in order", "atomic adds of split-K kernels";
        norm_site: NormSite = NormSite::After, Internal, "where the RMS factor multiplies", "before the product in transformers, after it in the official script";
        sinkhorn_iters: u32 = 0, Semantic, "Sinkhorn iterations; 0 = as configured", "ports that shorten the loop";
        eps: HcEps = HcEps::Config, Semantic, "epsilon of pre and of the Sinkhorn divisions", "ports that read another epsilon";
        post: PostFactor = PostFactor::Two, Semantic, "factor on the sigmoid of post", "ports that treat post as pre";
        comb: Comb = Comb::Exact, Semantic, "index of the mixing matrix that is contracted", "ports that transpose the matrix in a matmul";
        sublayer_norm: bool = true, Semantic, "RMSNorm between the collapse and the sub-layer", "fused collapse kernels that leave the norm to nobody";
    }
    /// Attention over window and compressed entries.
    AttnKnobs attn Attn {
        qk_dtype: Fmt = Fmt::F32, Format, "dtype of queries, keys and values as read by the products", "bf16 tensor cores";
        q_dtype: Fmt = Fmt::F32, Format, "dtype of queries, on top of qk_dtype", "fp8 attention kernels that quantise the query";
        k_dtype: Fmt = Fmt::F32, Format, "dtype of keys, on top of qk_dtype", "fp8 attention kernels that read the cache's bytes";
        v_dtype: Fmt = Fmt::F32, Format, "dtype of values, on top of qk_dtype", "as k_dtype";
        out_dtype: Fmt = Fmt::F32, Format, "dtype of the output, before and after the inverse rotation", "bf16 in every engine";
        logits_dtype: Fmt = Fmt::F32, Internal, "dtype that QK products are rounded to", "bf16 in eager attention";
        p_dtype: Fmt = Fmt::F32, Internal, "dtype of the un-normalised probabilities in the PV product", "bf16 in FlashMLA, Triton and the official script; e4m3 in fp8 kernels";
        partial_dtype: Fmt = Fmt::F32, Internal, "dtype of the partial outputs of the splits", "f32 in FlashMLA and FlashInfer, bf16 in some Triton kernels";
        splits: u32 = 1, Internal, "number of splits of the key list, merged by their LSE", "split-KV decode";
        split_rule: SplitRule = SplitRule::Even, Internal, "how the key list is cut into splits", "even in Triton, by chunk in FlashInfer, by page in FlashMLA";
        chunk: u32 = 64, Internal, "slots of a split; read with split_rule=chunk", "FlashInfer's planner";
        tile: u32 = 0, Internal, "keys per online-softmax tile; 0 = all at once", "16 to 128 in every flash kernel, 64 in the official script";
        exp_base: Base = Base::E, Internal, "base of the exponentials", "two in every flash kernel";
        lse_base: Base = Base::E, Internal, "base in which LSEs are stored and merged", "two in FlashInfer, e in FlashMLA";
        sink_in_max: bool = true, Internal, "the sink takes part in the maximum", "off in the official script, on in transformers";
        passes: Passes = Passes::One, Internal, "how window and compressed entries are read", "two caches, two kernels, one merge in SGLang and vLLM";
        lse_base_mismatch: bool = false, Semantic, "partial LSEs are written to base 2 and merged as base e", "kernels of two libraries around one merge";
        empty: Empty = Empty::NegInf, Semantic, "the LSE of a split that saw no key", "FlashMLA marks such rows with +inf; merges expect -inf";
        sink: Sink = Sink::Once, Semantic, "how the sink enters the denominator", "kernels without a sink argument, sinks added in every split, rank slices";
        scale: SoftmaxScale = SoftmaxScale::Exact, Semantic, "the softmax scale", "YaRN's factor kept from an earlier model family";
        window: Window = Window::Exact, Semantic, "window positions a token sees", "off-by-one window arguments, windows ignored by a backend";
        compressed: bool = true, Semantic, "compressed entries take part", "masks that cut the compressed branch";
        invalid: Invalid = Invalid::Masked, Semantic, "what a slot with index -1 does", "gathers that clamp the index";
        lanes: Lanes = Lanes::Masked, Semantic, "lanes of the last tile beyond the length", "tiles without a length mask";
        entry_wrap: u32 = 0, Semantic, "compressed entries are addressed modulo this many; 0 = not", "32-bit offsets that wrap";
        derotate: bool = true, Semantic, "inverse rotation of the output", "ports without it";
    }
    /// What is stored between writing and reading keys and values.
    KvCacheKnobs kv_cache KvCache {
        window: Fmt = Fmt::F32, Format, "format of window entries; block formats cover the dims without rope, the rest is bf16", "fp8_64 in SGLang and vLLM (fp8_ds_mla)";
        compressed: Fmt = Fmt::F32, Format, "format of compressed entries; as above", "as window";
        rope_bf16: bool = false, Format, "dims under rope are stored as bf16 beside a block format", "the 584-byte entry";
        layout: Layout = Layout::Rows, Semantic, "how fp8_64 entries lie in memory (paged: bytes are really written and read back, which changes no bit)", "the 584-byte entry in pages of 64: 576 bytes of data each, then 8 bytes of scales each, padded to a multiple of 576";
        quant: Quant = Quant::Exact, Semantic, "how fp8_64 blocks and their scales are made and read", "ports that round the scale last, copy its byte, or read e4m3fnuz";
        ring_shift: u32 = 0, Semantic, "window entries are read this many slots away from where they were written", "ring slots counted from 1, or by another length";
        ring_carry: bool = true, Semantic, "a prefill chunk finds the window entries of the chunk before, not those of the ring's lap before", "prefix hits that restore the compressed part only";
    }
    /// Pooling of tokens into compressed entries (attention and indexer).
    CompressorKnobs compressor Compressor {
        in_dtype: Fmt = Fmt::F32, Format, "dtype of the input and weights of wkv and wgate", "f32 in the official script, bf16 elsewhere";
        state_dtype: Fmt = Fmt::F32, Format, "dtype of the pending values and gates", "f32 in the official script, bf16 state pools elsewhere";
        out_dtype: Fmt = Fmt::F32, Format, "dtype of the pooled value, the norm and the rotation", "bf16 in the official script and SGLang, f32 in vLLM";
        overlap: Overlap = Overlap::On, Semantic, "how the previous window takes part (ratio 4)", "decode kernels without the previous window; swapped column halves";
        ape: bool = true, Semantic, "position bias is added to the gates", "ports without it";
        ape_phase: u32 = 0, Semantic, "the position bias is read this many rows late", "phase counted from the chunk instead of the sequence";
        pairing: Pairing = Pairing::Interleaved, Semantic, "rotary pairing of the entries", "neox rotation";
        entry_pos: EntryPosition = EntryPosition::First, Semantic, "position an entry is rotated at", "entry numbers or last positions in place of first ones";
        boundary: Boundary = Boundary::Exact, Semantic, "an entry that closes at a multiple of 128 tokens", "page-boundary rows never written, or normalised by an empty sum";
        carry: bool = true, Semantic, "pending tokens and previous window survive from one chunk to the next", "state pools lost at chunk borders, prefix hits and restores";
    }
    /// Lightning indexer: query, key, score.
    IndexerKnobs indexer Indexer {
        in_dtype: Fmt = Fmt::F32, Format, "dtype of the projected queries, keys and head weights before encoding", "bf16";
        q_dtype: Fmt = Fmt::F32, Format, "format of encoded queries", "mxfp4 in the official script, fp8 a row in vLLM, fp8 or fp4 (ties down) in SGLang";
        k_dtype: Fmt = Fmt::F32, Format, "format of encoded keys", "the 132-byte fp8 key or the 68-byte fp4 key";
        score_dtype: Fmt = Fmt::F32, Format, "dtype scores are stored in", "bf16 in the official script, f32 in SGLang and vLLM";
        hadamard: Hadamard = Hadamard::None, Semantic, "rotation before encoding", "both sides in the official script and SGLang, neither in vLLM and transformers";
        dot_dtype: Fmt = Fmt::F32, Internal, "dtype each head's dot product is rounded to", "bf16 in the official script";
        fold_scale: bool = false, Internal, "the query's scale is folded into the head weight", "vLLM's fp8 query";
        relu: bool = true, Semantic, "negative products are dropped", "ports without it";
        pairing: Pairing = Pairing::Interleaved, Semantic, "rotary pairing of index queries and keys", "neox rotation";
        key_pairing: Pairing = Pairing::Interleaved, Semantic, "rotary pairing of index keys alone", "writers and readers of two kernel families";
        key_layout: KeyLayout = KeyLayout::Rows, Semantic, "how the values of a key lie", "writers and readers of two kernel families";
        visible: Visible = Visible::Exact, Semantic, "entries that are scored", "limits t/r, raw lengths, ks/ke off by one";
        early_exit: EarlyExit = EarlyExit::None, Semantic, "the last block of keys in the scoring loop", "loop bounds rounded down";
        sentinel: Sentinel = Sentinel::NegInf, Semantic, "the stored score of an entry that is not visible", "score buffers of zeros";
        carry: bool = true, Semantic, "keys of earlier chunks are found again", "index pools left out of prefix caches and restores";
    }
    /// Selection of the best scored entries.
    TopkKnobs topk Topk {
        width: u32 = 0, Semantic, "entries kept; 0 = index_topk of the checkpoint", "kernels compiled for 512, 1024 or 2048";
        halved: bool = false, Semantic, "half of the width is kept", "buffers sized for another width";
        coarse_bits: u32 = 32, Internal, "leading bits of the score as f16 that the first pass compares", "radix top-k kernels with an 8-bit first pass";
        coarse_cap: u32 = 0, Semantic, "survivors the coarse pass can hold; 0 = unlimited", "shared-memory candidate lists";
        tie: Tie = Tie::Low, Internal, "order of equal scores", "unspecified in every engine";
        seed: u32 = 0, Internal, "seed of the order of arrival (tie=arrival, and which survivors a cap keeps); 0 = by index", "atomic slot counters";
        short_path: ShortPath = ShortPath::Exact, Semantic, "when everything is taken without ranking", "batches that take one path for all";
        reuse: Reuse = Reuse::None, Semantic, "whose selection a token uses", "selections shared over layers or draft tokens";
        output: Output = Output::Exact, Semantic, "how the chosen ids are written", "compaction with holes, buffers not initialised, NaN scores";
    }
    /// Router: logits, selection, weights.
    RouterKnobs router Router {
        in_dtype: Fmt = Fmt::F32, Format, "dtype of the input and weights of the gate", "bf16 operands in SGLang and vLLM";
        logits_dtype: Fmt = Fmt::F32, Format, "dtype of the logits", "bf16 in transformers, f32 elsewhere";
        logit_gain: u32 = 1, Semantic, "the logits are multiplied by this: planted on both sides it brings overflow into reach", "tests only";
        score_dtype: Fmt = Fmt::F32, Internal, "dtype of the scores that experts are chosen and weighted by", "routers in bf16 throughout";
        softplus: Softplus = Softplus::Stable, Semantic, "how softplus is evaluated", "log(1+exp(x)) without a threshold";
        table: TableDtype = TableDtype::Int, Semantic, "dtype the hash table went through", "checkpoints cast to bf16 as a whole";
        bias: bool = true, Semantic, "selection uses the correction bias", "routers without it";
        bias_in_weights: bool = false, Semantic, "the correction bias enters the weights", "routers that reuse the biased score";
        renorm: bool = true, Semantic, "the chosen weights are normalised to sum 1", "norm_topk_prob ignored";
        scale: Scale = Scale::Once, Semantic, "how often the routed scaling factor is applied", "router, runner and epilogue of SGLang, router of vLLM";
    }
    /// Routed and shared experts.
    ExpertsKnobs experts Experts {
        in_dtype: Fmt = Fmt::F32, Format, "dtype of the inputs of w1, w3 and w2", "fp8 a block, nvfp4 (W4A4), bf16 (W4A16)";
        w_dtype: Fmt = Fmt::F32, Format, "dtype of the weights", "mxfp4 in the release, nvfp4 from ModelOpt";
        out_dtype: Fmt = Fmt::F32, Format, "dtype of every product and of the sums", "bf16";
        weight_site: WeightSite = WeightSite::BeforeW2, Internal, "where the routing weight and the factor multiply", "before w2 in the official script, after it in transformers, SGLang and vLLM";
        clamp: Clamp = Clamp::Exact, Semantic, "which SwiGLU inputs are clamped", "no clamp in the shared expert in the first official script";
        limit_percent: u32 = 100, Semantic, "the clamp in percent of swiglu_limit: planted on both sides it brings the clamp into reach", "tests only";
        quant: Quant = Quant::Exact, Semantic, "how the blocks of fp8 inputs and their scales are made and read", "as kv_cache.quant";
        alpha: Alpha = Alpha::Exact, Semantic, "per-tensor scales of the nvfp4 gate and up products", "epilogues that swap alphas or apply input_scale twice";
        max_rows: u32 = 0, Semantic, "rows of an expert's product that are computed, the rest are zeros; 0 = all", "masked grouped GEMMs with a row limit";
        scale: Scale = Scale::Once, Semantic, "how often the runner applies the factor", "runners with and without a fused factor";
        scale_above: u32 = 0, Semantic, "scale holds only in a prefill of more tokens than this", "runners chosen by batch size";
    }
    /// Dense projections of attention, their norms and rotations.
    LinearKnobs linear Linear {
        in_dtype: Fmt = Fmt::F32, Format, "dtype of the inputs", "fp8 a block of 128 in the release's GEMMs";
        w_dtype: Fmt = Fmt::F32, Format, "dtype of the weights", "fp8 128x128 in the release";
        out_dtype: Fmt = Fmt::F32, Format, "dtype of the outputs, norms and rotations", "bf16";
        wo_a_bf16: bool = false, Format, "wo_a reads bf16 inputs, whatever in_dtype says", "the official script; SGLang and vLLM may quantise them";
        rope_dtype: Fmt = Fmt::F32, Internal, "dtype of cos and sin of the main path", "bf16 in transformers, f32 elsewhere";
        head_norm_dtype: Fmt = Fmt::F32, Internal, "dtype of every step of the query heads' norm", "bf16 steps in the official script, f32 in SGLang and vLLM";
        quant: Quant = Quant::Exact, Semantic, "how the blocks of fp8 inputs and their scales are made and read", "as kv_cache.quant";
        rope: RopeTableChoice = RopeTableChoice::Config, Semantic, "rotary table of the main path", "one theta, or YaRN, for every layer";
        pairing: Pairing = Pairing::Interleaved, Semantic, "rotary pairing of the main path", "neox rotation";
        head_norm: bool = true, Semantic, "RMS norm of every query head", "ports without it (it has no weight to miss)";
    }
    /// Final collapse, norm and output projection.
    HeadKnobs head Head {
        in_dtype: Fmt = Fmt::F32, Format, "dtype of the collapsed, normed state and the weights", "f32 in the official script, bf16 elsewhere";
        out_dtype: Fmt = Fmt::F32, Format, "dtype of the logits", "as in_dtype";
        softcap: u32 = 0, Semantic, "logits x become c tanh(x/c); 0 = not", "head code of another model family";
    }
}
