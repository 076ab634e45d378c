//! `diff-layers --against` as a user runs it: planted faults are named at their layer and site,
//! healthy dumps stay quiet, unusable ones are refused with their own exit code.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn dsv4(dir: &Path, args: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_dsv4"));
    c.current_dir(dir).env_remove("DSV4_KERNELS").args(args);
    c.output().unwrap()
}

/// A prompt of the built-in model above its identity horizon of 256 tokens, as token ids.
fn prompt(dir: &Path, tokens: usize) -> String {
    let ids: Vec<usize> =
        (0..tokens).map(|i| if i == 0 { 0 } else { 4 + (i * 7919 + i * i) % 500 }).collect();
    let path = dir.join("ids.json");
    std::fs::write(&path, serde_json::to_vec(&ids).unwrap()).unwrap();
    path.to_str().unwrap().to_string()
}

fn dump(dir: &Path, name: &str, args: &[&str]) -> PathBuf {
    let ids = prompt(dir, 300);
    let out = dir.join(name);
    let all = [&["dump", "--token-ids", &ids, "--out", out.to_str().unwrap()], args].concat();
    let r = dsv4(dir, &all);
    assert!(r.status.success(), "{}", String::from_utf8_lossy(&r.stderr));
    out
}

fn against(dir: &Path, dump: &Path, args: &[&str]) -> (Value, i32) {
    let r = dsv4(dir, &[&["diff-layers", "--against", dump.to_str().unwrap(), "--json"], args].concat());
    let v = serde_json::from_slice(&r.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&r.stderr)));
    (v, r.status.code().unwrap())
}

/// Catches a fault that is missed, or blamed on the wrong layer or site.
#[test]
fn planted_faults_are_named_at_their_layer_and_site() {
    let tmp = tempfile::tempdir().unwrap();
    for (spec, layer, site) in [
        ("scale_2x@2", 2, "router"),
        ("runner_scale_2x@1", 1, "experts"),
        ("sink_dropped@0", 0, "attn"),
        ("derotate_off@3", 3, "attn"),
        ("compressed_branch_masked@2", 2, "attn"),
        ("theta_swap@1", 1, "linear"),
        ("comp_rope_pos_index@3", 3, "compressor"),
        ("overlap_off@1", 1, "compressor"),
        ("hadamard_q_only@1", 1, "indexer"),
        ("relu_off@3", 3, "indexer"),
        ("comb_transposed@2", 2, "mhc"),
        ("sinkhorn_5_iters@1", 1, "mhc"),
        ("topk.width=32@3", 3, "topk"),
        ("window_one_short@0", 0, "attn"),
        ("router_bias_off@1", 1, "router"),
    ] {
        // The scores tap is what tells scoring from selection.
        let taps = if site == "indexer" { "*" } else { "layers.*,head.in,logits" };
        let d = dump(tmp.path(), "fault.safetensors", &["--kernels", spec, "--taps", taps]);
        let (v, code) = against(tmp.path(), &d, &[]);
        let verdict = &v["verdict"];
        assert_eq!(verdict["status"], "suspect", "{spec}: {verdict}");
        assert_eq!(verdict["layer"], layer, "{spec}: {verdict}");
        assert_eq!(verdict["site"], site, "{spec}: {verdict}");
        assert_eq!(code, 1, "{spec}");
    }
}

/// Catches an alarm on runs whose formats explain them: golden, qat, bf16, and parts of them.
#[test]
fn healthy_dumps_stay_quiet() {
    let tmp = tempfile::tempdir().unwrap();
    for args in [
        &[][..],
        &["--golden", "qat"],
        &["--kernels", "bf16"],
        &["--golden", "qat", "--kernels", "bf16"],
        &["--kernels", "bf16", "--taps", "layers.*.out,logits"],
        &["--taps", "layers.*.index.topk"],
        &["--kernels", "bf16", "--taps", "layers.*.attn.out,layers.*.out"],
        &["--decode-last", "9"],
    ] {
        let d = dump(tmp.path(), "healthy.safetensors", args);
        let (v, code) = against(tmp.path(), &d, &[]);
        assert_ne!(v["verdict"]["status"], "suspect", "{args:?}: {}", v["verdict"]);
        assert_eq!(code, 0, "{args:?}");
    }
}

/// Catches a suffix dump compared at the wrong rows.
#[test]
fn a_suffix_dump_is_compared_at_its_positions() {
    let tmp = tempfile::tempdir().unwrap();
    let d = dump(tmp.path(), "tail.safetensors", &["--from", "270"]);
    let ids = prompt(tmp.path(), 300);
    let (v, code) = against(tmp.path(), &d, &["--token-ids", &ids]);
    assert_eq!((v["verdict"]["status"].as_str(), code), (Some("ok"), 0));
    let r = dsv4(tmp.path(), &["diff-layers", "--against", d.to_str().unwrap()]);
    assert_eq!(r.status.code(), Some(2), "its own tokens are not the whole prompt");
}

/// Catches a comparison of two prompts, of two shapes, or of nothing, reported as a result.
#[test]
fn unusable_comparisons_have_their_own_exit_codes() {
    let tmp = tempfile::tempdir().unwrap();
    let d = dump(tmp.path(), "g.safetensors", &["--taps", "layers.0.out"]);
    let other = tmp.path().join("other.json");
    let ids: Vec<usize> = (0..300).map(|i| if i == 17 { 9 } else { 4 + i % 400 }).collect();
    std::fs::write(&other, serde_json::to_vec(&ids).unwrap()).unwrap();
    let (v, code) = against(tmp.path(), &d, &["--token-ids", other.to_str().unwrap()]);
    assert_eq!((v["verdict"]["tap"].as_str(), code), (Some("tokens"), 1));

    let bytes = vec![0u8; 4 * 300 * 4 * 9];
    let view =
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![300, 4, 9], &bytes).unwrap();
    let wrong = tmp.path().join("wrong.safetensors");
    safetensors::serialize_to_file([("layers.0.out", view.clone())], None, &wrong).unwrap();
    let ids = prompt(tmp.path(), 300);
    let r = dsv4(tmp.path(), &["diff-layers", "--against", wrong.to_str().unwrap(), "--token-ids", &ids]);
    let text = String::from_utf8_lossy(&r.stderr).to_string();
    assert_eq!(r.status.code(), Some(3));
    assert!(
        text.contains("[300, 4, 9]") && text.contains("[300, 4, 256]") && text.contains("hint:"),
        "{text}"
    );

    let strange = tmp.path().join("strange.safetensors");
    safetensors::serialize_to_file([("something.else", view)], None, &strange).unwrap();
    let r = dsv4(tmp.path(), &["diff-layers", "--against", strange.to_str().unwrap(), "--token-ids", &ids]);
    assert_eq!(r.status.code(), Some(5));
}

/// Catches scores compared at the wrong width once a prompt takes more than one internal block.
#[test]
fn index_scores_of_a_long_prompt_are_compared() {
    let tmp = tempfile::tempdir().unwrap();
    let ids = prompt(tmp.path(), 1100);
    let out = tmp.path().join("long.safetensors");
    for (spec, status) in [("none", "ok"), ("relu_off@1", "suspect")] {
        let taps = "layers.1.indexer.*,layers.1.index.topk,layers.*.out";
        let path = out.to_str().unwrap();
        let r = dsv4(
            tmp.path(),
            &["dump", "--token-ids", &ids, "--taps", taps, "--kernels", spec, "--out", path],
        );
        assert!(r.status.success(), "{}", String::from_utf8_lossy(&r.stderr));
        let (v, _) = against(tmp.path(), &out, &[]);
        assert_eq!(v["verdict"]["status"], status, "{spec}: {}", v["verdict"]);
    }
}
