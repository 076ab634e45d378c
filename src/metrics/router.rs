//! Sums of routed expert weights: a scaling factor applied twice, or never, shows here before it shows in any tensor.

use serde::Serialize;

/// The weight sums of many rows against what they must be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WeightSums {
    /// Rows seen.
    pub rows: u64,
    /// Mean of a row's sum; NaN for no rows or when any row holds a NaN.
    pub mean: f64,
    /// Largest `|sum − expected| / |expected|` of a row; NaN for no rows or when any row holds a NaN.
    pub worst_rel: f64,
    /// The first row that attains it.
    pub worst_row: Option<u64>,
}

/// Sums each row of `k` weights and compares with `expected` (the routed scaling factor, where weights are normalised
/// to sum to 1 before it is applied). A partial last row is summed as it is. Panics if `k` is 0.
pub fn weight_sums(weights: &[f32], k: usize, expected: f64) -> WeightSums {
    let (mut rows, mut total, mut worst) = (0u64, 0.0, None);
    for row in weights.chunks(k) {
        let sum: f64 = row.iter().map(|&w| w as f64).sum();
        let rel = (sum - expected).abs() / expected.abs();
        if worst.is_none_or(|(w, _): (f64, u64)| rel > w || (rel.is_nan() && !w.is_nan())) {
            worst = Some((rel, rows));
        }
        total += sum;
        rows += 1;
    }
    WeightSums {
        rows,
        mean: total / rows as f64,
        worst_rel: worst.map_or(f64::NAN, |(w, _)| w),
        worst_row: worst.map(|(_, r)| r),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let s = weight_sums(&[1.0, 0.5, 1.0, 2.0], 2, 1.5);
        assert_eq!((s.rows, s.mean, s.worst_rel, s.worst_row), (2, 2.25, 1.0, Some(1)));
        let nan = weight_sums(&[f32::NAN, 1.5, 9.0], 1, 1.5);
        assert!(nan.mean.is_nan() && nan.worst_rel.is_nan() && nan.worst_row == Some(0));
        let none = weight_sums(&[], 6, 1.5);
        assert!(none.rows == 0 && none.mean.is_nan() && none.worst_rel.is_nan() && none.worst_row.is_none());
    }
}
