//! The observer that compares lanes while they run.

use super::Role;
use super::blame;
use super::rows::{FloorRule, TapAcc};
use crate::checkpoint::safetensors::Dtype;
use crate::checkpoint::{Config, LayerKind};
use crate::engine::dump::Dump;
use crate::engine::session::LaneObserver;
use crate::error::Result;
use crate::kernels::moe::score;
use crate::kernels::{Index, Mat, Ops};
use crate::metrics::overlap::{RowContext, compare_row};
use crate::metrics::overlap_total::OverlapAccum;
use crate::model::{Tap, TapAt, TapId};
use crate::numeric::hadamard;
use std::collections::{BTreeMap, HashMap};

/// Scores of two entries may each move by this many standard deviations of the explained noise
/// before a flip is called real: 4 sigma a side over the ~1e5 comparisons of a run.
const NEAR_TIE_SIGMAS: f64 = 2.0 * 4.0;

/// Measured index rows that wait for the noise lane of their block.
struct Waiting {
    row0: usize,
    k: usize,
    ids: Vec<i32>,
}

/// Watches lanes in lockstep and keeps the sums.
pub(super) struct Comparer<'a> {
    pub roles: Vec<Role>,
    pub dump: Option<&'a Dump>,
    pub config: &'a Config,
    pub rule: FloorRule,
    tokens: usize,
    /// Correction bias of the router of the current layer.
    pub bias: Option<Vec<f32>>,
    pub taps: BTreeMap<(usize, Tap), (TapId, TapAcc)>,
    /// Values every lane of a block is compared with.
    base: HashMap<TapId, Mat>,
    base_index: HashMap<TapId, Index>,
    /// Selection scores of the current block, by lane.
    scores: HashMap<(usize, Tap), Mat>,
    waiting: HashMap<TapId, Waiting>,
    /// Golden and measured values of taps whose difference may have a structure, current layer.
    pub kept: HashMap<Tap, (Mat, Mat)>,
    unstable: Vec<bool>,
    /// Router weights of this layer come unscaled; the factor is expected downstream.
    pub unscaled: bool,
    /// The candidate rotates index queries and keys by Hadamard and golden does not: its values
    /// are compared after rotating them back, which changes no score.
    pub unrotate: bool,
}

impl<'a> Comparer<'a> {
    pub fn new(
        roles: Vec<Role>,
        dump: Option<&'a Dump>,
        config: &'a Config,
        rule: FloorRule,
        tokens: usize,
    ) -> Self {
        Comparer {
            roles,
            dump,
            config,
            rule,
            tokens,
            bias: None,
            taps: BTreeMap::new(),
            base: HashMap::new(),
            base_index: HashMap::new(),
            scores: HashMap::new(),
            waiting: HashMap::new(),
            kept: HashMap::new(),
            unstable: vec![false; tokens],
            unscaled: false,
            unrotate: false,
        }
    }

    pub fn acc(&mut self, id: TapId) -> &mut TapAcc {
        &mut self.taps.entry(id.order()).or_insert_with(|| (id, TapAcc::default())).1
    }

    /// True if the dump has this tap (a candidate run has every tap).
    fn has(&self, id: TapId) -> bool {
        self.dump.is_none_or(|d| d.has(id))
    }

    /// Forgets what belongs to one layer.
    pub fn end_layer(&mut self) {
        self.base.clear();
        self.base_index.clear();
        self.scores.clear();
        self.waiting.clear();
        self.kept.clear();
        self.unscaled = false;
    }

    /// Entries visible to position `t` in the layer of `id`.
    fn visible(&self, id: TapId, t: usize) -> usize {
        match id.tap {
            Tap::RouterTopk => self.config.n_routed_experts,
            _ => id.layer.map_or(0, |l| (t + 1) / self.config.layers[l].ratio.max(1)),
        }
    }

    /// Zeroes scores of entries that are not visible: their stored values mean nothing.
    fn mask(&self, id: TapId, row0: usize, m: &mut Mat) {
        if id.tap == Tap::IndexerScores {
            for r in 0..m.rows {
                let v = self.visible(id, row0 + r).min(m.cols);
                m.row_mut(r)[v..].fill(0.0);
            }
        }
    }

    /// Keeps both sides of taps whose difference may have a structure worth naming.
    fn keep(&mut self, id: TapId, golden: &Mat, measured: &Mat) {
        if blame::KEPT.contains(&id.tap) {
            let (g, m) = self.kept.entry(id.tap).or_default();
            g.append(golden);
            m.append(measured);
        }
    }

    /// Router weights follow the order of their ids; where the ids differ, sizes are compared.
    fn by_size(m: &Mat) -> Mat {
        let mut m = m.clone();
        for r in 0..m.rows {
            m.row_mut(r).sort_unstable_by(|a, b| b.total_cmp(a));
        }
        m
    }

    fn against(&mut self, role: Role, id: TapId, row0: usize, m: &mut Mat) {
        let Some(dump) = self.dump else { return };
        let measured = dump.rows(id, row0, row0 + m.rows);
        let sized = id.tap == Tap::RouterWeights
            && !id.layer.is_some_and(|l| dump.has(TapId { layer: Some(l), tap: Tap::RouterTopk }));
        if role == Role::Noise {
            if let Some(b) = self.base.get(&id).cloned() {
                let cols = m.cols;
                self.acc(id).noise_rows.push(row0, &m.data, &b.data, cols);
            }
            self.mark_unstable(id, row0, m.rows, measured.is_some());
        }
        if role == Role::Local {
            self.base.insert(id, m.clone());
        }
        let Some((a, mut x)) = measured else { return };
        self.mask(id, row0 + (a - row0), &mut x);
        let mut own = m.slice(a - row0, a - row0 + x.rows);
        self.mask(id, a, &mut own);
        match role {
            Role::Golden => {
                let (x, own) = if id.tap == Tap::RouterWeights {
                    (Self::by_size(&x), Self::by_size(&own))
                } else {
                    (x, own)
                };
                self.acc(id).total.push(&x.data, &own.data);
                return;
            }
            Role::Local => {
                let (xs, os) =
                    if sized { (Self::by_size(&x), Self::by_size(&own)) } else { (x.clone(), own.clone()) };
                let acc = self.acc(id);
                acc.local.push(&xs.data, &os.data);
                acc.local_rows.push(a, &xs.data, &os.data, xs.cols);
                self.keep(id, &own, &x);
            }
            _ => {}
        }
        if id.tap == Tap::RouterWeights {
            if sized {
                return;
            }
            // Some engines hand out weights without the factor and apply it downstream. Whether
            // they do shows at the routed sum; until then golden's scaled weights go on.
            if role == Role::Local {
                self.unscaled = blame::is_unscaled(&own, &x, self.config.routed_scaling_factor);
            }
            if self.unscaled {
                return;
            }
        }
        m.write_rows(a - row0, &x);
    }

    /// After the noise lane passed: rows downstream of an unforced near tie are not judged, until
    /// streams from the dump make them sound again.
    fn mark_unstable(&mut self, id: TapId, row0: usize, rows: usize, forced: bool) {
        if id.tap.axis() == crate::model::Axis::Token {
            let bad: Vec<usize> = (row0..row0 + rows).filter(|r| self.unstable[*r]).collect();
            self.acc(id).unstable.extend(bad);
            if forced && matches!(id.tap, Tap::Mid | Tap::LayerOut) {
                self.unstable[row0..row0 + rows].fill(false);
            }
        }
    }

    fn candidate(&mut self, role: Role, id: TapId, row0: usize, m: &mut Mat) {
        if role == Role::Golden {
            self.base.insert(id, m.clone());
            return;
        }
        let Some(full) = self.base.get(&id).cloned() else { return };
        let (mut x, mut b) = (m.clone(), full.clone());
        if self.unrotate
            && role != Role::Format
            && role != Role::Noise
            && matches!(id.tap, Tap::IndexerQ | Tap::IndexerK)
        {
            x.data.chunks_exact_mut(self.config.index_head_dim).for_each(hadamard::in_place);
        }
        self.mask(id, row0, &mut x);
        self.mask(id, row0, &mut b);
        let free = matches!(role, Role::Total | Role::Layer);
        if id.tap == Tap::RouterWeights && free {
            (x, b) = (Self::by_size(&x), Self::by_size(&b));
        }
        let cols = x.cols;
        let acc = self.acc(id);
        match role {
            Role::Total => acc.total.push(&x.data, &b.data),
            Role::Layer => acc.layer.push(&x.data, &b.data),
            Role::Local => {
                acc.local.push(&x.data, &b.data);
                acc.local_rows.push(row0, &x.data, &b.data, cols);
                self.keep(id, &b, &x);
            }
            Role::Format => acc.format_rows.push(row0, &x.data, &b.data, cols),
            Role::Noise => acc.noise_rows.push(row0, &x.data, &b.data, cols),
            Role::Golden => {}
        }
        if !free {
            *m = full;
        }
    }

    /// Selection scores of one row in a lane: index scores, or router scores plus bias.
    fn selection_scores(&self, lane: usize, id: TapId, r: usize, visible: usize) -> Option<Vec<f32>> {
        let source = if id.tap == Tap::RouterTopk { Tap::RouterLogits } else { Tap::IndexerScores };
        let m = self.scores.get(&(lane, source))?;
        let row = m.row(r).get(..visible)?;
        Some(match (&self.bias, id.tap) {
            (bias, Tap::RouterTopk) => {
                row.iter().enumerate().map(|(e, l)| score(*l) + bias.as_ref().map_or(0.0, |b| b[e])).collect()
            }
            _ => row.to_vec(),
        })
    }

    fn lane(&self, role: Role) -> usize {
        self.roles.iter().position(|r| *r == role).unwrap_or(0)
    }

    /// Score distance below which a flip at row `r` is a near tie.
    fn tie_floor(&self, id: TapId, r: usize, base: &[f32]) -> f64 {
        let top = base.iter().fold(0f32, |m, v| m.max(v.abs())) as f64;
        let source = if id.tap == Tap::RouterTopk { Tap::RouterLogits } else { Tap::IndexerScores };
        let source = TapId { layer: id.layer, tap: source };
        if let Some(d) = self.dump.filter(|d| d.has(source)) {
            // The scores themselves are in the dump: only their storage (and for the router the
            // last step from logit to score) can blur them.
            let stored = d.dtype(source).is_some_and(|t| matches!(t, Dtype::Bf16 | Dtype::F16));
            let blur =
                if id.tap == Tap::RouterTopk || stored { 8.0 * self.rule.least } else { 2f64.powi(-24) };
            return top * blur;
        }
        let rms = |role: Role| {
            let s = self
                .roles
                .contains(&role)
                .then(|| self.selection_scores(self.lane(role), id, r, base.len()))
                .flatten();
            s.map_or(0.0, |s| {
                let d: f64 = s.iter().zip(base).map(|(a, b)| (*a as f64 - *b as f64).powi(2)).sum();
                (d / base.len().max(1) as f64).sqrt()
            })
        };
        let noise = rms(Role::Noise) * self.rule.noise;
        NEAR_TIE_SIGMAS * (noise.hypot(rms(Role::Format))).max(top * self.rule.least)
    }

    fn index_of(&mut self, role: Role, at: TapAt, ids: &mut Index) {
        let id = at.id;
        let base_role = if self.dump.is_some() { Role::Local } else { Role::Golden };
        let measured = self.dump.and_then(|d| d.index_rows(id, at.row0, at.row0 + ids.rows));
        match role {
            Role::Golden if self.dump.is_some() => {
                if let Some((a, k, x)) = measured {
                    self.push_total(id, a, k, &x, ids, at.row0, false);
                }
                return;
            }
            Role::Total | Role::Layer => {
                if let Some(base) = self.base_index.get(&id).cloned() {
                    self.push_total(
                        id,
                        at.row0,
                        ids.k,
                        &ids.ids.clone(),
                        &base,
                        at.row0,
                        role == Role::Layer,
                    );
                }
                return;
            }
            Role::Local if self.dump.is_none() => {
                self.waiting.insert(id, Waiting { row0: at.row0, k: ids.k, ids: ids.ids.clone() });
            }
            Role::Local => {
                if let Some((a, k, x)) = &measured {
                    self.waiting.insert(id, Waiting { row0: *a, k: *k, ids: x.clone() });
                }
            }
            _ => {}
        }
        if role == base_role {
            self.base_index.insert(id, ids.clone());
        }
        if role == Role::Noise {
            self.settle(id, at.row0);
        }
        match (self.dump, measured) {
            (None, _) => {
                if let Some(b) = self.base_index.get(&id) {
                    *ids = b.clone();
                }
            }
            (Some(_), Some((a, k, x))) => *ids = self.forced_index(id, at.row0, ids, a, k, &x),
            (Some(_), None) if role == Role::Noise => self.free_selection(id, at.row0, ids),
            _ => {}
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

    /// The dump has no selection here. In a precise run the noise lane keeps golden's (its own
    /// would be far coarser) and rows with a margin inside the noise are not judged downstream;
    /// in a coarse run near-tie flips of entries are part of the floor.
    fn free_selection(&mut self, id: TapId, row0: usize, ids: &mut Index) {
        let Some(base) = self.base_index.get(&id).cloned() else { return };
        let entries = id.tap == Tap::IndexTopk;
        if entries && self.rule.noise > 0.1 {
            return;
        }
        let lane = self.lane(Role::Local);
        for r in 0..base.rows {
            let visible = self.visible(id, row0 + r);
            let Some(s) = self.selection_scores(lane, id, r, visible) else { continue };
            let expected = base.k.min(visible);
            let ctx = RowContext { visible, expected, scores: Some(&s), floor: 0.0, mass: None };
            let margin = compare_row(base.row(r), base.row(r), &ctx).margin;
            if margin.is_some_and(|m| m <= self.tie_floor(id, r, &s)) {
                self.unstable[row0 + r] = true;
            }
        }
        *ids = base;
    }

    fn push_total(&mut self, id: TapId, a: usize, k: usize, x: &[i32], g: &Index, row0: usize, layer: bool) {
        for (i, row) in x.chunks_exact(k.max(1)).enumerate() {
            let p = a + i;
            let visible = self.visible(id, p);
            let ctx = RowContext { visible, expected: g.k.min(visible), ..Default::default() };
            let o = compare_row(row, g.row(p - row0), &ctx);
            let acc = self.acc(id);
            let slot = if layer { &mut acc.layer_index } else { &mut acc.total_index };
            slot.get_or_insert_with(OverlapAccum::default).push(&o);
        }
    }

    /// Compares waiting measured rows with the recomputed selection, now that the block's noise
    /// is known.
    fn settle(&mut self, id: TapId, row0: usize) {
        let (Some(w), Some(base)) = (self.waiting.remove(&id), self.base_index.get(&id).cloned()) else {
            return;
        };
        let base_lane = self.lane(if self.dump.is_some() { Role::Local } else { Role::Golden });
        for (i, row) in w.ids.chunks_exact(w.k.max(1)).enumerate() {
            let p = w.row0 + i;
            let visible = self.visible(id, p);
            let scores = self.selection_scores(base_lane, id, p - row0, visible);
            let floor = scores.as_ref().map_or(0.0, |s| self.tie_floor(id, p - row0, s));
            let expected = base.k.min(visible);
            let ctx = RowContext { visible, expected, scores: scores.as_deref(), floor, mass: None };
            let o = compare_row(row, base.row(p - row0), &ctx);
            self.acc(id).local_index.get_or_insert_with(OverlapAccum::default).push(&o);
        }
    }
}

impl<O: Ops> LaneObserver<O> for Comparer<'_> {
    fn wants_scores(&self, _lane: usize, layer: usize) -> bool {
        let l = self.config.layers[layer];
        l.kind == LayerKind::Csa && self.tokens / l.ratio > self.config.index_topk
    }
    fn tensor(&mut self, lane: usize, ops: &O, at: TapAt, t: &mut O::T) -> Result<()> {
        let role = self.roles[lane];
        let mut m = ops.download(t);
        let before = matches!(at.id.tap, Tap::IndexerScores | Tap::RouterLogits);
        if before && !matches!(role, Role::Total | Role::Layer) {
            self.scores.insert((lane, at.id.tap), m.clone());
        }
        if self.dump.is_some() {
            self.against(role, at.id, at.row0, &mut m);
        } else {
            self.candidate(role, at.id, at.row0, &mut m);
        }
        // The selection is judged by the scores it was made from: the dump's, where it has them.
        if before && role == Role::Local && self.dump.is_some() && self.has(at.id) {
            self.scores.insert((lane, at.id.tap), m.clone());
        }
        *t = ops.upload(m);
        Ok(())
    }
    fn index(&mut self, lane: usize, at: TapAt, ids: &mut Index) -> Result<()> {
        let role = self.roles[lane];
        self.index_of(role, at, ids);
        Ok(())
    }
}
