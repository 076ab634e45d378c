//! `dsv4 kernels check` from outside, at small sizes.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

fn run(args: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_dsv4"));
    c.env_remove("DSV4_KERNELS").stdin(Stdio::null());
    c.args(["kernels", "check", "--sizes", "small"]).args(args).output().unwrap()
}

/// Standard output of a run that must end with `code`.
fn ends(args: &[&str], code: i32) -> String {
    let o = run(args);
    assert_eq!(o.status.code(), Some(code), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
    String::from_utf8(o.stdout).unwrap()
}

fn json(args: &[&str], code: i32) -> Value {
    serde_json::from_str(&ends(&[args, &["--json"]].concat(), code)).unwrap()
}

fn rows(v: &Value) -> Vec<&Value> {
    v["paths"].as_array().unwrap().iter().flat_map(|p| p["rows"].as_array().unwrap()).collect()
}

/// Catches an operation that knows whether it is called as golden, and a floor below rounding.
#[test]
fn golden_is_bit_identical_at_every_site() {
    let v = json(&["--kernels", "none"], 0);
    assert_eq!((&v["status"], &v["paths"][0]["identical"]), (&"ok".into(), &true.into()));
    assert!(rows(&v).iter().all(|r| r["identical"] == true && r["status"] == "ok"));
    let sites: std::collections::BTreeSet<&str> =
        rows(&v).iter().map(|r| r["site"].as_str().unwrap()).collect();
    assert_eq!(sites.len(), 11, "{sites:?}");
    let cases: std::collections::BTreeSet<&str> =
        rows(&v).iter().map(|r| r["case"].as_str().unwrap()).collect();
    assert_eq!(cases.len(), 9, "{cases:?}");
}

/// Catches a check that is blind: each of these is wrong, not coarse, and must be red at its own
/// operation.
#[test]
fn planted_faults_are_red_at_their_operation() {
    for (fault, op) in [
        ("attn.sink=dropped", "attn.lse"),
        ("attn.sink=per_split,attn.splits=8", "attn.out"),
        ("attn.lse_base_mismatch=on,attn.splits=8", "attn.out"),
        ("attn.window=one_short", "attn.out"),
        ("attn.derotate=off", "attn.out"),
        ("attn.compressed=off", "attn.out"),
        ("indexer.hadamard=q_only", "indexer.topk"),
        ("indexer.relu=off", "indexer.topk"),
        ("indexer.key_pairing=half_split", "indexer.scores"),
        ("indexer.visible=q_div_r", "indexer.topk"),
        ("topk.coarse_bits=8,topk.coarse_cap=4", "topk.ids"),
        ("topk.width=8", "topk.ids"),
        ("mhc.comb=transposed", "mhc.expand"),
        ("mhc.sinkhorn_iters=5", "mhc.comb"),
        ("router.scale=twice", "router.weights"),
        ("router.bias=off", "router.topk"),
        ("router.table=bf16", "router.table"),
        ("experts.scale=never", "experts.routed"),
        ("experts.clamp=off_routed", "experts.routed"),
        ("experts.clamp=off_shared", "experts.shared"),
        ("compressor.overlap=off", "compressor.csa"),
        ("compressor.entry_pos=index", "compressor.hca"),
        ("compressor.carry=off", "compressor.csa"),
        ("compressor.ape=off", "compressor.hca"),
        ("linear.pairing=half_split", "linear.q"),
        ("linear.head_norm=off", "linear.q"),
    ] {
        let v = json(&["--kernels", fault], 1);
        let red = rows(&v).iter().any(|r| r["op"] == op && r["status"] == "suspect");
        assert!(red, "{fault} is not red at {op}");
    }
}

/// Catches a fault that hides behind the declared formats of the kernel it is planted in.
#[test]
fn a_fault_in_a_coarse_kernel_is_red() {
    let v = json(&["--kernels", "splitk-mma,attn.sink=dropped"], 1);
    assert!(v["why"].as_str().unwrap().contains("attn."), "{}", v["why"]);
    json(&["--preset", "splitk-mma"], 0);
}

/// Catches an order of sums that is called a fault, and one that the check does not exercise.
#[test]
fn order_of_sums_is_no_fault() {
    for knobs in ["attn.splits=8", "attn.tile=16", "mhc.split_k=16"] {
        let v = json(&["--kernels", knobs], 0);
        assert_eq!((&v["status"], &v["paths"][0]["identical"]), (&"ok".into(), &false.into()), "{knobs}");
    }
}

/// Catches ties broken otherwise that are called wrong, or not seen at all.
#[test]
fn another_tie_rule_is_a_near_tie() {
    let v = json(&["--kernels", "topk.tie=high", "--cases", "ties"], 0);
    let r = rows(&v);
    assert_eq!(r.len(), 1);
    assert!(r[0]["near_tie_flips"].as_u64().unwrap() > 0 && r[0]["real_flips"] == 0, "{}", r[0]);
}

/// Catches a schema that changes without its number, and figures that are missing.
#[test]
fn json_has_its_schema() {
    let v = json(&["--preset", "triton-indexer", "mhc-bf16", "--cases", "random,ties", "--seed", "3"], 0);
    let keys: Vec<&str> = v.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["schema", "seed", "sizes", "cases", "limits", "status", "why", "paths"]);
    assert_eq!((&v["schema"], &v["seed"]), (&"dsv4.kernels-check/1".into(), &3.into()));
    assert_eq!(v["cases"].as_array().unwrap().len(), 2);
    let path = &v["paths"][0];
    assert_eq!((&path["name"], &path["sites"]), (&"triton-indexer".into(), &serde_json::json!(["indexer"])));
    for r in rows(&v) {
        let tensor = r["overlap"].is_null();
        for key in ["rel_l2", "max_rel", "floor", "format", "excess", "row_excess"] {
            assert_eq!(r[key].is_number(), tensor, "{key} of {r}");
        }
        assert!(r["n"].as_u64().unwrap() > 0 && r["findings"].is_array() && r["status"].is_string(), "{r}");
    }
}

/// Catches data or results that depend on threads, on time, or not on the seed.
#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let args = ["--preset", "bf16", "--json", "--threads"];
    let one = run(&[&args[..], &["1"]].concat());
    assert_eq!(one.stdout, run(&[&args[..], &["2"]].concat()).stdout);
    assert!(!one.stdout.is_empty());
    let other = run(&[&args[..], &["2", "--seed", "2"]].concat());
    assert_ne!(one.stdout, other.stdout);
}

/// Catches output that a terminal wraps, a verdict that is not on the first line, a setting that
/// nothing reads passing in silence, and files that are missing.
#[test]
fn text_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let t = ends(&["--preset", "bf16", "mhc-bf16", "--out", out.to_str().unwrap(), "--cases", "random"], 0);
    let first = t.lines().next().unwrap();
    assert!(first.starts_with("OK: ") || first.starts_with("ELEVATED: "), "{first}");
    assert!(t.lines().all(|l| l.chars().count() <= 80), "{t}");
    let csv = std::fs::read_to_string(out.join("check.csv")).unwrap();
    let saved: Value = serde_json::from_slice(&std::fs::read(out.join("check.json")).unwrap()).unwrap();
    assert_eq!(csv.lines().count(), 1 + rows(&saved).len());
    let t = ends(&["--kernels", "mhc.w_dtype=bf16,mhc.sublayer_norm=off,linear.rope=swapped"], 0);
    assert!(t.contains("changed no bit of an operation alone: linear"), "{t}");
}

/// Catches success where nothing was compared, and names that are let through.
#[test]
fn what_cannot_be_checked_is_an_error() {
    ends(&["--preset", "mhc-bf16", "--cases", "beyond_clamp"], 5);
    for (args, said) in [
        (vec!["--preset", "splitk-mna"], "did you mean 'splitk-mma'?"),
        (vec!["--cases", "rnadom"], "beyond_clamp"),
        (vec!["--kernels", "mhc-bf16@3"], "in no layer"),
        (vec!["--kernels", "none", "--preset", "mhc-bf16"], "cannot be used with"),
    ] {
        let o = run(&args);
        let err = String::from_utf8(o.stderr).unwrap();
        assert_eq!(o.status.code(), Some(2), "{err}");
        assert!(err.contains(said), "{err}");
    }
}
