//! What the records of one path say, in the terms the diagnosis reasons in.

use super::identity::Identity;
use super::record::{Outcome, Record, Width};
use super::stats::{Pair, Rate, quantile};
use super::summary::{need, of_path, outcomes};

/// Median of rank / visible above which a layer's ranking carries no information. A fact's token stands in two
/// entries, so ranking at random puts the better one at 1 − √½ = 0.29 in the median; rankings that work lie below 0.05.
pub const UNIFORM: f64 = 0.1;
/// A layer's ranks are worse than golden's if in so many of the pairs that differ golden's is the better one,
const WORSE_PAIRS: f64 = 0.75;
/// and the median rank is at least so many times golden's.
const WORSE_MEDIAN: f64 = 2.0;
/// Answer tokens below which ranks say nothing.
const FEW: usize = 20;

/// A layer's ranking.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking {
    /// The layer.
    pub layer: usize,
    /// Median of rank / visible.
    pub quantile: f64,
    /// Median rank.
    pub median: u32,
    /// Golden's median rank on the same answer tokens, and the share of differing pairs in which golden's is better.
    pub golden: Option<(u32, f64)>,
}

impl Ranking {
    /// Ranks as good as chance.
    pub fn uniform(&self) -> bool {
        self.quantile >= UNIFORM
    }
    /// Ranks worse than golden's on the same prompts.
    pub fn worse(&self) -> bool {
        self.golden.is_some_and(|(m, share)| {
            share >= WORSE_PAIRS && f64::from(self.median) >= WORSE_MEDIAN * f64::from(m)
        })
    }
}

/// Everything about one path at the width it is judged at.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// Path.
    pub path: String,
    /// Width.
    pub width: Width,
    /// Entries really selected where there are more: the width in force.
    pub entries: usize,
    /// Horizon of the width in force.
    pub horizon: Option<usize>,
    /// Rate by context.
    pub rates: Vec<(usize, Rate)>,
    /// Rate over contexts up to the horizon.
    pub below: Rate,
    /// The same trials against golden at the same width (not for golden itself): all, and up to the horizon.
    pub golden: Option<(Pair, Pair)>,
    /// The first context that surely misses the limit.
    pub cliff: Option<usize>,
    /// Rankings of the layers, over contexts above the horizon (over all where there are none).
    pub rankings: Vec<Ranking>,
    /// Lost trials above the horizon with ranks: how many, and in how many the first lost token's fact was selected in
    /// no layer.
    pub lost: (u64, u64),
    /// Other widths of the path on the contexts above the horizon: label, entries, the pair (this width, the other),
    /// and the first context that fails.
    pub widths: Vec<(String, usize, Pair, Option<usize>)>,
    /// Largest width any trial needs for the limit, at the longest context.
    pub need: Option<u32>,
}

fn rates(id: &Identity, records: &[Record], path: &str, width: Width) -> Vec<(usize, Rate)> {
    let run = outcomes(of_path(records, path, width));
    let at = |ctx: usize| run.clone().filter(move |(r, _)| r.place.ctx == ctx).map(|(_, o)| o.exact());
    id.grid.ctx.iter().map(|c| (*c, Rate::of(at(*c)))).collect()
}

fn cliff(rates: &[(usize, Rate)], limit: f64) -> Option<usize> {
    rates.iter().find(|(_, r)| r.fails(limit)).map(|(c, _)| *c)
}

/// Pairs of outcomes of two paths on the same trials whose context `wanted` accepts.
fn pair(records: &[Record], a: (&str, Width), b: (&str, Width), wanted: impl Fn(usize) -> bool) -> Pair {
    let both = of_path(records, a.0, a.1).zip(of_path(records, b.0, b.1));
    let run = both.filter(|(x, _)| wanted(x.place.ctx));
    Pair::of(
        run.filter_map(|(x, y)| Some((x.outcome.as_ref().ok()?.exact(), y.outcome.as_ref().ok()?.exact()))),
    )
}

impl Evidence {
    /// Gathers it. `widths` are the widths of the run.
    pub fn of(id: &Identity, records: &[Record], path: &str, width: Width, widths: &[Width]) -> Evidence {
        let run: Vec<(&Record, &Outcome)> = outcomes(of_path(records, path, width)).collect();
        // A kernel may keep fewer entries than it was told to: the largest selection that left something out counts.
        let cut = run.iter().flat_map(|(_, o)| o.ranks.iter()).filter(|r| r.width < r.visible);
        let entries = cut.map(|r| r.width as usize).max().unwrap_or(width.entries(id.index_topk));
        let horizon = (id.ratio > 0).then(|| entries.saturating_mul(id.ratio));
        let below = |ctx: usize| horizon.is_none_or(|h| ctx <= h);
        let by_ctx = rates(id, records, path, width);
        let is_golden = path == "golden";
        let golden = (!is_golden).then(|| {
            let both = |w: &dyn Fn(usize) -> bool| pair(records, ("golden", width), (path, width), w);
            (both(&|_| true), both(&below))
        });
        let above: Vec<(&Record, &Outcome)> =
            run.iter().filter(|(r, _)| !below(r.place.ctx)).copied().collect();
        let ranked = if above.is_empty() { &run } else { &above };
        let golden_ranks: Vec<&Outcome> = if is_golden {
            Vec::new()
        } else {
            outcomes(of_path(records, "golden", width))
                .filter(|(r, _)| above.is_empty() || !below(r.place.ctx))
                .map(|(_, o)| o)
                .collect()
        };
        let rankings = id
            .csa_layers
            .iter()
            .filter_map(|l| ranking(*l, &ranked.iter().map(|(_, o)| *o).collect::<Vec<_>>(), &golden_ranks))
            .collect();
        let lost: Vec<&Outcome> =
            above.iter().map(|(_, o)| *o).filter(|o| !o.exact() && !o.ranks.is_empty()).collect();
        let outside = lost.iter().filter(|o| {
            let first = o.first_lost().unwrap_or(0);
            o.ranks.iter().filter(|r| r.answer == first).all(|r| !r.selected)
        });
        let others = widths.iter().filter(|w| **w != width).map(|w| {
            let both = pair(records, (path, width), (path, *w), |c| !below(c));
            (w.label(), w.entries(id.index_topk), both, cliff(&rates(id, records, path, *w), id.reliable))
        });
        let longest = run.iter().map(|(r, _)| r.place.ctx).max();
        let mut needs: Vec<u32> = run
            .iter()
            .filter(|(r, _)| Some(r.place.ctx) == longest)
            .filter_map(|(_, o)| need(o, id.ratio))
            .collect();
        needs.sort_unstable();
        Evidence {
            path: path.into(),
            width,
            entries,
            horizon,
            below: Rate::of(run.iter().filter(|(r, _)| below(r.place.ctx)).map(|(_, o)| o.exact())),
            golden,
            cliff: cliff(&by_ctx, id.reliable),
            rankings,
            lost: (lost.len() as u64, outside.count() as u64),
            widths: others.collect(),
            need: quantile(&needs, id.reliable),
            rates: by_ctx,
        }
    }

    /// True if a wider selection surely recalls more, or a narrower one less.
    pub fn moves_with_width(&self) -> bool {
        self.widths.iter().any(|(_, entries, pair, _)| {
            let significant = pair.p < super::stats::ALPHA;
            significant && (pair.only_second > pair.only_first) == (*entries > self.entries)
        })
    }
    /// The next wider selection, if one was run, and whether it surely recalls more.
    pub fn raised(&self) -> Option<(&str, bool)> {
        let wider = self.widths.iter().filter(|(_, e, _, _)| *e > self.entries);
        let best = wider.max_by_key(|(_, _, pair, _)| pair.only_second as i64 - pair.only_first as i64)?;
        Some((&best.0, best.2.only_second > best.2.only_first && best.2.p < super::stats::ALPHA))
    }
}

fn ranking(layer: usize, run: &[&Outcome], golden: &[&Outcome]) -> Option<Ranking> {
    let own: Vec<_> = run.iter().flat_map(|o| o.ranks.iter()).filter(|r| r.layer == layer).collect();
    if own.len() < FEW {
        return None;
    }
    let mut quantiles: Vec<f64> = own.iter().map(|r| f64::from(r.rank) / f64::from(r.visible)).collect();
    let mut ranks: Vec<u32> = own.iter().map(|r| r.rank).collect();
    quantiles.sort_unstable_by(f64::total_cmp);
    ranks.sort_unstable();
    let theirs: Vec<_> = golden.iter().flat_map(|o| o.ranks.iter()).filter(|r| r.layer == layer).collect();
    let golden = (theirs.len() == own.len()).then(|| {
        let better = own.iter().zip(&theirs).filter(|(a, g)| g.rank < a.rank).count();
        let differ = own.iter().zip(&theirs).filter(|(a, g)| g.rank != a.rank).count();
        let mut g: Vec<u32> = theirs.iter().map(|r| r.rank).collect();
        g.sort_unstable();
        (quantile(&g, 0.5).unwrap_or(0), if differ == 0 { 0.0 } else { better as f64 / differ as f64 })
    });
    Some(Ranking {
        layer,
        quantile: quantile(&quantiles, 0.5)?,
        median: quantile(&ranks, 0.5)?,
        golden: golden.filter(|_| !theirs.is_empty()),
    })
}
