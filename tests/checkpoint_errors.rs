//! Every way a checkpoint can be damaged, hostile or of another kind gives one clear error: what, where, and what to do.
//! Each test is named after the failure it catches.

mod common;

use common::{Pico, fixture, safetensors, split, toy, with_header, write_sharded};
use dsv4::checkpoint::Checkpoint;
use dsv4::{Error, ErrorKind};
use serde_json::{Map, Value, json};

/// The error of opening, checking and reading everything in `spec`.
fn read_all(spec: &str) -> Result<(), Error> {
    let c = Checkpoint::open(spec)?;
    c.inventory();
    c.check()?;
    let layers = c.config().layers.clone();
    for (l, layer) in layers.iter().enumerate() {
        for leaf in [
            "attn.wq_a.weight",
            "attn.attn_sink",
            "hc_attn_fn",
            "ffn.experts.0.w1.weight",
            "ffn.experts.1.w2.weight",
        ] {
            c.load(&format!("layers.{l}.{leaf}"))?;
        }
        if layer.hash {
            c.load_i64(&format!("layers.{l}.ffn.gate.tid2eid"))?;
        }
    }
    for name in ["embed.weight", "head.weight", "norm.weight"] {
        c.load(name)?;
    }
    Ok(())
}

/// Reads and demands an input error with a hint that says all of `parts`.
#[track_caller]
fn fails(spec: &str, parts: &[&str]) -> String {
    let e = read_all(spec).expect_err("the damage went unnoticed");
    assert_eq!(e.kind(), ErrorKind::Input, "{e}");
    assert_eq!(e.kind().exit_code(), 3);
    let text = e.to_string();
    for part in parts.iter().chain(&["\n  file: ", "\n  hint: "]) {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
    text
}

#[track_caller]
fn config_fails(f: impl FnOnce(&mut Map<String, Value>), parts: &[&str]) {
    let p = Pico::new();
    p.config(f);
    fails(p.spec(), parts);
}

fn toy_dir(edit: impl FnOnce(&mut Vec<common::Raw>)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut tensors = toy::official(false, ("scale", "F8_E8M0"));
    edit(&mut tensors);
    std::fs::write(dir.path().join("config.json"), toy::official_config().to_string()).unwrap();
    std::fs::write(dir.path().join("model.safetensors"), safetensors(&tensors)).unwrap();
    dir
}

#[track_caller]
fn toy_fails(edit: impl FnOnce(&mut Vec<common::Raw>), parts: &[&str]) {
    let dir = toy_dir(edit);
    fails(dir.path().to_str().unwrap(), parts);
}

fn named<'a>(tensors: &'a mut [common::Raw], name: &str) -> &'a mut common::Raw {
    tensors.iter_mut().find(|t| t.name == name).unwrap()
}

// ---- files ----

#[test]
fn a_checkpoint_that_is_not_there_or_not_a_directory() {
    fails("/nonexistent/model", &["cannot open the checkpoint", "/nonexistent/model"]);
    fails(fixture("model.safetensors").to_str().unwrap(), &["a directory, not a file"]);
    let e = read_all("builtin:nano").unwrap_err().to_string();
    assert!(e.contains("builtin:nano") && e.contains("builtin:pico"), "{e}");
}

#[test]
fn a_missing_config() {
    let p = Pico::new();
    std::fs::remove_file(p.path().join("config.json")).unwrap();
    fails(p.spec(), &["config.json", "cannot open the file"]);
}

#[test]
fn a_directory_without_weights_or_without_its_index() {
    let p = Pico::new();
    std::fs::remove_file(p.weights()).unwrap();
    fails(p.spec(), &["no weights", "model.safetensors.index.json"]);
    std::fs::copy(fixture("model.safetensors"), p.path().join("model-00001-of-00002.safetensors")).unwrap();
    fails(p.spec(), &["no model.safetensors.index.json", "missing shard would go unnoticed"]);
}

#[test]
fn a_missing_shard() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), toy::official_config().to_string()).unwrap();
    write_sharded(dir.path(), &toy::official(false, ("scale", "F8_E8M0")), 3);
    read_all(dir.path().to_str().unwrap()).unwrap();
    std::fs::remove_file(dir.path().join("model-00002-of-00003.safetensors")).unwrap();
    fails(
        dir.path().to_str().unwrap(),
        &["1 of 3 shards", "is missing", "model-00002-of-00003.safetensors", "tensor: ", "download"],
    );
}

#[test]
fn an_index_that_lies() {
    let p = Pico::new();
    let index = |map: &str| {
        std::fs::write(p.path().join("model.safetensors.index.json"), format!("{{\"weight_map\": {map}}}"))
            .unwrap();
    };
    index(r#"{"model.norm.weight": "model.safetensors", "nobody": "model.safetensors"}"#);
    fails(p.spec(), &["promises the tensor", "tensor: nobody", "model.safetensors"]);
    index(r#"{"model.norm.weight": "../model.safetensors"}"#);
    fails(p.spec(), &["outside the checkpoint", "index.json"]);
    index(r#"{"model.norm.weight": "/etc/passwd"}"#);
    fails(p.spec(), &["outside the checkpoint"]);
    index(r#"{"a": "model.safetensors", "a": "model.safetensors"}"#);
    fails(p.spec(), &["named twice"]);
    index("{}");
    fails(p.spec(), &["names no tensors"]);
    index("[1,");
    fails(p.spec(), &["shard index", "offset: "]);
}

#[test]
fn a_truncated_file() {
    let whole = std::fs::metadata(fixture("model.safetensors")).unwrap().len() as usize;
    for keep in [0, 7, 8, 100, 13_000, 13_104, 20_000, whole / 2, whole - 1] {
        let p = Pico::new();
        p.edit(|b| b.truncate(keep));
        let text = fails(p.spec(), &["truncated", "model.safetensors"]);
        assert!(
            keep < 13_104 || text.contains("tensor: model.") || text.contains("tensor: lm_head"),
            "{text}"
        );
    }
}

#[test]
fn bytes_after_the_last_tensor_or_a_hole_between_two() {
    let p = Pico::new();
    p.edit(|b| b.extend([0; 3]));
    fails(p.spec(), &["3 bytes at the end of the file", "offset: "]);
    let p = Pico::new();
    p.header(|h| drop(h.remove("model.layers.1.input_layernorm.weight")));
    fails(p.spec(), &["belong to no tensor"]);
}

#[test]
fn a_git_lfs_pointer_instead_of_the_file() {
    let p = Pico::new();
    p.edit(|b| *b = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 10963524\n".to_vec());
    fails(p.spec(), &["Git LFS pointer", "git lfs pull"]);
}

// ---- headers ----

#[test]
fn a_header_larger_than_the_file() {
    for claim in [u64::MAX, u64::MAX - 7, 1 << 40, 10_963_517] {
        let p = Pico::new();
        p.edit(|b| b[..8].copy_from_slice(&claim.to_le_bytes()));
        fails(p.spec(), &[&format!("claims {claim} bytes"), "only 10963524", "offset: 0"]);
    }
}

#[test]
fn a_header_that_is_not_json() {
    let p = Pico::new();
    p.edit(|b| b[40] = b'}');
    fails(p.spec(), &["header", "offset: "]);
    let p = Pico::new();
    p.edit(|b| *b = with_header("[]", []));
    fails(p.spec(), &["malformed", "tensor name"]);
    let p = Pico::new();
    p.edit(|b| *b = with_header(r#"{"a":{"dtype":"F32","shape":[0]}}"#, []));
    fails(p.spec(), &["data_offsets"]);
    let p = Pico::new();
    p.edit(|b| *b = with_header(r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}"#, []));
    fails(p.spec(), &["malformed"]);
}

#[test]
fn a_header_that_is_a_depth_bomb_or_a_flood() {
    let deep = format!("{{\"a\":{}", "[".repeat(1_000_000));
    let p = Pico::new();
    p.edit(|b| *b = with_header(&deep, []));
    fails(p.spec(), &["header"]);
    let deep = format!("{{\"a\":{{\"extra\":{}", "{\"a\":".repeat(1_000_000));
    p.edit(|b| *b = with_header(&deep, []));
    fails(p.spec(), &["header"]);
    let wide = format!(
        "{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{}0],\"data_offsets\":[0,0]}}}}",
        "0,".repeat(1_000_000)
    );
    p.edit(|b| *b = with_header(&wide, []));
    fails(p.spec(), &["more than 8 dimensions"]);
    p.config(|c| drop(c.insert("architectures".into(), "x".repeat(5 << 20).into())));
    let e = read_all(p.spec()).unwrap_err().to_string();
    assert!(e.contains("config.json") && e.len() < 1000, "{e}");
    std::fs::write(p.path().join("config.json"), "[".repeat(1_000_000)).unwrap();
    fails(p.spec(), &["config.json"]);
}

#[test]
fn two_tensors_of_one_name() {
    let p = Pico::new();
    p.edit(|b| {
        let one = r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
        *b = with_header(&format!("{{{one},{one}}}"), [0; 4]);
    });
    fails(p.spec(), &["appears twice", "tensor: a"]);
    // The same tensor under the names of two dialects.
    let p = Pico::new();
    p.header(|h| {
        let e = h.remove("model.layers.1.input_layernorm.weight").unwrap();
        h.insert("layers.0.attn_norm.weight".into(), e);
    });
    fails(
        p.spec(),
        &[
            "two tensors are the same one",
            "model.layers.0.input_layernorm.weight",
            "layers.0.attn_norm.weight",
        ],
    );
}

#[test]
fn offsets_that_overlap_run_backwards_or_leave_the_file() {
    let set = |begin: u64, end: u64| {
        let p = Pico::new();
        p.header(|h| h["model.norm.weight"]["data_offsets"] = json!([begin, end]));
        p
    };
    fails(set(0, 1024).spec(), &["starts inside the data", "tensor: ", "overlapping"]);
    fails(set(1024, 0).spec(), &["backwards: 1024 to 0", "tensor: model.norm.weight"]);
    fails(
        set(1 << 40, (1 << 40) + 1024).spec(),
        &["ends at byte 1099511", "tensor: model.norm.weight", "offset: "],
    );
    fails(set(u64::MAX - 1024, u64::MAX).spec(), &["out of range", "tensor: model.norm.weight"]);
}

#[test]
fn a_size_that_shape_and_dtype_do_not_explain() {
    let set = |dtype: &str, shape: Value| {
        let p = Pico::new();
        p.header(|h| {
            h["model.norm.weight"]["dtype"] = dtype.into();
            h["model.norm.weight"]["shape"] = shape;
        });
        p
    };
    fails(
        set("F32", json!([257])).spec(),
        &["occupies 1024 bytes", "needs 1028", "tensor: model.norm.weight"],
    );
    fails(set("F64", json!([256])).spec(), &["occupies 1024 bytes", "needs 2048"]);
    fails(set("F32", json!([1u64 << 40, 1u64 << 40])).spec(), &["too large to count"]);
    fails(set("F32", json!([u64::MAX])).spec(), &["too large to count"]);
}

// ---- tensors against the config ----

#[test]
fn a_wrong_dtype() {
    let p = Pico::new();
    p.header(|h| h["model.norm.weight"]["dtype"] = "I32".into());
    fails(p.spec(), &["dtype is I32", "tensor: model.norm.weight"]);
    let p = Pico::new();
    p.header(|h| h["model.layers.0.mlp.gate.tid2eid"]["dtype"] = "F64".into());
    fails(p.spec(), &["dtype is F64", "expected I64 or I32", "tid2eid"]);
    let p = Pico::new();
    p.header(|h| {
        h["model.norm.weight"]["dtype"] = "F7_STRANGE".into();
    });
    fails(p.spec(), &["dtype is F7_STRANGE"]);
    // A packed tensor cannot be block-quantised.
    let p = Pico::new();
    p.header(|h| {
        h["model.layers.1.mlp.experts.down_proj"] = json!({"dtype": "I16", "shape": [8, 256, 128],
                   "data_offsets": h["model.layers.1.mlp.experts.down_proj"]["data_offsets"]});
    });
    fails(p.spec(), &["dtype is I16", "down_proj"]);
}

#[test]
fn a_wrong_shape() {
    let p = Pico::new();
    p.header(|h| h["model.layers.2.self_attn.q_a_proj.weight"]["shape"] = json!([256, 128]));
    fails(
        p.spec(),
        &[
            "[256, 128]",
            "[128, 256] = [q_lora_rank, hidden_size]",
            "tensor: model.layers.2.self_attn.q_a_proj.weight",
        ],
    );
    let p = Pico::new();
    p.header(|h| h["model.layers.2.mlp.experts.gate_up_proj"]["shape"] = json!([4, 512, 256]));
    fails(p.spec(), &["[4, 512, 256]", "[8, 256, 256]", "gate_up_proj"]);
}

#[test]
fn a_missing_tensor() {
    let p = Pico::new();
    p.header(|h| {
        let e = h.remove("model.layers.3.self_attn.sinks").unwrap();
        h.insert("model.layers.3.self_attn.sank".into(), e);
    });
    fails(p.spec(), &["lacks this tensor", "tensor: layers.3.attn.attn_sink"]);
    let c = Checkpoint::open(p.spec()).unwrap();
    let inv = c.inventory();
    assert_eq!(inv.missing, (1, vec!["layers.3.attn.attn_sink".into()]));
    assert_eq!(inv.extra, (1, vec!["model.layers.3.self_attn.sank".into()]));
    assert!(!inv.ok());
}

#[test]
fn a_config_that_contradicts_the_tensors() {
    // Each of these configs is a valid model, just not this one.
    for (key, value) in [
        ("vocab_size", 511),
        ("hidden_size", 128),
        ("num_attention_heads", 8),
        ("q_lora_rank", 64),
        ("o_lora_rank", 32),
        ("o_groups", 4),
        ("index_head_dim", 64),
        ("index_n_heads", 8),
        ("hc_mult", 2),
        ("moe_intermediate_size", 64),
        ("n_routed_experts", 4),
        ("num_experts_per_tok", 3),
    ] {
        config_fails(|c| drop(c.insert(key.into(), value.into())), &["the config calls for", "tensor: "]);
    }
    config_fails(
        |c| {
            c.insert("num_hash_layers".into(), 2.into());
            c["mlp_layer_types"][1] = "hash_moe".into();
        },
        &["tensor: layers.1.ffn.gate.tid2eid"],
    );
}

#[test]
fn nan_or_infinite_weights() {
    let p = Pico::new();
    p.data("model.layers.1.self_attn.q_a_proj.weight", |b| {
        b[2 * 300..][..2].copy_from_slice(&0x7fc0u16.to_le_bytes())
    });
    fails(
        p.spec(),
        &["element 300 [1, 44] is NaN", "tensor: model.layers.1.self_attn.q_a_proj.weight", "offset: "],
    );
    let p = Pico::new();
    p.data("model.norm.weight", |b| b[4 * 7..][..4].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes()));
    fails(p.spec(), &["element 7 [7] is infinite", "tensor: model.norm.weight"]);
    // In a packed tensor the index counts within the expert: expert 0, w1.
    let p = Pico::new();
    p.data("model.layers.2.mlp.experts.gate_up_proj", |b| b[..2].copy_from_slice(&0xffc0u16.to_le_bytes()));
    fails(p.spec(), &["element 0 [0, 0] is NaN", "gate_up_proj"]);
}

#[test]
fn nan_codes_of_the_quantised_formats() {
    toy_fails(
        |t| named(t, "layers.1.attn.wq_a.weight").bytes[161] = 0x7f,
        &["element 161 [1, 1] is NaN", "wq_a.weight"],
    );
    toy_fails(
        |t| named(t, "layers.1.attn.wq_a.scale").bytes[0] = 0xff,
        &["element 0 [0, 0] is NaN", "wq_a.weight"],
    );
    toy_fails(
        |t| named(t, "layers.1.ffn.experts.0.w1.scale").bytes[6] = 0xff,
        &["element 192 [1, 32] is NaN", "experts.0.w1.weight"],
    );
}

#[test]
fn a_hash_table_with_an_expert_that_does_not_exist() {
    for bad in [8i64, -1, i64::MAX, i64::MIN] {
        let p = Pico::new();
        p.data("model.layers.0.mlp.gate.tid2eid", |b| b[8 * 5..][..8].copy_from_slice(&bad.to_le_bytes()));
        fails(
            p.spec(),
            &[&format!("element 5 [2, 1] is expert {bad}, but there are 8"), "tid2eid", "offset: "],
        );
    }
}

#[test]
fn block_scales_that_are_absent_doubled_or_of_the_wrong_shape() {
    let w = "layers.1.attn.wq_a";
    toy_fails(
        |t| t.retain(|r| r.name != "layers.1.attn.wq_a.scale"),
        &["without its block scales", "wq_a.weight"],
    );
    toy_fails(
        |t| {
            let s = named(t, &format!("{w}.scale"));
            (s.shape, s.bytes) = (vec![1, 2], vec![127; 2]);
        },
        &["shape [1, 2]", "128x128 over [136, 160] need [2, 2]", "wq_a.scale"],
    );
    let e = "layers.1.ffn.experts.0.w1";
    toy_fails(|t| t.retain(|r| r.name != format!("{e}.scale")), &["packed FP4 weight without block scales"]);
    toy_fails(
        |t| {
            let mut s = named(t, &format!("{e}.scale")).clone();
            s.name = format!("{e}.weight_scale");
            t.push(s);
        },
        &["both `.scale` and `.weight_scale`"],
    );
    toy_fails(
        |t| {
            let s = named(t, "layers.1.attn.wq_a.scale").clone();
            t.push(common::Raw { name: "layers.1.ffn.gate.scale".into(), ..s });
        },
        &["stored as BF16, yet a block scale", "gate.weight"],
    );
    toy_fails(
        |t| {
            let s = named(t, &format!("{e}.weight"));
            (s.shape, s.bytes) = (vec![72, 79], vec![0; 72 * 79]);
        },
        &["[72, 79]", "[72, 80] = packed FP4"],
    );
}

#[test]
fn an_absent_block_size_is_guessed_although_the_scales_contradict_it() {
    let dir = toy_dir(|_| ());
    let mut c = toy::official_config();
    c.as_object_mut().unwrap().remove("quantization_config");
    std::fs::write(dir.path().join("config.json"), c.to_string()).unwrap();
    read_all(dir.path().to_str().unwrap()).unwrap();
    toy_fails_with(c, "layers.1.attn.wq_a.scale", &["so 128x128 was assumed"]);
}

#[track_caller]
fn toy_fails_with(config: Value, scale: &str, parts: &[&str]) {
    let dir = toy_dir(|t| {
        let s = named(t, scale);
        (s.shape, s.bytes) = (vec![5, 5], vec![127; 25]);
    });
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    fails(dir.path().to_str().unwrap(), parts);
}

#[test]
fn packed_fp4_although_the_config_says_otherwise() {
    let dir = toy_dir(|_| ());
    let mut c = toy::official_config();
    c["expert_dtype"] = "fp8".into();
    std::fs::write(dir.path().join("config.json"), c.to_string()).unwrap();
    fails(dir.path().to_str().unwrap(), &["packed FP4, but the config says expert_dtype fp8"]);
}

#[test]
fn an_expert_stored_both_alone_and_packed() {
    let p = Pico::new();
    p.header(|h| {
        let e = h.remove("model.layers.1.input_layernorm.weight").unwrap();
        h.insert("layers.1.ffn.experts.0.w1.weight".into(), e);
    });
    let c = Checkpoint::open(p.spec()).unwrap();
    let e = c.load("layers.1.ffn.experts.0.w1.weight").unwrap_err().to_string();
    assert!(e.contains("stored twice"), "{e}");
}

// ---- config ----

#[test]
fn an_unknown_architecture() {
    config_fails(
        |c| drop(c.insert("model_type".into(), "llama".into())),
        &["unknown model_type \"llama\"", "config.json"],
    );
    config_fails(
        |c| drop(c.insert("architectures".into(), json!(["LlamaForCausalLM"]))),
        &["unknown architecture", "LlamaForCausalLM"],
    );
    config_fails(
        |c| {
            c.remove("model_type");
            c.remove("architectures");
        },
        &["neither `model_type` nor `architectures`"],
    );
}

#[test]
fn v41_is_taken_for_v4() {
    config_fails(
        |c| drop(c.insert("model_type".into(), "deepseek_v41".into())),
        &["deepseek_v41", "different graph", "Engram"],
    );
    config_fails(
        |c| drop(c.insert("architectures".into(), json!(["DeepseekV41ForCausalLM"]))),
        &["DeepSeek-V4.1", "different graph"],
    );
    config_fails(
        |c| drop(c.insert("engram_layer_ids".into(), json!([1, 14]))),
        &["engram_layer_ids", "graph differs"],
    );
}

#[test]
fn a_missing_key_is_defaulted() {
    for key in [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "head_dim",
        "q_lora_rank",
        "o_groups",
        "o_lora_rank",
        "sliding_window",
        "index_n_heads",
        "index_head_dim",
        "index_topk",
        "hc_mult",
        "hc_sinkhorn_iters",
        "hc_eps",
        "rms_norm_eps",
        "moe_intermediate_size",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "scoring_func",
        "routed_scaling_factor",
        "swiglu_limit",
        "max_position_embeddings",
    ] {
        config_fails(|c| drop(c.remove(key)), &[&format!("no `{key}`"), "config.json"]);
    }
    let without = |keys: &'static [&str]| {
        move |c: &mut Map<String, Value>| {
            for k in keys {
                c.remove(*k);
            }
        }
    };
    config_fails(
        without(&["compress_ratios", "layer_types"]),
        &["no `compress_ratios`", "cannot be derived"],
    );
    config_fails(without(&["compress_ratios", "compress_rates"]), &["no `compress_rates`"]);
    config_fails(without(&["num_hash_layers", "mlp_layer_types"]), &["no `num_hash_layers`"]);
    config_fails(without(&["rope_parameters"]), &["no `rope_scaling`", "null"]);
    config_fails(without(&["rope_parameters", "rope_theta"]), &["no `rope_theta`"]);
    config_fails(without(&["rope_parameters", "compress_rope_theta"]), &["no `compress_rope_theta`"]);
    config_fails(
        without(&["qk_rope_head_dim", "partial_rotary_factor", "rope_parameters"]),
        &["no `qk_rope_head_dim`"],
    );
}

#[test]
fn an_unsupported_value_is_ignored() {
    let cases: &[(&str, Value)] = &[
        ("scoring_func", json!("softmax")),
        ("topk_method", json!("group_limited_greedy")),
        ("norm_topk_prob", json!(false)),
        ("tie_word_embeddings", json!(true)),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("hidden_act", json!("gelu")),
        ("num_key_value_heads", json!(4)),
        ("n_shared_experts", json!(2)),
        ("n_group", json!(8)),
        ("topk_group", json!(4)),
        ("first_k_dense_replace", json!(3)),
        ("moe_layer_freq", json!(2)),
        ("swiglu_limit", json!(0)),
        ("swiglu_limit", json!(-1.0)),
        ("expert_dtype", json!("int4")),
        ("quantization_config", json!({"quant_method": "gptq"})),
        ("quantization_config", json!({"fmt": "e5m2"})),
        ("quantization_config", json!({"activation_scheme": "static"})),
        ("quantization_config", json!({"weight_block_size": [0, 128]})),
        ("quantization_config", json!({"weight_block_size": 128})),
        ("quantization_config", json!(7)),
        ("compress_ratios", json!([0, 4, -128, 4])),
        ("layer_types", json!(["full_attention", "x", "y", "z"])),
        ("mlp_layer_types", json!(["dense", "moe", "moe", "moe"])),
        ("eos_token_id", json!("</s>")),
    ];
    for (key, value) in cases {
        config_fails(|c| drop(c.insert((*key).into(), value.clone())), &[key, "config.json"]);
    }
}

#[test]
fn an_unsupported_rope_is_ignored() {
    let yarn = |extra: Value| {
        move |c: &mut Map<String, Value>| {
            let mut table = json!({"rope_type": "yarn", "rope_theta": 160000.0, "partial_rotary_factor": 0.125,
                                   "factor": 4.0, "original_max_position_embeddings": 4096, "attention_factor": 1.0});
            for (k, v) in extra.as_object().unwrap() {
                table[k] = v.clone();
            }
            c["rope_parameters"]["compress"] = table;
        }
    };
    let p = Pico::new();
    p.config(yarn(json!({"truncate": true, "mscale": 0.707})));
    let y = Checkpoint::open(p.spec()).unwrap().config().rope_compress.yarn.unwrap();
    assert_eq!((y.factor, y.beta_fast, y.beta_slow), (4.0, 32.0, 1.0));

    config_fails(yarn(json!({"rope_type": "longrope"})), &["rope_type", "longrope"]);
    config_fails(yarn(json!({"rope_type": "linear"})), &["rope_type", "linear"]);
    config_fails(yarn(json!({"type": "default"})), &["`rope_type` says \"yarn\", `type` says \"default\""]);
    config_fails(yarn(json!({"attention_factor": 1.277})), &["attention_factor", "1.277"]);
    config_fails(yarn(json!({"attention_factor": null})), &["attention_factor", "transformers would scale"]);
    config_fails(yarn(json!({"truncate": false})), &["truncate"]);
    config_fails(yarn(json!({"factor": 0.5})), &["rope_parameters.compress", "factor"]);
    config_fails(yarn(json!({"factor": null})), &["no `factor`", "rope_parameters.compress"]);
    config_fails(
        yarn(json!({"original_max_position_embeddings": null})),
        &["original_max_position_embeddings"],
    );
    config_fails(yarn(json!({"beta_fast": 0.5})), &["beta_fast"]);
    config_fails(|c| c["rope_parameters"]["factor"] = json!(4.0), &["rope_parameters.factor"]);
    config_fails(|c| c["rope_parameters"]["main"] = json!(4.0), &["rope_parameters.main"]);
    config_fails(
        |c| {
            drop(c.insert(
                "rope_scaling".into(),
                json!({"type": "yarn", "factor": 16, "original_max_position_embeddings": 4096}),
            ))
        },
        &["rope_scaling", "rope_parameters.compress", "contradicts"],
    );
}

#[test]
fn two_dialects_that_contradict_each_other() {
    let cases: &[(&str, Value, &[&str])] = &[
        ("compress_ratios", json!([0, 4, 4, 4]), &["compress_ratios[2]", "layer_types[2]"]),
        ("compress_ratios", json!([0, 4, 64, 4]), &["compress_ratios[2]", "layer_types[2]", "ratio 128"]),
        ("num_hash_layers", json!(0), &["num_hash_layers", "mlp_layer_types[0]"]),
        ("num_hash_layers", json!(2), &["num_hash_layers", "mlp_layer_types[1]"]),
        ("qk_rope_head_dim", json!(32), &["qk_rope_head_dim", "partial_rotary_factor"]),
        ("rope_theta", json!(500000), &["rope_theta", "rope_parameters.main"]),
        ("compress_rope_theta", json!(10000), &["compress_rope_theta", "rope_parameters.compress"]),
        ("compress_rate_hca", json!(64), &["compress_rates", "compress_rate_hca"]),
        ("n_layers", json!(5), &["num_hidden_layers", "n_layers"]),
        ("intermediate_size", json!(512), &["moe_intermediate_size", "intermediate_size"]),
        ("num_local_experts", json!(16), &["n_routed_experts", "num_local_experts"]),
        ("num_hidden_layers", json!(5), &["num_hidden_layers", "4 entries"]),
    ];
    for (key, value, parts) in cases {
        config_fails(
            |c| drop(c.insert((*key).into(), value.clone())),
            &[&["contradicts itself", "config.json"], *parts].concat(),
        );
    }
}

#[test]
fn a_key_that_appears_twice_silently_wins() {
    let p = Pico::new();
    let path = p.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen('{', "{\"index_topk\": 512,", 1)).unwrap();
    fails(p.spec(), &["`index_topk` appears twice", "offset: "]);
}

#[test]
fn absurd_numbers_overflow_panic_or_allocate() {
    let sizes = [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "head_dim",
        "qk_rope_head_dim",
        "q_lora_rank",
        "o_groups",
        "o_lora_rank",
        "sliding_window",
        "index_n_heads",
        "index_head_dim",
        "index_topk",
        "hc_mult",
        "hc_sinkhorn_iters",
        "moe_intermediate_size",
        "n_routed_experts",
        "num_experts_per_tok",
        "max_position_embeddings",
    ];
    let dir = tempfile::tempdir().unwrap();
    let original: Map<String, Value> =
        serde_json::from_slice(&std::fs::read(fixture("config.json")).unwrap()).unwrap();
    std::fs::copy(fixture("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let open = |key: &str, value: Value| {
        let mut c = original.clone();
        c.insert(key.into(), value);
        std::fs::write(dir.path().join("config.json"), Value::Object(c).to_string()).unwrap();
        read_all(dir.path().to_str().unwrap())
    };
    for key in sizes {
        for value in [
            json!(0),
            json!(-1),
            json!(u64::MAX),
            json!(1u64 << 62),
            json!(1.5),
            json!("7"),
            json!([7]),
            json!(1e300),
        ] {
            let e = open(key, value).expect_err(key).to_string();
            assert!(e.contains(key), "{key}: {e}");
        }
    }
    for key in ["hc_eps", "rms_norm_eps", "routed_scaling_factor", "rope_theta", "compress_rope_theta"] {
        for value in [json!(-1), json!(1e300), json!("x"), json!({})] {
            let e = open(key, value).expect_err(key).to_string();
            assert!(e.contains(key), "{key}: {e}");
        }
    }
    // The largest numbers that pass must be survived, too.
    for (key, value) in [
        ("vocab_size", 1 << 24),
        ("hidden_size", 1 << 18),
        ("index_topk", 1 << 30),
        ("n_routed_experts", 1 << 14),
    ] {
        let _ = open(key, value.into());
    }
}

#[test]
fn numbers_that_do_not_fit_each_other() {
    config_fails(|c| drop(c.insert("o_groups".into(), 3.into())), &["not divisible by o_groups"]);
    config_fails(
        |c| {
            c.insert("qk_rope_head_dim".into(), 15.into());
            c.remove("partial_rotary_factor");
            c.remove("rope_parameters");
            c.insert("rope_scaling".into(), Value::Null);
        },
        &["odd"],
    );
    config_fails(
        |c| {
            c.insert("qk_rope_head_dim".into(), 256.into());
            c.remove("partial_rotary_factor");
            c.remove("rope_parameters");
            c.insert("rope_scaling".into(), Value::Null);
        },
        &["larger than head_dim"],
    );
    config_fails(
        |c| drop(c.insert("num_experts_per_tok".into(), 9.into())),
        &["larger than n_routed_experts"],
    );
    config_fails(|c| drop(c.insert("index_head_dim".into(), 8.into())), &["index_head_dim 8 is smaller"]);
}

// ---- anything at all ----

mod fuzz {
    use std::sync::LazyLock;

    use super::*;
    use proptest::prelude::*;

    static MXFP4: LazyLock<Vec<u8>> =
        LazyLock::new(|| safetensors(&toy::official(false, ("scale", "F8_E8M0"))));
    static NVFP4: LazyLock<Vec<u8>> =
        LazyLock::new(|| safetensors(&toy::official(true, ("scale", "F8_E8M0"))));
    static BF16: LazyLock<Vec<u8>> = LazyLock::new(|| safetensors(&toy::uniform("BF16", "")));

    fn survives(config: &[u8], weights: &[u8]) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        std::fs::write(dir.path().join("model.safetensors"), weights).unwrap();
        // Any outcome will do, as long as there is one.
        let _ = read_all(dir.path().to_str().unwrap());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn random_damage_to_the_weights_panics(
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 0..6),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut bytes = MXFP4.clone();
            let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            for (at, value, in_header) in flips {
                let i = at.index(if in_header { header } else { bytes.len() });
                bytes[i] = value;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            survives(toy::official_config().to_string().as_bytes(), &bytes);
        }

        #[test]
        fn random_numbers_in_the_header_panic(
            tensor in any::<prop::sample::Index>(), field in 0..3, at in 0..2usize, value in any::<u64>(), small in any::<bool>(),
        ) {
            let (mut header, data) = split(&NVFP4);
            let value = if small { value % 4096 } else { value };
            let n = tensor.index(header.len());
            let entry = header.values_mut().nth(n).unwrap();
            match field {
                0 => entry["data_offsets"][at] = value.into(),
                1 => entry["shape"] = json!([value, at]),
                _ => entry["dtype"] = ["I8", "F8_E4M3"][at].into(),
            }
            let weights = with_header(&Value::Object(header).to_string(), data);
            survives(toy::official_config().to_string().as_bytes(), &weights);
        }

        #[test]
        fn random_damage_to_the_config_panics(
            key in any::<prop::sample::Index>(), value in any::<i64>(), kind in 0..5,
            flip in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let mut c = toy::official_config();
            let m = c.as_object_mut().unwrap();
            let n = key.index(m.len());
            let slot = m.values_mut().nth(n).unwrap();
            *slot = match kind {
                0 => value.into(),
                1 => (value % 300).into(),
                2 => json!(f64::from_bits(value as u64)),
                3 => json!([value, value]),
                _ => Value::Null,
            };
            let mut text = c.to_string().into_bytes();
            if let Some((at, v)) = flip {
                let i = at.index(text.len());
                text[i] = v;
            }
            survives(&text, &BF16);
        }
    }
}
