//! Selections (sparse attention's entries, the router's experts) in lockstep: whether a flip is
//! explained by noise, and what the lanes go on with.

use super::Role;
use super::observer::Comparer;
use super::subject::Seat;
use crate::checkpoint::LayerKind;
use crate::checkpoint::safetensors::Dtype;
use crate::kernels::moe::score;
use crate::kernels::{Index, Mat};
use crate::metrics::overlap::{RowContext, compare_row};
use crate::metrics::overlap_total::OverlapAccum;
use crate::model::{Tap, TapAt, TapId};
use std::cmp::Ordering;

/// Scores of two entries may each move by this many standard deviations of the explained noise
/// before a flip is called real: 4 sigma a side over the ~1e5 comparisons of a run.
const NEAR_TIE_SIGMAS: f64 = 2.0 * 4.0;

/// Noise is no Gaussian of one width: large scores move more than small ones. Either of the two may
/// move twice as far as the one that moved most in the noise lane.
const NEAR_TIE_MOST: f64 = 2.0 * 2.0;

/// Measured index rows that wait for the noise lane of their block.
pub(super) struct Waiting {
    row0: usize,
    k: usize,
    ids: Vec<i32>,
}

/// The tap whose values a selection ranks.
fn ranked(id: TapId) -> TapId {
    let tap = if id.tap == Tap::RouterTopk { Tap::RouterLogits } else { Tap::IndexerScores };
    TapId { layer: id.layer, tap }
}

/// The best `k` by `scores`, equal ones in the reverse of golden's order; if these are `base`'s,
/// the pair at the cut changes sides.
fn other_way(scores: &[f32], base: &[i32]) -> Vec<i32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].partial_cmp(&scores[*a]).unwrap_or(Ordering::Equal).then(b.cmp(a)));
    let k = base.iter().filter(|i| **i >= 0).count().min(order.len());
    if k > 0 && k < order.len() && order[..k].iter().all(|i| base.contains(&(*i as i32))) {
        order.swap(k - 1, k);
    }
    order[..k].iter().map(|i| *i as i32).collect()
}

impl Comparer<'_> {
    /// Selection scores of one row in a lane: index scores, or router scores plus bias. `None`
    /// where nothing is ranked (experts of a hash layer come from a table).
    fn selection_scores(&self, lane: usize, id: TapId, r: usize, visible: usize) -> Option<Vec<f32>> {
        if id.tap == Tap::RouterTopk && id.layer.is_some_and(|l| self.config.layers[l].hash) {
            return None;
        }
        let m = self.scores.get(&(lane, ranked(id).tap))?;
        let row = m.row(r).get(..visible)?;
        Some(match (&self.bias, id.tap) {
            (bias, Tap::RouterTopk) => {
                row.iter().enumerate().map(|(e, l)| score(*l) + bias.as_ref().map_or(0.0, |b| b[e])).collect()
            }
            _ => row.to_vec(),
        })
    }

    /// The lane of `role`: golden's and the noise's, or one that belongs to `subject`.
    fn lane(&self, role: Role, subject: usize) -> Option<usize> {
        let shared = matches!(role, Role::Golden | Role::Noise);
        self.seats.iter().position(|s| s.role == role && (shared || s.subject == subject))
    }

    /// The lane whose values selections are compared with.
    fn base_lane(&self) -> usize {
        self.lane(if self.dump.is_some() { Role::Local } else { Role::Golden }, 0).unwrap_or(0)
    }

    /// True if quantised index queries or keys that are not in the dump move the scores in steps.
    fn in_steps(&self, id: TapId) -> bool {
        let has = |tap| self.dump.is_none_or(|d| d.has(TapId { layer: id.layer, tap }));
        self.quantised && id.tap == Tap::IndexTopk && !(has(Tap::IndexerQ) && has(Tap::IndexerK))
    }

    /// How much of the noise lane's move at position `p` of a selection's scores this run explains.
    fn noise_factor(&self, id: TapId, p: usize) -> f64 {
        let unstable = self.unstable.at(ranked(id).tap, p);
        if unstable { 1.0 } else { self.rule_of(ranked(id)).scale(self.in_steps(id)) }
    }

    /// What the last step from logits to selection scores may lose, in units of half a unit
    /// roundoff: softplus and its root (1.5 roundings of `s`), the stored bias, and their sum.
    /// Where the bias cancels `s`, that is far more than the result suggests. Twice that for the
    /// two sides of a comparison.
    fn router_roundings(&self, lane: usize, r: usize) -> f64 {
        let Some(m) = self.scores.get(&(lane, Tap::RouterLogits)) else { return 0.0 };
        let one = |(e, l): (usize, &f32)| {
            let (s, b) = (score(*l), self.bias.as_ref().map_or(0.0, |b| b[e]));
            (1.5 * s + b.abs() + (s + b).abs()) as f64
        };
        2.0 * m.row(r).iter().enumerate().map(one).fold(0.0, f64::max)
    }

    /// Score distance below which a flip at row `r` (position `p`) is a near tie.
    fn tie_floor(&self, subject: usize, id: TapId, r: usize, p: usize, base: &[f32]) -> f64 {
        let source = ranked(id);
        let rule = self.rule_of(source);
        let dump = self.dump.filter(|d| d.has(source));
        let top = base.iter().fold(0f32, |m, v| m.max(v.abs())) as f64;
        let least = match id.tap {
            Tap::RouterTopk => 0.5 * rule.unit * self.router_roundings(self.base_lane(), r),
            // The scores themselves are in the dump: only their storage can blur them.
            _ => match dump.map(|d| matches!(d.dtype(source), Some(Dtype::Bf16 | Dtype::F16))) {
                Some(true) => top * 4.0 * rule.unit,
                Some(false) => top * 2f64.powi(-24),
                None => top * rule.least,
            },
        };
        if dump.is_some() {
            return least;
        }
        let moves = |role: Role| -> (f64, f64) {
            let s = self.lane(role, subject).and_then(|l| self.selection_scores(l, id, r, base.len()));
            let (mut sum, mut most) = (0.0, 0f64);
            for (a, b) in s.iter().flatten().zip(base) {
                let d = (*a as f64 - *b as f64).abs();
                sum += d * d;
                most = most.max(d);
            }
            ((sum / base.len().max(1) as f64).sqrt(), most)
        };
        let ((noise, most), factor) = (moves(Role::Noise), self.noise_factor(id, p));
        // Nearly all of the variance of steps sits in the few vectors (one in 64, if the largest
        // value comes within 2^-7 of a power of two) whose whole grid changed: one such step is 8
        // sigma by itself, on either side.
        let sigmas = if self.in_steps(id) { 2.0 * NEAR_TIE_SIGMAS } else { NEAR_TIE_SIGMAS };
        (sigmas * (noise * factor).hypot(moves(Role::Format).0))
            .max(NEAR_TIE_MOST * most * factor)
            .max(NEAR_TIE_SIGMAS * top * rule.least)
            .max(least)
    }

    /// Keeps what golden's lane attends with where entries are selected; its LSE is the last of it.
    pub(super) fn see_attention(&mut self, at: TapAt, m: &Mat) {
        if at.id.layer.is_none_or(|l| self.config.layers[l].kind != LayerKind::Csa) {
            return;
        }
        self.attention.see(at.id.tap, m);
        if at.id.tap == Tap::AttnLse
            && let Some((id, w, g)) = self.subjects[0].owed.take()
        {
            self.push_total(0, id, &w, &g, at.row0, false);
        }
    }

    /// An index tap of a lane.
    pub(super) fn index_of(&mut self, seat: Seat, at: TapAt, ids: &mut Index) {
        let (id, role) = (at.id, seat.role);
        let base_role = if self.dump.is_some() { Role::Local } else { Role::Golden };
        let measured = self.dump.and_then(|d| d.index_rows(id, at.row0, at.row0 + ids.rows));
        match role {
            Role::Golden if self.dump.is_some() => {
                let Some((row0, k, ids_there)) = measured else { return };
                let w = Waiting { row0, k, ids: ids_there };
                if id.tap == Tap::IndexTopk {
                    self.subjects[0].owed = Some((id, w, ids.clone()));
                } else {
                    self.push_total(0, id, &w, ids, at.row0, false);
                }
                return;
            }
            Role::Total | Role::Layer => {
                if let Some(base) = self.base_index.get(&id).cloned() {
                    let w = Waiting { row0: at.row0, k: ids.k, ids: ids.ids.clone() };
                    self.push_total(seat.subject, id, &w, &base, at.row0, role == Role::Layer);
                }
                return;
            }
            Role::Local => {
                let w = match (&measured, self.dump) {
                    (_, None) => Some(Waiting { row0: at.row0, k: ids.k, ids: ids.ids.clone() }),
                    (Some((a, k, x)), _) => Some(Waiting { row0: *a, k: *k, ids: x.clone() }),
                    (None, Some(_)) => None,
                };
                self.subjects[seat.subject].waiting.extend(w.map(|w| (id, w)));
            }
            _ => {}
        }
        if role == base_role {
            self.base_index.insert(id, ids.clone());
        }
        if role == Role::Noise {
            (0..self.subjects.len()).for_each(|s| self.settle(s, id, at.row0));
        }
        if self.dump.is_none() {
            if let Some(b) = self.base_index.get(&id) {
                *ids = b.clone();
            }
            return;
        }
        if role == Role::Noise {
            let covered = measured.as_ref().map_or(0..0, |(a, k, x)| *a..*a + x.len() / (*k).max(1));
            self.free_selection(id, at.row0, ids, |p| covered.contains(&p));
        }
        if let Some((a, k, x)) = measured {
            *ids = self.forced_index(id, at.row0, ids, a, k, &x);
        }
    }

    /// The dump's ids in place of golden's, invalid ones dropped so that the pass can go on.
    fn forced_index(&self, id: TapId, row0: usize, own: &Index, a: usize, k: usize, x: &[i32]) -> Index {
        let width = own.k.max(k);
        let mut out = Index::empty(own.rows, width);
        for r in 0..own.rows {
            let p = row0 + r;
            let row = out.row_mut(r);
            if p >= a && (p - a + 1) * k <= x.len() {
                let src = &x[(p - a) * k..(p - a + 1) * k];
                let visible = self.visible(id, p);
                let mut n = 0;
                for &v in src {
                    // Experts keep their order: weights are aligned with it.
                    let valid = usize::try_from(v).is_ok_and(|v| v < visible) && !row[..n].contains(&v);
                    if valid || id.tap == Tap::RouterTopk {
                        row[n] = if valid { v } else { -1 };
                        n += 1;
                    }
                }
            } else {
                row[..own.k].copy_from_slice(own.row(r));
            }
        }
        out
    }

    /// What the noise lane goes on with where the dump has no selection: golden's own, but every
    /// choice that the run's noise could have turned is turned. So the noise lane's error holds
    /// what one wrong near tie does, in every row where there may be one, and those rows are
    /// marked.
    fn free_selection(&mut self, id: TapId, row0: usize, ids: &mut Index, forced: impl Fn(usize) -> bool) {
        let Some(base) = self.base_index.get(&id).cloned() else { return };
        let (local, noise) = (self.base_lane(), self.lane(Role::Noise, 0).unwrap_or(0));
        let mut near = vec![false; base.rows];
        *ids = base.clone();
        for r in 0..base.rows {
            let p = row0 + r;
            let visible = self.visible(id, p);
            let Some(s) = self.selection_scores(local, id, r, visible) else { continue };
            let expected = base.k.min(visible);
            let ctx = RowContext { visible, expected, scores: Some(&s), floor: 0.0, mass: None };
            let margin = compare_row(base.row(r), base.row(r), &ctx).margin;
            if margin.is_none_or(|m| m > self.tie_floor(0, id, r, p, &s)) {
                continue;
            }
            near[r] = true;
            let factor = self.noise_factor(id, p) as f32;
            let mut blend = s;
            if let Some(n) = self.selection_scores(noise, id, r, visible) {
                blend.iter_mut().zip(&n).for_each(|(b, n)| *b += (n - *b) * factor);
            }
            let other = other_way(&blend, base.row(r));
            ids.row_mut(r)[..other.len()].copy_from_slice(&other);
        }
        let mut reach = self.unstable.reach(id, row0, base.rows, 0, self.ratio(id));
        reach.iter_mut().zip(&near).for_each(|(u, n)| *u |= n);
        self.unstable.leave(id, row0, &reach, forced);
    }

    /// Golden's attention of the entries that row `measured` drops, where it is known: against the
    /// selection of golden's own lane.
    fn dropped(
        &self,
        id: TapId,
        r: usize,
        golden: &[i32],
        measured: &[i32],
        visible: usize,
    ) -> Option<Vec<f32>> {
        (id.tap == Tap::IndexTopk).then(|| self.attention.dropped(r, golden, measured, visible))
    }

    fn push_total(&mut self, subject: usize, id: TapId, w: &Waiting, g: &Index, row0: usize, layer: bool) {
        for (i, row) in w.ids.chunks_exact(w.k.max(1)).enumerate() {
            let p = w.row0 + i;
            let visible = self.visible(id, p);
            let golden = g.row(p - row0);
            let mass = self.dropped(id, p - row0, golden, row, visible);
            let expected = g.k.min(visible);
            let ctx = RowContext { visible, expected, mass: mass.as_deref(), ..Default::default() };
            let o = compare_row(row, golden, &ctx);
            let acc = self.subjects[subject].acc(id);
            let slot = if layer { &mut acc.layer_index } else { &mut acc.total_index };
            slot.get_or_insert_with(OverlapAccum::default).push(&o);
        }
    }

    /// Compares waiting measured rows with the recomputed selection, now that the block's noise
    /// is known.
    fn settle(&mut self, subject: usize, id: TapId, row0: usize) {
        let Some(w) = self.subjects[subject].waiting.remove(&id) else { return };
        let Some(base) = self.base_index.get(&id).cloned() else { return };
        let base_lane = self.base_lane();
        for (i, row) in w.ids.chunks_exact(w.k.max(1)).enumerate() {
            let p = w.row0 + i;
            let visible = self.visible(id, p);
            let scores = self.selection_scores(base_lane, id, p - row0, visible);
            let floor = scores.as_ref().map_or(0.0, |s| self.tie_floor(subject, id, p - row0, p, s));
            let expected = base.k.min(visible);
            // Golden's attention belongs to golden's own selection, not to one recomputed from a dump.
            let golden = base.row(p - row0);
            let mass =
                self.dump.is_none().then(|| self.dropped(id, p - row0, golden, row, visible)).flatten();
            let ctx =
                RowContext { visible, expected, scores: scores.as_deref(), floor, mass: mass.as_deref() };
            let o = compare_row(row, golden, &ctx);
            self.subjects[subject].acc(id).local_index.get_or_insert_with(OverlapAccum::default).push(&o);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a noise lane that repeats golden's choice where it could have been another.
    #[test]
    fn near_ties_are_taken_the_other_way() {
        assert_eq!(other_way(&[3.0, 0.0, 0.0, 0.0], &[0, 1]), [0, 3]);
        assert_eq!(other_way(&[3.0, 2.0, 1.9, 0.0], &[0, 1]), [0, 2]);
        assert_eq!(other_way(&[3.0, 2.0, 2.1, 0.0], &[0, 1]), [0, 2]);
        assert_eq!(other_way(&[3.0, 2.0], &[0, 1, -1]), [0, 1]);
    }
}
