//! E8M0: a byte `b` that means the scale `2^(b − 127)`; 255 is NaN, there is no zero and no sign (OCP MX v1.0, §5.4.1).

use super::bits;

/// The NaN code.
pub const NAN: u8 = 255;

/// `2^(b − 127)`; 255 gives NaN. `b = 0` is 2^-127, an f32 subnormal: a decoder that only shifts the byte into the
/// exponent field turns it into 0.
#[inline(always)]
pub const fn decode(b: u8) -> f32 {
    f32::from_bits(match b {
        0 => 0x0040_0000,
        NAN => 0x7fc0_0000,
        b => (b as u32) << 23,
    })
}

/// The byte of `2^k`, saturating to the format's range −127..=127.
#[inline(always)]
pub const fn encode(k: i32) -> u8 {
    if k < -127 {
        0
    } else if k > 127 {
        254
    } else {
        (k + 127) as u8
    }
}

/// `2^k` as f32: exact for −149 ≤ k ≤ 127, 0 below, +inf above.
#[inline(always)]
pub const fn pow2(k: i32) -> f32 {
    f32::from_bits(if k > 127 {
        bits::INF
    } else if k >= -126 {
        ((k + 127) as u32) << 23
    } else if k >= -149 {
        1 << (k + 149)
    } else {
        0
    })
}

/// `⌈log2 v⌉` from the bits: `exponent − 127 + (mantissa ≠ 0)`, the form the quantisation kernels use.
///
/// Exact for positive normal `v`. Like those kernels it reads every subnormal as −126 and zero as −127; callers
/// floor `v` above that. The sign is ignored; +inf gives 128.
#[inline(always)]
pub const fn ceil_log2(v: f32) -> i32 {
    let b = v.to_bits();
    ((b >> 23) & 255) as i32 - 127 + ((b & 0x007f_ffff != 0) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use microfloat::f8e8m0fnu;

    #[test]
    fn every_code_equals_the_independent_crate() {
        for b in 0..=254u8 {
            assert_eq!(decode(b).to_bits(), f8e8m0fnu::from_bits(b).to_f32().to_bits(), "code {b}");
            assert_eq!(decode(b), 2f64.powi(b as i32 - 127) as f32);
            assert_eq!(encode(b as i32 - 127), b);
            assert_eq!(pow2(b as i32 - 127), decode(b));
        }
        assert!(decode(NAN).is_nan() && f8e8m0fnu::from_bits(NAN).to_f32().is_nan());
        assert_eq!((encode(-500), encode(500)), (0, 254));
    }

    #[test]
    fn pow2_covers_subnormals_and_saturates() {
        for k in -160..=140 {
            assert_eq!(pow2(k), 2f64.powi(k) as f32, "k = {k}");
        }
    }

    #[test]
    fn ceil_log2_around_every_power_of_two() {
        for k in -125..=127 {
            let p = pow2(k);
            assert_eq!(ceil_log2(p), k);
            assert_eq!(ceil_log2(p.next_down()), k);
            assert_eq!(ceil_log2(p.next_up()), k + 1);
        }
        assert_eq!(
            (ceil_log2(0.0), ceil_log2(f32::from_bits(1)), ceil_log2(f32::INFINITY)),
            (-127, -126, 128)
        );
    }
}
