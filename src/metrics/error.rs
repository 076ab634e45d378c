//! How far a tensor `x` is from golden `g`: one pass, f64 sums, streamable in pieces.

use super::finding::Finding;
use serde::Serialize;

/// The comparison of two tensors. Dimensionless unless said otherwise.
///
/// Pairs with a non-finite member are counted and left out of every sum. With no finite pair at all, the distances
/// are NaN: nothing was compared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ErrorStats {
    /// Finite pairs, the sample size of the distances.
    pub compared: u64,
    /// `‖x−g‖ / ‖g‖`. 0 when both are zero; +inf when only `g` is.
    pub rel_l2: f64,
    /// `max |x−g|`, in the tensor's unit.
    pub max_abs: f64,
    /// Flat index of the first element that attains `max_abs`.
    pub max_abs_at: Option<u64>,
    /// `max |x−g| / max |g|`. 0 when both maxima are 0; +inf when only the divisor is.
    pub max_rel: f64,
    /// Cosine distance `1 − x·g/(‖x‖‖g‖)`, in 0..=2. 0 when both are zero, 1 when one is.
    pub cosine: f64,
    /// `1 − 2x·g/(x·x + g·g)`, in 0..=2; the measure that DeepSeek's kernel tests use. 0 when both are zero.
    pub calc_diff: f64,
    /// `x·g / g·g`: the factor by which `x` is a scaled `g` in the least-squares sense. NaN when `g` is zero.
    pub gain: f64,
    /// `‖x‖` over finite pairs, in the tensor's unit.
    pub norm_x: f64,
    /// `‖g‖` over finite pairs, in the tensor's unit.
    pub norm_g: f64,
    /// Non-finite elements of `x`.
    pub nonfinite_x: u64,
    /// Flat index of the first of them.
    pub first_nonfinite_x: Option<u64>,
    /// Non-finite elements of `g`.
    pub nonfinite_g: u64,
    /// Flat index of the first of them.
    pub first_nonfinite_g: Option<u64>,
    /// Elements where one is non-finite and the other is not the same (NaN equals NaN here, +inf only +inf).
    pub mismatched: u64,
    /// Flat index of the first of them: where a non-finite value was born, or hidden.
    pub first_mismatched: Option<u64>,
}

impl ErrorStats {
    /// Compares two tensors of equal length. Panics if the lengths differ.
    pub fn compare(x: &[f32], g: &[f32]) -> Self {
        let mut a = ErrorAccum::default();
        a.push(x, g);
        a.finish()
    }

    /// The structural finding in this comparison, if any.
    pub fn finding(&self) -> Option<Finding> {
        self.first_mismatched.map(|first| Finding::NonFinite { count: self.mismatched, first })
    }
}

/// Running sums of a comparison. Pushing consecutive pieces gives the same bits as pushing the whole.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ErrorAccum {
    position: u64,
    compared: u64,
    xx: f64,
    gg: f64,
    xg: f64,
    dd: f64,
    max_abs: f64,
    max_abs_at: Option<u64>,
    max_g: f64,
    x_bad: Count,
    g_bad: Count,
    mismatched: Count,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Count {
    n: u64,
    first: Option<u64>,
}

impl Count {
    fn hit(&mut self, at: u64) {
        self.n += 1;
        self.first.get_or_insert(at);
    }
    fn merge(&mut self, other: Count, shift: u64) {
        self.n += other.n;
        self.first = self.first.or(other.first.map(|i| i + shift));
    }
}

impl ErrorAccum {
    /// Adds the next elements. Panics if the lengths differ.
    pub fn push(&mut self, x: &[f32], g: &[f32]) {
        assert_eq!(x.len(), g.len(), "compared slices differ in length");
        for (&x, &g) in x.iter().zip(g) {
            let at = self.position;
            self.position += 1;
            if !(x.is_finite() && g.is_finite()) {
                self.push_non_finite(x, g, at);
                continue;
            }
            let (x, g) = (x as f64, g as f64);
            let d = x - g;
            self.compared += 1;
            self.xx += x * x;
            self.gg += g * g;
            self.xg += x * g;
            self.dd += d * d;
            self.max_g = self.max_g.max(g.abs());
            if d.abs() > self.max_abs {
                self.max_abs = d.abs();
                self.max_abs_at = Some(at);
            }
        }
    }

    #[cold]
    fn push_non_finite(&mut self, x: f32, g: f32, at: u64) {
        if !x.is_finite() {
            self.x_bad.hit(at);
        }
        if !g.is_finite() {
            self.g_bad.hit(at);
        }
        if !(x == g || (x.is_nan() && g.is_nan())) {
            self.mismatched.hit(at);
        }
    }

    /// Passes over `n` elements without comparing them (e.g. scores of entries that are not visible), so that later
    /// flat indices stay right.
    pub fn skip(&mut self, n: usize) {
        self.position += n as u64;
    }

    /// Appends `other`, whose elements follow this one's. Merge in element order to keep results reproducible.
    pub fn merge(&mut self, other: &ErrorAccum) {
        let shift = self.position;
        self.position += other.position;
        self.compared += other.compared;
        self.xx += other.xx;
        self.gg += other.gg;
        self.xg += other.xg;
        self.dd += other.dd;
        self.max_g = self.max_g.max(other.max_g);
        if other.max_abs > self.max_abs {
            self.max_abs = other.max_abs;
            self.max_abs_at = other.max_abs_at.map(|i| i + shift);
        }
        self.x_bad.merge(other.x_bad, shift);
        self.g_bad.merge(other.g_bad, shift);
        self.mismatched.merge(other.mismatched, shift);
    }

    /// The distances of everything pushed so far.
    pub fn finish(&self) -> ErrorStats {
        let (nx, ng) = (self.xx.sqrt(), self.gg.sqrt());
        // `x·x + g·g − 2x·g = ‖x−g‖²`, so both distances come from dd without the cancellation of `1 − …`
        let cosine = if nx == 0.0 || ng == 0.0 {
            if nx == ng { 0.0 } else { 1.0 }
        } else {
            ((self.dd - (nx - ng) * (nx - ng)) / (2.0 * (self.xx * self.gg).sqrt())).clamp(0.0, 2.0)
        };
        let measured = |v: f64| if self.compared == 0 { f64::NAN } else { v };
        ErrorStats {
            compared: self.compared,
            rel_l2: measured(ratio(self.dd.sqrt(), ng)),
            max_abs: measured(self.max_abs),
            max_abs_at: self.max_abs_at,
            max_rel: measured(ratio(self.max_abs, self.max_g)),
            cosine: measured(cosine),
            calc_diff: measured(ratio(self.dd, self.xx + self.gg)),
            gain: self.xg / self.gg,
            norm_x: measured(nx),
            norm_g: measured(ng),
            nonfinite_x: self.x_bad.n,
            first_nonfinite_x: self.x_bad.first,
            nonfinite_g: self.g_bad.n,
            first_nonfinite_g: self.g_bad.first,
            mismatched: self.mismatched.n,
            first_mismatched: self.mismatched.first,
        }
    }
}

/// `a / b` for non-negative values, with 0/0 = 0 (nothing differs from nothing) and a/0 = +inf.
pub(super) fn ratio(a: f64, b: f64) -> f64 {
    if a == 0.0 && b == 0.0 { 0.0 } else { a / b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hand_computed() {
        // d = (1, 0, −2): ‖d‖² = 5; ‖g‖² = 9+16+0 = 25; x = (4, 4, −2): ‖x‖² = 36; x·g = 28
        let s = ErrorStats::compare(&[4.0, 4.0, -2.0], &[3.0, 4.0, 0.0]);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-15, "{a} vs {b}");
        near(s.rel_l2, 5f64.sqrt() / 5.0);
        assert_eq!((s.max_abs, s.max_abs_at, s.max_rel, s.compared), (2.0, Some(2), 0.5, 3));
        near(s.cosine, 1.0 - 28.0 / 30.0);
        near(s.calc_diff, 1.0 - 56.0 / 61.0);
        near(s.gain, 28.0 / 25.0);
        assert_eq!((s.norm_x, s.norm_g, s.finding()), (6.0, 5.0, None));
    }

    #[test]
    fn zero_norms_are_explicit() {
        let both = ErrorStats::compare(&[0.0, -0.0], &[0.0, 0.0]);
        assert_eq!((both.rel_l2, both.max_rel, both.cosine, both.calc_diff), (0.0, 0.0, 0.0, 0.0));
        assert!(both.gain.is_nan() && both.max_abs_at.is_none());
        let g0 = ErrorStats::compare(&[1.0], &[0.0]);
        assert_eq!(
            (g0.rel_l2, g0.max_rel, g0.cosine, g0.calc_diff),
            (f64::INFINITY, f64::INFINITY, 1.0, 1.0)
        );
        let x0 = ErrorStats::compare(&[0.0], &[2.0]);
        assert_eq!((x0.rel_l2, x0.max_rel, x0.cosine, x0.calc_diff, x0.gain), (1.0, 1.0, 1.0, 1.0, 0.0));
    }

    #[test]
    fn nothing_compared_is_nan_not_zero() {
        for s in [ErrorStats::compare(&[], &[]), ErrorStats::compare(&[f32::NAN], &[1.0])] {
            assert_eq!(s.compared, 0);
            assert!(s.rel_l2.is_nan() && s.max_abs.is_nan() && s.cosine.is_nan() && s.calc_diff.is_nan());
        }
    }

    #[test]
    fn non_finite_is_counted_and_located() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let s = ErrorStats::compare(&[1.0, -inf, nan, inf, 2.0, nan], &[1.0, -inf, nan, -inf, inf, 3.0]);
        assert_eq!((s.nonfinite_x, s.first_nonfinite_x), (4, Some(1)));
        assert_eq!((s.nonfinite_g, s.first_nonfinite_g), (4, Some(1)));
        assert_eq!((s.mismatched, s.first_mismatched), (3, Some(3)));
        assert_eq!((s.compared, s.rel_l2), (1, 0.0));
        assert_eq!(s.finding(), Some(Finding::NonFinite { count: 3, first: 3 }));
        // masked scores, equal on both sides, are no finding
        assert_eq!(ErrorStats::compare(&[-inf, 1.0], &[-inf, 1.0]).finding(), None);
    }

    #[test]
    fn opposite_and_tiny_differences() {
        let s = ErrorStats::compare(&[-1.0, -2.0], &[1.0, 2.0]);
        assert_eq!((s.rel_l2, s.cosine, s.calc_diff, s.gain), (2.0, 2.0, 2.0, -1.0));
        // a pure gain: no angle, and the naive 1 − cos would be rounding noise
        let g: Vec<f32> = (1..100).map(|i| i as f32).collect();
        let x: Vec<f32> = g.iter().map(|v| v * 1.5).collect();
        let s = ErrorStats::compare(&x, &g);
        assert!(s.cosine < 1e-15 && (s.gain - 1.5).abs() < 1e-15 && (s.rel_l2 - 0.5).abs() < 1e-15);
    }

    #[test]
    fn skip_keeps_positions() {
        let mut a = ErrorAccum::default();
        a.push(&[1.0], &[1.0]);
        a.skip(10);
        a.push(&[f32::NAN, 5.0], &[0.0, 1.0]);
        let s = a.finish();
        assert_eq!((s.first_mismatched, s.max_abs_at, s.compared), (Some(11), Some(12), 2));
    }

    proptest! {
        #[test]
        fn streaming_gives_the_same_bits_and_merging_the_same_numbers(
            v in prop::collection::vec((-3f32..3.0, -3f32..3.0), 1..80), cut in 0usize..80,
        ) {
            let (x, g): (Vec<f32>, Vec<f32>) = v.into_iter().unzip();
            let cut = cut.min(x.len());
            let whole = ErrorStats::compare(&x, &g);
            let mut a = ErrorAccum::default();
            a.push(&x[..cut], &g[..cut]);
            let mut b = ErrorAccum::default();
            b.push(&x[cut..], &g[cut..]);
            let mut merged = a;
            merged.merge(&b);
            a.push(&x[cut..], &g[cut..]);
            prop_assert_eq!(a.finish(), whole);
            let m = merged.finish();
            prop_assert!((m.rel_l2 - whole.rel_l2).abs() <= 1e-12 * whole.rel_l2);
            prop_assert_eq!((m.max_abs, m.max_abs_at, m.compared), (whole.max_abs, whole.max_abs_at, whole.compared));
        }
    }
}
