//! Block scales from the largest magnitude of a block.

use super::bits::{ABS, INF};
use super::e8m0;

/// How a scale follows from `amax` and the format's largest value `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ScaleRule {
    /// `2^⌈log2(amax · fp32(1/max))⌉`: the DeepSeek-V4 reference (UE8M0 scales).
    #[default]
    Pow2,
    /// `2^⌈log2(amax / max)⌉`: kernels that divide. Same exponent for every bf16 `amax`; for an f32 `amax` the two
    /// may differ by one step where the quotient is within an ulp of a power of two.
    Pow2Divide,
    /// `amax / max` itself, an f32 scale.
    F32,
}

/// `max |x|`, skipping NaN as the kernels' `fmaxf` does; 0 for an empty slice.
#[inline]
pub fn amax(xs: &[f32]) -> f32 {
    // magnitudes order like their bit patterns, and an integer max vectorises
    let m = xs.iter().fold(0u32, |m, x| {
        let a = x.to_bits() & ABS;
        m.max(if a > INF { 0 } else { a })
    });
    f32::from_bits(m)
}

/// The exponent `k` of the power-of-two scale of a block: `⌈log2(max(amax, floor) · fp32(1/max))⌉`, or with a true
/// division when `divide`. An infinite `amax` gives 128, which no finite scale has.
#[inline]
pub fn pow2_exponent(amax: f32, floor: f32, max: f32, divide: bool) -> i32 {
    let a = amax.max(floor);
    e8m0::ceil_log2(if divide { a / max } else { a * (1.0 / max) })
}

/// The E8M0 byte of a block's exponent: NaN when `amax` was infinite, as kernels that write `bits >> 23` store it.
#[inline]
pub(super) fn exponent_byte(k: i32) -> u8 {
    if k > 127 { e8m0::NAN } else { e8m0::encode(k) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::bf16;

    #[test]
    fn published_examples() {
        let fp8 = |a| pow2_exponent(a, 1e-4, 448.0, false);
        let examples = [(1.0, -8), (3.5, -7), (7.0, -6), (448.0, 0), (449.0, 1), (0.875, -9), (0.0, -22)];
        for (a, k) in examples {
            assert_eq!(fp8(a), k, "amax {a}");
        }
        let fp4 = |a| pow2_exponent(a, 6.0 * e8m0::pow2(-126), 6.0, false);
        let examples = [(1.0, -2), (3.0, -1), (5.9, 0), (6.0, 0), (6.1, 1), (0.75, -3), (0.0, -126)];
        for (a, k) in examples {
            assert_eq!(fp4(a), k, "amax {a}");
        }
    }

    #[test]
    fn for_every_bf16_amax_product_and_quotient_give_the_true_exponent() {
        for c in 1..0x7f80u16 {
            let a = bf16::decode(c);
            for max in [448.0f32, 6.0] {
                // f64 holds 448·2^k exactly: the smallest k with max·2^k >= a
                let (k, d) = (pow2_exponent(a, 0.0, max, false), pow2_exponent(a, 0.0, max, true));
                assert_eq!(k, d);
                if a / max >= f32::MIN_POSITIVE {
                    let reach = |k: i32| max as f64 * 2f64.powi(k);
                    assert!(reach(k) >= a as f64 && reach(k - 1) < a as f64, "amax {a:e} max {max}");
                }
            }
        }
    }

    #[test]
    fn amax_skips_nan_and_keeps_inf() {
        assert_eq!(amax(&[]), 0.0);
        assert_eq!(amax(&[1.0, -3.0, f32::NAN, -f32::NAN, 2.0]), 3.0);
        assert_eq!(amax(&[1.0, f32::NEG_INFINITY]), f32::INFINITY);
        assert_eq!(exponent_byte(pow2_exponent(f32::INFINITY, 1e-4, 448.0, false)), e8m0::NAN);
    }
}
