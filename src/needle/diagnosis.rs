//! Why a needle is lost. The rules, in the order they are tried, are written down in `docs/needle.md`.

use super::ctx::short;
use super::evidence::Evidence;
use super::identity::Identity;
use super::record::{Record, Width};
use super::stats::Rate;
use serde::Serialize;

/// Below this p a difference from golden that is not significant is worth more trials.
const DOUBT: f64 = 0.25;

/// A verdict about one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// No trial was run.
    NotRun,
    /// Golden fails where everything is selected.
    Prompt,
    /// The path fails where everything is selected and golden does not, or whatever is selected.
    CacheMaskChunk,
    /// Only some lengths fail, by their residue.
    Phase,
    /// The index's ranking carries no information.
    RankingBroken,
    /// It carries less than golden's.
    RankingWorse,
    /// It works, and facts lie outside the width.
    CoverageLimit,
    /// Facts are selected and lost.
    SelectedNotUsed,
    /// Too few trials to say that recall is reliable, or that it is not.
    Undecided,
    /// None of these.
    NothingWrong,
}

impl Cause {
    /// True if the gate of the command holds.
    pub fn passes(self) -> bool {
        matches!(self, Cause::NothingWrong | Cause::Undecided)
    }
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Cause::NotRun => "not run",
            Cause::Prompt => "prompt",
            Cause::CacheMaskChunk => "cache, mask or chunk",
            Cause::Phase => "phase",
            Cause::RankingBroken => "ranking broken",
            Cause::RankingWorse => "ranking worse than golden's",
            Cause::CoverageLimit => "coverage limit",
            Cause::SelectedNotUsed => "selected but not used",
            Cause::Undecided => "undecided",
            Cause::NothingWrong => "nothing wrong",
        }
    }
}

/// A diagnosis with its evidence and the next thing to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diagnosis {
    /// Path.
    pub path: String,
    /// Width it was judged at.
    pub topk: String,
    /// Verdict.
    pub cause: Cause,
    /// In a sentence.
    pub headline: String,
    /// Numbers it rests on.
    pub evidence: Vec<String>,
    /// Cheapest next experiment, a command line.
    pub next: String,
}

/// Diagnoses every path at its native width, or the widest there is without it.
pub fn diagnose(id: &Identity, paths: &[(String, Width)], records: &[Record]) -> Vec<Diagnosis> {
    let mut names: Vec<&str> = Vec::new();
    paths.iter().for_each(|(n, _)| {
        if !names.contains(&n.as_str()) {
            names.push(n)
        }
    });
    let widths: Vec<Width> = paths.iter().filter(|(n, _)| n == "golden").map(|(_, w)| *w).collect();
    let judged = widths
        .iter()
        .copied()
        .find(|w| *w == Width::Native)
        .or_else(|| widths.iter().copied().max_by_key(|w| w.entries(id.index_topk)));
    let Some(judged) = judged else { return Vec::new() };
    let golden = Evidence::of(id, records, "golden", judged, &widths);
    names
        .into_iter()
        .map(|name| {
            let own;
            let e = if name == "golden" {
                &golden
            } else {
                own = Evidence::of(id, records, name, judged, &widths);
                &own
            };
            let cause = cause(id, e, &golden);
            Diagnosis {
                path: name.into(),
                topk: judged.label(),
                cause,
                headline: headline(id, cause, e),
                evidence: evidence(id, e),
                next: next(id, cause, e),
            }
        })
        .collect()
}

fn cause(id: &Identity, e: &Evidence, golden: &Evidence) -> Cause {
    let limit = id.reliable;
    if e.rates.iter().all(|(_, r)| r.n == 0) {
        return Cause::NotRun;
    }
    // 1. Everything is selected, and the exact path fails: the prompt, or the model.
    if golden.below.fails(limit) && e.below.n > 0 {
        return Cause::Prompt;
    }
    // 2. Everything is selected, and only this path fails.
    if e.below.fails(limit) || e.golden.is_some_and(|(_, below)| below.second_is_worse()) {
        return Cause::CacheMaskChunk;
    }
    let worse = e.golden.is_some_and(|(all, _)| all.second_is_worse());
    let falls = e.cliff.is_some() || worse;
    // 3. Only some residues.
    if falls && phase(id, e).is_some() {
        return Cause::Phase;
    }
    // 4. A layer ranks like chance, where golden's does not.
    let chance = |e: &Evidence, l: usize| e.rankings.iter().any(|r| r.layer == l && r.uniform());
    let broken = e.rankings.iter().any(|r| r.uniform() && (e.golden.is_none() || !chance(golden, r.layer)));
    // Bad ranks behind a good layer that no width helps: something before them destroyed their input.
    let inherited = falls && first_bad_layer(e) > first_csa(id) && !e.moves_with_width();
    if broken && !inherited && (falls || e.golden.is_some()) {
        return Cause::RankingBroken;
    }
    if !falls {
        if e.rankings.iter().any(|r| r.worse()) {
            return Cause::RankingWorse;
        }
        let doubtful = e.rates.iter().any(|(_, r)| !r.reaches(limit) && r.rate.is_some_and(|p| p < limit));
        let doubtful = doubtful || e.golden.is_some_and(|(all, _)| all.undecided() && all.p < DOUBT);
        return if doubtful { Cause::Undecided } else { Cause::NothingWrong };
    }
    // 5. Without ranks only the place of the cliff and whether it moves can tell.
    if e.rankings.is_empty() {
        let near = e.cliff.zip(e.horizon).is_some_and(|(c, h)| c <= 2 * h);
        return match (e.moves_with_width(), near) {
            (true, true) => Cause::RankingBroken,
            (true, false) => Cause::CoverageLimit,
            (false, _) => Cause::CacheMaskChunk,
        };
    }
    // 6. What is lost was outside the width, or inside.
    let (lost, outside) = e.lost;
    if 2 * outside >= lost && lost > 0 {
        return if e.rankings.iter().any(|r| r.worse()) { Cause::RankingWorse } else { Cause::CoverageLimit };
    }
    // 7. Selected and lost, whatever the width: already in the shortest context, or only in longer ones.
    let shortest_fails = e.rates.iter().find(|(_, r)| r.n > 0).is_some_and(|(_, r)| r.fails(limit));
    if shortest_fails && e.golden.is_some() { Cause::CacheMaskChunk } else { Cause::SelectedNotUsed }
}

fn first_csa(id: &Identity) -> usize {
    id.csa_layers.first().copied().unwrap_or(0)
}

/// The first layer whose ranking is broken or worse; layers behind an error rank worse because of it.
fn first_bad_layer(e: &Evidence) -> usize {
    e.rankings.iter().filter(|r| r.uniform() || r.worse()).map(|r| r.layer).min().unwrap_or(usize::MAX)
}

/// Modulus and failing residues, if some residues surely fail and others surely do not.
fn phase(id: &Identity, e: &Evidence) -> Option<(usize, Vec<usize>)> {
    for modulus in [4, 128] {
        let mut by: Vec<(u64, u64)> = vec![(0, 0); modulus];
        for (ctx, r) in &e.rates {
            by[ctx % modulus].0 += r.hits;
            by[ctx % modulus].1 += r.n;
        }
        if by.iter().any(|(_, n)| *n == 0) {
            continue;
        }
        let rates: Vec<Rate> = by.iter().map(|(h, n)| Rate::new(*h, *n)).collect();
        let bad: Vec<usize> = (0..modulus).filter(|i| rates[*i].fails(id.reliable)).collect();
        let best = rates.iter().map(|r| r.low).fold(0.0, f64::max);
        // Apart: the best residue's interval lies wholly above that of every failing one.
        if !bad.is_empty() && bad.len() < modulus && bad.iter().all(|b| rates[*b].high < best) {
            let good = rates.iter().filter(|r| r.reaches(id.reliable)).count();
            if good > 0 {
                return Some((modulus, bad));
            }
        }
    }
    None
}

fn percent(r: &Rate) -> String {
    match r.rate {
        Some(p) => format!("{:.3} ({:.3} to {:.3}, n {})", p, r.low, r.high, r.n),
        None => "no trials".into(),
    }
}

fn headline(id: &Identity, cause: Cause, e: &Evidence) -> String {
    let at = e.cliff.map_or("recall is worse than golden's".to_string(), |c| {
        let times = e.horizon.map_or(String::new(), |h| {
            format!(", {:.1} times the identity horizon of {h}", c as f64 / h as f64)
        });
        format!("recall is below {} from {} tokens on{times}", id.reliable, short(c))
    });
    let spread = || {
        let all = e.rankings.iter().filter(|r| r.uniform() || r.worse());
        all.map(|r| format!("layer {}", r.layer)).collect::<Vec<_>>().join(", ")
    };
    match cause {
        Cause::NotRun => "no trial could be run".into(),
        Cause::Prompt => "golden fails where every entry is selected: the prompt's form, or the model".into(),
        Cause::CacheMaskChunk if e.below.n > 0 && e.below.fails(id.reliable) => {
            "fails where every entry is selected, and golden does not: ranking has no part in it".into()
        }
        Cause::CacheMaskChunk => format!("{at}; the ranks are fine and the width does not matter"),
        Cause::Phase => {
            let (m, bad) = phase(id, e).unwrap_or_default();
            format!("only lengths with remainder {bad:?} modulo {m} fail")
        }
        Cause::RankingBroken if e.rankings.is_empty() => format!("{at}, and it moves with index_topk"),
        Cause::RankingBroken
            if e.cliff.is_none() && e.golden.is_none_or(|(all, _)| !all.second_is_worse()) =>
        {
            format!(
                "the ranking of {} carries no information; recall does not show it at these lengths",
                spread()
            )
        }
        Cause::RankingBroken => format!("the ranking of {} carries no information; {at}", spread()),
        Cause::RankingWorse => {
            format!("the ranking of {} is worse than golden's on the same prompts", spread())
        }
        Cause::CoverageLimit => format!("{at}; the ranking works, the lost facts lie outside the width"),
        Cause::SelectedNotUsed => format!("{at}; the lost facts were selected"),
        Cause::Undecided => "too few trials to tell".into(),
        Cause::NothingWrong if e.golden.is_some() => "no worse than golden".into(),
        Cause::NothingWrong => {
            let last = e.rates.iter().rev().find(|(_, r)| r.n > 0).map_or(0, |(c, _)| *c);
            format!("no context up to {} tokens is below {}", short(last), id.reliable)
        }
    }
}

fn evidence(id: &Identity, e: &Evidence) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(h) = e.horizon {
        let rate = if e.below.n > 0 { percent(&e.below) } else { "not in this grid".into() };
        out.push(format!("up to the identity horizon of {h} tokens ({} entries): {rate}", e.entries));
    }
    if let Some((ctx, r)) = e.rates.iter().rev().find(|(_, r)| r.n > 0) {
        out.push(format!("at {} tokens: {}", short(*ctx), percent(r)));
    }
    if let Some((all, _)) = &e.golden {
        out.push(format!(
            "same {} trials: {} right in golden only, {} here only (McNemar p {:.2e})",
            all.n, all.only_first, all.only_second, all.p
        ));
        if let (true, Some(more)) = (all.undecided(), all.more) {
            out.push(format!("about {more} more trials would decide that difference"));
        }
    }
    for r in &e.rankings {
        let golden = r.golden.map_or(String::new(), |(g, _)| format!("; golden's {g}"));
        out.push(format!(
            "layer {}: median rank {}{golden}; rank/visible {:.3} in the median (chance: about 0.29)",
            r.layer, r.median, r.quantile
        ));
    }
    let (lost, outside) = e.lost;
    if lost > 0 {
        out.push(format!(
            "{lost} lost trials above the horizon: the fact was outside every layer's width in {outside}"
        ));
    }
    for (label, _, pair, cliff) in &e.widths {
        let fails = cliff.map_or("no context fails".into(), |c| format!("fails from {} on", short(c)));
        out.push(format!(
            "index_topk {label}: {fails}; gains {} trials and loses {} (p {:.2e})",
            pair.only_second, pair.only_first, pair.p
        ));
    }
    for (ctx, r) in e.rates.iter().filter(|(_, r)| !r.reaches(id.reliable) && !r.fails(id.reliable)) {
        if let Some(more) = r.more_to_settle(id.reliable) {
            out.push(format!(
                "{} tokens are undecided: about {more} more trials would settle them",
                short(*ctx)
            ));
        }
    }
    out
}

/// A command line that looks closer.
fn next(id: &Identity, cause: Cause, e: &Evidence) -> String {
    let model = if id.model == crate::checkpoint::BUILTINS[0] {
        String::new()
    } else {
        format!(" --model {}", id.model)
    };
    let kernels = if e.path == "golden" { String::new() } else { format!(" --kernels {}", e.path) };
    let longest = id.grid.ctx.last().copied().unwrap_or(0);
    match cause {
        Cause::NotRun => format!("dsv4 needle{model}{kernels} --plan"),
        Cause::Prompt => {
            format!(
                "dsv4 needle{model}{kernels} --ctx {} --depth 0.9 --topk native",
                (e.horizon.unwrap_or(longest) / 2).max(128)
            )
        }
        Cause::CacheMaskChunk if e.golden.is_some() => {
            format!("dsv4 diff-layers{model}{kernels} --decode-last 16")
        }
        Cause::RankingBroken | Cause::RankingWorse | Cause::Phase | Cause::SelectedNotUsed
            if e.golden.is_some() =>
        {
            format!("dsv4 diff-layers{model}{kernels}")
        }
        Cause::RankingBroken | Cause::RankingWorse => {
            format!("dsv4 inspect{}", model.replace(" --model", ""))
        }
        Cause::CoverageLimit => {
            format!(
                "dsv4 needle{model}{kernels} --ctx {longest} --topk native,{}",
                e.need.unwrap_or(2 * e.entries as u32)
            )
        }
        Cause::Undecided => {
            let more = e.rates.iter().filter_map(|(_, r)| r.more_to_settle(id.reliable)).max().unwrap_or(0);
            let cells = id.grid.depths.len().max(1) as u64;
            let trials = id.grid.trials as u64 + more.div_ceil(cells).max(1);
            format!("dsv4 needle{model}{kernels} --trials {trials}")
        }
        Cause::NothingWrong => {
            format!("dsv4 needle{model}{kernels} --ctx {} --trials {}", 2 * longest, id.grid.trials)
        }
        Cause::CacheMaskChunk | Cause::Phase | Cause::SelectedNotUsed => {
            format!("dsv4 needle{model}{kernels} --ctx {longest} --topk native,all --phase-sweep")
        }
    }
}

#[cfg(test)]
mod tests;
