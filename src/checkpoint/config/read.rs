//! `config.json` → [`Config`]. Three dialects: `release` (compress_ratios, rope_scaling …), `transformers`
//! (layer_types, rope_parameters …) and `inference` (dim, n_layers …). A file may speak several at once, as long as they agree.
//!
//! Rule: a key that changes the result is honoured or refused by name. Nothing required has a default. Keys for which the
//! architecture knows one value only may be absent, but not differ.

use std::path::Path;

use serde_json::Value;

use super::keys::{Keys, as_size, brief, contradiction, missing, missing_because, refused, same};
use super::rope::{rope_dims, ropes};
use super::schedule::schedule;
use super::{Config, LayerKind, QuantConfig};
use crate::checkpoint::strict_json;
use crate::error::{Error, Result};

/// Parses and checks; errors carry `file`.
pub(in crate::checkpoint) fn read(bytes: &[u8], file: &Path) -> Result<Config> {
    read_inner(bytes).map_err(|e| e.file(file))
}

fn read_inner(bytes: &[u8]) -> Result<Config> {
    let value: Value = strict_json::parse(bytes)?;
    let Value::Object(map) = value else {
        return Err(
            Error::input("the config is not a JSON object").hint("is this really the model's config.json?")
        );
    };
    let keys = Keys { map: &map };
    let (model_type, inference) = identity(&keys)?;
    refuse_foreign(&keys)?;
    fixed_values(&keys)?;

    let num_hidden_layers = keys.size(&["num_hidden_layers", "n_layers"], 1, 1024)?;
    let head_dim = keys.size(&["head_dim"], 1, 1 << 14)?;
    let layers = schedule(&keys, num_hidden_layers)?;
    let compressed = layers.iter().any(|l| l.kind != LayerKind::Window);
    let csa = layers.iter().any(|l| l.kind == LayerKind::Csa);
    let rope_dims = rope_dims(&keys, head_dim)?;
    let (rope_main, rope_compress) = ropes(&keys, compressed, head_dim, rope_dims)?;
    // A model without an indexer need not describe one.
    let index = |names: &[&str], max: usize| -> Result<usize> {
        if csa { keys.size(names, 1, max) } else { Ok(keys.opt_size(names, 0, max)?.unwrap_or(0)) }
    };
    let max_positions = match keys.opt_size(&["max_position_embeddings", "max_seq_len"], 1, 1 << 40)? {
        Some(n) => n,
        // The inference dialect leaves it to the command line; the table's extent is what the model claims.
        None if inference => rope_compress
            .yarn
            .map(|y| (y.original_max_position_embeddings as f64 * y.factor) as usize)
            .ok_or_else(|| missing("max_seq_len"))?,
        None => return Err(missing("max_position_embeddings")),
    };
    let rms_norm_eps = match keys.opt_float(&["rms_norm_eps", "norm_eps"], 0.0, 1.0)? {
        Some(e) => e,
        // The official script's own constant, which no inference/config.json repeats.
        None if inference => 1e-6,
        None => return Err(missing("rms_norm_eps")),
    };

    let config = Config {
        vocab_size: keys.size(&["vocab_size"], 1, 1 << 24)?,
        hidden_size: keys.size(&["hidden_size", "dim"], 1, 1 << 18)?,
        num_hidden_layers,
        num_attention_heads: keys.size(&["num_attention_heads", "n_heads"], 1, 1 << 14)?,
        head_dim,
        qk_rope_head_dim: rope_dims,
        q_lora_rank: keys.size(&["q_lora_rank"], 1, 1 << 18)?,
        o_groups: keys.size(&["o_groups"], 1, 1 << 14)?,
        o_lora_rank: keys.size(&["o_lora_rank"], 1, 1 << 18)?,
        sliding_window: keys.size(&["sliding_window", "window_size"], 1, 1 << 30)?,
        layers,
        rope_main,
        rope_compress,
        index_n_heads: index(&["index_n_heads"], 1 << 14)?,
        index_head_dim: index(&["index_head_dim"], 1 << 14)?,
        index_topk: index(&["index_topk"], 1 << 30)?,
        hc_mult: keys.size(&["hc_mult"], 1, 64)?,
        hc_sinkhorn_iters: keys.size(&["hc_sinkhorn_iters"], 1, 10_000)?,
        hc_eps: keys.float(&["hc_eps"], 0.0, 1.0)? as f32,
        rms_norm_eps: rms_norm_eps as f32,
        moe_intermediate_size: keys.size(
            &["moe_intermediate_size", "moe_inter_dim", "intermediate_size"],
            1,
            1 << 18,
        )?,
        n_routed_experts: keys.size(&["n_routed_experts", "num_local_experts"], 1, 1 << 14)?,
        n_shared_experts: keys.size(&["n_shared_experts"], 1, 1)?,
        num_experts_per_tok: keys.size(&["num_experts_per_tok", "n_activated_experts"], 1, 1 << 14)?,
        routed_scaling_factor: keys.float(
            &["routed_scaling_factor", "route_scale"],
            f64::MIN_POSITIVE,
            1e6,
        )? as f32,
        swiglu_limit: swiglu_limit(&keys)?,
        max_position_embeddings: max_positions,
        bos_token_id: keys.opt_size(&["bos_token_id"], 0, u32::MAX as usize)?.map(|v| v as u32),
        eos_token_ids: eos(&keys)?,
        num_nextn_predict_layers: keys
            .opt_size(&["num_nextn_predict_layers", "n_mtp_layers"], 0, 1024)?
            .unwrap_or(0),
        quant: quant(&keys)?,
        model_type,
        dialect: dialect(&keys),
        unknown_keys: map.keys().filter(|k| !known(k)).cloned().collect(),
    };
    config.validate()?;
    Ok(config)
}

/// `model_type` and `architectures`. Returns the type and whether this is the inference dialect.
fn identity(keys: &Keys) -> Result<(String, bool)> {
    let v41 = |what: String| {
        Error::input(format!("{what} is DeepSeek-V4.1, which is a different graph")).hint(
            "V4.1 delays mHC by one sub-layer, shares compressed KV between layers and adds Engram tables; \
             it cannot be run by a V4 engine through configuration alone",
        )
    };
    let inference = keys.map.contains_key("dim") && keys.map.contains_key("n_layers");
    let model_type = keys.map.get("model_type").filter(|v| !v.is_null());
    let architectures = keys.map.get("architectures").filter(|v| !v.is_null());
    if let Some(t) = model_type {
        match t.as_str() {
            Some("deepseek_v4") => {}
            Some(s) if s.starts_with("deepseek_v41") || s.starts_with("deepseek_v4_1") => {
                return Err(v41(format!("model_type `{s}`")));
            }
            _ => {
                return Err(Error::input(format!("unknown model_type {}", brief(t)))
                    .hint("this tool reads deepseek_v4 checkpoints only"));
            }
        }
    }
    if let Some(a) = architectures {
        let names: Vec<&str> = a.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if names.iter().any(|n| n.starts_with("DeepseekV41")) {
            return Err(v41(format!("architecture {}", brief(a))));
        }
        if !names.iter().any(|n| *n == "DeepseekV4ForCausalLM" || *n == "DeepseekV4Model") {
            return Err(Error::input(format!("unknown architecture {}", brief(a)))
                .hint("this tool reads DeepseekV4ForCausalLM checkpoints only"));
        }
    }
    if model_type.is_none() && architectures.is_none() && !inference {
        return Err(Error::input("the config names neither `model_type` nor `architectures`")
            .hint("a DeepSeek-V4 config.json says \"model_type\": \"deepseek_v4\""));
    }
    Ok(("deepseek_v4".into(), inference))
}

/// Keys that only exist because the graph is another one.
fn refuse_foreign(keys: &Keys) -> Result<()> {
    const FOREIGN: &[&str] = &[
        "text_config",
        "vision_config",
        "kv_source_layer_ids",
        "index_source_layer_ids",
        "candidate_source_layer_id",
        "candidate_topk_blocks",
        "engram_layer_ids",
        "kv_lora_rank",
    ];
    for key in FOREIGN {
        if let Some(v) = keys.map.get(*key).filter(|v| !v.is_null()) {
            return Err(Error::input(format!("`{key}`: {} does not belong to DeepSeek-V4", brief(v)))
                .hint("the key belongs to another member of the family (V3 or V4.1), whose graph differs"));
        }
    }
    Ok(())
}

/// Keys with one supported value.
fn fixed_values(keys: &Keys) -> Result<()> {
    let fixed: &[(&str, Value)] = &[
        ("num_key_value_heads", 1.into()),
        ("norm_topk_prob", true.into()),
        ("topk_method", "noaux_tc".into()),
        ("hidden_act", "silu".into()),
        ("attention_bias", false.into()),
        ("mlp_bias", false.into()),
        ("tie_word_embeddings", false.into()),
        ("n_group", 1.into()),
        ("topk_group", 1.into()),
        ("first_k_dense_replace", 0.into()),
        ("moe_layer_freq", 1.into()),
        ("n_shared_experts", 1.into()),
    ];
    for (key, only) in fixed {
        if let Some(v) = keys.map.get(*key).filter(|v| !v.is_null())
            && !same(v, only)
        {
            return Err(refused(key, v, &only.to_string()));
        }
    }
    let Some((key, v)) = keys.opt(&["scoring_func", "score_func"])? else {
        return Err(missing("scoring_func"));
    };
    if v.as_str() != Some("sqrtsoftplus") {
        return Err(refused(key, v, "\"sqrtsoftplus\""));
    }
    Ok(())
}

/// `null` switches the clamp off. 0 means "off" to the official code and "clamp to nothing" to transformers: refused.
fn swiglu_limit(keys: &Keys) -> Result<Option<f32>> {
    match keys.map.get("swiglu_limit") {
        None => Err(missing_because("swiglu_limit", "released models clamp at 10.0; write null for a model without a clamp")),
        Some(Value::Null) => Ok(None),
        Some(v) => match v.as_f64() {
            Some(x) if x > 0.0 && x <= 1e30 => Ok(Some(x as f32)),
            Some(0.0) => Err(Error::input("`swiglu_limit`: 0 is not supported")
                .hint("0 means no clamp to the official code but clamps everything to 0 in transformers; write null for no clamp")),
            _ => Err(refused("swiglu_limit", v, "a positive number, or null for no clamp,")),
        },
    }
}

fn eos(keys: &Keys) -> Result<Vec<u32>> {
    let one = |v: &Value| {
        as_size(v)
            .and_then(|n| u32::try_from(n).ok())
            .ok_or_else(|| refused("eos_token_id", v, "a token id or a list of them"))
    };
    match keys.map.get("eos_token_id") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(a)) => a.iter().map(one).collect(),
        Some(v) => Ok(vec![one(v)?]),
    }
}

fn quant(keys: &Keys) -> Result<QuantConfig> {
    let q = keys.object("quantization_config")?;
    let mut out = QuantConfig::default();
    let mut expert = keys.opt(&["expert_dtype"])?.map(|(_, v)| v);
    if let Some(q) = q {
        let only = |key: &str, allowed: &[&str]| -> Result<()> {
            match q.get(key).filter(|v| !v.is_null()) {
                Some(v) if !v.as_str().is_some_and(|s| allowed.contains(&s)) => {
                    Err(refused(&format!("quantization_config.{key}"), v, &allowed.join(" or ")))
                }
                _ => Ok(()),
            }
        };
        only("quant_method", &["fp8", "modelopt"])?;
        only("fmt", &["e4m3"])?;
        only("scale_fmt", &["ue8m0"])?;
        only("activation_scheme", &["dynamic"])?;
        if let Some(v) = q.get("weight_block_size").filter(|v| !v.is_null()) {
            let block: Option<Vec<usize>> = v.as_array().map(|a| a.iter().filter_map(as_size).collect());
            match block.as_deref() {
                Some([r, c]) if (1..=1 << 16).contains(r) && (1..=1 << 16).contains(c) => {
                    out.weight_block_size = Some([*r, *c]);
                }
                _ => {
                    return Err(refused(
                        "quantization_config.weight_block_size",
                        v,
                        "a pair of positive integers",
                    ));
                }
            }
        }
        let inner = q.get("expert_dtype").filter(|v| !v.is_null());
        if let (Some(a), Some(b)) = (expert, inner)
            && a != b
        {
            return Err(contradiction(
                "expert_dtype",
                &brief(a),
                "quantization_config.expert_dtype",
                &brief(b),
            ));
        }
        expert = expert.or(inner);
    }
    if let Some(v) = expert {
        match v.as_str() {
            Some(s @ ("fp4" | "fp8" | "bf16" | "bfloat16")) => out.expert_dtype = Some(s.into()),
            _ => return Err(refused("expert_dtype", v, "fp4, fp8 or bf16")),
        }
    }
    Ok(out)
}

fn dialect(keys: &Keys) -> String {
    let has = |k: &str| keys.map.contains_key(k);
    let mut out = Vec::new();
    if has("dim") || has("n_layers") {
        out.push("inference");
    }
    if (has("compress_ratios") || has("rope_scaling") || has("num_hash_layers")) && has("hidden_size") {
        out.push("release");
    }
    if has("layer_types") || has("mlp_layer_types") || has("rope_parameters") {
        out.push("transformers");
    }
    out.join("+")
}

/// Keys read above, and keys known not to change a forward pass.
fn known(key: &str) -> bool {
    const READ: &[&str] = &[
        "architectures",
        "model_type",
        "vocab_size",
        "hidden_size",
        "dim",
        "num_hidden_layers",
        "n_layers",
        "num_attention_heads",
        "n_heads",
        "num_key_value_heads",
        "head_dim",
        "qk_rope_head_dim",
        "rope_head_dim",
        "partial_rotary_factor",
        "q_lora_rank",
        "o_groups",
        "o_lora_rank",
        "sliding_window",
        "window_size",
        "compress_ratios",
        "compress_rates",
        "compress_rate_csa",
        "compress_rate_hca",
        "layer_types",
        "mlp_layer_types",
        "num_hash_layers",
        "n_hash_layers",
        "rope_theta",
        "compress_rope_theta",
        "rope_scaling",
        "rope_parameters",
        "original_seq_len",
        "rope_factor",
        "beta_fast",
        "beta_slow",
        "max_position_embeddings",
        "max_seq_len",
        "index_n_heads",
        "index_head_dim",
        "index_topk",
        "hc_mult",
        "hc_sinkhorn_iters",
        "hc_eps",
        "rms_norm_eps",
        "norm_eps",
        "moe_intermediate_size",
        "moe_inter_dim",
        "intermediate_size",
        "n_routed_experts",
        "num_local_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "n_activated_experts",
        "scoring_func",
        "score_func",
        "topk_method",
        "norm_topk_prob",
        "routed_scaling_factor",
        "route_scale",
        "swiglu_limit",
        "num_nextn_predict_layers",
        "n_mtp_layers",
        "expert_dtype",
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
        "quantization_config",
        "hidden_act",
        "attention_bias",
        "mlp_bias",
        "n_group",
        "topk_group",
        "first_k_dense_replace",
        "moe_layer_freq",
    ];
    const HARMLESS: &[&str] = &[
        "torch_dtype",
        "dtype",
        "scale_fmt",
        "scale_dtype",
        "transformers_version",
        "use_cache",
        "pad_token_id",
        "initializer_range",
        "attention_dropout",
        "output_router_logits",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "aux_loss_alpha",
        "seq_aux",
        "auto_map",
        "_name_or_path",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "chunk_size_feed_forward",
        "is_encoder_decoder",
        "id2label",
        "label2id",
        "problem_type",
        "max_batch_size",
        "pretraining_tp",
        "ep_size",
        "unsloth_fixed",
    ];
    READ.contains(&key) || HARMLESS.contains(&key) || key.starts_with("dspark_")
}
