//! Where the index has the facts that answers repeat.

use super::tree::Tree;
use super::{FactRank, Job};
use crate::checkpoint::Config;
use crate::error::Result;
use crate::kernels::{Index, Mat, Ops};
use crate::model::{Observer, Tap, TapAt};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// What is asked about one row.
struct Ask {
    job: usize,
    answer: usize,
    position: usize,
    /// Entries that hold the fact: those of the windows its tokens lie in, and the one after, which pools the window
    /// before its own too.
    entries: Range<usize>,
}

/// Watches one CSA layer of one path.
pub(super) struct Ranks<'a> {
    config: &'a Config,
    layer: usize,
    asked: HashMap<usize, Vec<Ask>>,
    scores: Option<Mat>,
    q: Option<Mat>,
    lse: Option<Mat>,
    chosen: Option<Index>,
    /// What was found, by job, in the order of the answer.
    pub found: BTreeMap<usize, Vec<FactRank>>,
}

impl<'a> Ranks<'a> {
    pub fn new(config: &'a Config, layer: usize, jobs: &[Job], tree: &Tree) -> Self {
        let ratio = config.layers[layer].ratio.max(1);
        let mut asked: HashMap<usize, Vec<Ask>> = HashMap::new();
        for (job, rows) in &tree.jobs {
            let j = &jobs[*job];
            for (answer, (row, source)) in rows.iter().zip(&j.sources).enumerate() {
                if source.is_empty() {
                    continue;
                }
                let position = j.answer_from - 1 + answer;
                let visible = (position + 1) / ratio;
                let entries =
                    (source.start / ratio).min(visible)..((source.end - 1) / ratio + 2).min(visible);
                if !entries.is_empty() {
                    asked.entry(*row).or_default().push(Ask { job: *job, answer, position, entries });
                }
            }
        }
        Ranks { config, layer, asked, scores: None, q: None, lse: None, chosen: None, found: BTreeMap::new() }
    }

    /// True if something is asked about one of these rows.
    pub fn wanted(&self, rows: &Range<usize>) -> bool {
        rows.clone().any(|r| self.asked.contains_key(&r))
    }

    /// After the block that starts at `row0`; `comp [N, C]` are the entries attention read.
    pub fn measure<O: Ops>(&mut self, ops: &O, row0: usize, comp: &O::T, width: u32) {
        let (Some(scores), Some(q), Some(lse), Some(chosen)) =
            (self.scores.take(), self.q.take(), self.lse.take(), self.chosen.take())
        else {
            return;
        };
        let ratio = self.config.layers[self.layer].ratio.max(1);
        let width = if width == 0 { self.config.index_topk } else { width as usize };
        for r in 0..scores.rows {
            for ask in self.asked.get(&(row0 + r)).map_or(&[][..], Vec::as_slice) {
                let visible = (ask.position + 1) / ratio;
                let row = &scores.row(r)[..visible.min(scores.cols)];
                let best = ask.entries.clone().filter(|e| *e < row.len()).map(|e| rank(row, e)).min();
                let picked = |e: usize| chosen.row(r).contains(&(e as i32));
                let held: Vec<bool> = ask.entries.clone().map(picked).collect();
                let entries = ops.download(&ops.slice(comp, ask.entries.start, ask.entries.end));
                let (mass, potential) = mass(q.row(r), &entries, lse.row(r), &held);
                self.found.entry(ask.job).or_default().push(FactRank {
                    layer: self.layer,
                    answer: ask.answer,
                    rank: best.unwrap_or(visible) as u32,
                    visible: visible as u32,
                    width: width as u32,
                    selected: held.contains(&true),
                    mass,
                    potential,
                });
            }
        }
    }
}

/// Rank of entry `e`, 1 = best: larger scores first, the earlier entry on equal ones; a score that is no number is
/// behind all others.
fn rank(scores: &[f32], e: usize) -> usize {
    let own = scores[e];
    if own.is_nan() {
        return scores.len();
    }
    1 + scores.iter().enumerate().filter(|(i, s)| **s > own || (**s == own && *i < e)).count()
}

/// Mean over heads of the attention weight `exp(q·k/√C − lse)` on the entries that are held, and of the weight all of
/// them would have if the others were attended to as well: `Σ all / (1 + Σ missing)`, since the sum under `exp(lse)`
/// grows by what is missing.
fn mass(q: &[f32], entries: &Mat, lse: &[f32], held: &[bool]) -> (f64, f64) {
    let (c, heads) = (entries.cols, lse.len());
    let scale = 1.0 / (c as f64).sqrt();
    let (mut mass, mut potential) = (0.0, 0.0);
    for (h, lse) in lse.iter().enumerate() {
        let (mut on, mut off) = (0.0, 0.0);
        for (e, held) in held.iter().enumerate() {
            let q = &q[h * c..(h + 1) * c];
            let dot: f64 = q.iter().zip(entries.row(e)).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let w = (dot * scale - f64::from(*lse)).exp();
            *(if *held { &mut on } else { &mut off }) += w;
        }
        mass += on;
        potential += (on + off) / (1.0 + off);
    }
    (mass / heads as f64, potential / heads as f64)
}

impl<O: Ops> Observer<O> for Ranks<'_> {
    fn wants_scores(&self, _layer: usize) -> bool {
        true
    }
    fn tensor(&mut self, ops: &O, at: TapAt, t: &mut O::T) -> Result<()> {
        match at.id.tap {
            Tap::IndexerScores => self.scores = Some(ops.download(t)),
            Tap::AttnQ => self.q = Some(ops.download(t)),
            Tap::AttnLse => self.lse = Some(ops.download(t)),
            _ => {}
        }
        Ok(())
    }
    fn index(&mut self, at: TapAt, ids: &mut Index) -> Result<()> {
        if at.id.tap == Tap::IndexTopk {
            self.chosen = Some(ids.clone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a rank that starts at 0, or that gives equal scores to the later entry.
    #[test]
    fn ranks_start_at_one_and_ties_go_to_the_earlier() {
        let s = [0.5, 2.0, 0.5, f32::NAN, -1.0];
        assert_eq!([0, 1, 2, 3, 4].map(|e| rank(&s, e)), [2, 1, 3, 5, 4]);
    }

    /// Two heads, two entries, computed by hand: head 0 has weights e^0 and e^ln2 over a sum of 4.
    #[test]
    fn mass_counts_what_is_held_and_what_would_be() {
        let entries = Mat::new(2, 1, vec![0.0, 2f32.ln()]);
        let lse = [4f32.ln(), 8f32.ln()];
        let (m, p) = mass(&[1.0, 0.0], &entries, &lse, &[true, false]);
        // Head 0: held 1/4, missing 2/4; head 1: 1/8 each.
        assert!((m - (0.25 + 0.125) / 2.0).abs() < 1e-7);
        assert!((p - (0.75 / 1.5 + 0.25 / 1.125) / 2.0).abs() < 1e-7);
    }
}
