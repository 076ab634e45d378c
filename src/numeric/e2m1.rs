//! E2M1 (FP4): sign, 2 exponent bits, 1 mantissa bit; no infinity, no NaN (OCP MX v1.0, §5.3.3).
//! Magnitudes of codes 0..=7: 0, 0.5, 1, 1.5, 2, 3, 4, 6; codes 8..=15 are the negatives (8 is −0).

use super::bits::{ABS, INF, SIGN, rne};

/// Largest value, code 7.
pub const MAX: f32 = 6.0;
/// Smallest positive value, code 1 (the only subnormal).
pub const MIN_POSITIVE: f32 = 0.5;

/// The value of each of the 16 codes.
pub static TABLE: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The values of a packed byte: `[low nibble, high nibble]`, i.e. elements 2n and 2n+1.
pub static PAIRS: [[f32; 2]; 256] = {
    let mut t = [[0.0; 2]; 256];
    let mut b = 0;
    while b < 256 {
        t[b] = [TABLE[b & 15], TABLE[b >> 4]];
        b += 1;
    }
    t
};

/// How a magnitude exactly halfway between two codes is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// Ties to the even code, sign kept even for zero: PTX `cvt.rn.satfinite.e2m1x2.f32`.
    #[default]
    NearestEven,
    /// A chain of strict `>` thresholds: every tie goes towards zero (0.75→0.5, 1.75→1.5, 3.5→3 are the three that
    /// differ from ties-to-even), and a zero has no sign. SGLang's fused DeepSeek-V4 kernels do this.
    HalfDown,
}

/// f32 has 23 mantissa bits, e2m1 has 1.
const DROP: u32 = 22;
/// Adding 2^22 to |x| < 1 rounds it to a multiple of 2^(22−23) = 0.5, ties to even: the subnormal grid.
const MAGIC: f32 = 4_194_304.0;
/// The midpoints between neighbouring magnitudes.
const MIDPOINTS: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];

/// The code nearest to `x`, ties to the even code, saturating at ±6; the sign is kept even for zero.
/// NaN gives +6 (code 7), as PTX `cvt.rn.satfinite.e2m1x2.f32` specifies.
#[inline(always)]
pub fn encode(x: f32) -> u8 {
    let b = x.to_bits();
    let a = b & ABS;
    let normal = (rne(a, DROP) >> DROP).wrapping_sub(126 << 1);
    let normal = if normal > 7 { 7 } else { normal };
    let subnormal = (f32::from_bits(a) + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits());
    let code = if a < 1f32.to_bits() { subnormal } else { normal };
    if a > INF { 7 } else { (code | ((b & SIGN) >> 28)) as u8 }
}

/// The code by strict `>` thresholds (see [`Rounding::HalfDown`]); a zero magnitude is code 0, never 8. NaN, which
/// exceeds nothing, gives 0.
#[inline(always)]
pub fn encode_half_down(x: f32) -> u8 {
    let a = x.abs();
    let code = MIDPOINTS.iter().map(|&m| (a > m) as u8).sum::<u8>();
    code | if code != 0 && x < 0.0 { 8 } else { 0 }
}

/// [`encode`] or [`encode_half_down`].
#[inline(always)]
pub fn encode_with(x: f32, rounding: Rounding) -> u8 {
    match rounding {
        Rounding::NearestEven => encode(x),
        Rounding::HalfDown => encode_half_down(x),
    }
}

/// The value of the low 4 bits of `code`.
#[inline(always)]
pub fn decode(code: u8) -> f32 {
    TABLE[(code & 15) as usize]
}

/// Nearest e2m1 value as f32, ties to even, saturating at ±6. NaN stays NaN, unlike in [`encode`].
///
/// Branch-free, so loops over it vectorise.
#[inline(always)]
pub fn round(x: f32) -> f32 {
    let b = x.to_bits();
    let a = b & ABS;
    let normal = rne(a, DROP);
    let normal = if normal > MAX.to_bits() { MAX.to_bits() } else { normal };
    let subnormal = ((f32::from_bits(a) + MAGIC) - MAGIC).to_bits();
    let r = if a < 1f32.to_bits() { subnormal } else { normal };
    f32::from_bits(if a > INF { 0x7fc0_0000 } else { r | (b & SIGN) })
}

/// [`round`] under either tie rule. NaN stays NaN.
#[inline(always)]
pub fn round_with(x: f32, rounding: Rounding) -> f32 {
    match rounding {
        Rounding::NearestEven => round(x),
        Rounding::HalfDown if x.is_nan() => x,
        Rounding::HalfDown => decode(encode_half_down(x)),
    }
}

/// Packs codes two a byte: even index in the low nibble. An odd tail leaves the last high nibble 0.
/// `packed` holds `ceil(codes / 2)` bytes.
pub fn pack(codes: &[u8], packed: &mut [u8]) {
    debug_assert_eq!(packed.len(), codes.len().div_ceil(2));
    for (p, c) in packed.iter_mut().zip(codes.chunks(2)) {
        *p = (c[0] & 15) | (c.get(1).copied().unwrap_or(0) << 4);
    }
}

/// The inverse of [`pack`]: `codes` elements are read, low nibble first.
pub fn unpack(packed: &[u8], codes: &mut [u8]) {
    debug_assert_eq!(packed.len(), codes.len().div_ceil(2));
    for (i, c) in codes.iter_mut().enumerate() {
        *c = (packed[i / 2] >> (4 * (i % 2))) & 15;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::testing::check_ties;
    use microfloat::f4e2m1fn;
    use proptest::prelude::*;

    #[test]
    fn all_16_codes_equal_the_independent_crate_and_survive() {
        for c in 0..16u8 {
            assert_eq!(decode(c).to_bits(), f4e2m1fn::from_bits(c).to_f32().to_bits());
            assert_eq!(encode(decode(c)), c);
            assert_eq!(encode_half_down(decode(c)), if c == 8 { 0 } else { c });
        }
    }

    #[test]
    fn every_tie_and_one_ulp_around_it() {
        check_ties(&TABLE[..8], round, |i| i % 2 == 0);
        check_ties(&TABLE[..8], |x| round_with(x, Rounding::HalfDown), |_| true);
        let ties = [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)];
        for (x, even) in ties {
            assert_eq!((round(x), round(-x)), (even, -even));
        }
        for (x, down) in [(0.75, 0.5), (1.75, 1.5), (3.5, 3.0)] {
            assert_eq!(round_with(x, Rounding::HalfDown), down);
            assert_eq!(round_with(-x, Rounding::HalfDown), -down);
        }
    }

    #[test]
    fn zeros_saturation_and_nan() {
        assert_eq!(
            (encode(-0.0), encode(-0.2), encode_half_down(-0.0), encode_half_down(-0.25)),
            (8, 8, 0, 0)
        );
        for x in [6.0, 7.0, 1e30, f32::INFINITY] {
            assert_eq!((encode(x), encode(-x), encode_half_down(x), encode_half_down(-x)), (7, 15, 7, 15));
        }
        assert_eq!((encode(f32::NAN), encode(-f32::NAN), encode_half_down(f32::NAN)), (7, 7, 0));
        assert!(round(f32::NAN).is_nan() && round_with(f32::NAN, Rounding::HalfDown).is_nan());
    }

    #[test]
    fn round_is_decode_of_encode_on_a_sweep_of_all_exponents() {
        for hi in 0..=0xffffu32 {
            for lo in [0, 1, 0x7fff, 0x8000, 0xffff] {
                let x = f32::from_bits(hi << 16 | lo);
                if !x.is_nan() {
                    assert_eq!(round(x).to_bits(), decode(encode(x)).to_bits(), "{x:e}");
                }
            }
        }
    }

    #[test]
    fn packing_puts_the_even_index_low() {
        let mut packed = [0; 2];
        pack(&[1, 15, 7], &mut packed);
        assert_eq!(packed, [0xf1, 0x07]);
        let mut codes = [0; 3];
        unpack(&packed, &mut codes);
        assert_eq!(codes, [1, 15, 7]);
        assert_eq!(PAIRS[0xf1], [0.5, -6.0]);
    }

    proptest! {
        #[test]
        fn equals_the_independent_crate_and_is_nearest(a in -7f32..7.0, b in -7f32..7.0) {
            prop_assert_eq!(encode(a), f4e2m1fn::from_f32(a).to_bits());
            for mode in [Rounding::NearestEven, Rounding::HalfDown] {
                let r = round_with(a, mode);
                let best = TABLE.iter().map(|v| (v - a).abs()).fold(f32::INFINITY, f32::min);
                prop_assert_eq!((r - a).abs(), best);
                prop_assert_eq!(round_with(r, mode), r);
                if a <= b { prop_assert!(r <= round_with(b, mode)); }
            }
        }
    }
}
