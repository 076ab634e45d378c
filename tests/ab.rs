//! `dsv4 ab` and `dsv4 report` as a CI job uses them, through the binary.

use assert_cmd::Command;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn dsv4() -> Command {
    let mut c = Command::new(assert_cmd::cargo::cargo_bin!("dsv4"));
    c.env_remove("DSV4_KERNELS")
        .env_remove("GITHUB_ACTIONS")
        .env_remove("GITHUB_STEP_SUMMARY")
        .arg("--quiet");
    c
}

/// A working directory with a prompt above the identity horizon of the built-in model (256 tokens).
struct Job(tempfile::TempDir);

impl Job {
    fn new() -> Job {
        let dir = tempfile::tempdir().unwrap();
        let ids: Vec<usize> = (0..420).map(|i| if i == 0 { 0 } else { 4 + i * 7919 % 480 }).collect();
        std::fs::write(dir.path().join("ids.json"), format!("{ids:?}")).unwrap();
        Job(dir)
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    /// Writes a config with these toggles.
    fn config(&self, toggles: &[(&str, &str)], rest: &str) -> PathBuf {
        let mut text =
            format!("[run]\ndecode_last = 5\n[[prompt]]\ntoken_ids = \"ids.json\"\n{GATES}{rest}\n");
        for (name, kernels) in toggles {
            text += &format!("[[toggle]]\nname = \"{name}\"\nkernels = \"{kernels}\"\n");
        }
        let path = self.path("dsv4.toml");
        std::fs::write(&path, text).unwrap();
        path
    }
    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let out = dsv4().current_dir(self.0.path()).args(args).output().unwrap();
        let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
        (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
    }
    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.path(name)).unwrap()).unwrap()
    }
}

const GATES: &str = "[[gate]]\nname = \"formats\"\nwhere = \"table=layers\"\nrequire = \"status != suspect\"\n\
                     [[gate]]\nname = \"selection\"\nwhere = \"table=index\"\nrequire = \"real_flips = 0\"\n";

const HEALTHY: [(&str, &str); 2] = [("attention", "splitk-mma"), ("mixing", "mhc-bf16")];

/// Catches a report that names the wrong toggle or site, or none, and a job that ends with success.
#[test]
fn a_planted_fault_is_the_principal_suspect() {
    let faults = [
        ("sink_dropped", "attn"),
        ("relu_off", "indexer"),
        ("comb_transposed", "mhc"),
        ("scale_2x", "router"),
        ("comp_rope_pos_index", "compressor"),
    ];
    for (fault, site) in faults {
        let job = Job::new();
        job.config(&[HEALTHY[1], ("patch", fault)], "");
        let (code, text, err) = job.run(&["ab", "--out", "run"]);
        assert_eq!(code, 1, "{fault}: {text}{err}");
        assert!(text.starts_with("FAILED: "), "{text}");
        let (code, _, err) = job.run(&["report", "run", "--out", "report"]);
        assert_eq!(code, 0, "{err}");
        let p = job.json("report/report.json")["principal"].clone();
        assert_eq!((p["site"].as_str(), p["what"].as_str()), (Some(site), Some("patch")), "{fault}: {p}");
        let md = std::fs::read_to_string(job.path("report/report.md")).unwrap();
        assert!(md.contains(&format!("**Principal suspect: patch, site {site}")), "{md}");
        let summary = job.json("run/summary.json");
        let effects = summary["conclusion"]["effects"].as_array().unwrap();
        for e in effects {
            let patch = e["toggle"] == "patch";
            assert_eq!((e["fails_alone"].as_bool(), e["cures"].as_bool()), (Some(patch), Some(patch)), "{e}");
        }
    }
}

/// Catches a suspect where nothing is wrong, output that depends on the thread count or the hour, and a second
/// judgement that differs from the first.
#[test]
fn healthy_kernels_pass_and_the_bytes_repeat() {
    let job = Job::new();
    job.config(&HEALTHY, "");
    let (code, text, err) = job.run(&["ab", "--out", "one"]);
    assert_eq!(code, 0, "{text}{err}");
    assert!(text.starts_with("PASSED: "), "{text}");
    let (code, _, _) =
        job.run(&["--threads", "1", "ab", "--out", "two", "--junit", "junit.xml", "--summary", "s.md"]);
    assert_eq!(code, 0);
    let mut files: Vec<_> =
        std::fs::read_dir(job.path("one")).unwrap().map(|f| f.unwrap().file_name()).collect();
    files.sort();
    assert!(files.len() >= 9, "{files:?}");
    for f in files.iter().filter(|f| *f != "manifest.json") {
        let read = |d: &str| std::fs::read(job.path(d).join(f)).unwrap();
        assert_eq!(read("one"), read("two"), "{f:?}");
    }
    assert_eq!(
        std::fs::read(job.path("junit.xml")).unwrap(),
        std::fs::read(job.path("one/junit.xml")).unwrap()
    );
    assert!(std::fs::read_to_string(job.path("s.md")).unwrap().contains("PASSED"));
    let (code, again, _) = job.run(&["ab", "--judge", "one"]);
    assert_eq!(code, 0);
    assert_eq!(again.lines().next(), text.lines().next());
    assert_eq!(job.run(&["inspect", "--out", "inspect"]).0, 0);
    assert_eq!(job.run(&["diff-layers", "--token-ids", "ids.json", "--out", "diff"]).0, 0);
    let few =
        ["selftest", "--fault", "sink_dropped", "--aa-runs", "1", "--token-ids", "ids.json", "--out", "self"];
    assert_eq!(job.run(&few).0, 0);
    let (code, md, err) = job.run(&["report", "one", "inspect", "diff", "self"]);
    assert_eq!(code, 0, "{err}");
    assert!(md.contains("the selftest planted 1 fault kinds in this model and found 1"), "{md}");
    assert!(md.contains("Are the mHC mixing weights stored in f32?"), "{md}");
    let (_, md, _) = job.run(&["report", "one"]);
    assert!(md.contains("No principal suspect: nothing wrong was found."), "{md}");
    assert!(md.contains("exonerated") && md.contains("What was not tested"));
    for width in md.lines().filter(|l| !l.contains('|')).map(|l| l.chars().count()) {
        assert!(width < 400, "a line of prose that nobody wraps");
    }
}

/// Catches a stored run that new gates cannot judge, and a gate that passes because nothing matched it.
#[test]
fn stored_runs_are_judged_again() {
    let job = Job::new();
    job.config(&HEALTHY, "");
    assert_eq!(job.run(&["ab", "--out", "run"]).0, 0);
    job.config(
        &HEALTHY,
        "[[gate]]\nname = \"strict\"\nwhere = \"site=attn & phase=decode\"\nrequire = \"rel_l2 <= 1e-9\"\n",
    );
    let (code, text, _) = job.run(&["ab", "--judge", "run"]);
    assert_eq!(code, 1);
    assert!(text.contains("strict") && text.contains("attention"), "{text}");
    job.config(
        &HEALTHY,
        "[[gate]]\nname = \"nothing\"\nwhere = \"site=attn & layer=77\"\nrequire = \"rel_l2 <= 1\"\n",
    );
    let (code, text, _) = job.run(&["ab", "--judge", "run"]);
    assert_eq!(code, 1);
    assert!(text.contains("matched no row"), "{text}");
}

/// Catches a baseline of another experiment that is taken for this one's, and a regression that passes.
#[test]
fn baselines_must_match_and_hold() {
    let job = Job::new();
    let gate = "[[gate]]\nname = \"no worse\"\nwhere = \"table=layers\"\nrequire = \"rel_l2 <= 1.0001 * baseline\"\n";
    job.config(&HEALTHY, "");
    assert_eq!(job.run(&["ab", "--out", "base"]).0, 0);
    job.config(&HEALTHY, gate);
    let (code, _, err) = job.run(&["ab", "--out", "run"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("none is given"), "{err}");
    let with = |rest: &str| {
        format!("baseline = \"base\"\n{}", std::fs::read_to_string(job.path("dsv4.toml")).unwrap() + rest)
    };
    std::fs::write(job.path("dsv4.toml"), with("")).unwrap();
    assert_eq!(job.run(&["ab", "--judge", "base"]).0, 0, "a run is no worse than itself");
    // One number of the stored run made smaller: the same run is then worse.
    let path = job.path("base/layers.csv");
    let text = std::fs::read_to_string(&path).unwrap();
    let row = text.lines().find(|l| l.starts_with("mixing,0,prefill,layers.0.mid")).unwrap();
    let cell = row.split(',').nth(7).unwrap();
    assert!(cell.parse::<f64>().unwrap() > 0.0, "{row}");
    assert_eq!(job.run(&["ab", "--out", "run"]).0, 0);
    std::fs::write(&path, text.replace(row, &row.replacen(cell, "1e-30", 1))).unwrap();
    let (code, out, _) = job.run(&["ab", "--judge", "run"]);
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("layers.0.mid"), "{out}");
    let config = std::fs::read_to_string(job.path("dsv4.toml")).unwrap();
    std::fs::write(job.path("dsv4.toml"), config.replace("decode_last = 5", "decode_last = 4")).unwrap();
    let (code, _, err) = job.run(&["ab", "--out", "other"]);
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("`run` is"), "{err}");
}

/// Catches an interaction that no toggle shows alone: halves of a mistake that only meet when both are on.
#[test]
fn pairs_that_only_fail_together_are_found() {
    let job = Job::new();
    // A sink that every split adds is right as long as there is one split.
    job.config(&[("q", "attn.splits=4"), ("k", "attn.sink=per_split"), HEALTHY[1]], "");
    let (code, text, err) = job.run(&["ab", "--bisect", "--out", "run"]);
    assert_eq!(code, 1, "{text}{err}");
    let c = job.json("run/summary.json")["conclusion"].clone();
    assert_eq!(c["suspect"]["toggles"], serde_json::json!(["q", "k"]), "{c}");
    assert_eq!(c["suspect"]["site"], "attn");
    assert_eq!(c["interactions"], serde_json::json!([["q", "k"]]));
}

/// Catches a recall that is not measured in every run, or a loss that no gate sees.
#[test]
fn recall_is_measured_in_every_run() {
    let job = Job::new();
    let needle = "[needle]\nctx = \"640\"\ntrials = 4\nseed = 3\n[[gate]]\nname = \"recall\"\nwhere = \"table=recall\"\n\
                  require = \"golden_only = 0\"\n";
    let config = job.config(&[HEALTHY[1], ("narrow", "topk.width=1")], needle);
    // Only recall is judged here: a narrow selection is a difference of its own.
    let text = std::fs::read_to_string(&config).unwrap().replace(GATES, "");
    std::fs::write(&config, text).unwrap();
    let (code, text, err) = job.run(&["ab", "--out", "run"]);
    assert_eq!(code, 1, "{text}{err}");
    let effects = job.json("run/summary.json")["conclusion"]["effects"].clone();
    assert_eq!(effects[0]["recall"], 0.0, "{effects}");
    assert!(effects[1]["recall"].as_f64().unwrap() < 0.0, "{effects}");
    let csv = std::fs::read_to_string(job.path("run/recall.csv")).unwrap();
    let runs: Vec<&str> = csv.lines().skip(1).map(|l| l.split(',').next().unwrap()).collect();
    assert_eq!(runs, ["golden", "mixing", "narrow", "all"]);
    let golden: Vec<&str> = csv.lines().nth(1).unwrap().split(',').collect();
    let count = |i: usize| golden[i].parse::<u32>().unwrap();
    assert_eq!(
        (count(2), count(2) + count(3)),
        (count(4), 12),
        "golden answers all that could be asked: {csv}"
    );
    assert!(count(2) >= 6, "{csv}");
}

/// Catches mistakes that end with the wrong exit code or without a hint.
#[test]
fn mistakes_have_clear_errors() {
    let job = Job::new();
    let check = |args: &[&str], code: i32, what: &str| {
        let (c, out, err) = job.run(args);
        assert_eq!(c, code, "{args:?}: {out}{err}");
        assert!(err.contains(what) && err.contains("hint:"), "{args:?}: {err}");
    };
    check(&["ab", "--config", "missing.toml"], 3, "missing.toml");
    std::fs::write(job.path("bad.toml"), "toggle = 3").unwrap();
    check(&["ab", "--config", "bad.toml"], 2, "not a config");
    job.config(&HEALTHY, "[[gate]]\nrequire = \"exces <= 2\"\n");
    check(&["ab", "--out", "run"], 2, "did you mean `excess`");
    check(&["ab", "--judge", "nowhere"], 3, "manifest.json");
    check(&["report", "nowhere"], 3, "manifest.json");
    job.config(&HEALTHY, "");
    assert_eq!(job.run(&["ab", "--out", "run"]).0, 0);
    std::fs::write(job.path("t.md"), "{{ hedline }} {{ headline }}").unwrap();
    check(&["report", "run", "--template", "t.md"], 2, "unknown variables: hedline");
    std::fs::write(job.path("t.md"), "{% if %}").unwrap();
    check(&["report", "run", "--template", "t.md"], 2, "the template cannot be used");
    // A second run that says it is about another model.
    copy(&job.path("run"), &job.path("other"));
    let m = job.path("other/manifest.json");
    let fingerprint = job.json("run/manifest.json")["fingerprint"].as_str().unwrap().to_owned();
    let text = std::fs::read_to_string(&m).unwrap().replace(&fingerprint, "0123");
    std::fs::write(&m, text).unwrap();
    check(&["report", "run", "other"], 3, "different models");
    std::fs::write(job.path("other/layers.csv"), "a,b\n1\n").unwrap();
    check(&["ab", "--judge", "other"], 3, "layers.csv");
    std::fs::remove_file(job.path("run/logits.csv")).unwrap();
    check(&["report", "run"], 3, "logits.csv");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for f in std::fs::read_dir(from).unwrap() {
        let f = f.unwrap();
        std::fs::copy(f.path(), to.join(f.file_name())).unwrap();
    }
}
