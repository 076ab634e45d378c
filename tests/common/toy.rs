//! A tiny model whose every weight is exact in every storage format, so that all ways of writing it must read back alike.
//!
//! Sizes are chosen to be awkward: no dimension is a multiple of 128, and 72 is not one of 32 or 16.

use serde_json::{Value, json};

use super::Raw;

pub const V: usize = 40;
pub const D: usize = 160;
pub const I: usize = 72;
pub const E: usize = 3;
pub const K: usize = 2;
const H: usize = 4;
const HD: usize = 48;
const Q: usize = 136;
const G: usize = 2;
const R: usize = 72;
const HI: usize = 4;
const CI: usize = 16;
const S: usize = 2;
pub const RATIOS: [usize; 3] = [0, 4, 128];

/// The release dialect. The last ratio belongs to a drafter layer.
pub fn official_config() -> Value {
    let mut config = json!({
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4",
        "vocab_size": V, "hidden_size": D, "num_hidden_layers": 3, "num_attention_heads": H, "num_key_value_heads": 1,
        "head_dim": HD, "qk_rope_head_dim": 12, "q_lora_rank": Q, "o_groups": G, "o_lora_rank": R, "sliding_window": 8,
        "compress_ratios": [0, 4, 128, 0], "compress_rope_theta": 160000, "rope_theta": 10000,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536,
                         "beta_fast": 32, "beta_slow": 1},
    });
    let more = json!({
        "max_position_embeddings": 1048576, "index_n_heads": HI, "index_head_dim": CI, "index_topk": 4,
        "hc_mult": S, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "moe_intermediate_size": I,
        "n_routed_experts": E, "n_shared_experts": 1, "num_experts_per_tok": K, "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 2.5, "swiglu_limit": 10.0,
        "num_hash_layers": 1, "num_nextn_predict_layers": 1, "expert_dtype": "fp4", "tie_word_embeddings": false,
        "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

/// What transformers writes for the same model.
pub fn transformers_config() -> Value {
    let mut c = official_config();
    let m = c.as_object_mut().unwrap();
    for k in ["compress_ratios", "num_hash_layers", "rope_scaling", "qk_rope_head_dim", "quantization_config"]
    {
        m.remove(k);
    }
    m.insert("partial_rotary_factor".into(), json!(0.25));
    m.insert(
        "layer_types".into(),
        json!(["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]),
    );
    m.insert("mlp_layer_types".into(), json!(["hash_moe", "moe", "moe"]));
    m.insert(
        "compress_rates".into(),
        json!({"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}),
    );
    m.insert("rope_parameters".into(), json!({
        "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "compress": {"rope_type": "yarn", "rope_theta": 160000.0, "partial_rotary_factor": 0.25, "factor": 16.0,
                     "original_max_position_embeddings": 65536, "beta_fast": 32.0, "beta_slow": 1.0,
                     "attention_factor": 1.0},
    }));
    c
}

/// What `inference/config.json` says of the same model.
pub fn inference_config() -> Value {
    json!({
        "vocab_size": V, "dim": D, "moe_inter_dim": I, "n_layers": 3, "n_hash_layers": 1, "n_heads": H,
        "n_routed_experts": E, "n_shared_experts": 1, "n_activated_experts": K, "score_func": "sqrtsoftplus",
        "route_scale": 2.5, "swiglu_limit": 10.0, "q_lora_rank": Q, "head_dim": HD, "rope_head_dim": 12, "o_groups": G,
        "o_lora_rank": R, "window_size": 8, "compress_ratios": [0, 4, 128, 0], "compress_rope_theta": 160000,
        "rope_theta": 10000, "original_seq_len": 65536, "rope_factor": 16, "beta_fast": 32, "beta_slow": 1,
        "index_n_heads": HI, "index_head_dim": CI, "index_topk": 4, "hc_mult": S, "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6, "n_mtp_layers": 1, "dtype": "fp8", "scale_fmt": "ue8m0", "expert_dtype": "fp4",
    })
}

/// How the official release stores a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    F32,
    Bf16,
    Fp8,
    Expert,
    Ids,
}

/// Every tensor of the toy: official name, shape, official storage. Written out by hand, independently of the crate.
pub fn tensors() -> Vec<(String, Vec<usize>, Kind)> {
    use Kind::*;
    let mut out: Vec<(String, Vec<usize>, Kind)> = Vec::new();
    let mut add = |n: String, shape: &[usize], kind| out.push((n, shape.to_vec(), kind));
    add("embed.weight".into(), &[V, D], Bf16);
    add("head.weight".into(), &[V, D], Bf16);
    add("norm.weight".into(), &[D], Bf16);
    add("hc_head_fn".into(), &[S, S * D], F32);
    add("hc_head_base".into(), &[S], F32);
    add("hc_head_scale".into(), &[1], F32);
    for (l, ratio) in RATIOS.into_iter().enumerate() {
        let n = |leaf: &str| format!("layers.{l}.{leaf}");
        for b in ["attn", "ffn"] {
            add(n(&format!("{b}_norm.weight")), &[D], Bf16);
            add(n(&format!("hc_{b}_fn")), &[8, S * D], F32);
            add(n(&format!("hc_{b}_base")), &[8], F32);
            add(n(&format!("hc_{b}_scale")), &[3], F32);
        }
        add(n("attn.attn_sink"), &[H], F32);
        add(n("attn.q_norm.weight"), &[Q], Bf16);
        add(n("attn.kv_norm.weight"), &[HD], Bf16);
        add(n("attn.wq_a.weight"), &[Q, D], Fp8);
        add(n("attn.wq_b.weight"), &[H * HD, Q], Fp8);
        add(n("attn.wkv.weight"), &[HD, D], Fp8);
        add(n("attn.wo_a.weight"), &[G * R, H * HD / G], Fp8);
        add(n("attn.wo_b.weight"), &[D, G * R], Fp8);
        if ratio > 0 {
            let cols = if ratio == 4 { 2 * HD } else { HD };
            add(n("attn.compressor.wkv.weight"), &[cols, D], Bf16);
            add(n("attn.compressor.wgate.weight"), &[cols, D], Bf16);
            add(n("attn.compressor.ape"), &[ratio, cols], F32);
            add(n("attn.compressor.norm.weight"), &[HD], Bf16);
        }
        if ratio == 4 {
            add(n("attn.indexer.wq_b.weight"), &[HI * CI, Q], Fp8);
            add(n("attn.indexer.weights_proj.weight"), &[HI, D], Bf16);
            add(n("attn.indexer.compressor.wkv.weight"), &[2 * CI, D], Bf16);
            add(n("attn.indexer.compressor.wgate.weight"), &[2 * CI, D], Bf16);
            add(n("attn.indexer.compressor.ape"), &[4, 2 * CI], F32);
            add(n("attn.indexer.compressor.norm.weight"), &[CI], Bf16);
        }
        add(n("ffn.gate.weight"), &[E, D], Bf16);
        if l == 0 {
            add(n("ffn.gate.tid2eid"), &[V, K], Ids);
        } else {
            add(n("ffn.gate.bias"), &[E], F32);
        }
        for (p, shape) in [("w1", [I, D]), ("w2", [D, I]), ("w3", [I, D])] {
            add(n(&format!("ffn.shared_experts.{p}.weight")), &shape, Fp8);
            for e in 0..E {
                add(n(&format!("ffn.experts.{e}.{p}.weight")), &shape, Expert);
            }
        }
    }
    out
}

pub const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

fn seed(name: &str) -> usize {
    name.bytes().fold(7, |h, b| (h * 31 + b as usize) % 1_000_003)
}

/// The E2M1 code of an element.
fn code(name: &str, r: usize, c: usize) -> u8 {
    ((seed(name) + r * 131 + c * 37 + r * c) % 16) as u8
}

/// The exponent of a group of 32 columns.
fn exponent(name: &str, r: usize, group: usize) -> i32 {
    ((seed(name) + r * 5 + group * 3) % 3) as i32 - 1
}

/// The values of a tensor: `e2m1 * 2^exponent`.
pub fn values(name: &str, shape: &[usize]) -> Vec<f32> {
    let cols = *shape.last().unwrap();
    let rows: usize = shape.iter().product::<usize>() / cols;
    (0..rows)
        .flat_map(|r| {
            (0..cols).map(move |c| E2M1[code(name, r, c) as usize] * 2f32.powi(exponent(name, r, c / 32)))
        })
        .collect()
}

pub fn ids() -> Vec<i64> {
    (0..V * K).map(|i| ((i * 7 + i / K) % E) as i64).collect()
}

/// Plain storage as `dtype`.
pub fn plain(name: String, dtype: &'static str, shape: &[usize], values: &[f32]) -> Raw {
    let bytes = match dtype {
        "F64" => values.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect(),
        "F32" => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        "F16" => values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
        "BF16" => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        other => panic!("{other}"),
    };
    Raw { name, dtype, shape: shape.to_vec(), bytes }
}

fn ids_raw(name: &str, dtype: &'static str) -> Raw {
    let bytes = if dtype == "I64" {
        ids().iter().flat_map(|v| v.to_le_bytes()).collect()
    } else {
        ids().iter().flat_map(|v| (*v as i32).to_le_bytes()).collect()
    };
    Raw { name: name.into(), dtype, shape: vec![V, K], bytes }
}

fn e4m3(code: u8) -> f32 {
    let (e, m) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let x = if e == 0 { m / 512.0 } else { (1.0 + m / 8.0) * 2f32.powi(e - 7) };
    if code & 128 == 0 { x } else { -x }
}

/// FP8 with blocks of 128x128 whose scales differ from block to block; `scale` names the scale tensor's suffix and dtype.
fn fp8(name: &str, shape: &[usize], scale: (&str, &'static str)) -> [Raw; 2] {
    let (rows, cols) = (shape[0], shape[1]);
    let (br, bc) = (rows.div_ceil(128), cols.div_ceil(128));
    let exp = |b: usize| -(((b + seed(name)) % 3) as i32);
    let v = values(name, shape);
    let bytes = (0..rows * cols)
        .map(|i| {
            let b = i / cols / 128 * bc + i % cols / 128;
            let want = v[i] / 2f32.powi(exp(b));
            (0..=255u8).find(|c| c & 127 != 127 && e4m3(*c) == want).unwrap()
        })
        .collect();
    let scales: Vec<u8> = match scale.1 {
        "F8_E8M0" => (0..br * bc).map(|b| (127 + exp(b)) as u8).collect(),
        _ => (0..br * bc).flat_map(|b| 2f32.powi(exp(b)).to_le_bytes()).collect(),
    };
    let base = name.strip_suffix("weight").unwrap();
    [
        Raw { name: name.into(), dtype: "F8_E4M3", shape: shape.to_vec(), bytes },
        Raw { name: format!("{base}{}", scale.0), dtype: scale.1, shape: vec![br, bc], bytes: scales },
    ]
}

fn packed(name: &str, rows: usize, cols: usize) -> Vec<u8> {
    (0..rows)
        .flat_map(|r| (0..cols / 2).map(move |b| code(name, r, 2 * b) | code(name, r, 2 * b + 1) << 4))
        .collect()
}

fn mxfp4(name: &str, shape: &[usize]) -> Vec<Raw> {
    let (rows, cols) = (shape[0], shape[1]);
    let groups = cols.div_ceil(32);
    let scales =
        (0..rows).flat_map(|r| (0..groups).map(move |g| (127 + exponent(name, r, g)) as u8)).collect();
    let base = name.strip_suffix("weight").unwrap();
    vec![
        Raw { name: name.into(), dtype: "I8", shape: vec![rows, cols / 2], bytes: packed(name, rows, cols) },
        Raw { name: format!("{base}scale"), dtype: "F8_E8M0", shape: vec![rows, groups], bytes: scales },
    ]
}

fn nvfp4(name: &str, shape: &[usize]) -> Vec<Raw> {
    let (rows, cols) = (shape[0], shape[1]);
    let groups = cols.div_ceil(16);
    // weight_scale_2 is 2^-3, so a group's own scale is 2^(exponent + 3), whose E4M3 code is (exponent + 3 + 7) << 3.
    let scales = (0..rows)
        .flat_map(|r| (0..groups).map(move |g| ((exponent(name, r, g / 2) + 10) << 3) as u8))
        .collect();
    let base = name.strip_suffix("weight").unwrap();
    let scalar = |suffix: &str, v: f32| Raw {
        name: format!("{base}{suffix}"),
        dtype: "F32",
        shape: vec![],
        bytes: v.to_le_bytes().to_vec(),
    };
    vec![
        Raw { name: name.into(), dtype: "U8", shape: vec![rows, cols / 2], bytes: packed(name, rows, cols) },
        Raw {
            name: format!("{base}weight_scale"),
            dtype: "F8_E4M3",
            shape: vec![rows, groups],
            bytes: scales,
        },
        scalar("weight_scale_2", 0.125),
        scalar("input_scale", 0.75),
    ]
}

/// As the official release stores it, with a drafter tensor. `nv`: routed experts as ModelOpt re-encodes them.
pub fn official(nv: bool, scale: (&str, &'static str)) -> Vec<Raw> {
    let mut out = Vec::new();
    for (name, shape, kind) in tensors() {
        match kind {
            Kind::F32 => out.push(plain(name.clone(), "F32", &shape, &values(&name, &shape))),
            Kind::Bf16 => out.push(plain(name.clone(), "BF16", &shape, &values(&name, &shape))),
            Kind::Fp8 => out.extend(fp8(&name, &shape, scale)),
            Kind::Expert if nv => out.extend(nvfp4(&name, &shape)),
            Kind::Expert => out.extend(mxfp4(&name, &shape)),
            Kind::Ids => out.push(ids_raw(&name, "I64")),
        }
    }
    out.push(plain("mtp.0.norm.weight".into(), "BF16", &[D], &values("mtp", &[D])));
    out
}

/// All in one plain type, under the official names with a prefix.
pub fn uniform(dtype: &'static str, prefix: &str) -> Vec<Raw> {
    tensors()
        .into_iter()
        .map(|(name, shape, kind)| match kind {
            Kind::Ids => ids_raw(&format!("{prefix}{name}"), "I32"),
            _ => plain(format!("{prefix}{name}"), dtype, &shape, &values(&name, &shape)),
        })
        .collect()
}

/// As transformers saves it: official leaves under `model.`, except for a few.
pub fn saved() -> Vec<Raw> {
    let mut all = uniform("F32", "");
    for t in &mut all {
        t.name = match t.name.as_str() {
            "head.weight" => "head.weight".into(),
            "embed.weight" => "model.embed_tokens.weight".into(),
            n if n.starts_with("hc_head_") => format!("model.hc_head.{}", n.replace("hc_head_", "hc_")),
            n => format!("model.{}", n.replace("attn.kv_norm.", "attn.norm.")),
        };
    }
    all
}

/// The live module names, experts packed.
pub fn live() -> Vec<Raw> {
    let mut out = Vec::new();
    for t in uniform("BF16", "") {
        if t.name.contains(".experts.") && !t.name.contains("shared") {
            continue;
        }
        let (head, tail) = match t.name.strip_prefix("layers.") {
            Some(rest) => {
                let (l, tail) = rest.split_once('.').unwrap();
                (format!("model.layers.{l}."), tail.to_owned())
            }
            None => (String::new(), t.name.clone()),
        };
        let tail = match tail.as_str() {
            "embed.weight" => "model.embed_tokens.weight".into(),
            "head.weight" => "lm_head.weight".into(),
            "norm.weight" => "model.norm.weight".into(),
            "attn_norm.weight" => "input_layernorm.weight".into(),
            "ffn_norm.weight" => "post_attention_layernorm.weight".into(),
            t if t.starts_with("hc_head_") => format!("model.hc_head.hc_{}", &t[8..]),
            t if t.starts_with("hc_attn_") => format!("attn_hc.{}", &t[8..]),
            t if t.starts_with("hc_ffn_") => format!("ffn_hc.{}", &t[7..]),
            "ffn.gate.bias" => "mlp.gate.e_score_correction_bias".into(),
            t if t.starts_with("ffn.") => format!("mlp.{}", &t[4..])
                .replace("w1", "gate_proj")
                .replace("w3", "up_proj")
                .replace("w2", "down_proj"),
            t if t.starts_with("attn.compressor.") || t.starts_with("attn.indexer.") => format!("@{t}")
                .replace("attn.indexer.compressor.", "self_attn.compressor.indexer.")
                .replace("attn.indexer.wq_b", "self_attn.compressor.indexer.q_b_proj")
                .replace("attn.indexer.weights_proj", "self_attn.compressor.indexer.scorer.weights_proj")
                .replace("@attn.compressor.", "self_attn.compressor.")
                .replace('@', "")
                .replace("wkv", "kv_proj")
                .replace("wgate", "gate_proj")
                .replace("ape", "position_bias")
                .replace("norm", "kv_norm"),
            t => t
                .replace("attn.", "self_attn.")
                .replace("attn_sink", "sinks")
                .replace("wq_a", "q_a_proj")
                .replace("q_norm", "q_a_norm")
                .replace("wq_b", "q_b_proj")
                .replace("wkv", "kv_proj")
                .replace("wo_a", "o_a_proj")
                .replace("wo_b", "o_b_proj"),
        };
        out.push(Raw { name: head + &tail, ..t });
    }
    for l in 0..RATIOS.len() {
        let name = |e: usize, p: &str| format!("layers.{l}.ffn.experts.{e}.{p}.weight");
        let gate_up: Vec<f32> = (0..E)
            .flat_map(|e| [values(&name(e, "w1"), &[I, D]), values(&name(e, "w3"), &[I, D])].concat())
            .collect();
        let down: Vec<f32> = (0..E).flat_map(|e| values(&name(e, "w2"), &[D, I])).collect();
        let at = |p: &str| format!("model.layers.{l}.mlp.experts.{p}");
        out.push(plain(at("gate_up_proj"), "BF16", &[E, 2 * I, D], &gate_up));
        out.push(plain(at("down_proj"), "BF16", &[E, D, I], &down));
    }
    out
}
