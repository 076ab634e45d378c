//! Counting: recall, pairs, ranks and the ceiling that ranks alone allow.

use super::identity::Identity;
use super::record::{Outcome, Record, Width};
use super::stats::{Pair, Rate, Reliable, quantile};
use serde::Serialize;

/// Recall of a path in a cell, or over all depths of a context.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recall {
    /// Path.
    pub path: String,
    /// Selection width.
    pub topk: String,
    /// Context.
    pub ctx: usize,
    /// Depth; null over all.
    pub depth: Option<f64>,
    /// The rate.
    #[serde(flatten)]
    pub rate: Rate,
    /// Trials that could not be run.
    pub not_run: u64,
}

/// Two paths on the same trials of a context, or of all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Paired {
    /// First path and width.
    pub first: (String, String),
    /// Second path and width.
    pub second: (String, String),
    /// Context; null over all.
    pub ctx: Option<usize>,
    /// The counts.
    #[serde(flatten)]
    pub pair: Pair,
}

/// How far a path recalls reliably.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Range {
    /// Path.
    pub path: String,
    /// Selection width.
    pub topk: String,
    /// Identity horizon of that width in tokens.
    pub horizon: Option<usize>,
    /// The range.
    #[serde(flatten)]
    pub reliable: Reliable,
}

/// Where the index of a layer had the facts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerRanks {
    /// Path.
    pub path: String,
    /// Selection width.
    pub topk: String,
    /// Context.
    pub ctx: usize,
    /// Layer; null for the better of all layers, token by token.
    pub layer: Option<usize>,
    /// Answer tokens.
    pub n: u64,
    /// Visible entries, the median.
    pub visible: u32,
    /// Median rank.
    pub median: u32,
    /// 90th percentile of the ranks.
    pub p90: u32,
    /// Median of rank / visible: about 0.3 or more where the ranking carries no information.
    pub quantile: f64,
    /// Share of answer tokens whose fact was selected.
    pub selected: f64,
}

/// Recall that ranks alone would allow at a width: an estimate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ceiling {
    /// Path whose ranks were used.
    pub path: String,
    /// Context.
    pub ctx: usize,
    /// Width.
    pub width: u32,
    /// Share of trials whose facts are within the width.
    #[serde(flatten)]
    pub rate: Rate,
}

/// Everything counted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Recall by path, width, context and depth; the row over all depths precedes its depths.
    pub recall: Vec<Recall>,
    /// Golden against each candidate, and the native width against the others.
    pub pairs: Vec<Paired>,
    /// Reliable ranges.
    pub ranges: Vec<Range>,
    /// Ranks.
    pub ranks: Vec<LayerRanks>,
    /// Estimated ceilings from the ranks at the native width.
    pub ceiling: Vec<Ceiling>,
    /// Smallest width whose estimate reaches the limit at every context, by path.
    pub width_needed: Vec<(String, Option<u32>)>,
}

/// Records of one path and width.
pub(super) fn of_path<'a>(
    records: &'a [Record],
    path: &'a str,
    width: Width,
) -> impl Iterator<Item = &'a Record> + Clone {
    records.iter().filter(move |r| r.width == width && r.path == path)
}

/// Run trials only.
pub(super) fn outcomes<'a>(
    records: impl Iterator<Item = &'a Record> + Clone,
) -> impl Iterator<Item = (&'a Record, &'a Outcome)> + Clone {
    records.filter_map(|r| r.outcome.as_ref().ok().map(|o| (r, o)))
}

/// The width a trial needs: the largest that any of its answer tokens needs. A token needs the best rank that any layer
/// gives its fact when it is predicted, or gave it for an earlier answer token whose fact lies in the same window of
/// `ratio` tokens: the same entries hold both, and what was read then is still in the sliding window. `None` where ranks
/// are missing.
pub fn need(o: &Outcome, ratio: usize) -> Option<u32> {
    let best = |answer: usize| o.ranks.iter().filter(|r| r.answer == answer).map(|r| r.rank).min();
    let window = |answer: usize| o.sources.get(answer).map(|p| p / ratio.max(1));
    let mut most = 0;
    for answer in 0..o.tokens.len() {
        let own = best(answer)?;
        let earlier = (0..answer).filter(|a| window(*a).is_some() && window(*a) == window(answer));
        most = most.max(earlier.filter_map(best).fold(own, u32::min));
    }
    (most > 0).then_some(most)
}

/// Counts the records of a run. `paths` are the paths it has, in order.
pub fn summarise(id: &Identity, paths: &[(String, Width)], records: &[Record]) -> Summary {
    let mut s = Summary {
        recall: Vec::new(),
        pairs: Vec::new(),
        ranges: Vec::new(),
        ranks: Vec::new(),
        ceiling: Vec::new(),
        width_needed: Vec::new(),
    };
    for (path, width) in paths {
        let own: Vec<&Record> = of_path(records, path, *width).collect();
        let mut by_ctx = Vec::new();
        for ctx in &id.grid.ctx {
            let here: Vec<&Record> = own.iter().filter(|r| r.place.ctx == *ctx).copied().collect();
            let all = recall(path, *width, *ctx, None, &here);
            by_ctx.push((*ctx, all.rate));
            s.recall.push(all);
            for depth in &id.grid.depths {
                let cell: Vec<&Record> = here.iter().filter(|r| r.place.depth == *depth).copied().collect();
                s.recall.push(recall(path, *width, *ctx, Some(*depth), &cell));
            }
            ranks(&mut s.ranks, id, path, *width, *ctx, &here);
            if *width == Width::Native {
                ceiling(&mut s.ceiling, id, path, *ctx, &here);
            }
        }
        s.ranges.push(Range {
            path: path.clone(),
            topk: width.label(),
            horizon: id.horizon(*width),
            reliable: Reliable::of(&by_ctx, id.reliable),
        });
        if *width == Width::Native {
            s.width_needed.push((path.clone(), width_needed(id, &own)));
        }
    }
    pairs(&mut s.pairs, id, paths, records);
    s
}

fn recall(path: &str, width: Width, ctx: usize, depth: Option<f64>, records: &[&Record]) -> Recall {
    let run = records.iter().filter_map(|r| r.outcome.as_ref().ok());
    Recall {
        path: path.into(),
        topk: width.label(),
        ctx,
        depth,
        rate: Rate::of(run.map(Outcome::exact)),
        not_run: records.iter().filter(|r| r.outcome.is_err()).count() as u64,
    }
}

fn pairs(out: &mut Vec<Paired>, id: &Identity, paths: &[(String, Width)], records: &[Record]) {
    let name = |p: &(String, Width)| (p.0.clone(), p.1.label());
    for second in paths {
        // A candidate is compared with golden at its width, golden's widths with the native one.
        let first = if second.0 == "golden" {
            ("golden".to_string(), Width::Native)
        } else {
            ("golden".to_string(), second.1)
        };
        if first == *second || !paths.contains(&first) {
            continue;
        }
        // Both lists have the same trials in the same order.
        let both: Vec<(&Record, &Record)> =
            of_path(records, &first.0, first.1).zip(of_path(records, &second.0, second.1)).collect();
        for ctx in std::iter::once(None).chain(id.grid.ctx.iter().copied().map(Some)) {
            let here = both.iter().filter(|(a, _)| ctx.is_none_or(|c| a.place.ctx == c));
            let run = here.filter_map(|(a, b)| Some((a.outcome.as_ref().ok()?, b.outcome.as_ref().ok()?)));
            let pair = Pair::of(run.map(|(a, b)| (a.exact(), b.exact())));
            out.push(Paired { first: name(&first), second: name(second), ctx, pair });
        }
    }
}

fn ranks(
    out: &mut Vec<LayerRanks>,
    id: &Identity,
    path: &str,
    width: Width,
    ctx: usize,
    records: &[&Record],
) {
    let run: Vec<&Outcome> = records.iter().filter_map(|r| r.outcome.as_ref().ok()).collect();
    let mut row = |layer: Option<usize>, mut found: Vec<(u32, u32, bool)>| {
        if found.is_empty() {
            return;
        }
        let n = found.len() as u64;
        let selected = found.iter().filter(|f| f.2).count() as f64 / n as f64;
        let mut visible: Vec<u32> = found.iter().map(|f| f.1).collect();
        let mut quantiles: Vec<f64> = found.iter().map(|f| f64::from(f.0) / f64::from(f.1)).collect();
        visible.sort_unstable();
        quantiles.sort_unstable_by(f64::total_cmp);
        found.sort_unstable();
        let of = |q| quantile(&found, q).map_or(0, |f| f.0);
        out.push(LayerRanks {
            path: path.into(),
            topk: width.label(),
            ctx,
            layer,
            n,
            visible: quantile(&visible, 0.5).unwrap_or(0),
            median: of(0.5),
            p90: of(0.9),
            quantile: quantile(&quantiles, 0.5).unwrap_or(0.0),
            selected,
        });
    };
    for layer in &id.csa_layers {
        let found = run.iter().flat_map(|o| o.ranks.iter()).filter(|r| r.layer == *layer);
        row(Some(*layer), found.map(|r| (r.rank, r.visible, r.selected)).collect());
    }
    if id.csa_layers.len() > 1 {
        let best = run.iter().flat_map(|o| {
            (0..o.tokens.len()).filter_map(|a| {
                let own = o.ranks.iter().filter(move |r| r.answer == a);
                let best = own.clone().min_by_key(|r| r.rank)?;
                Some((best.rank, best.visible, own.clone().any(|r| r.selected)))
            })
        });
        row(None, best.collect());
    }
}

fn ceiling(out: &mut Vec<Ceiling>, id: &Identity, path: &str, ctx: usize, records: &[&Record]) {
    let run: Vec<&Outcome> = records.iter().filter_map(|r| r.outcome.as_ref().ok()).collect();
    let needs: Vec<u32> = run.iter().filter_map(|o| need(o, id.ratio)).collect();
    let Some(most) = run.iter().flat_map(|o| o.ranks.iter()).map(|r| r.visible).max() else { return };
    let mut width = 1;
    while width < most.saturating_mul(2) {
        let rate = Rate::of(needs.iter().map(|n| *n <= width));
        out.push(Ceiling { path: path.into(), ctx, width, rate });
        width *= 2;
    }
}

/// The smallest width at which, at every context, the estimate reaches the limit.
fn width_needed(id: &Identity, records: &[&Record]) -> Option<u32> {
    let mut most = None;
    for ctx in &id.grid.ctx {
        let here = records.iter().filter(|r| r.place.ctx == *ctx);
        let mut needs: Vec<u32> = here.filter_map(|r| need(r.outcome.as_ref().ok()?, id.ratio)).collect();
        needs.sort_unstable();
        most = most.max(quantile(&needs, id.reliable));
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::grid::{FactRank, TokenGrade};

    /// Catches an estimate that demands a fact of every layer, or again of a token whose entry was read before.
    #[test]
    fn a_trial_needs_the_best_rank_of_its_worst_token() {
        let token = TokenGrade { position: 0, expected: 0, top: 0, rank: 0, logprob: 0.0, margin: 0.0 };
        let fact = |(layer, answer, rank)| FactRank {
            layer,
            answer,
            rank,
            visible: 900,
            width: 64,
            selected: true,
            mass: 0.0,
            potential: 0.0,
        };
        let ranks = [(1, 0, 9), (1, 1, 50), (1, 2, 400), (3, 0, 20), (3, 1, 30), (3, 2, 300)];
        let mut o = Outcome {
            tokens: vec![token; 3],
            sources: vec![6, 8, 9],
            ranks: ranks.into_iter().map(fact).collect(),
            ..Outcome::default()
        };
        // Tokens 1 and 2 lie in window 2, token 0 in window 1.
        assert_eq!(need(&o, 4), Some(30));
        o.sources = vec![6, 7, 8];
        assert_eq!(need(&o, 4), Some(300));
        o.ranks.clear();
        assert_eq!(need(&o, 4), None);
    }
}
