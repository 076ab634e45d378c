//! The observer that compares lanes while they run.

use super::Role;
use super::blame;
use super::floor::{FloorRule, RowErrs};
use super::flow::Unstable;
use super::mass::Attention;
use super::rows::TapAcc;
use super::subject::{Seat, Subject};
use crate::checkpoint::safetensors::Dtype;
use crate::checkpoint::{Config, LayerKind};
use crate::engine::dump::Dump;
use crate::engine::session::LaneObserver;
use crate::error::Result;
use crate::kernels::{Index, Mat, Ops, Phase};
use crate::metrics::logits::compare_row;
use crate::model::{Tap, TapAt, TapId};
use crate::numeric::hadamard;
use std::collections::HashMap;

/// The largest finite f16.
const F16_MAX: f32 = 65504.0;

/// Watches lanes in lockstep and keeps the sums of every measured path beside one golden.
pub(super) struct Comparer<'a> {
    /// What each lane is for. Golden comes first, noise last.
    pub seats: Vec<Seat>,
    pub subjects: Vec<Subject>,
    pub dump: Option<&'a Dump>,
    pub config: &'a Config,
    /// Floors of the run; a dump's taps have their own where they are stored more coarsely.
    pub rule: FloorRule,
    pub rules: HashMap<TapId, FloorRule>,
    tokens: &'a [u32],
    /// Correction bias of the router of the current layer.
    pub bias: Option<Vec<f32>>,
    /// Measure only taps of this phase; in the other one lanes only carry on.
    pub only: Option<Phase>,
    /// Golden quantises index queries and keys: noise moves scores in steps.
    pub quantised: bool,
    /// How far the noise lane moved each tap.
    pub noise: HashMap<TapId, RowErrs>,
    /// Values every lane of a block is compared with.
    pub(super) base: HashMap<TapId, Mat>,
    pub(super) base_index: HashMap<TapId, Index>,
    /// Selection scores of the current block, by lane.
    pub(super) scores: HashMap<(usize, Tap), Mat>,
    pub(super) attention: Attention,
    pub(super) unstable: Unstable,
}

impl<'a> Comparer<'a> {
    pub fn new(
        seats: Vec<Seat>,
        dump: Option<&'a Dump>,
        config: &'a Config,
        rule: FloorRule,
        tokens: &'a [u32],
    ) -> Self {
        let subjects = 1 + seats.iter().map(|s| s.subject).max().unwrap_or(0);
        Comparer {
            seats,
            subjects: std::iter::repeat_with(Subject::default).take(subjects).collect(),
            dump,
            config,
            rule,
            rules: HashMap::new(),
            tokens,
            bias: None,
            only: None,
            quantised: false,
            noise: HashMap::new(),
            base: HashMap::new(),
            base_index: HashMap::new(),
            scores: HashMap::new(),
            attention: Attention::default(),
            unstable: Unstable::default(),
        }
    }

    /// The sums of a tap of the dump.
    fn acc(&mut self, id: TapId) -> &mut TapAcc {
        self.subjects[0].acc(id)
    }

    /// The floors of `id`.
    pub fn rule_of(&self, id: TapId) -> FloorRule {
        self.rules.get(&id).copied().unwrap_or(self.rule)
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
        self.attention = Attention::default();
        self.subjects.iter_mut().for_each(Subject::end_layer);
        self.unstable.end_layer();
    }

    pub(super) fn ratio(&self, id: TapId) -> usize {
        id.layer.map_or(0, |l| self.config.layers[l].ratio)
    }

    /// Entries visible to position `t` in the layer of `id`.
    pub(super) fn visible(&self, id: TapId, t: usize) -> usize {
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
    fn keep(subject: &mut Subject, id: TapId, golden: &Mat, measured: &Mat) {
        if blame::KEPT.contains(&id.tap) {
            let (g, m) = subject.kept.entry(id.tap).or_default();
            g.append(golden);
            m.append(measured);
        }
    }

    /// Values that f16 cannot hold were stored as infinite. If golden's are that large too, nothing
    /// is wrong but the choice of format: golden's go on.
    fn overflowed(&mut self, role: Role, id: TapId, x: &mut Mat, own: &Mat) {
        if self.dump.is_none_or(|d| d.dtype(id) != Some(&Dtype::F16)) {
            return;
        }
        let mut n = 0;
        for (x, g) in x.data.iter_mut().zip(&own.data) {
            if x.is_infinite() && x.signum() == g.signum() && g.abs() > 0.99 * F16_MAX {
                *x = *g;
                n += 1;
            }
        }
        if n > 0 && role == Role::Local {
            self.acc(id).note = Some("values beyond 65504 are stored as infinite in f16".into());
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
        let measured = dump.rows(id, row0, row0 + m.rows).map(|(a, x)| (a, first_columns(x, m.cols)));
        let sized = id.tap == Tap::RouterWeights
            && !id.layer.is_some_and(|l| dump.has(TapId { layer: Some(l), tap: Tap::RouterTopk }));
        if role == Role::Noise {
            if let Some(b) = self.base.get(&id).cloned() {
                let (n, b) = if sized { (Self::by_size(m), Self::by_size(&b)) } else { (m.clone(), b) };
                self.noise.entry(id).or_default().push(row0, &n.data, &b.data, n.cols);
            }
            let covered = measured.as_ref().map_or(0..0, |(a, x)| *a..*a + x.rows);
            let used = !(id.tap == Tap::RouterWeights && (sized || self.subjects[0].unscaled));
            self.mark_unstable(id, row0, m.rows, |r| used && covered.contains(&r));
        }
        if role == Role::Local {
            self.base.insert(id, m.clone());
        }
        let Some((a, mut x)) = measured else { return };
        self.mask(id, a, &mut x);
        let mut own = m.slice(a - row0, a - row0 + x.rows);
        self.mask(id, a, &mut own);
        self.overflowed(role, id, &mut x, &own);
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
                Self::keep(&mut self.subjects[0], id, &own, &x);
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
                self.subjects[0].unscaled = blame::is_unscaled(&own, &x, self.config.routed_scaling_factor);
            }
            if self.subjects[0].unscaled {
                return;
            }
        }
        m.write_rows(a - row0, &x);
    }

    /// After the noise lane passed: which rows hang on an unforced near tie.
    pub(super) fn mark_unstable(
        &mut self,
        id: TapId,
        row0: usize,
        rows: usize,
        forced: impl Fn(usize) -> bool,
    ) {
        let reach = self.unstable.reach(id, row0, rows, self.config.sliding_window, self.ratio(id));
        let bad = reach.iter().enumerate().filter(|(_, u)| **u).map(|(i, _)| row0 + i);
        self.acc(id).unstable.extend(bad.collect::<Vec<_>>());
        self.unstable.leave(id, row0, &reach, forced);
    }

    fn candidate(&mut self, seat: Seat, id: TapId, row0: usize, m: &mut Mat) {
        let role = seat.role;
        if role == Role::Golden {
            self.base.insert(id, m.clone());
            return;
        }
        let Some(full) = self.base.get(&id) else { return };
        let (mut x, mut b) = (m.clone(), full.clone());
        if !matches!(role, Role::Total | Role::Layer) {
            m.data.copy_from_slice(&full.data);
        }
        if self.subjects[seat.subject].unrotate
            && role != Role::Format
            && role != Role::Noise
            && matches!(id.tap, Tap::IndexerQ | Tap::IndexerK)
        {
            x.data.chunks_exact_mut(self.config.index_head_dim).for_each(hadamard::in_place);
        }
        self.mask(id, row0, &mut x);
        self.mask(id, row0, &mut b);
        if id.tap == Tap::RouterWeights && matches!(role, Role::Total | Role::Layer) {
            (x, b) = (Self::by_size(&x), Self::by_size(&b));
        }
        let cols = x.cols;
        if role == Role::Noise {
            self.noise.entry(id).or_default().push(row0, &x.data, &b.data, cols);
            return;
        }
        let subject = &mut self.subjects[seat.subject];
        let acc = subject.acc(id);
        match role {
            Role::Total => {
                acc.total.push(&x.data, &b.data);
                if id.tap == Tap::Logits {
                    for r in 0..x.rows {
                        // The token that really came next is known for all positions but the last.
                        let next = self.tokens.get(row0 + r + 1).map(|t| *t as usize);
                        subject.logits.push(&compare_row(x.row(r), b.row(r), next));
                    }
                }
            }
            Role::Layer => acc.layer.push(&x.data, &b.data),
            Role::Local => {
                acc.local.push(&x.data, &b.data);
                acc.local_rows.push(row0, &x.data, &b.data, cols);
                Self::keep(subject, id, &b, &x);
            }
            Role::Format => acc.format_rows.push(row0, &x.data, &b.data, cols),
            Role::Golden | Role::Noise => {}
        }
    }
}

impl<O: Ops> LaneObserver<O> for Comparer<'_> {
    fn wants_scores(&self, _lane: usize, layer: usize) -> bool {
        let l = self.config.layers[layer];
        let scores = TapId { layer: Some(layer), tap: Tap::IndexerScores };
        let dumped = self.dump.is_some_and(|d| d.has(scores));
        l.kind == LayerKind::Csa && (dumped || self.tokens.len() / l.ratio > self.config.index_topk)
    }
    fn tensor(&mut self, lane: usize, ops: &O, at: TapAt, t: &mut O::T) -> Result<()> {
        let seat = self.seats[lane];
        let mut m = ops.download(t);
        // A selection is judged by golden's scores, and by how far noise and formats move them.
        let ranked = matches!(at.id.tap, Tap::IndexerScores | Tap::RouterLogits);
        let judges = matches!(seat.role, Role::Golden | Role::Format | Role::Noise) || self.dump.is_some();
        if ranked && judges {
            self.scores.insert((lane, at.id.tap), m.clone());
        }
        if seat.role == Role::Golden {
            self.see_attention(at, &m);
        }
        if self.only.is_some_and(|p| p != at.phase) {
            if seat.role == Role::Golden {
                self.base.insert(at.id, m);
            } else if let (Some(b), false) = (self.base.get(&at.id), seat.free()) {
                *t = ops.upload(b.clone());
            }
            return Ok(());
        }
        if self.dump.is_some() {
            self.against(seat.role, at.id, at.row0, &mut m);
        } else {
            self.candidate(seat, at.id, at.row0, &mut m);
        }
        // The selection is judged by the scores it was made from: the dump's, where it has them.
        if ranked && seat.role == Role::Local && self.dump.is_some() && self.has(at.id) {
            self.scores.insert((lane, at.id.tap), m.clone());
        }
        *t = ops.upload(m);
        Ok(())
    }
    fn index(&mut self, lane: usize, at: TapAt, ids: &mut Index) -> Result<()> {
        let seat = self.seats[lane];
        if self.only.is_some_and(|p| p != at.phase) {
            if seat.role == Role::Golden {
                self.base_index.insert(at.id, ids.clone());
            } else if let (Some(b), false) = (self.base_index.get(&at.id), seat.free()) {
                *ids = b.clone();
            }
            return Ok(());
        }
        self.index_of(seat, at, ids);
        Ok(())
    }
}

/// The first `cols` columns: a dump stores scores of every entry of the sequence, a block knows
/// those that exist so far, and no row of it sees more.
fn first_columns(x: Mat, cols: usize) -> Mat {
    if x.cols <= cols {
        return x;
    }
    let data = x.data.chunks_exact(x.cols).flat_map(|row| row[..cols].iter().copied()).collect();
    Mat::new(x.rows, cols, data)
}
