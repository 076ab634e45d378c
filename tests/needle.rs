//! `dsv4 needle` and `dsv4 merge` from outside, on the built-in model.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(args: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_dsv4"));
    c.env_remove("DSV4_KERNELS").stdin(Stdio::null()).args(args).output().unwrap()
}

/// Runs `needle` with `args` into `out`; the result is its JSON.
fn needle(args: &[&str], out: &Path) -> Value {
    let mut all = vec!["needle", "--json", "--out", out.to_str().unwrap()];
    all.extend(args);
    let o = run(&all);
    assert!(matches!(o.status.code(), Some(0 | 1)), "{all:?}: {}", String::from_utf8_lossy(&o.stderr));
    serde_json::from_slice(&o.stdout).unwrap()
}

fn fails(args: &[&str], code: i32) -> String {
    let o = run(args);
    let err = String::from_utf8(o.stderr).unwrap();
    assert_eq!(o.status.code(), Some(code), "{args:?}: {err}");
    assert!(err.contains("hint:"), "{args:?}: {err}");
    assert!(o.stdout.is_empty(), "{args:?} wrote to standard output");
    err
}

/// Everything a run leaves behind but the manifest, which has times in it.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut out = Vec::new();
    for sub in ["", "plots"] {
        for entry in std::fs::read_dir(dir.join(sub)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_string();
            if path.is_file() && name != "manifest.json" {
                out.push((name, std::fs::read(path).unwrap()));
            }
        }
    }
    out.sort();
    out
}

fn same(a: &Path, b: &Path) {
    let (a, b) = (files(a), files(b));
    let names = |f: &[(String, Vec<u8>)]| f.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
    assert_eq!(names(&a), names(&b));
    for ((name, x), (_, y)) in a.iter().zip(&b) {
        assert!(x == y, "{name} differs");
    }
}

fn rate(v: &Value, path: &str, topk: &str, ctx: u64) -> (u64, u64) {
    let rows = v["recall"].as_array().unwrap();
    let row = rows
        .iter()
        .find(|r| r["path"] == path && r["topk"] == topk && r["ctx"] == ctx && r["depth"].is_null())
        .unwrap_or_else(|| panic!("no row for {path} {topk} {ctx}"));
    (row["hits"].as_u64().unwrap(), row["n"].as_u64().unwrap())
}

fn cause<'a>(v: &'a Value, path: &str) -> &'a str {
    let all = v["diagnosis"].as_array().unwrap();
    all.iter().find(|d| d["path"] == path).unwrap()["cause"].as_str().unwrap()
}

/// Recall of golden as the fixture's training measured it (44 and 64 trials, all right at the native width, fewer at a
/// narrow one): it falls when `index_topk` is cut and returns when it is raised.
#[test]
fn recall_falls_with_a_narrow_index_and_returns_with_a_wide_one() {
    let dir = tempfile::tempdir().unwrap();
    let v = needle(&["--ctx", "512,2k", "--trials", "9", "--topk", "2,native,all"], dir.path());
    for ctx in [512, 2048] {
        let (hits, n) = rate(&v, "golden", "native", ctx);
        assert!(n >= 30, "{n}");
        // 64 of 64: the lower end of Wilson's interval is 0.943.
        assert!(hits as f64 >= 0.943 * n as f64, "{hits} of {n} at {ctx}");
        assert!(rate(&v, "golden", "all", ctx).0 >= hits);
    }
    let (cut, n) = rate(&v, "golden", "2", 2048);
    assert!((cut as f64) < 0.8 * n as f64, "{cut} of {n}");
    assert_eq!(cause(&v, "golden"), "nothing-wrong");
    let pair =
        v["pairs"].as_array().unwrap().iter().find(|p| p["second"][1] == "2" && p["ctx"].is_null()).unwrap();
    assert!(pair["p"].as_f64().unwrap() < 0.05, "{pair}");
}

/// Planted faults: an indexer without information is recognised by its ranks, and its cliff moves with the width; a
/// masked branch fails below the horizon, whatever the width.
#[test]
fn planted_faults_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let v = needle(
        &[
            "--ctx",
            "256,1k,2k",
            "--trials",
            "6",
            "--topk",
            "16,native,512",
            "--kernels",
            "hadamard_q_only",
            "--vs",
            "compressed_branch_masked",
        ],
        dir.path(),
    );
    assert_eq!(cause(&v, "golden"), "nothing-wrong");
    assert_eq!(cause(&v, "hadamard_q_only"), "ranking-broken");
    assert_eq!(v["verdict"]["cause"], "ranking-broken");
    assert_eq!(cause(&v, "compressed_branch_masked"), "cache-mask-chunk");
    let at = |topk, ctx| {
        let (hits, n) = rate(&v, "hadamard_q_only", topk, ctx);
        hits as f64 / n as f64
    };
    // The cliff stands at 1 to 2 times the horizon of each width: 64, 256 and 2,048 tokens.
    assert!(at("native", 256) > 0.9 && at("native", 1024) < 0.7);
    assert!(at("16", 256) < 0.9, "{}", at("16", 256));
    assert!(at("512", 2048) > 0.9);
    // The mask does not move: no width brings anything back.
    for topk in ["16", "native", "512"] {
        for ctx in [256, 1024, 2048] {
            let (hits, n) = rate(&v, "compressed_branch_masked", topk, ctx);
            assert!((hits as f64) < 0.5 * n as f64, "{topk} {ctx}: {hits} of {n}");
        }
    }
}

/// Lengths and positions of every row, checked against the tokenizer's own account of the rows' prompts.
#[test]
fn rows_say_exactly_where_things_are() {
    let dir = tempfile::tempdir().unwrap();
    needle(
        &["--ctx", "300", "--phase-sweep", "--trials", "2", "--topk", "native", "--depth", "0.2,0.8"],
        dir.path(),
    );
    let mut reader = csv::Reader::from_path(dir.path().join("needle.csv")).unwrap();
    let header = reader.headers().unwrap().clone();
    let mut ranks = csv::Reader::from_path(dir.path().join("rank.csv")).unwrap();
    let mut seen = [0; 4];
    let mut expected_ranks = 0;
    for row in reader.records().map(Result::unwrap) {
        let get = |name: &str| &row[header.iter().position(|h| h == name).unwrap()];
        let number =
            |name: &str| get(name).parse::<usize>().unwrap_or_else(|_| panic!("{name}: {}", get(name)));
        if get("status") == "not_run" {
            assert!(!get("why").is_empty() && get("exact").is_empty());
            continue;
        }
        let ctx = number("ctx");
        seen[ctx % 4] += 1;
        assert_eq!(
            (number("prompt_tokens"), number("answer_from"), number("answer_to")),
            (ctx, ctx, ctx + 5)
        );
        assert!(number("needle_from") < number("needle_to") && number("needle_to") < ctx);
        let depth: f64 = get("depth_actual").parse().unwrap();
        assert_eq!(depth, number("needle_from") as f64 / ctx as f64);
        assert!((depth - get("depth").parse::<f64>().unwrap()).abs() <= 0.1);
        assert_eq!(get("expected").split(' ').count(), 5);
        assert_eq!(number("ranks"), 10, "two layers, five tokens");
        expected_ranks += 10;
    }
    assert!(seen.iter().all(|n| *n > 0), "{seen:?}");
    assert_eq!(ranks.records().count(), expected_ranks);
}

/// Catches a run that depends on the number of threads, on being interrupted, or on being split.
#[test]
fn the_same_run_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let grid = ["--ctx", "256,400", "--trials", "5", "--questions", "2", "--topk", "4,native", "--seed", "7"];
    let with = |more: &[&'static str]| [&grid[..], more].concat();
    let whole = needle(&with(&["--threads", "2"]), &at("whole"));
    needle(&with(&["--threads", "1"]), &at("one"));
    same(&at("whole"), &at("one"));

    // Interrupted in the middle of a line of the second document.
    let text = std::fs::read_to_string(at("one").join("needle.csv")).unwrap();
    let line =
        text.match_indices('\n').map(|(i, _)| i).filter(|i| text[*i + 1..].starts_with("passkey,1,")).nth(3);
    std::fs::write(at("one").join("needle.csv"), &text[..line.unwrap() + 40]).unwrap();
    std::fs::remove_file(at("one").join("summary.json")).unwrap();
    needle(&with(&["--resume"]), &at("one"));
    same(&at("whole"), &at("one"));

    for (i, name) in [("1/3", "a"), ("2/3", "b"), ("3/3", "c")] {
        needle(&[&grid[..], &["--shard", i]].concat(), &at(name));
    }
    let path = |n: &str| at(n).to_str().unwrap().to_string();
    let merged = run(&["merge", "--json", &path("c"), &path("a"), &path("b"), "--out", &path("merged")]);
    assert!(matches!(merged.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&merged.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&merged.stdout).unwrap(), whole);
    same(&at("whole"), &at("merged"));

    let e = fails(&["merge", &path("a"), &path("c"), "--out", &path("x")], 3);
    assert!(e.contains("shards are missing: 2/3"), "{e}");
    let e = fails(&["merge", &path("a"), &path("a"), "--out", &path("x")], 3);
    assert!(e.contains("shard 1/3 is there twice"), "{e}");
    let e = fails(&["merge", &path("whole"), "--out", &path("x")], 3);
    assert!(e.contains("no shard"), "{e}");
    needle(&[&grid[..8], &["--seed", "8", "--shard", "2/3"]].concat(), &at("b"));
    let e = fails(&["merge", &path("a"), &path("b"), &path("c"), "--out", &path("x")], 2);
    assert!(e.contains("`seed` was 7, now it is 8"), "{e}");
    // A resumed run must be the same run.
    let whole_dir = path("whole");
    let other =
        [&["needle", "--resume", "--out"], &[whole_dir.as_str()][..], &grid[..8], &["--seed", "8"]].concat();
    let e = fails(&other, 2);
    assert!(e.contains("`seed` was 7"), "{e}");
}

/// The second pass runs at the width the ranks ask for, and resuming knows about it.
#[test]
fn a_confirmation_runs_at_the_estimated_width() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--ctx", "1k", "--trials", "4", "--topk", "native", "--confirm"];
    let v = needle(&args, &dir.path().join("a"));
    let width = v["width_needed"][0]["width"].as_u64().unwrap();
    assert!((1..64).contains(&width), "{width}");
    let (hits, n) = rate(&v, "golden", &width.to_string(), 1024);
    assert!(n > 10 && hits > 0);
    let copy = dir.path().join("b");
    std::fs::create_dir(&copy).unwrap();
    for f in ["needle.csv", "rank.csv", "manifest.json"] {
        let bytes = std::fs::read(dir.path().join("a").join(f)).unwrap();
        let end = if f == "needle.csv" { bytes.len() - 100 } else { bytes.len() };
        std::fs::write(copy.join(f), &bytes[..end]).unwrap();
    }
    needle(&[&args[..], &["--resume"]].concat(), &copy);
    same(&dir.path().join("a"), &copy);
}

#[test]
fn turns_and_several_questions_and_own_text() {
    let dir = tempfile::tempdir().unwrap();
    for kind in ["multi", "turns"] {
        let v = needle(
            &["--ctx", "1k", "--trials", "4", "--topk", "native", "--kind", kind],
            &dir.path().join(kind),
        );
        let (hits, n) = rate(&v, "golden", "native", 1024);
        assert!(n >= 10 && hits * 10 >= n * 9, "{kind}: {hits} of {n}");
    }
    let hay = dir.path().join("hay.txt");
    let sentence = "the calm otter followed the boxes near the garden. leo lost the key of the pier. ";
    std::fs::write(&hay, sentence.repeat(40)).unwrap();
    let own = [
        "--haystack",
        hay.to_str().unwrap(),
        "--needle",
        "the vault code of the velvet lynx is 47192.",
        "--question",
        "question: what is the vault code of the velvet lynx? answer:",
        "--answer",
        "47192",
        "--topk",
        "native",
        "--trials",
        "2",
    ];
    let v = needle(&[&own[..], &["--ctx", "301,500"]].concat(), &dir.path().join("own"));
    for ctx in [301, 500] {
        let (hits, n) = rate(&v, "golden", "native", ctx);
        assert!(n == 10 && hits >= 9, "{hits} of {n} at {ctx}");
    }
    let e = fails(&[&["needle"], &own[..], &["--ctx", "4k"]].concat(), 3);
    assert!(e.contains("the haystack is too short"), "{e}");
}

#[test]
fn errors_say_what_to_do() {
    for (args, code, what) in [
        (&["needle", "--ctx", "64k"][..], 2, "do not fit into the model's 65536 positions"),
        (&["needle", "--ctx", "18446744073709551615"][..], 2, "do not fit into the model's 65536 positions"),
        (&["needle", "--ctx", "30"], 2, "no prompt can be made"),
        (&["needle", "--ctx", "2k..1k"], 2, "runs backwards"),
        (&["needle", "--depth", "1.5"], 2, "no share"),
        (&["needle", "--topk", "0"], 2, "no width"),
        (&["needle", "--ctx", "300", "--shard", "1/9"], 2, "more parts than there are haystacks"),
        (&["needle", "--ctx", "300", "--kernels", "relu_off", "--vs", "relu_off"], 2, "same path"),
        (&["needle", "--ctx", "300", "--memory", "1M"], 2, "--memory allows"),
        (&["needle", "--ctx", "300", "--resume", "--out", "/nonexistent/run"], 2, "no run to resume"),
        (&["merge", "/nonexistent", "--out", "x"], 3, "manifest"),
    ] {
        let e = fails(args, code);
        assert!(e.contains(what), "{args:?}: {e}");
    }
}

/// The plan is data, and nothing is run or written.
#[test]
fn a_plan_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let v = needle(&["--plan", "--ctx", "300,1k,2k", "--trials", "6"], &out);
    assert_eq!(v["cells"], 15);
    assert_eq!(v["passes"], serde_json::json!([[0, 1], [1, 2]]));
    assert!(v["computed"].as_u64().unwrap() * 5 < v["tokens"].as_u64().unwrap(), "beginnings are shared");
    assert!(!out.exists());
}

/// The grade is what greedy decoding would do: token by token, each step on the prompt and what was generated so far.
#[test]
fn teacher_forced_argmax_is_greedy_generation() {
    use dsv4::checkpoint::Checkpoint;
    use dsv4::engine::grid::{GridPath, Job, grade};
    use dsv4::engine::{Loader, Quiet, Schedule, Session, forward};
    use dsv4::kernels::{Cpu, KnobPlan};
    use dsv4::model::Silent;
    use dsv4::needle::{Grid, Kind, Language};
    use std::sync::Arc;

    let ckpt = Arc::new(Checkpoint::open("builtin:pico").unwrap());
    let language = Language::of(&ckpt).unwrap();
    let outer = Loader::new(Cpu, ckpt.clone()).outer().unwrap();
    let grid = Grid {
        kind: Kind::Passkey,
        ctx: vec![513],
        depths: vec![0.2, 0.5, 0.8],
        trials: 2,
        questions: 2,
        seed: 3,
        custom: None,
    };
    let mut narrow = KnobPlan::default();
    // Narrow enough that some answers are lost: both outcomes must agree.
    narrow.push(None, None, &[("topk.width".into(), "1".into())]).unwrap();
    let jobs: Vec<Job> = grid
        .trials_of(&language, 0, true)
        .unwrap()
        .into_iter()
        .filter_map(|t| Some(t.asked.ok()?.job))
        .collect();
    assert!(jobs.len() >= 5);
    let mut outcomes = [0, 0];
    for plan in [KnobPlan::default(), narrow] {
        let path = [GridPath { name: "p".into(), plan: plan.clone() }];
        let graded = grade(&Cpu, &ckpt, &outer, &jobs, &path, &Quiet).unwrap();
        for (job, g) in jobs.iter().zip(&graded) {
            let mut tokens = job.tokens[..job.answer_from].to_vec();
            while tokens.len() < job.tokens.len() {
                let s = Session::new(&Cpu, ckpt.config(), &tokens, Schedule::default()).unwrap();
                let logits =
                    forward(&s, &ckpt, &outer, &plan, tokens.len() - 1, &Quiet, &mut Silent).unwrap();
                let row = logits.row(0);
                let best = (0..row.len()).fold(0, |b, i| if row[i] > row[b] { i } else { b });
                tokens.push(best as u32);
            }
            let exact = tokens == job.tokens;
            assert_eq!(exact, g[0].exact());
            // Up to the first token that is lost, generation and teacher forcing see the same prompt.
            let lost = g[0].first_lost().unwrap_or(g[0].tokens.len() - 1);
            for i in 0..=lost {
                assert_eq!(tokens[job.answer_from + i], g[0].tokens[i].top);
            }
            outcomes[usize::from(exact)] += 1;
        }
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}
