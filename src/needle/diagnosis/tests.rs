//! Made-up records with the signature of each cause.

use super::*;
use crate::engine::grid::{FactRank, TokenGrade};
use crate::needle::record::Outcome;
use crate::needle::{Grid, Kind, Place};

/// How one trial goes: right or wrong, and the rank of its fact in the two layers.
type Trial = (bool, [u32; 2]);

fn identity(ctx: &[usize]) -> Identity {
    let grid = Grid {
        kind: Kind::Passkey,
        ctx: ctx.to_vec(),
        depths: vec![0.5],
        trials: 60,
        questions: 60,
        seed: 1,
        custom: None,
    };
    Identity {
        model: "m".into(),
        fingerprint: String::new(),
        prompts: String::new(),
        style: String::new(),
        golden: "ideal".into(),
        kernels: vec!["k".into()],
        topk: Vec::new(),
        grid,
        reliable: 0.9,
        confirm: false,
        index_topk: 64,
        ratio: 4,
        csa_layers: vec![1, 3],
    }
}

/// Diagnoses `k` beside golden; `of(path, width, ctx, i)` makes trial `i`.
fn causes(ctx: &[usize], of: impl Fn(&str, Width, usize, usize) -> Trial) -> (Cause, Cause) {
    let id = identity(ctx);
    let mut paths = Vec::new();
    for p in ["golden", "k"] {
        paths.extend([Width::Fixed(16), Width::Native, Width::Fixed(128)].map(|w| (p.to_string(), w)));
    }
    let mut records = Vec::new();
    for c in ctx {
        for i in 0..60 {
            for (path, width) in &paths {
                let (right, ranks) = of(path, *width, *c, i);
                let token = TokenGrade {
                    position: c - 1,
                    expected: 1,
                    top: 1,
                    rank: u32::from(!right),
                    logprob: -0.1,
                    margin: 1.0,
                };
                let keep = width.entries(64) as u32;
                let fact = |l: usize| FactRank {
                    layer: [1, 3][l],
                    answer: 0,
                    rank: ranks[l],
                    visible: (c / 4) as u32,
                    width: keep,
                    selected: ranks[l] <= keep,
                    mass: 0.1,
                    potential: 0.1,
                };
                let outcome = Outcome {
                    prompt_tokens: *c,
                    needle: 0..9,
                    sources: vec![5],
                    tokens: vec![token],
                    ranks: vec![fact(0), fact(1)],
                };
                let place = Place { ctx: *c, depth: 0.5, document: 0, question: i };
                records.push(Record { place, path: path.clone(), width: *width, outcome: Ok(outcome) });
            }
        }
    }
    let d = diagnose(&id, &paths, &records);
    for d in &d {
        assert!(d.next.starts_with("dsv4 ") && !d.headline.is_empty());
    }
    (d[0].cause, d[1].cause)
}

const CTX: [usize; 5] = [256, 512, 1024, 2048, 4096];
const GOOD: Trial = (true, [3, 8]);

/// Golden is well, and `k` does what `f` says.
fn fault(f: impl Fn(Width, usize, usize) -> Trial) -> Cause {
    let (golden, k) = causes(&CTX, |p, w, c, i| if p == "golden" { GOOD } else { f(w, c, i) });
    assert_eq!(golden, Cause::NothingWrong);
    k
}

/// A spread of ranks over the visible entries.
fn chance(c: usize, i: usize) -> u32 {
    1 + ((i * 37 + 11) % 60 * (c / 4) / 60) as u32
}

#[test]
fn each_cause_has_its_signature() {
    assert_eq!(fault(|_, _, _| GOOD), Cause::NothingWrong);
    // Ranks like chance, right while the fact is within the width.
    let broken = |w: Width, c, i| {
        let r = [chance(c, i), chance(c, i + 7)];
        (r[0].min(r[1]) as usize <= w.entries(64), r)
    };
    assert_eq!(fault(broken), Cause::RankingBroken);
    // One layer like chance, the other carries: recall does not show it, the ranks do.
    assert_eq!(fault(|_, c, i| (true, [3, chance(c, i)])), Cause::RankingBroken);
    // Nothing is recalled, whatever is selected.
    assert_eq!(fault(|_, _, _| (false, [3, 8])), Cause::CacheMaskChunk);
    // The same where the ranks of later layers are garbage because their input is.
    assert_eq!(fault(|_, c, i| (false, [3, chance(c, i)])), Cause::CacheMaskChunk);
    // Selected, and lost in long contexts only.
    assert_eq!(fault(|_, c, _| (c < 2048, [3, 8])), Cause::SelectedNotUsed);
    // Ranks three times golden's, and still within the width.
    assert_eq!(fault(|_, _, _| (true, [9, 24])), Cause::RankingWorse);
    // One trial of 300 lost is no difference, five are not yet one.
    assert_eq!(fault(|_, c, i| (i != 3 || c != 512, [3, 8])), Cause::NothingWrong);
    assert_eq!(fault(|_, _, i| (i != 3, [3, 8])), Cause::Undecided);
}

#[test]
fn golden_has_limits_of_its_own() {
    // Facts sink slowly below the width, far above the horizon; a wider one has them.
    let slow = |w: Width, c: usize, i: usize| {
        let r = if c >= 4096 && i.is_multiple_of(3) { 100 } else { 5 };
        (r <= w.entries(64), [r as u32, r as u32 + 3])
    };
    let (golden, k) = causes(&CTX, |_, w, c, i| slow(w, c, i));
    assert_eq!((golden, k), (Cause::CoverageLimit, Cause::CoverageLimit));
    // Everything is selected and golden fails.
    let (golden, k) = causes(&CTX, |_, _, _, _| (false, [3, 8]));
    assert_eq!((golden, k), (Cause::Prompt, Cause::Prompt));
}

#[test]
fn a_phase_shows_in_a_sweep() {
    let ctx = [2048, 2049, 2050, 2051];
    let (golden, k) = causes(&ctx, |p, _, c, _| (p == "golden" || c % 4 != 3, [3, 8]));
    assert_eq!((golden, k), (Cause::NothingWrong, Cause::Phase));
}
