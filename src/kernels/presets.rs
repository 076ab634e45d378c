//! Presets: named points in knob space, as data.
//!
//! A preset says which knobs a real kernel (or the official script, or a whole engine setup)
//! turns, and where that is known from. `all` in a kernel spec is every [`PresetKind::Performance`]
//! preset: they touch different sites, so they can be on together.

use super::knobs::{Knobs, Phase, Site};
use crate::error::{Error, Result};
use std::fmt;

/// Which exact path a run starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Golden {
    /// Everything f32, nothing quantised.
    #[default]
    Ideal,
    /// The official script's explicit fake-quantisation points, f32 elsewhere.
    Qat,
}

/// Settings of golden `qat`.
const QAT: &str = "kv_cache.window=fp8_64,kv_cache.compressed=fp8_64,\
                   indexer.hadamard=both,indexer.q_dtype=mxfp4,indexer.k_dtype=mxfp4";

impl Golden {
    /// Both.
    pub const ALL: [Golden; 2] = [Golden::Ideal, Golden::Qat];
    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Golden::Ideal => "ideal",
            Golden::Qat => "qat",
        }
    }
    /// One line for a list.
    pub fn doc(self) -> &'static str {
        match self {
            Golden::Ideal => "everything f32, nothing quantised",
            Golden::Qat => "the official script's fake-quantisation points, f32 elsewhere",
        }
    }
    /// The golden of that name.
    pub fn parse(s: &str) -> Result<Golden> {
        Golden::ALL
            .into_iter()
            .find(|g| g.name() == s)
            .ok_or_else(|| Error::usage(format!("there is no golden '{s}'")).hint("it is `ideal` or `qat`"))
    }
    /// Its settings on top of the defaults.
    pub fn settings(self) -> Vec<(String, String)> {
        match self {
            Golden::Ideal => Vec::new(),
            Golden::Qat => settings(QAT),
        }
    }
    /// The point itself.
    pub fn knobs(self) -> Knobs {
        let mut k = Knobs::default();
        for (path, value) in self.settings() {
            k.set(&path, &value).expect("checked by a test");
        }
        k
    }
}

impl fmt::Display for Golden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What sort of point a preset is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresetKind {
    /// A fast kernel of one site; `all` turns every one of these on.
    Performance,
    /// A storage or product format of one site.
    Format,
    /// Many sites at once: a script or a whole engine.
    Whole,
}

impl PresetKind {
    /// The word in lists.
    pub fn name(self) -> &'static str {
        match self {
            PresetKind::Performance => "performance",
            PresetKind::Format => "format",
            PresetKind::Whole => "whole",
        }
    }
}

/// A named point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preset {
    /// Name in a kernel spec.
    pub name: &'static str,
    /// What sort of point it is.
    pub kind: PresetKind,
    /// Phase it belongs to; `None` = both.
    pub phase: Option<Phase>,
    /// `site.knob=value`, comma separated.
    pub settings: &'static str,
    /// What it is, in one line.
    pub doc: &'static str,
    /// Where such a kernel is found.
    pub source: &'static str,
    /// What it is known to get wrong by more than its declared formats explain.
    pub known: &'static [Known],
}

/// Where a path is known to be worse than its declared formats explain. It is no less suspect for
/// that: a check prints it with its reason, and fails only on what is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Output of `kernels check`.
    pub op: &'static str,
    /// Its cases.
    pub cases: &'static [&'static str],
    /// The reason.
    pub why: &'static str,
    /// Where that is known from.
    pub source: &'static str,
}

impl Preset {
    /// The settings, one by one.
    pub fn settings(&self) -> Vec<(String, String)> {
        settings(self.settings)
    }
    /// The sites it touches, in order.
    pub fn sites(&self) -> Vec<Site> {
        sites(&self.settings())
    }
    /// The preset of that name.
    pub fn find(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|p| p.name == name)
    }
}

/// Splits `site.knob=value,…`.
pub(super) fn settings(list: &str) -> Vec<(String, String)> {
    list.split(',').filter_map(|s| s.trim().split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
}

/// The sites that settings touch, in site order.
pub(super) fn sites(settings: &[(String, String)]) -> Vec<Site> {
    let of = |s: Site| settings.iter().any(|(path, _)| path.split('.').next() == Some(s.name()));
    Site::ALL.into_iter().filter(|s| of(*s)).collect()
}

/// What eager bf16 attention loses.
const BF16_KNOWN: &[Known] = &[
    Known {
        op: "attn.lse",
        cases: &["random", "offset", "outliers", "masked", "empty_splits", "short"],
        why: "logits are rounded to bf16 before the softmax, which no input or output format asks for",
        source: "eager_attention_forward of transformers: torch.matmul in bf16, softmax of its result",
    },
    Known {
        op: "attn.out",
        cases: &["offset"],
        why: "logits around 128 that are rounded to bf16 are off by up to a half, so weights by up to e^0.5",
        source: "as this preset",
    },
    Known {
        op: "indexer.topk",
        cases: &["offset"],
        why: "products of every head are rounded to bf16, which an offset of 128 leaves steps of a half or one: \
              entries close to the cut change places",
        source: "as this preset",
    },
];

/// What the official script's softmax loses.
const SCRIPT_KNOWN: &[Known] = &[Known {
    op: "attn.lse",
    cases: &["offset"],
    why: "the sink is left out of the maximum: where all logits lie 88 below it, exp overflows",
    source: "DeepSeek's published kernel.py: exp(attn_sink - scores_max) after the loop over tiles",
}];

/// Every preset.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "splitk-mma",
        kind: PresetKind::Performance,
        phase: None,
        settings: "attn.qk_dtype=bf16,attn.p_dtype=bf16,attn.splits=8,attn.tile=64,attn.out_dtype=bf16",
        doc: "attention on tensor cores: bf16 Q, K, V and P, f32 partials of 8 splits merged by LSE",
        source: "split-K sparse decode kernels of FlashMLA, FlashInfer and SGLang; in prefill every position is \
                 computed as that kernel would (`@decode` limits it to decode steps)",
        known: &[],
    },
    Preset {
        name: "triton-indexer",
        kind: PresetKind::Performance,
        phase: None,
        settings: "indexer.q_dtype=bf16,indexer.k_dtype=bf16",
        doc: "index scores from bf16 queries and keys, products and sums in f32",
        source: "Triton fallbacks for GPUs without DeepGEMM's fp8 index-score kernel",
        known: &[],
    },
    Preset {
        name: "mhc-bf16",
        kind: PresetKind::Performance,
        phase: None,
        settings: "mhc.x_dtype=bf16,mhc.w_dtype=bf16",
        doc: "mixing GEMM of the hyper-connections in bf16 with f32 accumulation",
        source: "engines that run hc_*_fn on tensor cores; the official script uses f32",
        known: &[],
    },
    Preset {
        name: "routed-scaling",
        kind: PresetKind::Performance,
        phase: None,
        settings: "experts.in_dtype=bf16,experts.w_dtype=bf16,experts.out_dtype=bf16,\
                   experts.weight_site=factor_on_sum",
        doc: "bf16 experts; routed_scaling_factor multiplies the routed sum, once, outside the router",
        source: "SGLang MoE runners that scale when adding the shared output",
        known: &[],
    },
    Preset {
        name: "kv-fp8",
        kind: PresetKind::Format,
        phase: None,
        settings: "kv_cache.window=fp8_64,kv_cache.compressed=fp8_64,kv_cache.rope_bf16=on",
        doc: "cache entries as e4m3 per 64 values with power-of-two scales, rope dims in bf16",
        source: "the 584-byte entry of SGLang and vLLM (fp8_ds_mla)",
        known: &[],
    },
    Preset {
        name: "fp8-indexer",
        kind: PresetKind::Format,
        phase: None,
        settings: "indexer.in_dtype=bf16,indexer.hadamard=both,indexer.q_dtype=fp8_row,indexer.k_dtype=fp8_row",
        doc: "rotated index queries and keys as e4m3 with one f32 scale a vector",
        source: "the 132-byte index key of SGLang and vLLM",
        known: &[],
    },
    Preset {
        name: "fp8-linear",
        kind: PresetKind::Format,
        phase: None,
        settings: "linear.in_dtype=fp8_128,linear.w_dtype=fp8_128,linear.out_dtype=bf16",
        doc: "attention projections with e4m3 operands, a power-of-two scale per 128 along K",
        source: "DeepGEMM and the official fp8 GEMM; here wo_a too, which the script keeps in bf16",
        known: &[],
    },
    Preset {
        name: "mxfp4-experts",
        kind: PresetKind::Format,
        phase: None,
        settings: "experts.in_dtype=fp8_128,experts.w_dtype=mxfp4,experts.out_dtype=bf16",
        doc: "experts with e2m1 weights per 32 (MXFP4) and fp8 activations",
        source: "the official release and its fp4 GEMM",
        known: &[],
    },
    Preset {
        name: "nvfp4-experts",
        kind: PresetKind::Format,
        phase: None,
        settings: "experts.in_dtype=nvfp4,experts.w_dtype=nvfp4,experts.out_dtype=bf16",
        doc: "experts with e2m1 weights and activations per 16 (NVFP4, W4A4)",
        source: "NVIDIA ModelOpt checkpoints on Blackwell runners of SGLang, vLLM and TensorRT-LLM",
        known: &[],
    },
    Preset {
        name: "nvfp4-w4a16",
        kind: PresetKind::Format,
        phase: None,
        settings: "experts.in_dtype=bf16,experts.w_dtype=nvfp4,experts.out_dtype=bf16,\
                   experts.weight_site=after_w2",
        doc: "experts with NVFP4 weights and bf16 activations; input_scale is ignored",
        source: "Marlin runners of SGLang and vLLM on Hopper and older",
        known: &[],
    },
    Preset {
        name: "sglang-dsv4-triton",
        kind: PresetKind::Whole,
        phase: None,
        settings: "embed.dtype=bf16,mhc.x_dtype=tf32,mhc.w_dtype=tf32,mhc.split_k=16,mhc.stream_dtype=bf16,\
                   attn.qk_dtype=bf16,attn.p_dtype=bf16,attn.splits=8,attn.tile=64,attn.exp_base=two,\
                   attn.passes=two,attn.out_dtype=bf16,kv_cache.window=fp8_64,kv_cache.compressed=fp8_64,\
                   kv_cache.rope_bf16=on,kv_cache.layout=paged,compressor.in_dtype=bf16,\
                   compressor.out_dtype=bf16,indexer.in_dtype=bf16,indexer.hadamard=both,\
                   indexer.q_dtype=fp8_row,indexer.k_dtype=fp8_row,indexer.fold_scale=on,router.in_dtype=bf16,\
                   experts.in_dtype=fp8_128,experts.w_dtype=mxfp4,experts.out_dtype=bf16,\
                   experts.weight_site=factor_on_sum,linear.in_dtype=fp8_128,linear.out_dtype=bf16,\
                   head.in_dtype=bf16,head.out_dtype=bf16",
        doc: "SGLang's DeepSeek-V4 backend with its Triton kernels: fp8 cache in pages, fp8 index keys",
        source: "SGLang's dsv4 attention backend and its portable kernels; split count and tile are typical, \
                 autotuning picks others",
        known: &[],
    },
    Preset {
        name: "sglang-sm120-triton",
        kind: PresetKind::Whole,
        phase: None,
        settings: "embed.dtype=bf16,mhc.stream_dtype=bf16,attn.qk_dtype=bf16,attn.p_dtype=bf16,attn.splits=4,\
                   attn.tile=32,attn.exp_base=two,attn.lse_base=two,attn.passes=two,attn.out_dtype=bf16,\
                   kv_cache.window=fp8_64,kv_cache.compressed=fp8_64,kv_cache.rope_bf16=on,\
                   kv_cache.layout=paged,compressor.in_dtype=bf16,compressor.out_dtype=bf16,\
                   indexer.in_dtype=bf16,indexer.hadamard=both,indexer.q_dtype=fp8_row,\
                   indexer.k_dtype=fp8_row,indexer.fold_scale=on,router.in_dtype=bf16,experts.in_dtype=bf16,\
                   experts.w_dtype=mxfp4,experts.out_dtype=bf16,experts.weight_site=after_w2,\
                   linear.in_dtype=fp8_128,linear.out_dtype=bf16,head.in_dtype=bf16,head.out_dtype=bf16",
        doc: "SGLang on desktop Blackwell: Triton attention, Triton fp8 index scores, experts from mxfp4 in bf16",
        source: "sgl-project/sglang pull request 24692 (no DeepGEMM, FlashMLA or TileLang mHC on SM120, so mHC stays \
                 f32); split count and tile are typical",
        known: &[],
    },
    Preset {
        name: "flashinfer-sm120",
        kind: PresetKind::Whole,
        phase: None,
        settings: "attn.qk_dtype=bf16,attn.q_dtype=fp8_64,attn.p_dtype=fp8_row,attn.split_rule=chunk,\
                   attn.chunk=128,attn.exp_base=two,attn.lse_base=two,attn.passes=two,attn.out_dtype=bf16,\
                   kv_cache.window=fp8_64,kv_cache.compressed=fp8_64,kv_cache.rope_bf16=on,\
                   kv_cache.layout=paged",
        doc: "FlashInfer's sparse attention on desktop Blackwell: block-scaled fp8 products on the 584-byte cache",
        source: "flashinfer-ai/flashinfer pull request 3395, sgl-project/sglang pull request 27455 (split-K decode, \
                 block-scaled fp8 MMA, sinks, a second cache); chunk, block length of Q and P's scale are assumptions",
        known: &[],
    },
    Preset {
        name: "reference-script",
        kind: PresetKind::Whole,
        phase: None,
        settings: "embed.dtype=bf16,mhc.stream_dtype=bf16,attn.qk_dtype=bf16,attn.p_dtype=bf16,attn.tile=64,\
                   attn.sink_in_max=off,attn.out_dtype=bf16,kv_cache.window=fp8_64,kv_cache.compressed=fp8_64,kv_cache.rope_bf16=on,\
                   compressor.in_dtype=bf16,compressor.out_dtype=bf16,indexer.in_dtype=bf16,\
                   indexer.hadamard=both,indexer.q_dtype=mxfp4,indexer.k_dtype=mxfp4,indexer.dot_dtype=bf16,\
                   indexer.score_dtype=bf16,router.in_dtype=bf16,experts.in_dtype=fp8_128,\
                   experts.out_dtype=bf16,linear.in_dtype=fp8_128,linear.out_dtype=bf16,linear.wo_a_bf16=on,\
                   linear.head_norm_dtype=bf16,head.in_dtype=bf16",
        doc: "every rounding point of the official inference script; weights as the checkpoint stores them",
        source: "DeepSeek's published inference code, current revision",
        known: SCRIPT_KNOWN,
    },
    Preset {
        name: "bf16",
        kind: PresetKind::Whole,
        phase: None,
        settings: "embed.dtype=bf16,mhc.mix_dtype=bf16,mhc.stream_dtype=bf16,attn.qk_dtype=bf16,\
                   attn.logits_dtype=bf16,attn.p_dtype=bf16,attn.out_dtype=bf16,kv_cache.window=bf16,\
                   kv_cache.compressed=bf16,compressor.in_dtype=bf16,compressor.state_dtype=bf16,\
                   compressor.out_dtype=bf16,indexer.in_dtype=bf16,indexer.q_dtype=bf16,indexer.k_dtype=bf16,\
                   indexer.dot_dtype=bf16,indexer.score_dtype=bf16,router.in_dtype=bf16,\
                   router.logits_dtype=bf16,experts.in_dtype=bf16,experts.w_dtype=bf16,experts.out_dtype=bf16,\
                   experts.weight_site=after_w2,linear.in_dtype=bf16,linear.w_dtype=bf16,\
                   linear.out_dtype=bf16,linear.rope_dtype=bf16,mhc.norm_site=before,\
                   head.in_dtype=bf16,head.out_dtype=bf16",
        doc: "everything in bf16, as an eager bf16 run of Hugging Face transformers",
        source: "transformers 5 with torch_dtype=bfloat16 and eager attention",
        known: BF16_KNOWN,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a preset with a misspelt knob, a value it does not take, or no effect at all.
    #[test]
    fn every_preset_is_valid_and_moves_every_knob_it_names() {
        for p in PRESETS {
            let mut k = Knobs::default();
            for (path, value) in p.settings() {
                let before = k;
                k.set(&path, &value).unwrap_or_else(|e| panic!("{}: {e}", p.name));
                assert_ne!(k, before, "{}: {path}={value} is golden already", p.name);
            }
            assert_eq!(k.diff(&Knobs::default()).len(), p.settings.split(',').count(), "{}", p.name);
            assert!(!p.sites().is_empty());
        }
    }

    /// Catches golden `qat` losing one of its points.
    #[test]
    fn qat_is_the_kv_cache_and_the_indexer() {
        assert_eq!(Golden::Ideal.knobs(), Knobs::default());
        let k = Golden::Qat.knobs();
        assert_eq!(k.diff(&Knobs::default()).len(), 5);
        let moved: Vec<Site> = Site::ALL.into_iter().filter(|s| !k.is_golden_at(*s)).collect();
        assert_eq!(moved, [Site::KvCache, Site::Indexer]);
        assert!(Golden::parse("fp8").is_err());
    }

    /// Catches two presets of `all` that fight over a site.
    #[test]
    fn performance_presets_do_not_share_a_site() {
        let mut seen = Vec::new();
        for p in PRESETS.iter().filter(|p| p.kind == PresetKind::Performance) {
            for s in p.sites() {
                assert!(!seen.contains(&s), "{} and another preset both set {s}", p.name);
                seen.push(s);
            }
        }
        assert_eq!(seen.len(), 4);
    }
}
