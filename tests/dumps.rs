//! Committed dumps that another implementation made (`scripts/make_dumps.py`, NumPy in float64): what
//! `diff-layers --against` must say about each.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

fn verdict(model: &Path, dump: &Path) -> (Value, i32) {
    let tmp = tempfile::tempdir().unwrap();
    let r = Command::new(env!("CARGO_BIN_EXE_dsv4"))
        .current_dir(tmp.path())
        .env_remove("DSV4_KERNELS")
        .args(["diff-layers", "--json", "--model"])
        .arg(model)
        .arg("--against")
        .arg(dump)
        .output()
        .unwrap();
    let v = serde_json::from_slice(&r.stdout)
        .unwrap_or_else(|_| panic!("{}: {}", dump.display(), String::from_utf8_lossy(&r.stderr)));
    (v, r.status.code().unwrap())
}

/// Catches a judge that agrees only with dumps of its own making: faults missed or put elsewhere, and
/// alarms on healthy runs, in full precision, in bf16, quantised, in shards, with wider or unordered
/// selections.
#[test]
fn every_dump_is_judged_as_expected() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let text = std::fs::read(fixtures.join("dumps/expectations.json")).unwrap();
    let expected: Vec<Value> = serde_json::from_slice(&text).unwrap();
    let mut sites = BTreeSet::new();
    for e in &expected {
        let word = |k: &str| e[k].as_str().unwrap_or_default();
        let (v, code) =
            verdict(&fixtures.join("golden").join(word("model")), &fixtures.join("dumps").join(word("dump")));
        let found = &v["verdict"];
        let context = format!("{}: {found}", e["dump"]);
        if e["at_most"] == "elevated" {
            assert_ne!(found["status"], "suspect", "{context}");
        } else {
            for key in ["status", "layer", "site", "tap"] {
                assert_eq!(found[key], e[key], "{key} of {context}");
            }
        }
        assert_eq!(code, (found["status"] == "suspect") as i32, "{context}");
        sites.extend(e["site"].as_str());
        // Nothing that was written may have been passed over.
        assert_eq!(v["ignored"].as_array().map(Vec::len), Some(0), "{context}");
    }
    // A list that shrank would pass in silence.
    assert!(expected.len() >= 15 && sites.len() >= 7, "{} dumps, {sites:?}", expected.len());
}
