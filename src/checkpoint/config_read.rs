//! `config.json` → [`Config`]. Three dialects: `release` (compress_ratios, rope_scaling …), `transformers`
//! (layer_types, rope_parameters …) and `inference` (dim, n_layers …). A file may speak several at once, as long as they agree.
//!
//! Rule: a key that changes the result is honoured or refused by name. Nothing required has a default. Keys for which the
//! architecture knows one value only may be absent, but not differ.

use std::path::Path;

use serde_json::{Map, Value};

use super::config::{Config, LayerKind, LayerSpec, QuantConfig, Rope, Yarn};
use crate::error::{Error, Result};

/// Parses and checks; errors carry `file`.
pub(super) fn read(bytes: &[u8], file: &Path) -> Result<Config> {
    read_inner(bytes).map_err(|e| e.file(file))
}

fn read_inner(bytes: &[u8]) -> Result<Config> {
    let value: Value = super::strict_json::parse(bytes)?;
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

fn missing(key: &str) -> Error {
    let hint = format!(
        "`{key}` changes the result, so it has no default here; copy it from the model's original config.json"
    );
    missing_because(key, &hint)
}

fn missing_because(key: &str, hint: &str) -> Error {
    Error::input(format!("the config has no `{key}`")).hint(hint)
}

fn refused(key: &str, value: &Value, only: &str) -> Error {
    Error::input(format!("`{key}`: {} is not supported", brief(value)))
        .hint(format!("only {only} is known for DeepSeek-V4"))
}

fn contradiction(a: &str, va: &dyn std::fmt::Display, b: &str, vb: &dyn std::fmt::Display) -> Error {
    Error::input(format!("the config contradicts itself: `{a}` says {va}, `{b}` says {vb}"))
        .hint("keep the one the weights were trained with and remove the other")
}

/// A value as a short piece of JSON; a config is untrusted and may be long.
fn brief(v: &Value) -> String {
    let s = v.to_string();
    if s.chars().count() <= 80 { s } else { s.chars().take(77).chain("...".chars()).collect() }
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

/// The layer schedule, from either dialect or from both when they agree.
fn schedule(keys: &Keys, n: usize) -> Result<Vec<LayerSpec>> {
    let ratios = keys.list("compress_ratios", n)?;
    let types = keys.list("layer_types", n)?;
    let official = ratios
        .map(|list| -> Result<Vec<(LayerKind, usize)>> {
            list.iter()
                .map(|v| {
                    let r = as_size(v)
                        .filter(|r| *r <= MAX_RATIO)
                        .ok_or_else(|| refused("compress_ratios", v, "an integer from 0 to 1048576"))?;
                    Ok((
                        match r {
                            0 => LayerKind::Window,
                            4 => LayerKind::Csa,
                            _ => LayerKind::Hca,
                        },
                        r,
                    ))
                })
                .collect()
        })
        .transpose()?;
    let written = types
        .map(|list| -> Result<Vec<LayerKind>> {
            list.iter()
                .map(|v| match v.as_str() {
                    Some("sliding_attention") => Ok(LayerKind::Window),
                    Some("compressed_sparse_attention") => Ok(LayerKind::Csa),
                    Some("heavily_compressed_attention") => Ok(LayerKind::Hca),
                    _ => Err(refused(
                        "layer_types",
                        v,
                        "sliding_attention, compressed_sparse_attention or heavily_compressed_attention",
                    )),
                })
                .collect()
        })
        .transpose()?;
    let hash = hash_layers(keys, n)?;

    let pairs = match (official, written) {
        (None, None) => {
            return Err(missing_because(
                "compress_ratios",
                "the layer schedule cannot be derived: give `compress_ratios` (release) or `layer_types` (transformers)",
            ));
        }
        (Some(o), None) => o,
        (None, Some(w)) => w
            .into_iter()
            .map(|k| Ok((k, rate(keys, k)?.ok_or_else(|| missing("compress_rates"))?)))
            .collect::<Result<_>>()?,
        (Some(o), Some(w)) => {
            for (l, ((ok, or), wk)) in o.iter().zip(&w).enumerate() {
                let stated = rate(keys, *wk)?;
                if ok != wk || stated.is_some_and(|r| r != *or) {
                    let says = match stated {
                        Some(r) => format!("{} (ratio {r})", wk.name()),
                        None => wk.name().into(),
                    };
                    return Err(contradiction(
                        &format!("compress_ratios[{l}]"),
                        or,
                        &format!("layer_types[{l}]"),
                        &says,
                    ));
                }
            }
            o
        }
    };
    Ok(pairs.into_iter().zip(hash).map(|((kind, ratio), hash)| LayerSpec { kind, ratio, hash }).collect())
}

const MAX_RATIO: usize = 1 << 20;

/// The ratio the transformers dialect gives a kind of layer.
fn rate(keys: &Keys, kind: LayerKind) -> Result<Option<usize>> {
    let (name, legacy) = match kind {
        LayerKind::Window => return Ok(Some(0)),
        LayerKind::Csa => ("compressed_sparse_attention", "compress_rate_csa"),
        LayerKind::Hca => ("heavily_compressed_attention", "compress_rate_hca"),
    };
    let rates = match keys.map.get("compress_rates").filter(|v| !v.is_null()) {
        None => None,
        Some(Value::Object(m)) => m.get(name).filter(|v| !v.is_null()),
        Some(v) => return Err(refused("compress_rates", v, "an object {layer type: ratio}")),
    };
    let legacy_value = keys.map.get(legacy).filter(|v| !v.is_null());
    if let (Some(a), Some(b)) = (rates, legacy_value)
        && !same(a, b)
    {
        return Err(contradiction("compress_rates", &brief(a), legacy, &brief(b)));
    }
    rates
        .or(legacy_value)
        .map(|v| {
            as_size(v)
                .filter(|r| (1..=MAX_RATIO).contains(r))
                .ok_or_else(|| refused("compress_rates", v, "an integer from 1 to 1048576"))
        })
        .transpose()
}

fn hash_layers(keys: &Keys, n: usize) -> Result<Vec<bool>> {
    let count = keys.opt_size(&["num_hash_layers", "n_hash_layers"], 0, 1 << 20)?;
    let types = keys
        .list("mlp_layer_types", n)?
        .map(|list| {
            list.iter()
                .map(|v| match v.as_str() {
                    Some("hash_moe") => Ok(true),
                    Some("moe") => Ok(false),
                    _ => Err(refused("mlp_layer_types", v, "hash_moe or moe")),
                })
                .collect::<Result<Vec<bool>>>()
        })
        .transpose()?;
    match (count, types) {
        (None, None) => Err(missing_because(
            "num_hash_layers",
            "which layers route by token id cannot be guessed: give `num_hash_layers` or `mlp_layer_types`",
        )),
        (Some(c), None) => Ok((0..n).map(|l| l < c).collect()),
        (None, Some(t)) => Ok(t),
        (Some(c), Some(t)) => match t.iter().enumerate().find(|(l, h)| **h != (*l < c)) {
            Some((l, h)) => Err(contradiction(
                "num_hash_layers",
                &c,
                &format!("mlp_layer_types[{l}]"),
                &if *h { "hash_moe" } else { "moe" },
            )),
            None => Ok(t),
        },
    }
}

/// Rotary dims: `qk_rope_head_dim`, or head_dim times `partial_rotary_factor` with Python's truncation.
fn rope_dims(keys: &Keys, head_dim: usize) -> Result<usize> {
    let stated = keys.opt_size(&["qk_rope_head_dim", "rope_head_dim"], 1, 1 << 14)?;
    let mut factor = keys.opt_float(&["partial_rotary_factor"], f64::MIN_POSITIVE, 1.0)?;
    if factor.is_none() && stated.is_none() {
        let nested = keys.map.get("rope_parameters").and_then(|r| r.get("main"));
        factor = nested.and_then(|m| m.get("partial_rotary_factor")).and_then(Value::as_f64);
    }
    let derived = factor.map(|f| (head_dim as f64 * f) as usize);
    match (stated, derived) {
        (Some(a), Some(b)) if a != b => Err(contradiction(
            "qk_rope_head_dim",
            &a,
            "partial_rotary_factor",
            &format!("{} of head_dim {head_dim} = {b}", factor.unwrap_or_default()),
        )),
        (Some(a), _) => Ok(a),
        (None, Some(0)) => Err(Error::input("`partial_rotary_factor` leaves no rotary dims")),
        (None, Some(b)) => Ok(b),
        (None, None) => Err(missing("qk_rope_head_dim")),
    }
}

/// Both rotary tables.
fn ropes(keys: &Keys, compressed: bool, head_dim: usize, dims: usize) -> Result<(Rope, Rope)> {
    let theta_main = keys.opt_float(&["rope_theta"], f64::MIN_POSITIVE, 1e18)?;
    let theta_compress = keys.opt_float(&["compress_rope_theta"], f64::MIN_POSITIVE, 1e18)?;
    let params = keys.object("rope_parameters")?;
    let nested = params.filter(|p| p.contains_key("main") || p.contains_key("compress"));
    let flat = params.filter(|_| nested.is_none());
    let scaling = keys.object("rope_scaling")?;

    // Flat forms describe compressed layers only: window layers never scale.
    let mut yarn_flat: Option<(&str, Option<Yarn>)> = None;
    for (name, table) in [("rope_scaling", scaling), ("rope_parameters", flat)] {
        let Some(table) = table else { continue };
        let yarn = yarn(table, name, false)?;
        if let Some((first, other)) = &yarn_flat
            && *other != yarn
        {
            return Err(contradiction(first, &"one YaRN", name, &"another"));
        }
        yarn_flat = Some((name, yarn));
    }
    if let Some(orig) = keys.opt_size(&["original_seq_len"], 0, 1 << 40)? {
        let yarn = if orig == 0 {
            None
        } else {
            let yarn = Yarn {
                factor: keys.float(&["rope_factor"], 1.0, 1e9)?,
                original_max_position_embeddings: orig,
                beta_fast: keys.float(&["beta_fast"], f64::MIN_POSITIVE, 1e9)?,
                beta_slow: keys.float(&["beta_slow"], f64::MIN_POSITIVE, 1e9)?,
            };
            check_betas(&yarn, "beta_fast")?;
            Some(yarn)
        };
        if let Some((first, other)) = &yarn_flat
            && *other != yarn
        {
            return Err(contradiction(first, &"one YaRN", "original_seq_len", &"another"));
        }
        yarn_flat = Some(("original_seq_len", yarn));
    }
    let Some(nested) = nested else {
        let main = Rope { theta: theta_main.ok_or_else(|| missing("rope_theta"))?, yarn: None };
        if !compressed {
            return Ok((main, Rope { theta: theta_compress.unwrap_or(main.theta), yarn: None }));
        }
        let theta = theta_compress.ok_or_else(|| missing("compress_rope_theta"))?;
        let said = yarn_flat.map(|(_, y)| y);
        let yarn = match said {
            Some(y) => y,
            None if keys.map.get("rope_scaling").is_some_and(Value::is_null) => None,
            None => {
                return Err(missing_because(
                    "rope_scaling",
                    "compressed layers use YaRN in every released model; write \"rope_scaling\": null if this one has none",
                ));
            }
        };
        return Ok((main, Rope { theta, yarn }));
    };

    let table = |label: &str, top: Option<f64>, top_name: &str| -> Result<Option<Rope>> {
        let name = format!("rope_parameters.{label}");
        let Some(v) = nested.get(label).filter(|v| !v.is_null()) else { return Ok(None) };
        let Value::Object(t) = v else { return Err(refused(&name, v, "an object")) };
        let sub = Keys { map: t };
        let own = sub.opt_float(&["rope_theta"], f64::MIN_POSITIVE, 1e18)?;
        if let (Some(a), Some(b)) = (own, top)
            && a != b
        {
            return Err(contradiction(&format!("{name}.rope_theta"), &a, top_name, &b));
        }
        if let Some(f) = sub.opt_float(&["partial_rotary_factor"], f64::MIN_POSITIVE, 1.0)? {
            let d = (head_dim as f64 * f) as usize;
            if d != dims {
                return Err(contradiction(
                    &format!("{name}.partial_rotary_factor"),
                    &format!("{f} (= {d} dims)"),
                    "qk_rope_head_dim",
                    &dims,
                ));
            }
        }
        let theta = own.or(top).ok_or_else(|| missing(&format!("{name}.rope_theta")))?;
        Ok(Some(Rope { theta, yarn: yarn(t, &name, true)? }))
    };
    for k in nested.keys() {
        if !matches!(
            k.as_str(),
            "main" | "compress" | "rope_type" | "type" | "rope_theta" | "partial_rotary_factor"
        ) {
            return Err(Error::input(format!("`rope_parameters.{k}` stands beside `main` and `compress`"))
                .hint("transformers drops such a key; move it into `main` or `compress`"));
        }
    }
    let main = table("main", theta_main, "rope_theta")?.ok_or_else(|| missing("rope_parameters.main"))?;
    let compress = match table("compress", theta_compress, "compress_rope_theta")? {
        Some(r) => r,
        None if compressed => return Err(missing("rope_parameters.compress")),
        None => Rope { theta: theta_compress.unwrap_or(main.theta), yarn: None },
    };
    if let Some((name, yarn)) = yarn_flat
        && yarn != compress.yarn
    {
        return Err(contradiction(name, &"one YaRN", "rope_parameters.compress", &"another"));
    }
    Ok((main, compress))
}

/// A rope dictionary's scaling. `nested`: transformers reads this table as it stands, so a missing attention_factor would be
/// derived there (0.1·ln(factor)+1) while the official graph multiplies by nothing: ambiguous, hence refused.
fn yarn(table: &Map<String, Value>, name: &str, nested: bool) -> Result<Option<Yarn>> {
    let keys = Keys { map: table };
    let at = |k: &str| format!("{name}.{k}");
    let kind = keys.opt(&["rope_type", "type"])?;
    match kind.map(|(_, v)| v.as_str()) {
        None if table.contains_key("factor") => return Err(missing(&at("rope_type"))),
        None | Some(Some("default")) => return Ok(None),
        Some(Some("yarn")) => {}
        Some(_) => {
            let (key, v) = kind.expect("matched above");
            return Err(refused(&at(key), v, "\"default\" or \"yarn\""));
        }
    }
    match keys.opt(&["attention_factor"])? {
        Some((key, v)) if v.as_f64() != Some(1.0) => {
            return Err(refused(&at(key), v, "1.0 (cos and sin are never scaled)"));
        }
        None if nested => {
            return Err(missing_because(
                &at("attention_factor"),
                "transformers would scale cos and sin by 0.1*ln(factor)+1 here, the official graph does not; \
                 write \"attention_factor\": 1.0",
            ));
        }
        _ => {}
    }
    if let Some((key, v)) = keys.opt(&["truncate"])?
        && v.as_bool() != Some(true)
    {
        return Err(refused(&at(key), v, "true (the correction range is rounded outwards)"));
    }
    let within = |e: Error| {
        Error::input(format!("in `{name}`: {}", e.message())).hint("see the model's original config.json")
    };
    let yarn = Yarn {
        factor: keys.float(&["factor"], 1.0, 1e9).map_err(within)?,
        original_max_position_embeddings: keys
            .size(&["original_max_position_embeddings"], 1, 1 << 40)
            .map_err(within)?,
        // 32 and 1 are what both the official code and transformers take when the file is silent.
        beta_fast: keys.opt_float(&["beta_fast"], f64::MIN_POSITIVE, 1e9).map_err(within)?.unwrap_or(32.0),
        beta_slow: keys.opt_float(&["beta_slow"], f64::MIN_POSITIVE, 1e9).map_err(within)?.unwrap_or(1.0),
    };
    check_betas(&yarn, &at("beta_fast"))?;
    Ok(Some(yarn))
}

fn check_betas(yarn: &Yarn, name: &str) -> Result<()> {
    if yarn.beta_fast < yarn.beta_slow {
        return Err(Error::input(format!(
            "`{name}` {} is smaller than beta_slow {}",
            yarn.beta_fast, yarn.beta_slow
        ))
        .hint("beta_fast bounds the fast end of the YaRN ramp; released models have 32 and 1"));
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

/// Typed access to a JSON object with errors that name the key.
struct Keys<'a> {
    map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    /// The first of several names for one number; if more than one is present they must agree. `null` counts as absent.
    fn opt<'n>(&self, names: &[&'n str]) -> Result<Option<(&'n str, &'a Value)>> {
        let mut found: Option<(&'n str, &'a Value)> = None;
        for name in names {
            let Some(v) = self.map.get(*name).filter(|v| !v.is_null()) else { continue };
            match found {
                None => found = Some((name, v)),
                Some((first, w)) if !same(v, w) => {
                    return Err(contradiction(first, &brief(w), name, &brief(v)));
                }
                Some(_) => {}
            }
        }
        Ok(found)
    }

    fn opt_size(&self, names: &[&str], min: usize, max: usize) -> Result<Option<usize>> {
        let Some((name, v)) = self.opt(names)? else { return Ok(None) };
        match as_size(v) {
            Some(n) if (min..=max).contains(&n) => Ok(Some(n)),
            _ => Err(Error::input(format!("`{name}`: {} is not an integer from {min} to {max}", brief(v)))
                .hint("compare with the model's original config.json")),
        }
    }

    fn size(&self, names: &[&str], min: usize, max: usize) -> Result<usize> {
        self.opt_size(names, min, max)?.ok_or_else(|| missing(names[0]))
    }

    fn opt_float(&self, names: &[&str], min: f64, max: f64) -> Result<Option<f64>> {
        let Some((name, v)) = self.opt(names)? else { return Ok(None) };
        match v.as_f64() {
            Some(x) if x >= min && x <= max => Ok(Some(x)),
            _ => Err(Error::input(format!("`{name}`: {} is not a number from {min:e} to {max:e}", brief(v)))
                .hint("compare with the model's original config.json")),
        }
    }

    fn float(&self, names: &[&str], min: f64, max: f64) -> Result<f64> {
        self.opt_float(names, min, max)?.ok_or_else(|| missing(names[0]))
    }

    fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>> {
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(m)) => Ok(Some(m)),
            Some(v) => Err(refused(name, v, "an object")),
        }
    }

    /// A list with one entry a layer. Longer is normal: drafter layers follow the trunk.
    fn list(&self, name: &str, n: usize) -> Result<Option<&'a [Value]>> {
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(a)) if a.len() >= n => Ok(Some(&a[..n])),
            Some(Value::Array(a)) => {
                Err(contradiction("num_hidden_layers", &n, name, &format!("{} entries", a.len())))
            }
            Some(v) => Err(refused(name, v, "a list with one entry a layer")),
        }
    }
}

fn as_size(v: &Value) -> Option<usize> {
    v.as_u64().and_then(|n| usize::try_from(n).ok())
}

/// Equality that does not tell 10000 from 10000.0.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(x), Some(y)) => x == y,
        _ => a == b,
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
