//! Uncertainty of success rates: Wilson's interval, and McNemar's exact test for paired runs.

/// Two-sided 95 % quantile of the standard normal distribution.
pub const Z95: f64 = 1.959_963_984_540_054;

/// Wilson's 95 % score interval of a rate, `(low, high)`; `(0, 1)` when `n` is 0.
///
/// `(p + z²/2n ± z·√(p(1−p)/n + z²/4n²)) / (1 + z²/n)` (Wilson 1927). Unlike the normal interval it stays inside
/// 0..=1 and does not collapse at 0 or `n` successes. `successes <= n`.
pub fn wilson95(successes: u64, n: u64) -> (f64, f64) {
    debug_assert!(successes <= n);
    if n == 0 {
        return (0.0, 1.0);
    }
    let (n_f, z2) = (n as f64, Z95 * Z95);
    let p = successes as f64 / n_f;
    let centre = p + z2 / (2.0 * n_f);
    let half = Z95 * (p * (1.0 - p) / n_f + z2 / (4.0 * n_f * n_f)).sqrt();
    let scale = 1.0 + z2 / n_f;
    // at the ends the formula gives 0 and 1 exactly but for rounding
    let low = if successes == 0 { 0.0 } else { (centre - half) / scale };
    let high = if successes == n { 1.0 } else { (centre + half) / scale };
    (low, high)
}

/// McNemar's exact two-sided p-value of paired outcomes: `b` pairs only the first run got right, `c` only the second.
///
/// `min(1, 2·P(X <= min(b, c)))` with `X ~ Binomial(b + c, 1/2)`; 1 when no pair differs. Pairs on which both agree
/// carry no information.
pub fn mcnemar_exact(b: u64, c: u64) -> f64 {
    let n = b + c;
    let n_f = n as f64;
    // logarithms, since 2^-n underflows past n = 1074
    let mut ln_term = -n_f * std::f64::consts::LN_2;
    let mut tail = ln_term.exp();
    for k in 1..=b.min(c) {
        ln_term += ((n_f - k as f64 + 1.0) / k as f64).ln();
        tail += ln_term.exp();
    }
    (2.0 * tail).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64, eps: f64) {
        assert!((a - b).abs() < eps, "{a} vs {b}");
    }

    #[test]
    fn wilson_published_and_edge_values() {
        // 81 of 263, a worked example in Newcombe (1998), Statistics in Medicine 17, table I: 0.2553 to 0.3662
        let (lo, hi) = wilson95(81, 263);
        near(lo, 0.2553, 5e-5);
        near(hi, 0.3662, 5e-5);
        // the same table: 15 of 148, 0 of 20, 1 of 29
        let (lo, hi) = wilson95(15, 148);
        near(lo, 0.0624, 5e-5);
        near(hi, 0.1605, 5e-5);
        let (lo, hi) = wilson95(0, 20);
        assert_eq!(lo, 0.0);
        near(hi, 0.1611, 5e-5);
        let (lo, hi) = wilson95(1, 29);
        near(lo, 0.0061, 5e-5);
        near(hi, 0.1718, 5e-5);
        assert_eq!(wilson95(0, 0), (0.0, 1.0));
        let (lo, hi) = wilson95(10, 10);
        near(lo, 10.0 / (10.0 + Z95 * Z95), 1e-12);
        assert_eq!(hi, 1.0);
    }

    #[test]
    fn wilson_contains_the_rate_and_mirrors() {
        for n in 1..60 {
            for s in 0..=n {
                let (lo, hi) = wilson95(s, n);
                let p = s as f64 / n as f64;
                assert!(0.0 <= lo && lo <= p && p <= hi && hi <= 1.0, "{s}/{n}");
                let (mlo, mhi) = wilson95(n - s, n);
                near(lo, 1.0 - mhi, 1e-12);
                near(hi, 1.0 - mlo, 1e-12);
            }
        }
    }

    #[test]
    fn mcnemar_by_hand() {
        assert_eq!(mcnemar_exact(0, 0), 1.0);
        assert_eq!(mcnemar_exact(3, 3), 1.0);
        near(mcnemar_exact(0, 1), 1.0, 1e-12);
        near(mcnemar_exact(0, 5), 2.0 / 32.0, 1e-12);
        near(mcnemar_exact(1, 9), 2.0 * 11.0 / 1024.0, 1e-12);
        near(mcnemar_exact(2, 8), 2.0 * 56.0 / 1024.0, 1e-12);
        assert_eq!(mcnemar_exact(2, 8), mcnemar_exact(8, 2));
    }

    #[test]
    fn mcnemar_survives_large_counts() {
        let p = mcnemar_exact(4900, 5100);
        // normal approximation with continuity correction: z = 199/100 = 1.99, p = 0.0466
        near(p, 0.0466, 1e-3);
        assert!(mcnemar_exact(0, 5000) < 1e-300);
    }
}
