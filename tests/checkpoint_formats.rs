//! One tiny model written in every dialect and storage type reads back as the same numbers.

mod common;

use std::path::Path;

use common::{Raw, safetensors, toy, write_sharded};
use dsv4::checkpoint::{Checkpoint, LayerKind, Role, ScaleType, Stored};
use serde_json::Value;

fn write(dir: &Path, config: &Value, tensors: &[Raw], shards: usize) {
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    if shards == 0 {
        std::fs::write(dir.join("model.safetensors"), safetensors(tensors)).unwrap();
    } else {
        write_sharded(dir, tensors, shards);
    }
}

/// Writes, opens and compares every tensor with the values it was made of.
fn reads_back(config: &Value, tensors: &[Raw], shards: usize) -> Checkpoint {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), config, tensors, shards);
    let c = Checkpoint::open(dir.path().to_str().unwrap()).unwrap();
    c.check().unwrap();
    let inv = c.inventory();
    assert!(inv.ok(), "{inv:?}");
    assert_eq!(inv.extra.0, 0, "{:?}", inv.extra);
    for (name, shape, kind) in toy::tensors() {
        if kind == toy::Kind::Ids {
            assert_eq!(c.load_i64(&name).unwrap(), (shape, toy::ids()));
            continue;
        }
        let t = c.load(&name).unwrap();
        assert_eq!(t.shape, shape, "{name}");
        assert!(t.data == toy::values(&name, &shape), "{name} differs");
        // Any row range gives the same rows.
        let rows = shape[0] / 3..(shape[0] / 3 + 40).min(shape[0]);
        let per: usize = shape[1..].iter().product();
        let part = c.load_rows(&name, rows.clone()).unwrap();
        assert!(part.data == t.data[rows.start * per..rows.end * per], "{name} rows {rows:?}");
    }
    c
}

const E8M0: (&str, &str) = ("scale", "F8_E8M0");

#[test]
fn official_fp8_and_mxfp4_in_shards_decodes_wrongly() {
    let c = reads_back(&toy::official_config(), &toy::official(false, E8M0), 4);
    let fp8 = Stored::Fp8Block { rows: 128, cols: 128, scale: ScaleType::E8m0 };
    assert_eq!(c.stored("layers.1.attn.wq_a.weight"), Some(fp8));
    assert_eq!(fp8.to_string(), "fp8 128x128 (e8m0 scales)");
    assert_eq!(c.stored("layers.1.ffn.experts.2.w2.weight"), Some(Stored::MxFp4));
    assert_eq!(c.inventory().role(Role::Mtp).unwrap().total.tensors, 1);
    let cfg = c.config();
    assert_eq!(
        cfg.layers.iter().map(|l| l.kind).collect::<Vec<_>>(),
        [LayerKind::Window, LayerKind::Csa, LayerKind::Hca]
    );
    assert_eq!(cfg.layers.iter().map(|l| l.hash).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(cfg.horizon(), Some(16));
    assert_eq!(cfg.rope_main.yarn, None);
    assert_eq!(cfg.rope_compress.yarn.unwrap().factor, 16.0);
}

#[test]
fn block_scales_in_f32_named_weight_scale_inv_decode_wrongly() {
    let c = reads_back(&toy::official_config(), &toy::official(false, ("weight_scale_inv", "F32")), 0);
    let fp8 = Stored::Fp8Block { rows: 128, cols: 128, scale: ScaleType::F32 };
    assert_eq!(c.stored("layers.0.attn.wo_b.weight"), Some(fp8));
}

#[test]
fn nvfp4_experts_decode_otherwise_than_the_mxfp4_they_were_cast_from() {
    let c = reads_back(&toy::official_config(), &toy::official(true, E8M0), 2);
    let name = "layers.2.ffn.experts.0.w1.weight";
    assert_eq!(c.stored(name), Some(Stored::NvFp4));
    assert_eq!(c.input_scale(name).unwrap(), Some(0.75));
    assert_eq!(c.weight_scale_2(name).unwrap(), Some(0.125));
    assert_eq!(c.input_scale("layers.2.attn.wq_a.weight").unwrap(), None);
}

#[test]
fn the_names_transformers_saves_are_not_understood() {
    let c = reads_back(&toy::transformers_config(), &toy::saved(), 0);
    assert_eq!(c.config().qk_rope_head_dim, 12);
    assert_eq!(c.config().dialect, "transformers");
}

#[test]
fn live_module_names_with_packed_experts_are_not_understood() {
    let c = reads_back(&toy::transformers_config(), &toy::live(), 3);
    assert!(c.has("layers.0.ffn.experts.2.w3.weight"));
    assert!(!c.has("layers.0.ffn.experts.3.w3.weight"));
    assert!(!c.has("layers.3.ffn.experts.0.w3.weight"));
}

#[test]
fn a_plain_float_type_decodes_wrongly() {
    for dtype in ["F64", "F32", "F16", "BF16"] {
        for prefix in ["", "model."] {
            reads_back(&toy::official_config(), &toy::uniform(dtype, prefix), 0);
        }
    }
}

#[test]
fn the_three_config_dialects_describe_different_models() {
    let tensors = toy::uniform("BF16", "");
    let read = |config: &Value| {
        let mut c = reads_back(config, &tensors, 0).config().clone();
        c.dialect = String::new();
        c.quant = Default::default();
        // What a dialect cannot say.
        c.bos_token_id = None;
        c.eos_token_ids = Vec::new();
        c
    };
    let official = read(&toy::official_config());
    assert_eq!(official, read(&toy::transformers_config()));
    assert_eq!(official, read(&toy::inference_config()));
    // Both at once, agreeing.
    let mut both = toy::official_config();
    for (k, v) in toy::transformers_config().as_object().unwrap() {
        both[k] = v.clone();
    }
    assert_eq!(official, read(&both));
}

#[test]
fn the_fingerprint_depends_on_the_place_or_not_on_the_content() {
    let builtin = Checkpoint::open("builtin:pico").unwrap().fingerprint();
    let copy = common::Pico::new();
    assert_eq!(Checkpoint::open(copy.spec()).unwrap().fingerprint(), builtin);
    copy.data("model.norm.weight", |b| b[0] ^= 1);
    assert_ne!(Checkpoint::open(copy.spec()).unwrap().fingerprint(), builtin);
    let copy = common::Pico::new();
    copy.config(|c| drop(c.insert("index_topk".into(), 32.into())));
    assert_ne!(Checkpoint::open(copy.spec()).unwrap().fingerprint(), builtin);
}

#[test]
fn inspect_hides_what_is_missing_or_forgets_a_role() {
    use dsv4::cli::inspect::{InspectArgs, run};
    let inspect = |config: &Value, tensors: &[Raw], json: bool| {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), config, tensors, 0);
        let mut out = Vec::new();
        let model = dir.path().to_str().unwrap().to_owned();
        let code = run(&InspectArgs { model, json, out: None }, &mut out).unwrap();
        (code, String::from_utf8(out).unwrap())
    };
    let mut tensors = toy::official(true, E8M0);
    let (code, text) = inspect(&toy::official_config(), &tensors, false);
    assert_eq!(code, 0, "{text}");
    for part in [
        "ok: nothing missing",
        "routed experts nvfp4",
        "attention fp8 128x128 (e8m0 scales)",
        "input_scale 7.5e-1",
        "identity horizon 16 tokens = index_topk 4 x ratio 4",
        "1 of the drafter",
        "YaRN x16 over 65536",
    ] {
        assert!(
            text.replace("\n  ", " ").replace("            ", "").contains(part),
            "no `{part}` in:\n{text}"
        );
    }
    // Unknown keys are named; a missing tensor, one of the wrong shape, an extra one and a bad id are all told at once.
    let mut config = toy::official_config();
    config["surprise"] = 1.into();
    tensors.retain(|t| t.name != "layers.2.attn.compressor.ape");
    tensors.iter_mut().find(|t| t.name == "layers.1.ffn.gate.bias").unwrap().shape = vec![1, 3];
    tensors.iter_mut().find(|t| t.name == "layers.0.ffn.gate.tid2eid").unwrap().bytes[0] = 200;
    tensors.push(toy::plain("layers.9.x".into(), "F32", &[1], &[0.0]));
    let (code, text) = inspect(&config, &tensors, false);
    assert_eq!(code, 1);
    for part in [
        "1 tensor missing, 1 tensor unusable, 1 extra (ignored)",
        "missing (1):\n  layers.2.attn.compressor.ape",
        "unusable (1):\n  layers.1.ffn.gate.bias",
        "[1, 3]",
        "extra (1):\n  layers.9.x",
        "surprise",
        "is expert 200",
    ] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
    let (code, text) = inspect(&config, &tensors, true);
    let v: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, v["schema"].as_str(), v["missing"]["count"].as_u64()),
        (1, Some("dsv4.inspect/1"), Some(1))
    );
    assert_eq!(v["verdict"]["status"], "incomplete");
    let hash = v["questions"].as_array().unwrap().iter().find(|q| q["id"] == "hash_layers").unwrap();
    assert_eq!(hash["answer"], "no");
}
