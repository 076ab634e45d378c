//! Errors row by row, and the floor that arithmetic puts under them.

use super::precision::Precision;

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
    /// The sums of row `r`.
    pub fn row(&self, r: usize) -> Option<RowErr> {
        r.checked_sub(self.first).and_then(|i| self.rows.get(i)).copied()
    }
}

/// Smallest floor of a result with unit roundoff `u`: it and golden's f32 result carry at least the
/// rounding of their last operation. A rounding is uniform in `±u` of the power of two below the value,
/// of rms `u/√3` of the value at most; two independent ones add in squares.
pub(crate) fn least(u: f64) -> f64 {
    u.hypot(Precision::F32.unit_roundoff()) / 3f64.sqrt()
}

/// How floors are computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct FloorRule {
    /// Factor on the noise lane's error.
    pub noise: f64,
    /// Factor where a quantiser makes error grow with the root of the roundoff.
    pub noise_steps: f64,
    /// Unit roundoff of the run.
    pub unit: f64,
    /// Smallest floor.
    pub least: f64,
    /// A single row may exceed its floor by this much more than the whole.
    pub row_slack: f64,
}

impl FloorRule {
    /// The rule of a run with unit roundoff `u` of a model whose longest sum has `k` terms.
    ///
    /// First-order error analysis: the same algorithm in another precision has an error that
    /// scales with the unit roundoff `u`, so the bf16 lane's error times `u / 2^-8` is the error
    /// of this run. That lane rounds operands and results but accumulates in f32; an f32 run
    /// accumulates in its own precision, which adds a random walk over the `k` terms of a sum, at most
    /// `sqrt(k)` times one rounding. Where the result goes through a quantiser (a step function) a
    /// perturbation `δ` moves a share ∝ `δ` of the values by a whole step: the squared error, not
    /// the error, scales with `u`.
    pub fn new(u: f64, k: usize) -> Self {
        let ratio = u / Precision::Bf16.unit_roundoff();
        let walk = if u <= Precision::F32.unit_roundoff() { (k as f64).sqrt() } else { 1.0 };
        let noise = (ratio * walk).min(1.0);
        FloorRule { noise, noise_steps: noise.sqrt(), unit: u, least: least(u), row_slack: 4.0 }
    }

    /// Factor on the noise lane's error of a tap that went through a quantiser, or did not.
    pub fn scale(&self, steps: bool) -> f64 {
        if steps { self.noise_steps } else { self.noise }
    }

    /// Steps are counted, so the noise lane's number of them is one draw of a Poisson variable; a
    /// run may have more of them where few are expected. Relative error, over `rows` rows with
    /// `n` values, of one more step `q` of a value twice the typical size, and, in a run so coarse
    /// that a block's largest value can fall into the next power of two, of one row rounded to
    /// another grid (two independent roundings, each uniform in half a step).
    pub fn one_more(&self, q: f64, rows: usize, n: usize) -> f64 {
        let value = 2.0 * q / (n.max(1) as f64).sqrt();
        let row = q / 6f64.sqrt() / (rows.max(1) as f64).sqrt();
        if self.noise > 0.1 { value.hypot(row) } else { value }
    }
}
