//! E4M3FN (FP8): sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinity, 0x7F and 0xFF are NaN, max 448
//! (OCP 8-bit floating point specification, revision 1.0). Encoding saturates (PTX `cvt.rn.satfinite.e4m3x2.f32`).

use super::bits::{ABS, INF, SIGN, rne};

/// Largest finite value, code 0x7E.
pub const MAX: f32 = 448.0;
/// Smallest positive value, code 0x01: the subnormal step 2^-9.
pub const MIN_POSITIVE: f32 = 1.0 / 512.0;
/// Largest relative error of one rounding in the normal range [2^-6, 448].
pub const UNIT_ROUNDOFF: f32 = 1.0 / 16.0;
/// The code that NaN encodes to.
pub const NAN: u8 = 0x7f;

/// f32 bits of 2^-6, the smallest normal e4m3 value.
const NORMAL: u32 = 121 << 23;
/// f32 has 23 mantissa bits, e4m3 has 3.
const DROP: u32 = 20;
/// Adding 2^14 to |x| < 2^-6 rounds it to a multiple of 2^(14−23) = 2^-9, ties to even: the subnormal grid.
const MAGIC: f32 = 16384.0;

/// Nearest e4m3 value as f32, ties to even, saturating at ±448 (±inf too). The sign of zero is kept, NaN gives NaN.
///
/// Branch-free, so loops over it vectorise.
#[inline(always)]
pub fn round(x: f32) -> f32 {
    let b = x.to_bits();
    let a = b & ABS;
    let normal = rne(a, DROP);
    let normal = if normal > MAX.to_bits() { MAX.to_bits() } else { normal };
    let subnormal = ((f32::from_bits(a) + MAGIC) - MAGIC).to_bits();
    let r = if a < NORMAL { subnormal } else { normal };
    f32::from_bits(if a > INF { 0x7fc0_0000 } else { r | (b & SIGN) })
}

/// [`round`] on every element, in place.
pub fn round_slice(xs: &mut [f32]) {
    for x in xs {
        *x = round(*x);
    }
}

/// The code of [`round`]`(x)`; NaN of either sign gives 0x7F.
#[inline(always)]
pub fn encode(x: f32) -> u8 {
    let b = x.to_bits();
    let a = b & ABS;
    // the rounded f32's exponent and 3 mantissa bits, rebased from bias 127 to bias 7
    let normal = (rne(a, DROP) >> DROP).wrapping_sub(120 << 3);
    let normal = if normal > 0x7e { 0x7e } else { normal };
    // above MAGIC the mantissa counts steps of 2^-9, which is the subnormal code (8 carries into the first normal)
    let subnormal = (f32::from_bits(a) + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits());
    let code = if a < NORMAL { subnormal } else { normal };
    if a > INF { NAN } else { (code | ((b & SIGN) >> 24)) as u8 }
}

/// The value of a code: `mant·2^-9` when the exponent field is 0, else `2^(exp−7)·(1 + mant/8)`; 0x7F, 0xFF are NaN.
///
/// Branch-free, for bulk decoding; [`TABLE`] holds the same values.
#[inline(always)]
pub const fn decode(code: u8) -> f32 {
    let m = (code & 0x7f) as u32;
    let sign = ((code & 0x80) as u32) << 24;
    let normal = (m + (120 << 3)) << DROP;
    let subnormal = (m as f32 * MIN_POSITIVE).to_bits();
    let r = if m < 8 { subnormal } else { normal };
    f32::from_bits(if m == 0x7f { 0x7fc0_0000 } else { r | sign })
}

/// [`decode`] of every code.
pub static TABLE: [f32; 256] = {
    let mut t = [0.0; 256];
    let mut c = 0;
    while c < 256 {
        t[c] = decode(c as u8);
        c += 1;
    }
    t
};

/// True when `x` is an e4m3 value. NaN counts as representable: the format has one.
#[inline(always)]
pub fn is_representable(x: f32) -> bool {
    x.is_nan() || round(x) == x
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::testing::check_ties;
    use microfloat::f8e4m3fn;
    use proptest::prelude::*;

    #[test]
    fn all_256_codes_equal_the_independent_crate_and_survive() {
        for c in 0..=255u8 {
            let v = decode(c);
            let theirs = f8e4m3fn::from_bits(c).to_f32();
            if c & 0x7f == 0x7f {
                assert!(v.is_nan() && theirs.is_nan() && TABLE[c as usize].is_nan());
                assert_eq!(encode(v), NAN);
                continue;
            }
            assert_eq!(v.to_bits(), theirs.to_bits(), "code {c:#x}");
            assert_eq!(v.to_bits(), TABLE[c as usize].to_bits());
            assert_eq!(encode(v), c);
            assert_eq!(round(v).to_bits(), v.to_bits());
        }
        assert_eq!((decode(0x7e), decode(0x01), decode(0x08)), (MAX, MIN_POSITIVE, 1.0 / 64.0));
    }

    #[test]
    fn every_tie_goes_to_the_even_code_and_one_ulp_decides() {
        let codes: Vec<f32> = (0..=0x7e).map(decode).collect();
        check_ties(&codes, round, |i| i % 2 == 0);
    }

    #[test]
    fn saturates_and_keeps_the_sign_of_zero() {
        for x in [448.0, 463.9, 464.0, 480.0, 1e30, f32::MAX, f32::INFINITY] {
            assert_eq!((round(x), round(-x)), (448.0, -448.0));
            assert_eq!((encode(x), encode(-x)), (0x7e, 0xfe));
        }
        assert_eq!((encode(-0.0), encode(-1e-9)), (0x80, 0x80));
        assert_eq!(round(-1e-9).to_bits(), SIGN);
        assert!(round(f32::NAN).is_nan() && round(-f32::NAN).is_nan());
        assert_eq!(
            (encode(f32::NAN), encode(-f32::NAN), encode(f32::from_bits(0x7f80_0001))),
            (NAN, NAN, NAN)
        );
    }

    #[test]
    fn round_is_decode_of_encode_on_a_sweep_of_all_exponents() {
        // every sign, exponent and upper mantissa, with low bits that sit on, below and above ties
        for hi in 0..=0xffffu32 {
            for lo in [0, 1, 0x7fff, 0x8000, 0xffff] {
                let x = f32::from_bits(hi << 16 | lo);
                let (r, d) = (round(x), decode(encode(x)));
                assert!(r.to_bits() == d.to_bits() || (r.is_nan() && d.is_nan()), "{x:e}: {r} vs {d}");
                if x.abs() <= MAX {
                    assert_eq!(encode(x), f8e4m3fn::from_f32(x).to_bits(), "{x:e}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn nearest_idempotent_monotone(a in -500f32..500.0, b in -500f32..500.0, small in -0.05f32..0.05) {
            for x in [a, b, small] {
                let r = round(x);
                prop_assert_eq!(round(r).to_bits(), r.to_bits());
                let best = TABLE.iter().filter(|v| !v.is_nan()).map(|v| (v - x).abs()).fold(f32::INFINITY, f32::min);
                prop_assert_eq!((r - x).abs(), best);
            }
            if a <= b { prop_assert!(round(a) <= round(b)); }
        }
    }
}
