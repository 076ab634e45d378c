//! MXFP4 weights: `w[o][k] = e2m1(nibble) · 2^(scale[o][k/32] − 127)`, two codes a byte along k, low nibble = even k
//! (OCP MX v1.0; DeepSeek-V4 routed experts, stored with safetensors dtype I8 and F8_E8M0 scales).

use super::act_fp4::{AMAX_FLOOR, BLOCK, Rounding, encode_fp4_into};
use super::{e2m1, e8m0, shape};
use crate::{Error, Result};

/// Decodes `[rows, cols]`: `packed` is `[rows, cols/2]`, `scales` is `[rows, ceil(cols/32)]`. `cols` must be even.
pub fn decode(packed: &[u8], scales: &[u8], rows: usize, cols: usize) -> Result<Vec<f32>> {
    check(packed, scales, rows, cols)?;
    let mut out = vec![0.0; rows * cols];
    decode_unchecked(packed, scales, cols, &mut out);
    Ok(out)
}

/// [`decode`] into a buffer of `rows * cols`.
pub fn decode_into(packed: &[u8], scales: &[u8], rows: usize, cols: usize, out: &mut [f32]) -> Result<()> {
    check(packed, scales, rows, cols)?;
    shape::expect("mxfp4 output", "elements", out.len(), rows * cols)?;
    decode_unchecked(packed, scales, cols, out);
    Ok(())
}

fn check(packed: &[u8], scales: &[u8], rows: usize, cols: usize) -> Result<()> {
    if !cols.is_multiple_of(2) {
        return Err(Error::input(format!(
            "fp4 weight: an odd row length {cols} cannot be packed two a byte"
        )));
    }
    let n = shape::product("mxfp4 weight", rows, cols)?;
    shape::expect("mxfp4 weight", "bytes", packed.len(), n / 2)?;
    shape::expect("mxfp4 scales", "bytes", scales.len(), rows * cols.div_ceil(BLOCK))
}

/// The loop of [`decode`]; lengths are the caller's promise (an out-of-range one panics, it is never unsound).
pub fn decode_unchecked(packed: &[u8], scales: &[u8], cols: usize, out: &mut [f32]) {
    debug_assert_eq!(2 * packed.len(), out.len());
    if cols == 0 {
        return;
    }
    let rows = packed.chunks_exact(cols / 2).zip(scales.chunks_exact(cols.div_ceil(BLOCK)));
    for ((bytes, scales), os) in rows.zip(out.chunks_exact_mut(cols)) {
        for ((bytes, &s), os) in bytes.chunks(BLOCK / 2).zip(scales).zip(os.chunks_mut(BLOCK)) {
            let s = e8m0::decode(s);
            for (o, &b) in os.chunks_exact_mut(2).zip(bytes) {
                let [lo, hi] = e2m1::PAIRS[b as usize];
                o[0] = lo * s;
                o[1] = hi * s;
            }
        }
    }
}

/// Quantises `[rows, cols]` by the recipe of [`act_fp4`](super::act_fp4), ties to even. Returns `(packed, scales)`.
pub fn encode(w: &[f32], rows: usize, cols: usize) -> Result<(Vec<u8>, Vec<u8>)> {
    if !cols.is_multiple_of(2) {
        return Err(Error::input(format!(
            "fp4 weight: an odd row length {cols} cannot be packed two a byte"
        )));
    }
    shape::expect("mxfp4 source", "elements", w.len(), shape::product("mxfp4 source", rows, cols)?)?;
    let groups = cols.div_ceil(BLOCK);
    let (mut packed, mut scales) = (vec![0; w.len() / 2], vec![0; if cols == 0 { 0 } else { rows * groups }]);
    if cols > 0 {
        let parts = packed.chunks_exact_mut(cols / 2).zip(scales.chunks_exact_mut(groups));
        for (row, (p, s)) in w.chunks_exact(cols).zip(parts) {
            encode_fp4_into(row, BLOCK, AMAX_FLOOR, Rounding::NearestEven, p, s);
        }
    }
    Ok((packed, scales))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_16_codes_under_two_scales_low_nibble_first() {
        // one row of 34: codes 0..=15 twice, then 7 and 15 in a block of two
        let mut packed: Vec<u8> = (0..16).map(|i| (2 * i % 16) | (2 * i % 16 + 1) << 4).collect();
        packed.push(0xf7);
        let got = decode(&packed, &[128, 0], 1, 34).unwrap();
        for k in 0..32 {
            assert_eq!(got[k].to_bits(), (2.0 * e2m1::TABLE[k % 16]).to_bits());
        }
        assert_eq!(got[32..], [6.0 * 2f32.powi(-127), -6.0 * 2f32.powi(-127)]);
        assert!(decode(&[0x11; 1], &[255], 1, 2).unwrap()[0].is_nan());
    }

    #[test]
    fn every_wrong_length_is_an_error_not_a_panic() {
        assert!(decode(&[0; 16], &[127], 1, 32).is_ok());
        assert!(decode(&[0; 15], &[127], 1, 32).is_err());
        assert!(decode(&[0; 16], &[127, 127], 1, 32).is_err());
        assert!(decode(&[0; 16], &[127], 1, 31).is_err());
        assert!(decode(&[0; 16], &[127], usize::MAX, 32).is_err());
        assert!(decode_into(&[0; 16], &[127], 1, 32, &mut [0.0; 31]).is_err());
        assert!(decode(&[], &[], 0, 32).unwrap().is_empty());
        assert!(decode(&[], &[], 5, 0).unwrap().is_empty());
        assert_eq!(encode(&[], 5, 0).unwrap(), (vec![], vec![]));
    }

    proptest! {
        #[test]
        fn encoding_decoded_values_loses_nothing(w in prop::collection::vec(-6f32..6.0, 132)) {
            let (p, s) = encode(&w, 2, 66).unwrap();
            let once = decode(&p, &s, 2, 66).unwrap();
            let (p, s) = encode(&once, 2, 66).unwrap();
            prop_assert_eq!(decode(&p, &s, 2, 66).unwrap(), once);
        }
    }
}
