//! Per-tap accumulators and the finished row.

use super::judge::Precision;
use crate::metrics::overlap_total::{OverlapAccum, OverlapStats};
use crate::metrics::{ErrorAccum, Finding, Status};
use crate::model::TapId;
use serde::Serialize;

/// Squared error and squared norm of one row of a tap.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RowErr {
    pub err2: f64,
    pub norm2: f64,
}

/// Squared errors of the rows of a tap, by row number.
#[derive(Debug, Clone, Default)]
pub(super) struct RowErrs {
    pub first: usize,
    pub rows: Vec<RowErr>,
}

impl RowErrs {
    /// Adds rows starting at `row0`; non-finite pairs are left to the findings.
    pub fn push(&mut self, row0: usize, x: &[f32], g: &[f32], cols: usize) {
        if self.rows.is_empty() {
            self.first = row0;
        }
        for (x, g) in x.chunks_exact(cols.max(1)).zip(g.chunks_exact(cols.max(1))) {
            let mut e = RowErr::default();
            for (x, g) in x.iter().zip(g) {
                if x.is_finite() && g.is_finite() {
                    let d = *x as f64 - *g as f64;
                    e.err2 += d * d;
                    e.norm2 += *g as f64 * *g as f64;
                }
            }
            self.rows.push(e);
        }
    }
    /// rel_l2 over the rows that `keep` admits.
    pub fn rel_l2(&self, keep: impl Fn(usize) -> bool) -> f64 {
        let (mut e, mut n) = (0.0, 0.0);
        for (_, r) in self.rows.iter().enumerate().filter(|(i, _)| keep(self.first + i)) {
            e += r.err2;
            n += r.norm2;
        }
        if e == 0.0 { 0.0 } else { (e / n).sqrt() }
    }
    fn row(&self, r: usize) -> Option<RowErr> {
        r.checked_sub(self.first).and_then(|i| self.rows.get(i)).copied()
    }
}

/// Everything gathered about one tap.
#[derive(Debug, Default)]
pub(super) struct TapAcc {
    /// Measured against free golden.
    pub total: ErrorAccum,
    /// Candidate fed golden's layer input, against golden.
    pub layer: ErrorAccum,
    pub layer_index: Option<OverlapAccum>,
    /// Measured against its recomputation.
    pub local: ErrorAccum,
    pub local_rows: RowErrs,
    pub format_rows: RowErrs,
    pub noise_rows: RowErrs,
    /// Index taps: measured against free golden, and against the recomputation.
    pub total_index: Option<OverlapAccum>,
    pub local_index: Option<OverlapAccum>,
    /// Findings that only the observer can make.
    pub findings: Vec<Finding>,
    /// Rows that hang on a selection which is a near tie and not in the dump.
    pub unstable: std::collections::BTreeSet<usize>,
    /// What the observer has to say about this tap.
    pub note: Option<String>,
    /// The note explains the difference as a legitimate layout or format choice.
    pub explained: bool,
    /// The note moves the blame to this site.
    pub site: Option<crate::kernels::Site>,
}

/// Counts of an index tap.
#[derive(Debug, Clone, Serialize)]
pub struct IndexCounts {
    /// |A∩B|/|B| against free golden, mean over rows in which ranking decided.
    pub overlap: f64,
    /// The same against the recomputation from the measured path's own inputs.
    pub local_overlap: f64,
    /// Candidate runs: the same with the layer fed golden's streams (isolated).
    pub isolated_overlap: Option<f64>,
    /// Mean Jaccard index against free golden.
    pub jaccard: f64,
    /// Rows compared, and those in which ranking decided something.
    pub rows: u64,
    /// Rows in which fewer entries are selected than visible.
    pub ranked_rows: u64,
    /// Flips that the score noise explains.
    pub near_tie_flips: u64,
    /// Flips it does not explain.
    pub real_flips: u64,
    /// −1 before the last valid id.
    pub sentinel_inside: u64,
    /// Repeated ids.
    pub duplicate: u64,
    /// Ids that do not exist or are not visible yet.
    pub out_of_range: u64,
    /// Rows with a wrong number of ids.
    pub wrong_count_rows: u64,
}

/// One finished row: one tap.
#[derive(Debug, Clone, Serialize)]
pub struct TapRow {
    /// Tap name.
    pub tap: String,
    /// Layer, `None` for embedding and head.
    pub layer: Option<usize>,
    /// Layer kind (`window`, `csa`, `hca`), empty outside layers.
    pub kind: &'static str,
    /// Site blamed when an error is born here.
    pub site: String,
    /// Total error against free golden.
    pub rel_l2: f64,
    /// Largest absolute difference from free golden.
    pub max_abs: f64,
    /// Largest absolute difference over golden's largest magnitude.
    pub max_rel: f64,
    /// `1 − cos`.
    pub cosine: f64,
    /// `1 − 2x·g/(x·x + g·g)`.
    pub calc_diff: f64,
    /// Candidate runs: error when the layer is fed golden's streams (isolated).
    pub isolated_rel_l2: Option<f64>,
    /// Error born at this tap.
    pub local_rel_l2: f64,
    /// Error that declared formats and precision explain at this tap.
    pub floor: f64,
    /// `local_rel_l2 / floor`.
    pub excess: f64,
    /// Largest excess of a single row, and that row.
    pub row_excess: f64,
    /// The row (position or entry) with that excess.
    pub worst_row: Option<usize>,
    /// Golden differs in total, but what is born here is explained.
    pub inherited: bool,
    /// Rows left out because a near-tie selection upstream was not in the dump.
    pub unstable_rows: usize,
    /// Elements compared.
    pub n: u64,
    /// The judgement of this tap.
    pub status: Status,
    /// Index taps only.
    pub index: Option<IndexCounts>,
    /// Structural findings.
    pub findings: Vec<Finding>,
    /// Anything else to know.
    pub note: Option<String>,
}

/// How floors are computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct FloorRule {
    /// Factor on the noise lane's error.
    pub noise: f64,
    /// Factor where a quantiser or a selection makes error grow with the root of the roundoff.
    pub noise_steps: f64,
    /// Smallest floor: half a unit roundoff of the run.
    pub least: f64,
    /// A single row may exceed its floor by this much more than the whole.
    pub row_slack: f64,
}

impl FloorRule {
    /// The rule of a run in `p` of a model whose longest sum has `k` terms.
    ///
    /// First-order error analysis: the same algorithm in another precision has an error that
    /// scales with the unit roundoff `u`, so the bf16 lane's error times `u_p / 2^-8` is the
    /// error in precision `p`. That lane rounds operands and results but accumulates in f32; a run
    /// in `p` that also accumulates in `p` adds a random walk over the `k` terms of a sum, at most
    /// `sqrt(k)` times one rounding. Where the result goes through a quantiser (a step function) a
    /// perturbation `δ` moves a share ∝ `δ` of the values by a whole step: the squared error, not
    /// the error, scales with `u`.
    pub fn new(p: Precision, k: usize) -> Self {
        let ratio = p.unit_roundoff() / Precision::Bf16.unit_roundoff();
        let walk = if p == Precision::F32 { (k as f64).sqrt() } else { 1.0 };
        let noise = (ratio * walk).min(1.0);
        FloorRule { noise, noise_steps: noise.sqrt(), least: 0.5 * p.unit_roundoff(), row_slack: 4.0 }
    }
}

/// What decides how one tap is judged.
pub(super) struct Judging<'a> {
    pub rule: FloorRule,
    /// The tap's values went through a quantiser or hang on an unforced selection.
    pub steps: bool,
    pub limits: &'a crate::metrics::Limits,
    pub isolated: bool,
}

impl TapAcc {
    /// Finishes the row.
    pub fn finish(&self, id: TapId, kind: &'static str, j: &Judging) -> TapRow {
        let total = self.total.finish();
        let local = self.local.finish();
        let mut findings = self.findings.clone();
        findings.extend(local.finding());
        let scale = if j.steps { j.rule.noise_steps } else { j.rule.noise };
        let keep = |r: usize| !self.unstable.contains(&r);
        let noise = self.noise_rows.rel_l2(keep) * scale;
        let format = self.format_rows.rel_l2(keep);
        let floor = (noise * noise + format * format).sqrt().max(j.rule.least);
        let born = self.local_rows.rel_l2(keep);
        let excess = crate::metrics::verdict::excess(born, floor);
        let (row_excess, worst_row) = self.worst_row(floor, scale);
        let index = self.index_counts();
        if let Some(a) = &self.local_index {
            let mut bad = a.finish();
            // Near-tie flips and the count they change are not structural.
            bad.wrong_count_rows = self.structural_count_rows(&bad);
            findings.extend(structural(&bad));
        }
        let mut status = j.limits.judge(excess, &findings);
        if !j.steps && row_excess > j.rule.row_slack * j.limits.elevated() {
            status = Status::Suspect;
        } else if !j.steps && row_excess > j.rule.row_slack * j.limits.ok() {
            status = status.max(Status::Elevated);
        }
        if let Some(ix) = &index
            && ix.real_flips > 0
        {
            status = Status::Suspect;
        }
        if self.explained {
            status = Status::Elevated;
        }
        let differs = match &index {
            Some(ix) => ix.overlap < 1.0,
            None => total.rel_l2 > j.limits.ok() * floor || total.mismatched > 0,
        };
        TapRow {
            tap: id.to_string(),
            layer: id.layer,
            kind,
            site: self.site.unwrap_or(id.tap.site()).to_string(),
            rel_l2: total.rel_l2,
            max_abs: total.max_abs,
            max_rel: total.max_rel,
            cosine: total.cosine,
            calc_diff: total.calc_diff,
            isolated_rel_l2: j.isolated.then(|| self.layer.finish().rel_l2),
            local_rel_l2: born,
            floor,
            excess,
            row_excess,
            worst_row,
            inherited: differs && status == Status::Ok,
            unstable_rows: self.unstable.len(),
            n: total.compared,
            status,
            index,
            findings,
            note: self.note.clone(),
        }
    }

    /// Rows with a wrong count matter only as structural findings: duplicates and invalid ids
    /// already count for themselves.
    fn structural_count_rows(&self, s: &OverlapStats) -> u64 {
        if s.duplicate + s.out_of_range + s.sentinel_inside > 0 { 0 } else { s.wrong_count_rows }
    }

    fn worst_row(&self, floor: f64, scale: f64) -> (f64, Option<usize>) {
        let mut worst = (0.0, None);
        for (i, e) in self.local_rows.rows.iter().enumerate() {
            let r = self.local_rows.first + i;
            if self.unstable.contains(&r) || e.err2 == 0.0 {
                continue;
            }
            let sq = |rows: &RowErrs| rows.row(r).map_or(0.0, |n| n.err2);
            let own = sq(&self.noise_rows) * scale * scale + sq(&self.format_rows);
            let x = (e.err2 / own.max(floor * floor * e.norm2)).sqrt();
            if x > worst.0 {
                worst = (x, Some(r));
            }
        }
        worst
    }

    fn index_counts(&self) -> Option<IndexCounts> {
        let local = self.local_index.as_ref()?.finish();
        let total = self.total_index.as_ref().map_or(local, OverlapAccum::finish);
        let ranked =
            |s: &OverlapStats| if s.ranked_rows > 0 { s.mean_overlap_ranked } else { s.mean_overlap };
        Some(IndexCounts {
            overlap: ranked(&total),
            local_overlap: ranked(&local),
            isolated_overlap: self.layer_index.as_ref().map(|a| ranked(&a.finish())),
            jaccard: total.mean_jaccard,
            rows: total.rows,
            ranked_rows: total.ranked_rows,
            near_tie_flips: local.near_tie_flips,
            real_flips: local.real_flips,
            sentinel_inside: local.sentinel_inside,
            duplicate: local.duplicate,
            out_of_range: local.out_of_range,
            wrong_count_rows: local.wrong_count_rows,
        })
    }
}

fn structural(s: &OverlapStats) -> Vec<Finding> {
    let mut out = Vec::new();
    let mut add = |n: u64, f: Finding| {
        if n > 0 {
            out.push(f);
        }
    };
    add(s.sentinel_inside, Finding::SentinelInside { count: s.sentinel_inside });
    add(s.duplicate, Finding::Duplicate { count: s.duplicate });
    add(s.out_of_range, Finding::OutOfRange { count: s.out_of_range });
    add(s.wrong_count_rows, Finding::WrongCount { rows: s.wrong_count_rows });
    out
}
