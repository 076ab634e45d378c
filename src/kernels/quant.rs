//! Fp8 blocks made or read wrongly. With [`Quant::Exact`] everything here is plain rounding.

use super::mat::{Mat, par_rows};
use super::round::{round_row, rounded};
use super::values::{Fmt, Quant};
use crate::numeric::scale::{amax, pow2_exponent};
use crate::numeric::{act_fp8, e4m3, e8m0};
use std::borrow::Cow;

/// Values of a block under one scale in `f`, `None` if it has no power-of-two block scale.
fn block_of(f: Fmt, row: usize) -> Option<usize> {
    match f {
        Fmt::Fp8x128 => Some(128),
        Fmt::Fp8x64 => Some(64),
        Fmt::Fp8RowPow2 => Some(row.max(1)),
        _ => None,
    }
}

/// The exponent byte and code of one block as a writer that rounds its scale last stores them.
pub fn encode_then_ceil(xs: &[f32], codes: &mut [u8]) -> u8 {
    let s = amax(xs).max(act_fp8::AMAX_FLOOR) / e4m3::MAX;
    for (c, x) in codes.iter_mut().zip(xs) {
        *c = e4m3::encode(x / s);
    }
    e8m0::encode(e8m0::ceil_log2(s))
}

/// A stored code read as e4m3fnuz: one more in the bias, and NaN for what is −0 in e4m3fn.
pub fn decode_fnuz(code: u8) -> f32 {
    match code {
        0x80 => f32::NAN,
        0x7f => 240.0,
        0xff => -240.0,
        c => 0.5 * e4m3::decode(c),
    }
}

/// The number a reader takes for the scale of exponent byte `b`.
pub fn scale_of(b: u8, quant: Quant) -> f32 {
    if quant == Quant::ByteAsValue { b as f32 } else { e8m0::decode(b) }
}

/// Rounds a row to `f` as a kernel with this scale handling does.
pub fn round_row_by(row: &mut [f32], f: Fmt, quant: Quant) {
    let Some(block) = block_of(f, row.len()).filter(|_| quant != Quant::Exact) else {
        return round_row(row, f);
    };
    let mut codes = vec![0u8; block];
    for xs in row.chunks_mut(block) {
        let codes = &mut codes[..xs.len()];
        let byte = if quant == Quant::ThenCeil {
            encode_then_ceil(xs, codes)
        } else {
            let k = pow2_exponent(amax(xs), act_fp8::AMAX_FLOOR, e4m3::MAX, false);
            codes.iter_mut().zip(xs.iter()).for_each(|(c, x)| *c = e4m3::encode(x * e8m0::pow2(-k)));
            e8m0::encode(k)
        };
        let s = scale_of(byte, quant);
        for (x, c) in xs.iter_mut().zip(&*codes) {
            *x = s * if quant == Quant::FnuzBits { decode_fnuz(*c) } else { e4m3::decode(*c) };
        }
    }
}

/// `x` itself, or a copy rounded by [`round_row_by`].
pub fn rounded_by(x: &Mat, f: Fmt, quant: Quant) -> Cow<'_, Mat> {
    if quant == Quant::Exact || block_of(f, x.cols).is_none() {
        return rounded(x, f);
    }
    let mut m = x.clone();
    par_rows(&mut m, |_, rows| {
        rows.chunks_exact_mut(x.cols).for_each(|row| round_row_by(row, f, quant));
    });
    Cow::Owned(m)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a spoiled scale whose fingerprint is not the one it is known by: a factor in (1, 2] a block, the byte
    /// over its power of two, one half.
    #[test]
    fn fingerprints() {
        let x: Vec<f32> = (0..128).map(|i| (i as f32 - 60.0) / 7.0).collect();
        let by = |q: Quant| {
            let mut v = x.clone();
            round_row_by(&mut v, Fmt::Fp8x128, q);
            v
        };
        let good = by(Quant::Exact);
        let mut plain = x.clone();
        round_row(&mut plain, Fmt::Fp8x128);
        assert_eq!(good, plain);
        let ratio = by(Quant::ThenCeil)[127] / x[127];
        assert!(ratio > 1.0 && ratio <= 2.0, "{ratio}");
        let k = e8m0::ceil_log2(amax(&x) / 448.0);
        let want = good[100] / e8m0::pow2(k) * (k + 127) as f32;
        assert_eq!(by(Quant::ByteAsValue)[100], want);
        assert_eq!(by(Quant::FnuzBits)[100], good[100] / 2.0);
        assert!(decode_fnuz(e4m3::encode(-1e-9)).is_nan());
    }
}
