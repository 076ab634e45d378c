//! Next-token distributions: how much the output changed where it counts. Logarithms are natural (nats).

use serde::Serialize;

/// How many top tokens [`LogitRow::top5_overlap`] looks at.
pub const TOP: usize = 5;

/// One position's logits against golden.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LogitRow {
    /// KL(golden‖x) = Σ p_g·(ln p_g − ln p_x), in nats; +inf when `x` rules out what golden allows, NaN if any is NaN.
    pub kl: f64,
    /// Golden's most likely token (lowest id on a tie, NaN skipped); `None` for an empty or all-NaN row.
    pub golden_top1: Option<usize>,
    /// The measured most likely token.
    pub top1: Option<usize>,
    /// Share of golden's 5 most likely tokens among the measured 5; NaN for an empty row.
    pub top5_overlap: f64,
    /// Golden's first minus second logit, in nats: how easily the argmax may flip. `None` with fewer than two logits.
    pub golden_margin: Option<f64>,
    /// `ln p_x − ln p_g` of the token that really came next, in nats; `None` when it is unknown or not in the row.
    pub delta_logprob: Option<f64>,
}

impl LogitRow {
    /// True when both agree on the most likely token (never for rows without one).
    pub fn top1_agrees(&self) -> bool {
        self.top1.is_some() && self.top1 == self.golden_top1
    }
}

/// `ln Σ exp(v)` in f64, shifted by the maximum. −inf for an empty row; NaN if any is NaN.
pub fn log_sum_exp(v: &[f32]) -> f64 {
    if v.iter().any(|x| x.is_nan()) {
        return f64::NAN;
    }
    let m = v.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    if m.is_infinite() {
        return m;
    }
    m + v.iter().map(|&x| (x as f64 - m).exp()).sum::<f64>().ln()
}

/// KL(golden‖x) in nats over two rows of logits of equal length. Tokens golden gives no probability add nothing.
pub fn kl(x: &[f32], g: &[f32]) -> f64 {
    let (zx, zg) = (log_sum_exp(x), log_sum_exp(g));
    if !zx.is_finite() || !zg.is_finite() {
        return f64::NAN;
    }
    let sum: f64 = x
        .iter()
        .zip(g)
        .map(|(&x, &g)| {
            let lg = g as f64 - zg;
            let p = lg.exp();
            if p == 0.0 { 0.0 } else { p * (lg - (x as f64 - zx)) }
        })
        .sum();
    sum.max(0.0) // never negative but for rounding
}

/// Ids of the `k` highest logits, best first, lowest id first on a tie; NaN is skipped.
pub fn top_k(v: &[f32], k: usize) -> Vec<usize> {
    let mut best: Vec<usize> = Vec::with_capacity(k + 1);
    for (i, &x) in v.iter().enumerate() {
        if x.is_nan() || (best.len() == k && best.last().is_none_or(|&b| x <= v[b])) {
            continue;
        }
        let at = best.partition_point(|&b| v[b] >= x);
        best.insert(at, i);
        best.truncate(k);
    }
    best
}

/// Compares one row of logits. `next` is the token that followed. Panics if the lengths differ.
pub fn compare_row(x: &[f32], g: &[f32], next: Option<usize>) -> LogitRow {
    assert_eq!(x.len(), g.len(), "compared logits differ in length");
    let (tx, tg) = (top_k(x, TOP), top_k(g, TOP));
    let common = tg.iter().filter(|t| tx.contains(t)).count();
    let margin = if let [a, b, ..] = tg[..] { Some(g[a] as f64 - g[b] as f64) } else { None };
    let logprob = |v: &[f32], t: usize| v[t] as f64 - log_sum_exp(v);
    LogitRow {
        kl: kl(x, g),
        golden_top1: tg.first().copied(),
        top1: tx.first().copied(),
        top5_overlap: common as f64 / tg.len() as f64,
        golden_margin: margin,
        delta_logprob: next.filter(|&t| t < x.len()).map(|t| logprob(x, t) - logprob(g, t)),
    }
}

/// Running totals over rows; merge in row order.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LogitAccum {
    rows: u64,
    kl: f64,
    kl2: f64,
    worst: Option<(f64, u64)>,
    agree: u64,
    top5: f64,
    delta: f64,
    delta_rows: u64,
    min_delta: f64,
}

/// A summary of many rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LogitStats {
    /// Rows seen.
    pub rows: u64,
    /// Mean KL(golden‖x), nats; NaN for none, or if any row's is.
    pub mean_kl: f64,
    /// Standard error of that mean, nats: `√(s²/n)` with the sample variance `s²` of the rows, taken as independent;
    /// NaN for fewer than two rows.
    pub mean_kl_se: f64,
    /// Largest KL of a row, nats; a NaN row counts as the largest.
    pub max_kl: f64,
    /// The first row that attains it.
    pub max_kl_row: Option<u64>,
    /// Rows whose argmax agrees.
    pub top1_agree: u64,
    /// Their share of the rows.
    pub top1_rate: f64,
    /// Mean overlap of the 5 most likely tokens.
    pub mean_top5_overlap: f64,
    /// Mean change of the next token's log-probability, nats; NaN when no row had one.
    pub mean_delta_logprob: f64,
    /// The largest loss (most negative change), nats, at most 0; NaN when no row had one.
    pub worst_delta_logprob: f64,
}

impl LogitAccum {
    /// Adds the next row.
    pub fn push(&mut self, row: &LogitRow) {
        self.worst = worse(self.worst, Some((row.kl, self.rows)));
        self.rows += 1;
        self.kl += row.kl;
        self.kl2 += row.kl * row.kl;
        self.agree += row.top1_agrees() as u64;
        self.top5 += row.top5_overlap;
        if let Some(d) = row.delta_logprob {
            self.delta += d;
            self.delta_rows += 1;
            self.min_delta = self.min_delta.min(d);
        }
    }

    /// Appends `other`, whose rows follow this one's.
    pub fn merge(&mut self, other: &LogitAccum) {
        self.worst = worse(self.worst, other.worst.map(|(k, row)| (k, row + self.rows)));
        self.rows += other.rows;
        self.kl += other.kl;
        self.kl2 += other.kl2;
        self.agree += other.agree;
        self.top5 += other.top5;
        self.delta += other.delta;
        self.delta_rows += other.delta_rows;
        self.min_delta = self.min_delta.min(other.min_delta);
    }

    /// The summary of everything pushed so far.
    pub fn finish(&self) -> LogitStats {
        let n = self.rows as f64;
        LogitStats {
            rows: self.rows,
            mean_kl: self.kl / n,
            mean_kl_se: ((self.kl2 - self.kl * self.kl / n).clamp(0.0, f64::INFINITY) / (n - 1.0) / n).sqrt(),
            max_kl: self.worst.map_or(f64::NAN, |(k, _)| k),
            max_kl_row: self.worst.map(|(_, row)| row),
            top1_agree: self.agree,
            top1_rate: self.agree as f64 / n,
            mean_top5_overlap: self.top5 / n,
            mean_delta_logprob: self.delta / self.delta_rows as f64,
            worst_delta_logprob: if self.delta_rows == 0 { f64::NAN } else { self.min_delta },
        }
    }
}

/// The larger KL, the earlier row on a tie; NaN is above everything (`total_cmp` orders a positive NaN so).
fn worse(a: Option<(f64, u64)>, b: Option<(f64, u64)>) -> Option<(f64, u64)> {
    match (a, b) {
        (Some(a), Some(b)) if b.0.abs().total_cmp(&a.0.abs()).is_gt() => Some(b),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LN2: f64 = std::f64::consts::LN_2;

    #[test]
    fn hand_computed_kl() {
        // golden (1/2, 1/2), x (3/4, 1/4): KL = ½ln(2/3) + ½ln 2 = ½ln(4/3)
        let g = [0.0, 0.0];
        let x = [3f32.ln(), 0.0];
        assert!((kl(&x, &g) - 0.5 * (4f64 / 3.0).ln()).abs() < 1e-7);
        assert_eq!(kl(&g, &g), 0.0);
        // a common shift changes nothing, even a huge one
        assert!(kl(&[1e30, 1e30], &[-1e30, -1e30]).abs() < 1e-12);
    }

    #[test]
    fn kl_edge_cases() {
        let ninf = f32::NEG_INFINITY;
        assert_eq!(kl(&[0.0, ninf], &[0.0, 0.0]), f64::INFINITY);
        assert!((kl(&[0.0, 0.0], &[0.0, ninf]) - LN2).abs() < 1e-15);
        assert!(kl(&[f32::NAN, 0.0], &[0.0, 0.0]).is_nan());
        assert!(kl(&[ninf, ninf], &[0.0, 0.0]).is_nan());
        assert!(kl(&[], &[]).is_nan());
    }

    #[test]
    fn top_k_breaks_ties_low_and_skips_nan() {
        assert_eq!(top_k(&[1.0, 3.0, 3.0, f32::NAN, 2.0, 3.0], 3), [1, 2, 5]);
        assert_eq!(top_k(&[0.0, -0.0], 1), [0]);
        assert_eq!(top_k(&[f32::NAN], 2), Vec::<usize>::new());
        assert_eq!(top_k(&[1.0, 2.0], 5), [1, 0]);
        assert_eq!(top_k(&[1.0, 2.0], 0), Vec::<usize>::new());
    }

    #[test]
    fn a_row() {
        let g = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0, -1.0];
        let x = [4.0, 5.0, 3.0, 2.0, -1.0, 1.0, -1.0];
        let r = compare_row(&x, &g, Some(1));
        assert_eq!((r.golden_top1, r.top1, r.top1_agrees()), (Some(0), Some(1), false));
        assert_eq!((r.top5_overlap, r.golden_margin), (0.8, Some(1.0)));
        let want = (5.0 - log_sum_exp(&x)) - (4.0 - log_sum_exp(&g));
        assert_eq!(r.delta_logprob, Some(want));
        assert_eq!(compare_row(&x, &g, Some(7)).delta_logprob, None);
        let nan = compare_row(&[f32::NAN; 2], &[1.0, 2.0], None);
        assert!(nan.kl.is_nan() && !nan.top1_agrees() && nan.top5_overlap == 0.0);
        assert!(compare_row(&[], &[], None).top5_overlap.is_nan());
    }

    #[test]
    fn totals_merge() {
        let g = [1.0, 0.0];
        let rows = [
            compare_row(&g, &g, Some(0)),
            compare_row(&[0.0, 1.0], &g, Some(0)),
            compare_row(&[f32::NAN, 0.0], &g, None),
        ];
        let mut whole = LogitAccum::default();
        rows[..2].iter().for_each(|r| whole.push(r));
        let s = whole.finish();
        assert_eq!((s.rows, s.top1_agree, s.top1_rate, s.max_kl_row), (2, 1, 0.5, Some(1)));
        assert!((s.mean_delta_logprob + 0.5).abs() < 1e-12 && (s.worst_delta_logprob + 1.0).abs() < 1e-12);
        // KLs 0 and k: mean k/2, sample variance k²/2, standard error k/2.
        assert!((s.mean_kl_se - s.mean_kl).abs() < 1e-12 && s.mean_kl > 0.1);
        let mut tail = LogitAccum::default();
        tail.push(&rows[2]);
        whole.merge(&tail);
        let s = whole.finish();
        assert!(s.max_kl.is_nan() && s.max_kl_row == Some(2) && s.mean_kl.is_nan());
        let none = LogitAccum::default().finish();
        assert!(none.mean_kl.is_nan() && none.worst_delta_logprob.is_nan() && none.max_kl_row.is_none());
    }
}
