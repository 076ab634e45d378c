//! From four runs of an operation to rows.

use super::{Case, Selection, Tap, Value};
use crate::engine::compare::{Precision, least_floor};
use crate::kernels::{Mat, Site};
use crate::metrics::overlap::{RowContext, compare_row};
use crate::metrics::overlap_total::OverlapAccum;
use crate::metrics::verdict::excess;
use crate::metrics::{ErrorStats, Finding, Limits, Status};
use serde::Serialize;

/// A single row may exceed its floor by this much more than the whole: it is the extreme of many.
const ROW_SLACK: f64 = 4.0;
/// Scores of two entries may each move by four standard deviations of the explained noise before
/// a flip is called real.
const NEAR_TIE_SIGMAS: f64 = 2.0 * 4.0;

/// One output of one operation in one case.
#[derive(Debug, Clone, Serialize)]
pub struct CheckRow {
    /// Site of the operation.
    pub site: String,
    /// `site.output`.
    pub op: String,
    /// Case.
    pub case: String,
    /// `‖x−g‖/‖g‖`; none for selections.
    pub rel_l2: Option<f64>,
    /// `max|x−g|/max|g|`, the figure that kernel authors quote; none for selections.
    pub max_rel: Option<f64>,
    /// rel_l2 that the declared formats explain, f32 included; none for selections.
    pub floor: Option<f64>,
    /// Part of the floor that comes from the declared formats.
    pub format: Option<f64>,
    /// Error over floor.
    pub excess: Option<f64>,
    /// The largest excess of a single row.
    pub row_excess: Option<f64>,
    /// Share of golden's ids that were chosen; none for tensors. Rows without a choice do not count.
    pub overlap: Option<f64>,
    /// Flips that noise of the size of the floor explains.
    pub near_tie_flips: u64,
    /// Flips that it does not explain.
    pub real_flips: u64,
    /// Numbers (ids of selections) compared.
    pub n: u64,
    /// Not a bit differs from golden.
    pub identical: bool,
    /// Verdict.
    pub status: Status,
    /// Structural findings.
    pub findings: Vec<Finding>,
    /// Why the path is known to be suspect here, and where that is known from.
    pub known: Option<String>,
}

impl CheckRow {
    /// Its status, or no worse than elevated where the path is known to be suspect.
    pub(super) fn surprise(&self) -> Status {
        if self.known.is_some() { self.status.min(Status::Elevated) } else { self.status }
    }
    /// How bad it is among rows of one status.
    pub(super) fn weight(&self) -> f64 {
        let flips = self.overlap.map_or(0.0, |_| self.real_flips as f64);
        let row = self.row_excess.unwrap_or(0.0) / ROW_SLACK;
        let tensor = self.excess.map_or(0.0, |e| if e.is_nan() { f64::INFINITY } else { e.max(row) });
        if self.findings.is_empty() { tensor.max(flips) } else { f64::INFINITY }
    }
}

/// The outputs of one operation on one data set, by knobs.
pub(super) struct Lanes<'a> {
    pub golden: &'a [Tap],
    pub measured: &'a [Tap],
    /// The measured path's declared formats around exact arithmetic.
    pub format: &'a [Tap],
    /// Everything in bf16.
    pub noise: &'a [Tap],
}

impl Lanes<'_> {
    /// One row an output.
    pub fn rows(&self, site: Site, case: Case, limits: &Limits) -> Vec<CheckRow> {
        let mut out = Vec::new();
        for (i, g) in self.golden.iter().enumerate() {
            let [x, f, n] = [self.measured, self.format, self.noise].map(|l| &l[i].value);
            let mut row = match (&g.value, x, f, n) {
                (Value::Tensor(g0), Value::Tensor(x), Value::Tensor(f), Value::Tensor(n)) => {
                    tensor(g0, x, f, n, noise_scale(g.sum), limits)
                }
                (Value::Chosen(g0), Value::Chosen(x), Value::Chosen(f), Value::Chosen(n)) => {
                    chosen(g0, x, f, n, noise_scale(g.sum), limits)
                }
                _ => unreachable!("an operation has the same outputs whatever its knobs are"),
            };
            (row.site, row.op, row.case) = (site.to_string(), g.op.into(), case.to_string());
            out.push(row);
        }
        out
    }
}

/// Factor from the error of a bf16 run to what f32 itself explains.
///
/// First-order error analysis: the same algorithm in another precision has an error that scales
/// with the unit roundoff, so the bf16 lane's error times `2^-24 / 2^-8` is the error of rounding
/// operands and results to f32. That lane accumulates in f32; summing `k` terms in f32 in another
/// order adds a random walk of at most `sqrt(k)` roundings.
fn noise_scale(k: usize) -> f64 {
    let ratio = Precision::F32.unit_roundoff() / Precision::Bf16.unit_roundoff();
    (ratio * (k as f64).sqrt()).min(1.0)
}

/// Smallest floor: golden and the measured result are both f32.
fn least() -> f64 {
    least_floor(Precision::F32.unit_roundoff())
}

/// Squared distance from golden and squared norm of golden, row by row.
fn by_row(x: &Mat, g: &Mat) -> Vec<(f64, f64)> {
    let cols = g.cols.max(1);
    let of = |(x, g): (&[f32], &[f32])| {
        let pairs = x.iter().zip(g).filter(|(x, g)| x.is_finite() && g.is_finite());
        pairs.fold((0.0, 0.0), |(e, n), (x, g)| {
            let (x, g) = (*x as f64, *g as f64);
            (e + (x - g) * (x - g), n + g * g)
        })
    };
    x.data.chunks_exact(cols).zip(g.data.chunks_exact(cols)).map(of).collect()
}

fn rel_l2(rows: &[(f64, f64)]) -> f64 {
    let (e, n) = rows.iter().fold((0.0, 0.0), |(a, b), (e, n)| (a + e, b + n));
    if e == 0.0 { 0.0 } else { (e / n).sqrt() }
}

fn tensor(g: &Mat, x: &Mat, f: &Mat, n: &Mat, scale: f64, limits: &Limits) -> CheckRow {
    if x.data.len() != g.data.len() {
        // Another number of entries than golden makes: there is nothing to compare them with.
        let finding = Finding::WrongCount { rows: x.rows.abs_diff(g.rows) as u64 };
        return CheckRow { findings: vec![finding], status: Status::Suspect, ..empty() };
    }
    let all = ErrorStats::compare(&x.data, &g.data);
    let [xr, fr, nr] = [x, f, n].map(|m| by_row(m, g));
    let (format, noise) = (rel_l2(&fr), rel_l2(&nr) * scale);
    let floor = format.hypot(noise).max(least());
    // What a row's sum of rounded terms loses follows the size of the terms, not of a result that
    // cancelled: rows smaller than the median row get its floor, as in a comparison of whole runs.
    let mut norms: Vec<f64> = xr.iter().map(|r| r.1).filter(|n| *n > 0.0).collect();
    norms.sort_unstable_by(f64::total_cmp);
    let median = norms.get(norms.len() / 2).copied().unwrap_or(0.0);
    let row_excess = xr
        .iter()
        .zip(fr.iter().zip(&nr))
        .filter(|(x, _)| x.0 > 0.0)
        .map(|(x, (f, n))| (x.0 / (f.0 + n.0 * scale * scale).max(floor * floor * x.1.max(median))).sqrt())
        .fold(0.0, f64::max);
    let findings: Vec<Finding> = all.finding().into_iter().collect();
    let excess = excess(all.rel_l2, floor);
    let mut status = limits.judge(excess, &findings);
    if row_excess > ROW_SLACK * limits.elevated() {
        status = Status::Suspect;
    } else if row_excess > ROW_SLACK * limits.ok() {
        status = status.max(Status::Elevated);
    }
    CheckRow {
        rel_l2: Some(all.rel_l2),
        max_rel: Some(all.max_rel),
        floor: Some(floor),
        format: Some(format),
        excess: Some(excess),
        row_excess: Some(row_excess),
        n: all.compared,
        identical: x.data.iter().zip(&g.data).all(|(a, b)| a.to_bits() == b.to_bits()),
        status,
        findings,
        ..empty()
    }
}

fn chosen(
    g: &Selection,
    x: &Selection,
    f: &Selection,
    n: &Selection,
    scale: f64,
    limits: &Limits,
) -> CheckRow {
    let mut acc = OverlapAccum::default();
    for r in 0..g.ids.rows {
        let visible = g.visible[r];
        let scores = g.scores.as_ref().map(|s| &s.row(r)[..visible]);
        let rms = |other: &Selection| match (&other.scores, scores) {
            (Some(o), Some(s)) => {
                let pairs = o
                    .row(r)
                    .iter()
                    .zip(s)
                    .map(|(a, b)| (*a as f64 - *b as f64).powi(2))
                    .filter(|d| d.is_finite());
                (pairs.sum::<f64>() / visible.max(1) as f64).sqrt()
            }
            _ => 0.0,
        };
        let top = scores.unwrap_or_default().iter().fold(0f32, |m, v| m.max(v.abs())) as f64;
        let floor = NEAR_TIE_SIGMAS * (rms(n) * scale).hypot(rms(f)).max(top * least());
        let expected = g.width.min(visible);
        let ctx = RowContext { visible, expected, scores, floor, mass: None };
        acc.push(&compare_row(x.ids.row(r), g.ids.row(r), &ctx));
    }
    let s = acc.finish();
    let findings = s.findings();
    let mut status = limits.judge(0.0, &findings);
    if s.real_flips > 0 {
        status = Status::Suspect;
    }
    CheckRow {
        overlap: Some(if s.ranked_rows > 0 { s.mean_overlap_ranked } else { s.mean_overlap }),
        near_tie_flips: s.near_tie_flips,
        real_flips: s.real_flips,
        n: g.ids.ids.iter().filter(|i| **i >= 0).count() as u64,
        identical: x.ids == g.ids,
        status,
        findings,
        ..empty()
    }
}

fn empty() -> CheckRow {
    CheckRow {
        site: String::new(),
        op: String::new(),
        case: String::new(),
        rel_l2: None,
        max_rel: None,
        floor: None,
        format: None,
        excess: None,
        row_excess: None,
        overlap: None,
        near_tie_flips: 0,
        real_flips: 0,
        n: 0,
        identical: false,
        status: Status::Ok,
        findings: Vec::new(),
        known: None,
    }
}
