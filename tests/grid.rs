//! A grid of prompts that share prefixes gives what every prompt gives alone.

use dsv4::checkpoint::Checkpoint;
use dsv4::engine::grid::{FactRank, Graded, GridPath, Job, cost, grade};
use dsv4::engine::{Loader, Quiet, Schedule, Session, forward};
use dsv4::error::Result;
use dsv4::kernels::{Cpu, Golden, Index, KnobPlan, Mat, Spec};
use dsv4::model::{Observer, OuterWeights, Silent, Tap, TapAt};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

static PICO: LazyLock<(Arc<Checkpoint>, OuterWeights<Cpu>)> = LazyLock::new(|| {
    let ckpt = Arc::new(Checkpoint::open("builtin:pico").unwrap());
    let outer = Loader::new(Cpu, ckpt.clone()).outer().unwrap();
    (ckpt, outer)
});

fn path(spec: &str, golden: Golden) -> GridPath {
    let layers = &PICO.0.config().layers;
    let plan = if spec.is_empty() { Spec::default() } else { spec.parse::<Spec>().unwrap() };
    GridPath { name: spec.into(), plan: plan.plan(golden, layers).unwrap() }
}

fn run(jobs: &[Job], paths: &[GridPath]) -> Vec<Vec<Graded>> {
    grade(&Cpu, &PICO.0, &PICO.1, jobs, paths, &Quiet).unwrap()
}

/// The fixture's prompts with their answers.
fn fixture(n: usize) -> Vec<Job> {
    let tokenizer = tokenizers::Tokenizer::from_bytes(PICO.0.tokenizer_json().unwrap().unwrap()).unwrap();
    let lines =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/pico/prompts.jsonl")).unwrap();
    let job = |(document, line): (usize, &str)| {
        let v: serde_json::Value = serde_json::from_str(line).unwrap();
        let mut tokens = tokenizer.encode(v["prompt"].as_str().unwrap(), true).unwrap().get_ids().to_vec();
        let answer_from = tokens.len();
        let digits = v["answer"].as_str().unwrap().chars().filter(char::is_ascii_digit);
        tokens.extend(digits.map(|d| tokenizer.token_to_id(&d.to_string()).unwrap()));
        let at = v["answer_digit_positions"].as_array().unwrap();
        let sources = at.iter().map(|p| p.as_u64().unwrap() as usize).map(|p| p..p + 1).collect();
        Job { document, tokens, answer_from, sources }
    };
    lines.lines().take(n).enumerate().map(job).collect()
}

/// Prompts of one document: the fixture's first prompt, cut at several lengths and continued differently.
fn branches() -> Vec<Job> {
    let whole = fixture(1).remove(0);
    let question = whole.tokens[whole.answer_from - 14..].to_vec();
    let mut jobs = vec![whole.clone()];
    for (cut, from) in [(300, 0), (300, 2), (431, 1), (80, 5)] {
        let mut tokens = whole.tokens[..cut].to_vec();
        tokens.extend(&question[from..]);
        let answer_from = tokens.len() - 5;
        let source = |i: usize| if i < 3 { 40 + i..41 + i } else { 0..0 };
        jobs.push(Job { document: 0, tokens, answer_from, sources: (0..5).map(source).collect() });
    }
    // Continues behind another prompt's answer.
    let mut tokens = jobs[1].tokens.clone();
    tokens.extend(&question);
    let answer_from = tokens.len() - 5;
    jobs.push(Job { tokens, answer_from, ..Job::default() });
    jobs
}

/// Logits of the positions that predict the answer, the prompt running alone.
fn alone(job: &Job, plan: &KnobPlan, schedule: Schedule, obs: &mut dyn Observer<Cpu>) -> Mat {
    let tokens = &job.tokens[..job.tokens.len() - 1];
    let s = Session::new(&Cpu, PICO.0.config(), tokens, schedule).unwrap();
    forward(&s, &PICO.0, &PICO.1, plan, job.answer_from - 1, &Quiet, obs).unwrap()
}

/// Compares every grade with the logits of the prompt running alone, bit for bit.
fn assert_like_alone(jobs: &[Job], p: &GridPath, decoded: bool) {
    let got = run(jobs, std::slice::from_ref(p));
    for (j, g) in jobs.iter().zip(&got) {
        let decode_last = if decoded { j.tokens.len() - 1 - j.answer_from } else { 0 };
        let logits = alone(j, &p.plan, Schedule { chunk: 0, decode_last }, &mut Silent);
        assert_eq!(g[0].tokens.len(), j.tokens.len() - j.answer_from);
        for (i, t) in g[0].tokens.iter().enumerate() {
            let row = logits.row(i);
            let e = t.expected as usize;
            assert_eq!(t.expected, j.tokens[j.answer_from + i]);
            assert_eq!(t.position, j.answer_from - 1 + i);
            assert_eq!(t.rank as usize, row.iter().filter(|x| **x > row[e]).count(), "{} {i}", p.name);
            let other = (0..row.len()).filter(|x| *x != e).map(|x| row[x]).fold(f32::MIN, f32::max);
            assert_eq!(t.margin, f64::from(row[e]) - f64::from(other), "{} {i}", p.name);
        }
    }
}

/// Catches a cache that leaks from one branch into another, a last layer that leaves out what is read, expert rows in
/// the wrong order, or a width that is not applied.
#[test]
fn shared_prefixes_change_no_bit() {
    let jobs = branches();
    let c = cost(PICO.0.config(), &jobs, 1);
    assert!(c.computed < c.tokens / 2, "{c:?}: the prefix is shared");
    for p in [path("", Golden::Ideal), path("", Golden::Qat), path("topk.width=16", Golden::Ideal)] {
        assert_like_alone(&jobs, &p, false);
    }
    assert_like_alone(&jobs, &path("mhc.w_dtype=bf16,kv_cache.window=fp8_64", Golden::Ideal), true);
}

/// Catches answers that a candidate's decode kernels do not see, and a selection taken over from the layer before by
/// the wrong position. These prompts stand alone, as documents of their own.
#[test]
fn candidates_decode_the_answers() {
    let jobs = fixture(2);
    for spec in ["attn.splits=4@decode,attn.p_dtype=bf16@decode", "topk.reuse=layer", "splitk-mma"] {
        assert_like_alone(&jobs, &path(spec, Golden::Ideal), true);
    }
}

/// What one prompt's index did, seen from outside.
#[derive(Default)]
struct Seen {
    scores: HashMap<usize, Mat>,
    ids: HashMap<usize, Index>,
}

impl Observer<Cpu> for Seen {
    fn wants_scores(&self, _: usize) -> bool {
        true
    }
    fn tensor(&mut self, _: &Cpu, at: TapAt, t: &mut Mat) -> Result<()> {
        if let (Tap::IndexerScores, Some(l)) = (at.id.tap, at.id.layer) {
            let all = self.scores.entry(l).or_default();
            for r in 0..t.rows {
                let mut row = t.row(r).to_vec();
                row.resize(1024, f32::NEG_INFINITY);
                all.append(&Mat::new(1, 1024, row));
            }
        }
        Ok(())
    }
    fn index(&mut self, at: TapAt, ids: &mut Index) -> Result<()> {
        if let (Tap::IndexTopk, Some(l)) = (at.id.tap, at.id.layer) {
            let all = self.ids.entry(l).or_insert_with(|| Index::empty(0, ids.k));
            all.ids.extend(&ids.ids);
            all.rows += ids.rows;
        }
        Ok(())
    }
}

/// Catches a rank taken at the wrong position or entry, ranks that count invisible entries, a selection that is not
/// the one attention read, and mass on facts that were not selected.
#[test]
fn ranks_are_those_of_the_scores_that_were_used() {
    let jobs = fixture(3);
    let p = path("topk.width=4", Golden::Ideal);
    let got = run(&jobs, std::slice::from_ref(&p));
    let mut selected = 0;
    for (j, g) in jobs.iter().zip(&got) {
        let mut seen = Seen::default();
        alone(j, &p.plan, Schedule::default(), &mut seen);
        let ranks: &[FactRank] = &g[0].ranks;
        assert_eq!(ranks.len(), 2 * 5, "two CSA layers, five digits");
        for r in ranks {
            let t = j.answer_from - 1 + r.answer;
            let scores = &seen.scores[&r.layer].row(t)[..(t + 1) / 4];
            let at = j.sources[r.answer].start / 4;
            // Scores of exactly zero are common after the relu: the earlier entry is first.
            let ahead = |e: usize, i: usize| scores[i] > scores[e] || (scores[i] == scores[e] && i < e);
            let of = |e: usize| 1 + (0..scores.len()).filter(|i| ahead(e, *i)).count() as u32;
            assert_eq!(r.rank, of(at).min(of(at + 1)));
            assert_eq!((r.visible as usize, r.width), (scores.len(), 4));
            let has = |e: usize| seen.ids[&r.layer].row(t).contains(&(e as i32));
            assert_eq!(r.selected, has(at) || has(at + 1));
            assert_eq!(r.mass > 0.0, r.selected);
            assert!(r.potential >= r.mass && r.potential <= 1.0, "{r:?}");
            selected += r.selected as usize;
        }
    }
    assert!(selected > 0 && selected < 30, "{selected}: some facts are found at width 4 and some are not");
}

/// Catches grading that is off by one: an independent implementation answers these prompts.
#[test]
fn golden_answers_are_exact_and_cut_ones_are_not() {
    let jobs = fixture(4);
    let got = run(&jobs, &[path("", Golden::Ideal), path("topk.width=1", Golden::Ideal)]);
    assert!(got.iter().all(|g| g[0].exact() && g[0].first_lost().is_none()));
    assert!(got.iter().any(|g| !g[1].exact() && g[1].first_lost().is_some()));
}

/// Catches a prompt that is run although the model cannot take it.
#[test]
fn impossible_jobs_are_refused() {
    let ok = Job { tokens: vec![0, 5, 6], answer_from: 2, ..Job::default() };
    for (bad, what) in [
        (Job { answer_from: 0, ..ok.clone() }, "leaves no prompt or no answer"),
        (Job { answer_from: 3, ..ok.clone() }, "leaves no prompt or no answer"),
        (Job { tokens: vec![], ..ok.clone() }, "leaves no prompt or no answer"),
        (Job { tokens: vec![0, 5, 9999], ..ok.clone() }, "outside the vocabulary"),
    ] {
        let e = grade(&Cpu, &PICO.0, &PICO.1, &[ok.clone(), bad], &[path("", Golden::Ideal)], &Quiet);
        let e = e.unwrap_err();
        assert!(e.message().contains("prompt 1 of the grid") && e.message().contains(what), "{e}");
    }
}
