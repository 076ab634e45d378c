//! FP8 weights with two-dimensional block scales: `w[o][i] = e4m3(code[o][i]) · scale[o/bm][i/bn]`, row-major.
//! The scale multiplies. DeepSeek checkpoints use 128×128 blocks; the last block of either axis may be partial.

use super::scale::{amax, exponent_byte, pow2_exponent};
use super::{e4m3, e8m0, shape};
use crate::{Error, Result};

/// `[rows, cols]` of one scale block in DeepSeek checkpoints.
pub const BLOCK: [usize; 2] = [128, 128];

/// The raw bytes of a scale tensor `[ceil(rows/bm), ceil(cols/bn)]`.
#[derive(Debug, Clone, Copy)]
pub enum Scales<'a> {
    /// One E8M0 byte each (DeepSeek-V4, `.scale`).
    E8m0(&'a [u8]),
    /// Little-endian f32 (`weight_scale_inv` of the older layout).
    F32(&'a [u8]),
}

impl Scales<'_> {
    fn len(&self) -> (usize, usize) {
        match self {
            Scales::E8m0(b) => (b.len(), 1),
            Scales::F32(b) => (b.len(), 4),
        }
    }

    fn get(&self, i: usize) -> f32 {
        match self {
            Scales::E8m0(b) => e8m0::decode(b[i]),
            Scales::F32(b) => f32::from_le_bytes([b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]]),
        }
    }
}

/// Decodes a `[rows, cols]` tensor after checking every length.
pub fn decode(
    codes: &[u8],
    scales: Scales<'_>,
    rows: usize,
    cols: usize,
    block: [usize; 2],
) -> Result<Vec<f32>> {
    check(codes, scales, rows, cols, block)?;
    let mut out = vec![0.0; codes.len()];
    decode_unchecked(codes, scales, cols, block, &mut out);
    Ok(out)
}

/// [`decode`] into a buffer of `rows * cols`.
pub fn decode_into(
    codes: &[u8],
    scales: Scales<'_>,
    rows: usize,
    cols: usize,
    block: [usize; 2],
    out: &mut [f32],
) -> Result<()> {
    check(codes, scales, rows, cols, block)?;
    shape::expect("fp8 output", "elements", out.len(), codes.len())?;
    decode_unchecked(codes, scales, cols, block, out);
    Ok(())
}

fn check(codes: &[u8], scales: Scales<'_>, rows: usize, cols: usize, [bm, bn]: [usize; 2]) -> Result<()> {
    if bm == 0 || bn == 0 {
        return Err(Error::input(format!("fp8 weight block size [{bm}, {bn}] has a zero")));
    }
    shape::expect("fp8 weight", "bytes", codes.len(), shape::product("fp8 weight", rows, cols)?)?;
    let n = shape::product("fp8 scales", rows.div_ceil(bm), cols.div_ceil(bn))?;
    let (bytes, size) = scales.len();
    shape::expect("fp8 scales", "bytes", bytes, shape::product("fp8 scales", n, size)?)
}

/// The loop of [`decode`]; lengths are the caller's promise (an out-of-range one panics, it is never unsound).
pub fn decode_unchecked(
    codes: &[u8],
    scales: Scales<'_>,
    cols: usize,
    [bm, bn]: [usize; 2],
    out: &mut [f32],
) {
    debug_assert_eq!(codes.len(), out.len());
    if cols == 0 {
        return;
    }
    let per_row = cols.div_ceil(bn);
    for (r, (cs, os)) in codes.chunks_exact(cols).zip(out.chunks_exact_mut(cols)).enumerate() {
        for (j, (cs, os)) in cs.chunks(bn).zip(os.chunks_mut(bn)).enumerate() {
            let s = scales.get(r / bm * per_row + j);
            for (o, &c) in os.iter_mut().zip(cs) {
                *o = e4m3::decode(c) * s;
            }
        }
    }
}

/// Quantises a `[rows, cols]` tensor: one power-of-two scale `2^⌈log2(max(amax, 1e-4)/448)⌉` a block, then nearest
/// e4m3. Returns `(codes, E8M0 scales)`.
pub fn encode(w: &[f32], rows: usize, cols: usize, block: [usize; 2]) -> Result<(Vec<u8>, Vec<u8>)> {
    let [bm, bn] = block;
    shape::expect("fp8 source", "elements", w.len(), shape::product("fp8 source", rows, cols)?)?;
    if bm == 0 || bn == 0 {
        return Err(Error::input(format!("fp8 weight block size [{bm}, {bn}] has a zero")));
    }
    let per_row = cols.div_ceil(bn);
    let mut codes = vec![0; w.len()];
    let mut scales = Vec::with_capacity(rows.div_ceil(bm) * per_row);
    for r0 in (0..rows).step_by(bm) {
        for c0 in (0..cols).step_by(bn) {
            let (r1, c1) = ((r0 + bm).min(rows), (c0 + bn).min(cols));
            let a = (r0..r1).map(|r| amax(&w[r * cols + c0..r * cols + c1])).fold(0.0, f32::max);
            let k = pow2_exponent(a, super::act_fp8::AMAX_FLOOR, e4m3::MAX, false);
            scales.push(exponent_byte(k));
            for i in (r0..r1).flat_map(|r| r * cols + c0..r * cols + c1) {
                codes[i] = e4m3::encode(w[i] * e8m0::pow2(-k));
            }
        }
    }
    Ok((codes, scales))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn scales_multiply_and_partial_blocks_work() {
        // 3x3 with 2x2 blocks: scales [2^1, 2^-1; 2^0, 2^-127]
        let codes = [0x38u8; 9]; // 1.0
        let scales = [128, 126, 127, 0];
        let got = decode(&codes, Scales::E8m0(&scales), 3, 3, [2, 2]).unwrap();
        let tiny = 2f32.powi(-127);
        assert_eq!(got, [2.0, 2.0, 0.5, 2.0, 2.0, 0.5, 1.0, 1.0, tiny]);
        let f32s: Vec<u8> = [3.0f32, 5.0, 7.0, 0.1].iter().flat_map(|s| s.to_le_bytes()).collect();
        let mut out = [0.0; 9];
        decode_into(&codes, Scales::F32(&f32s), 3, 3, [2, 2], &mut out).unwrap();
        assert_eq!(out, [3.0, 3.0, 5.0, 3.0, 3.0, 5.0, 7.0, 7.0, 0.1]);
    }

    #[test]
    fn nan_codes_and_nan_scales_stay_visible() {
        let got = decode(&[0x7f, 0x38], Scales::E8m0(&[127]), 1, 2, BLOCK).unwrap();
        assert!(got[0].is_nan() && got[1] == 1.0);
        assert!(decode(&[0x38], Scales::E8m0(&[255]), 1, 1, BLOCK).unwrap()[0].is_nan());
    }

    #[test]
    fn every_wrong_length_is_an_error_not_a_panic() {
        let e = |c: &[u8], s: Scales, r, k, b| decode(c, s, r, k, b).unwrap_err();
        let msg = e(&[0; 5], Scales::E8m0(&[127]), 2, 3, BLOCK).to_string();
        assert!(msg.contains("5 bytes where the shape needs 6") && msg.contains("hint:"), "{msg}");
        e(&[0; 6], Scales::E8m0(&[127, 127]), 2, 3, BLOCK);
        e(&[0; 6], Scales::F32(&[0; 3]), 2, 3, BLOCK);
        e(&[0; 6], Scales::E8m0(&[127]), 2, 3, [0, 128]);
        e(&[0; 6], Scales::E8m0(&[127]), usize::MAX, 2, BLOCK);
        assert!(decode_into(&[0; 6], Scales::E8m0(&[127]), 2, 3, BLOCK, &mut [0.0; 5]).is_err());
        assert!(decode(&[], Scales::E8m0(&[]), 0, 3, BLOCK).unwrap().is_empty());
        assert!(decode(&[], Scales::E8m0(&[]), 3, 0, BLOCK).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn encoding_decoded_values_loses_nothing(rows in 1usize..6, cols in 1usize..9, seed in any::<u64>()) {
            let w: Vec<f32> = (0..rows * cols)
                .map(|i| ((seed.wrapping_mul(i as u64 * 2 + 1) >> 40) as f32 / 1e6) - 8.0)
                .collect();
            let (c, s) = encode(&w, rows, cols, [2, 3]).unwrap();
            let once = decode(&c, Scales::E8m0(&s), rows, cols, [2, 3]).unwrap();
            for (a, b) in once.iter().zip(&w) { prop_assert!((a - b).abs() <= (b.abs() / 16.0).max(1e-4)); }
            let (c, s) = encode(&once, rows, cols, [2, 3]).unwrap();
            prop_assert_eq!(decode(&c, Scales::E8m0(&s), rows, cols, [2, 3]).unwrap(), once);
        }
    }
}
