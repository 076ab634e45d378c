//! bfloat16: the upper half of an f32 (8 exponent bits, 7 mantissa bits).

use super::bits;

/// Unit roundoff of bf16: half the spacing at 1, i.e. the largest relative error of one rounding (normal range).
pub const UNIT_ROUNDOFF: f32 = 1.0 / 256.0;

/// Nearest bf16 value as f32, ties to even; overflow becomes ±inf, subnormals are kept, NaN stays NaN (quiet).
#[inline(always)]
pub fn round(x: f32) -> f32 {
    bits::rne_f32(x, 16)
}

/// [`round`] on every element, in place.
pub fn round_slice(xs: &mut [f32]) {
    for x in xs {
        *x = round(*x);
    }
}

/// The 16-bit code of [`round`]`(x)`.
#[inline(always)]
pub fn encode(x: f32) -> u16 {
    (round(x).to_bits() >> 16) as u16
}

/// The value of a 16-bit code; always exact.
#[inline(always)]
pub fn decode(code: u16) -> f32 {
    f32::from_bits((code as u32) << 16)
}

/// Decodes little-endian bf16 bytes. `bytes` holds `2 * out.len()` bytes.
pub fn decode_le(bytes: &[u8], out: &mut [f32]) {
    debug_assert_eq!(bytes.len(), 2 * out.len());
    for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *o = decode(u16::from_le_bytes([b[0], b[1]]));
    }
}

/// True when `x` is a bf16 value (so rounding changes nothing). NaN counts as representable: the format has one.
#[inline(always)]
pub fn is_representable(x: f32) -> bool {
    x.is_nan() || x.to_bits() & 0xffff == 0
}

/// True when every element [`is_representable`]: the sign of a tensor that some bf16 step wrote.
pub fn all_representable(xs: &[f32]) -> bool {
    xs.iter().all(|&x| is_representable(x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ties_go_to_even_and_neighbours_to_their_side() {
        // spacing at 1 is 2^-7: the tie 1 + 2^-8 is between 1.0 (even) and 1.0078125 (odd)
        assert_eq!(round(1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(round(f32::from_bits((1.0f32 + 1.0 / 256.0).to_bits() + 1)), 1.0 + 1.0 / 128.0);
        // 1 + 3·2^-8 is between 1.0078125 (odd) and 1.015625 (even)
        assert_eq!(round(1.0 + 3.0 / 256.0), 1.0 + 1.0 / 64.0);
        assert_eq!(round(-1.0 - 1.0 / 256.0), -1.0);
    }

    #[test]
    fn every_code_survives_and_extremes_are_kept() {
        for c in 0..=u16::MAX {
            let v = decode(c);
            let theirs = half::bf16::from_bits(c).to_f32();
            assert_eq!(v.is_nan(), theirs.is_nan());
            if !v.is_nan() {
                assert_eq!(v.to_bits(), theirs.to_bits());
                assert_eq!(encode(v), c);
            }
            assert!(is_representable(v));
        }
        assert_eq!(round(f32::MAX), f32::INFINITY);
        assert_eq!(round(f32::from_bits(1)), 0.0);
        // the lowest NaN payload must not round to inf
        assert!(round(f32::from_bits(0x7f80_0001)).is_nan());
        assert!(round(f32::from_bits(0xffff_ffff)).is_nan());
    }

    #[test]
    fn decodes_little_endian_bytes() {
        let mut out = [0.0; 2];
        decode_le(&[0x80, 0x3f, 0x00, 0xc0], &mut out);
        assert_eq!(out, [1.0, -2.0]);
    }

    #[test]
    fn representable_is_about_the_low_half() {
        assert!(all_representable(&[1.0, -0.0, f32::INFINITY, f32::NAN]));
        assert!(!all_representable(&[1.0, 0.1]));
    }

    proptest! {
        #[test]
        fn equals_half_on_any_bits(b in any::<u32>()) {
            let x = f32::from_bits(b);
            prop_assert_eq!(encode(x), half::bf16::from_f32(x).to_bits());
            let r = round(x);
            prop_assert!(is_representable(r));
            if !x.is_nan() { prop_assert_eq!(round(r).to_bits(), r.to_bits()); }
        }
        #[test]
        fn monotone(a in any::<f32>(), b in any::<f32>()) {
            prop_assume!(a <= b);
            prop_assert!(round(a) <= round(b));
        }
    }
}
