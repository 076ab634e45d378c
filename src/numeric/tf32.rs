//! TF32: the tensor core's input format for f32 data (8 exponent bits, 10 mantissa bits, kept in an f32).

use super::bits;

/// Unit roundoff of tf32 under [`round`]; [`truncate`] errs by up to twice this.
pub const UNIT_ROUNDOFF: f32 = 1.0 / 2048.0;

/// Nearest tf32 value, ties to even (PTX `cvt.rn.tf32.f32`). NaN stays NaN.
#[inline(always)]
pub fn round(x: f32) -> f32 {
    bits::rne_f32(x, 13)
}

/// Nearest tf32 value, ties away from zero (PTX `cvt.rna.tf32.f32`, which CUDA's `__float_to_tf32` emits).
#[inline(always)]
pub fn round_away(x: f32) -> f32 {
    let b = x.to_bits();
    f32::from_bits(if (b & bits::ABS) > bits::INF { b | 0x0040_0000 } else { (b + 0x1000) & 0xffff_e000 })
}

/// Low 13 bits cut: what `mma.tf32` does with an operand that nobody converted first. NaN stays NaN.
#[inline(always)]
pub fn truncate(x: f32) -> f32 {
    let b = x.to_bits();
    f32::from_bits(if (b & bits::ABS) > bits::INF { b | 0x0040_0000 } else { b & 0xffff_e000 })
}

/// [`round`] on every element, in place.
pub fn round_slice(xs: &mut [f32]) {
    for x in xs {
        *x = round(*x);
    }
}

/// True when `x` is a tf32 value. NaN counts as representable.
#[inline(always)]
pub fn is_representable(x: f32) -> bool {
    x.is_nan() || x.to_bits() & 0x1fff == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEP: f32 = 1.0 / 1024.0;

    #[test]
    fn the_three_roundings_differ_at_a_tie() {
        let tie = 1.0 + STEP / 2.0;
        assert_eq!((round(tie), round_away(tie), truncate(tie)), (1.0, 1.0 + STEP, 1.0));
        let odd = 1.0 + 1.5 * STEP;
        assert_eq!(
            (round(odd), round_away(odd), truncate(odd)),
            (1.0 + 2.0 * STEP, 1.0 + 2.0 * STEP, 1.0 + STEP)
        );
        assert_eq!(round(tie.next_down()), 1.0);
        assert_eq!(round(tie.next_up()), 1.0 + STEP);
        assert_eq!(round_away(-tie), -1.0 - STEP);
    }

    #[test]
    fn nan_stays_nan_and_max_overflows() {
        for f in [round, round_away, truncate] {
            assert!(f(f32::from_bits(0x7f80_0001)).is_nan());
            assert!(f(f32::from_bits(0xffff_ffff)).is_nan());
            assert_eq!(f(f32::NEG_INFINITY), f32::NEG_INFINITY);
        }
        assert_eq!(round(f32::MAX), f32::INFINITY);
        assert_eq!(truncate(f32::MAX), f32::from_bits(0x7f7f_e000));
    }

    proptest! {
        #[test]
        fn idempotent_monotone_and_within_half_a_step(a in -1e30f32..1e30, b in -1e30f32..1e30) {
            let r = round(a);
            prop_assert!(is_representable(r) && round(r) == r);
            prop_assert!((r - a).abs() <= a.abs() * UNIT_ROUNDOFF);
            if a <= b { prop_assert!(r <= round(b)); }
        }
    }
}
