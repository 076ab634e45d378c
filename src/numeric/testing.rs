//! Test helper: the tie sweep that every small format must pass.

/// `values` are the non-negative values of a format in code order. Around each midpoint of neighbours: one f32 ulp
/// below must give the lower, one above the upper, and the midpoint the lower when `tie_down(lower code)`.
pub fn check_ties(values: &[f32], round: impl Fn(f32) -> f32, tie_down: impl Fn(usize) -> bool) {
    for (i, w) in values.windows(2).enumerate() {
        let (lo, hi) = (w[0], w[1]);
        let mid = (lo + hi) / 2.0;
        let tie = if tie_down(i) { lo } else { hi };
        for sign in [1.0, -1.0] {
            assert_eq!(round(sign * mid), sign * tie, "tie {mid} between {lo} and {hi}");
            assert_eq!(round(sign * mid.next_down()), sign * lo, "just below {mid}");
            assert_eq!(round(sign * mid.next_up()), sign * hi, "just above {mid}");
            for v in [lo, hi] {
                assert_eq!(round(sign * v), sign * v);
                assert_eq!(round(sign * v.next_up()), sign * v);
            }
        }
    }
}
