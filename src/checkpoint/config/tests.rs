//! The released configurations, and the tensors they call for against the published totals.

use std::path::Path;

use serde_json::{Value, json};

use super::read::read;
use super::*;
use crate::checkpoint::spec::{self, Role};

fn released(ratios: Vec<usize>, sizes: Value) -> Config {
    let mut c = json!({
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 129280,
        "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "o_lora_rank": 1024, "sliding_window": 128,
        "compress_rope_theta": 160000, "rope_theta": 10000, "compress_ratios": ratios,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536,
                         "beta_fast": 32, "beta_slow": 1},
        "max_position_embeddings": 1048576, "index_n_heads": 64, "index_head_dim": 128,
        "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6,
    });
    let more = json!({
        "n_shared_experts": 1, "num_experts_per_tok": 6, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
        "norm_topk_prob": true, "swiglu_limit": 10.0, "num_hash_layers": 3, "num_nextn_predict_layers": 1,
        "expert_dtype": "fp4", "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1,
        "torch_dtype": "bfloat16", "dspark_block_size": 5, "dspark_target_layer_ids": [40, 41, 42],
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
    });
    for part in [more, sizes] {
        c.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
    }
    read(c.to_string().as_bytes(), Path::new("config.json")).unwrap()
}

fn flash() -> Config {
    let mut ratios = vec![0, 0];
    ratios.extend([4, 128].repeat(20));
    ratios.extend([4, 0, 0, 0]);
    released(
        ratios,
        json!({
            "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64, "q_lora_rank": 1024, "o_groups": 8,
            "index_topk": 512, "moe_intermediate_size": 2048, "n_routed_experts": 256, "routed_scaling_factor": 1.5,
        }),
    )
}

fn pro() -> Config {
    let mut ratios = vec![128, 128];
    ratios.extend([4, 128].repeat(29));
    ratios.extend([4, 0]);
    released(
        ratios,
        json!({
            "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "q_lora_rank": 1536,
            "o_groups": 16, "index_topk": 1024, "moe_intermediate_size": 3072, "n_routed_experts": 384,
            "routed_scaling_factor": 2.5,
        }),
    )
}

/// Files' tensors and bytes the official storage would take: FP8 linears, MXFP4 experts, the rest BF16 or F32.
fn official_totals(c: &Config) -> (usize, u64) {
    let (mut tensors, mut bytes) = (0, 0u64);
    spec::for_each(c, |name| {
        let e = spec::lookup(c, name).unwrap();
        let n: u64 = e.shape.iter().product::<usize>() as u64;
        let blocks = || e.shape.iter().map(|d| d.div_ceil(128) as u64).product::<u64>();
        let linear =
            e.role == Role::Attention && name.ends_with("weight") || name.ends_with("indexer.wq_b.weight");
        let f32s = e.role == Role::Mhc || ["attn_sink", "ape", "bias"].iter().any(|s| name.ends_with(s));
        let (t, b) = match e.role {
            _ if e.ids => (1, 8 * n),
            Role::RoutedExperts => (2, n / 2 + n / 32),
            Role::SharedExperts => (2, n + blocks()),
            _ if linear => (2, n + blocks()),
            _ if f32s => (1, 4 * n),
            _ => (1, 2 * n),
        };
        tensors += t;
        bytes += b;
    });
    (tensors, bytes)
}

#[test]
fn the_tensor_list_disagrees_with_the_published_flash() {
    // 69,187 tensors of which 1,575 are the drafter's.
    assert_eq!(official_totals(&flash()), (69_187 - 1_575, 156_015_698_140));
    assert_eq!(flash().horizon(), Some(2048));
}

#[test]
fn the_tensor_list_disagrees_with_the_published_pro() {
    // The drafter has as many tensors as Flash's, and three projections with scales for each of 128 more experts.
    let drafter = 1_575 + 128 * 6;
    assert_eq!(official_totals(&pro()).0, 145_116 - drafter);
    assert_eq!(pro().horizon(), Some(4096));
}

#[test]
fn the_released_schedule_is_misread() {
    let c = flash();
    let of = |kind| c.layers.iter().filter(|l| l.kind == kind).count();
    assert_eq!((of(LayerKind::Window), of(LayerKind::Csa), of(LayerKind::Hca)), (2, 21, 20));
    assert!(c.layers.iter().enumerate().all(|(l, s)| s.hash == (l < 3)));
    assert_eq!(c.layers[42].kind, LayerKind::Csa);
    assert!(c.unknown_keys.is_empty());
}

#[test]
fn an_unusual_ratio_of_the_transformers_dialect_is_lost() {
    let text = include_str!("../../../fixtures/pico/config.json");
    let mut v: Value = serde_json::from_str(text).unwrap();
    v.as_object_mut().unwrap().remove("compress_ratios");
    v["compress_rates"] = json!({"compressed_sparse_attention": 8, "heavily_compressed_attention": 4});
    let c = read(v.to_string().as_bytes(), Path::new("config.json")).unwrap();
    assert_eq!((c.layers[1].kind, c.layers[1].ratio), (LayerKind::Csa, 8));
    assert_eq!((c.layers[2].kind, c.layers[2].ratio), (LayerKind::Hca, 4));
    assert_eq!(c.horizon(), Some(512));
}
