//! NVFP4: e2m1 codes, one e4m3 scale for 16 elements along k, one f32 scale for the tensor (NVIDIA ModelOpt).
//! Scales are plain row-major, not the swizzled layout that tensor cores read.
//!
//! Weights: `w = e2m1 · e4m3(block scale) · scale_2`. Activations (W4A4): per 16 inputs
//! `sx = e4m3((amax/6) / input_scale)`, `q = e2m1(x / (sx·input_scale))`, value `q·sx·input_scale`.
//! W4A16 kernels leave activations alone.

use super::scale::amax;
use super::{e2m1, e4m3, shape};
use crate::{Error, Result};

/// Elements that share one e4m3 scale.
pub const BLOCK: usize = 16;

/// Decodes `[rows, cols]`: `packed` is `[rows, cols/2]`, `scales` is `[rows, ceil(cols/16)]`. `cols` must be even.
///
/// `e2m1 · e4m3` has at most 6 significant bits and is exact, so the value is rounded once, by `· scale_2`.
pub fn decode(packed: &[u8], scales: &[u8], scale_2: f32, rows: usize, cols: usize) -> Result<Vec<f32>> {
    check(packed, scales, rows, cols)?;
    let mut out = vec![0.0; rows * cols];
    decode_unchecked(packed, scales, scale_2, cols, &mut out);
    Ok(out)
}

/// [`decode`] into a buffer of `rows * cols`.
pub fn decode_into(
    packed: &[u8],
    scales: &[u8],
    scale_2: f32,
    rows: usize,
    cols: usize,
    out: &mut [f32],
) -> Result<()> {
    check(packed, scales, rows, cols)?;
    shape::expect("nvfp4 output", "elements", out.len(), rows * cols)?;
    decode_unchecked(packed, scales, scale_2, cols, out);
    Ok(())
}

fn check(packed: &[u8], scales: &[u8], rows: usize, cols: usize) -> Result<()> {
    if !cols.is_multiple_of(2) {
        return Err(Error::input(format!(
            "fp4 weight: an odd row length {cols} cannot be packed two a byte"
        )));
    }
    let n = shape::product("nvfp4 weight", rows, cols)?;
    shape::expect("nvfp4 weight", "bytes", packed.len(), n / 2)?;
    shape::expect("nvfp4 scales", "bytes", scales.len(), rows * cols.div_ceil(BLOCK))
}

/// The loop of [`decode`]; lengths are the caller's promise (an out-of-range one panics, it is never unsound).
pub fn decode_unchecked(packed: &[u8], scales: &[u8], scale_2: f32, cols: usize, out: &mut [f32]) {
    debug_assert_eq!(2 * packed.len(), out.len());
    if cols == 0 {
        return;
    }
    let rows = packed.chunks_exact(cols / 2).zip(scales.chunks_exact(cols.div_ceil(BLOCK)));
    for ((bytes, scales), os) in rows.zip(out.chunks_exact_mut(cols)) {
        for ((bytes, &s), os) in bytes.chunks(BLOCK / 2).zip(scales).zip(os.chunks_mut(BLOCK)) {
            let s = e4m3::decode(s);
            for (o, &b) in os.chunks_exact_mut(2).zip(bytes) {
                let [lo, hi] = e2m1::PAIRS[b as usize];
                o[0] = lo * s * scale_2;
                o[1] = hi * s * scale_2;
            }
        }
    }
}

/// The block scale `sx` of activations whose largest magnitude is `amax`: `e4m3((amax/6) / input_scale)`.
#[inline]
pub fn block_scale(amax: f32, input_scale: f32) -> f32 {
    e4m3::round(amax / e2m1::MAX / input_scale)
}

/// Fake-quantises an activation row in place, blocks of 16 (the last may be shorter).
///
/// A block whose `sx` rounds to 0 becomes zeros, as in the kernels. `sx` saturates at 448, so an infinity becomes
/// `6·448·input_scale`, again as in the kernels; a NaN stays a NaN. True divisions here: kernels that use approximate
/// reciprocals differ in the last bit of a quotient, which moves a value only if it sat on a tie.
pub fn act_quant_nvfp4(row: &mut [f32], input_scale: f32) {
    for xs in row.chunks_mut(BLOCK) {
        let s = block_scale(amax(xs), input_scale);
        let d = s * input_scale;
        for x in xs {
            let q = if d == 0.0 && !x.is_nan() { 0.0f32.copysign(*x) } else { e2m1::round(*x / d) };
            *x = q * s * input_scale;
        }
    }
}

/// Packed codes and e4m3 block scale bytes of an activation row; [`decode`] with `scale_2 = input_scale` gives
/// [`act_quant_nvfp4`]'s values (a NaN cannot be stored, see [`e2m1::encode`]).
pub fn encode_nvfp4(row: &[f32], input_scale: f32) -> (Vec<u8>, Vec<u8>) {
    let mut packed = vec![0; row.len().div_ceil(2)];
    let mut scales = Vec::with_capacity(row.len().div_ceil(BLOCK));
    for (xs, ps) in row.chunks(BLOCK).zip(packed.chunks_mut(BLOCK / 2)) {
        let s = block_scale(amax(xs), input_scale);
        scales.push(e4m3::encode(s));
        let d = s * input_scale;
        for (j, &x) in xs.iter().enumerate() {
            let q =
                if d == 0.0 && !x.is_nan() { e2m1::encode(0.0f32.copysign(x)) } else { e2m1::encode(x / d) };
            ps[j / 2] |= q << (4 * (j % 2));
        }
    }
    (packed, scales)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::{e8m0, mxfp4};
    use proptest::prelude::*;

    #[test]
    fn three_factors_multiply() {
        // codes 1.0 and −6.0, block scale 1.5, tensor scale 0.5
        let got = decode(&[0xf2], &[e4m3::encode(1.5)], 0.5, 1, 2).unwrap();
        assert_eq!(got, [0.75, -4.5]);
        // 18 columns: the second block has its own scale
        let got = decode(&[0x22; 9], &[0x38, 0x40], 1.0, 1, 18).unwrap();
        assert_eq!((got[15], got[16]), (1.0, 2.0));
        assert!(decode(&[0x22], &[0x7f], 1.0, 1, 2).unwrap()[0].is_nan());
    }

    #[test]
    fn a_lossless_cast_from_mxfp4_decodes_to_the_same_numbers() {
        // exponents k of four 32-blocks, k_max = −3: scale_2 = 2^(k_max−8), weight_scale = 2^(k−k_max+8)
        let ks = [-3, -5, -12, -20];
        let packed: Vec<u8> = (0..64).map(|i| (i as u8).wrapping_mul(37)).collect();
        let mx = mxfp4::decode(&packed, &ks.map(e8m0::encode), 1, 128).unwrap();
        let scales: Vec<u8> = ks.iter().flat_map(|k| [e4m3::encode(e8m0::pow2(k + 3 + 8)); 2]).collect();
        let nv = decode(&packed, &scales, e8m0::pow2(-11), 1, 128).unwrap();
        assert_eq!(
            mx.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            nv.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        );
    }

    #[test]
    fn activations_by_hand() {
        // input_scale 0.5, amax 6: sx = e4m3(2) = 2, d = 1
        let mut x = [6.0, 0.75, -2.4, 0.1];
        act_quant_nvfp4(&mut x, 0.5);
        assert_eq!(x, [6.0, 1.0, -2.0, 0.0]);
        // amax 6.3: 2.1 → e4m3 2.0 (step 1/4), 6.3/1 saturates at 6
        let mut x = [6.3, 1.0];
        act_quant_nvfp4(&mut x, 0.5);
        assert_eq!(x, [6.0, 1.0]);
        let mut zero = [0.0, -0.0, 0.0];
        act_quant_nvfp4(&mut zero, 0.5);
        assert_eq!(zero, [0.0; 3]);
        // amax/6/scale below half of 2^-9: sx is 0, so is the block
        let mut tiny = [1e-5, f32::NAN];
        act_quant_nvfp4(&mut tiny, 1.0);
        assert!(tiny[0] == 0.0 && tiny[1].is_nan());
    }

    #[test]
    fn every_wrong_length_is_an_error_not_a_panic() {
        assert!(decode(&[0; 8], &[0x38], 1.0, 1, 16).is_ok());
        assert!(decode(&[0; 7], &[0x38], 1.0, 1, 16).is_err());
        assert!(decode(&[0; 8], &[], 1.0, 1, 16).is_err());
        assert!(decode(&[0; 8], &[0x38], 1.0, 1, 15).is_err());
        assert!(decode(&[0; 8], &[0x38], 1.0, usize::MAX, 16).is_err());
        assert!(decode_into(&[0; 8], &[0x38], 1.0, 1, 16, &mut [0.0; 15]).is_err());
        assert!(decode(&[], &[], 1.0, 7, 0).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn codes_decode_to_the_fake_quantised_row(row in prop::collection::vec(-9f32..9.0, 1..50), is in 1e-4f32..1.0) {
            let mut fake = row.clone();
            act_quant_nvfp4(&mut fake, is);
            let mut padded = row.clone();
            padded.resize(row.len().next_multiple_of(2), 0.0);
            let (p, s) = encode_nvfp4(&row, is);
            let back = decode(&p, &s, is, 1, padded.len()).unwrap();
            for i in 0..row.len() { prop_assert_eq!(fake[i].to_bits(), back[i].to_bits()); }
        }
    }
}
