//! IEEE binary16 (5 exponent bits, 10 mantissa bits), conversions by the `half` crate.

/// Unit roundoff of f16: the largest relative error of one rounding (normal range).
pub const UNIT_ROUNDOFF: f32 = 1.0 / 2048.0;

/// Nearest f16 value as f32, ties to even; at and above 65520 in magnitude ±inf, subnormals (step 2^-24) are kept.
#[inline]
pub fn round(x: f32) -> f32 {
    half::f16::from_f32(x).to_f32()
}

/// [`round`] on every element, in place.
pub fn round_slice(xs: &mut [f32]) {
    for x in xs {
        *x = round(*x);
    }
}

/// The 16-bit code of [`round`]`(x)`.
#[inline]
pub fn encode(x: f32) -> u16 {
    half::f16::from_f32(x).to_bits()
}

/// The value of a 16-bit code; always exact.
#[inline]
pub fn decode(code: u16) -> f32 {
    half::f16::from_bits(code).to_f32()
}

/// Decodes little-endian f16 bytes. `bytes` holds `2 * out.len()` bytes.
pub fn decode_le(bytes: &[u8], out: &mut [f32]) {
    debug_assert_eq!(bytes.len(), 2 * out.len());
    for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *o = decode(u16::from_le_bytes([b[0], b[1]]));
    }
}

/// True when `x` is an f16 value (so rounding changes nothing). NaN counts as representable.
#[inline]
pub fn is_representable(x: f32) -> bool {
    x.is_nan() || round(x) == x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_extremes_and_subnormals() {
        assert_eq!(round(1.0 + 1.0 / 2048.0), 1.0);
        assert_eq!(round(1.0 + 3.0 / 2048.0), 1.0 + 4.0 / 2048.0);
        assert_eq!(round(65519.996), 65504.0);
        assert_eq!(round(65520.0), f32::INFINITY);
        assert_eq!(round(2f32.powi(-24)), 2f32.powi(-24));
        assert_eq!(round(2f32.powi(-25)), 0.0);
        assert!(round(f32::NAN).is_nan());
    }

    #[test]
    fn every_code_survives_and_the_middle_goes_to_even() {
        for c in 0..0x7c00u16 {
            let v = decode(c);
            assert_eq!(encode(v), c);
            assert!(is_representable(v) && is_representable(-v));
            if c < 0x7bff {
                let mid = (v + decode(c + 1)) / 2.0;
                assert_eq!(encode(mid), c + (c & 1), "tie above code {c:#x}");
                assert_eq!(encode(mid.next_down()), c);
                assert_eq!(encode(mid.next_up()), c + 1);
            }
        }
    }
}
