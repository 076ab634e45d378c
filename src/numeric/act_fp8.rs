//! FP8 (e4m3) quantisation of activation rows, block by block along the row.
//!
//! `amax = max(max|x|, floor)`, `s` from `amax` by a [`ScaleRule`], `q = e4m3(x / s)`. The fake-quantised value is
//! `q·s`. With a power-of-two `s` the product is exact, and is a bf16 value too. The last block may be shorter.

use super::scale::{ScaleRule, amax, exponent_byte, pow2_exponent};
use super::{e4m3, e8m0};

/// The floor under `amax` in the DeepSeek reference and in the fused kernels. It bounds `s` from below by 2^-22.
pub const AMAX_FLOOR: f32 = 1e-4;
/// Block length along the input of a linear layer.
pub const LINEAR_BLOCK: usize = 128;
/// Block length along a KV cache entry (its non-rope part).
pub const KV_BLOCK: usize = 64;

/// Fake-quantises `row` in place with power-of-two scales (see the module's formula). `block > 0`.
/// A NaN stays a NaN; an infinity makes its whole block NaN, as `0 · inf` does in the kernels.
pub fn act_quant_fp8(row: &mut [f32], block: usize, amax_floor: f32) {
    act_quant_fp8_with(row, block, amax_floor, ScaleRule::Pow2);
}

/// [`act_quant_fp8`] with an f32 scale, `s = max(amax_floor, amax) / 448`: `q = e4m3(x / s)`, result `fl32(q·s)`.
pub fn act_quant_fp8_f32_scale(row: &mut [f32], block: usize, amax_floor: f32) {
    act_quant_fp8_with(row, block, amax_floor, ScaleRule::F32);
}

/// [`act_quant_fp8`] under any scale rule.
pub fn act_quant_fp8_with(row: &mut [f32], block: usize, amax_floor: f32, rule: ScaleRule) {
    for xs in row.chunks_mut(block) {
        let a = amax(xs);
        if rule == ScaleRule::F32 {
            let s = a.max(amax_floor) / e4m3::MAX;
            for x in xs {
                *x = e4m3::round(*x / s) * s;
            }
        } else {
            let k = pow2_exponent(a, amax_floor, e4m3::MAX, rule == ScaleRule::Pow2Divide);
            let (s, inv) = (e8m0::decode(exponent_byte(k)), e8m0::pow2(-k));
            for x in xs {
                *x = e4m3::round(*x * inv) * s;
            }
        }
    }
}

/// The codes and E8M0 scale bytes of `row`, one scale a block. Decoding them gives [`act_quant_fp8`]'s values.
pub fn encode_fp8(row: &[f32], block: usize, amax_floor: f32) -> (Vec<u8>, Vec<u8>) {
    let (mut codes, mut scales) = (vec![0; row.len()], vec![0; row.len().div_ceil(block)]);
    encode_fp8_into(row, block, amax_floor, &mut codes, &mut scales);
    (codes, scales)
}

/// [`encode_fp8`] into a cache's own bytes: `codes` as long as `row`, `scales` one byte a block.
pub fn encode_fp8_into(row: &[f32], block: usize, amax_floor: f32, codes: &mut [u8], scales: &mut [u8]) {
    debug_assert_eq!((codes.len(), scales.len()), (row.len(), row.len().div_ceil(block)));
    for ((xs, cs), s) in row.chunks(block).zip(codes.chunks_mut(block)).zip(scales) {
        let k = pow2_exponent(amax(xs), amax_floor, e4m3::MAX, false);
        *s = exponent_byte(k);
        let inv = e8m0::pow2(-k);
        for (c, &x) in cs.iter_mut().zip(xs) {
            *c = e4m3::encode(x * inv);
        }
    }
}

/// The codes and f32 scales of `row`. Decoding them gives [`act_quant_fp8_f32_scale`]'s values.
pub fn encode_fp8_f32_scale(row: &[f32], block: usize, amax_floor: f32) -> (Vec<u8>, Vec<f32>) {
    let mut codes = Vec::with_capacity(row.len());
    let mut scales = Vec::with_capacity(row.len().div_ceil(block));
    for xs in row.chunks(block) {
        let s = amax(xs).max(amax_floor) / e4m3::MAX;
        scales.push(s);
        codes.extend(xs.iter().map(|&x| e4m3::encode(x / s)));
    }
    (codes, scales)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::bf16;
    use proptest::prelude::*;

    #[test]
    fn a_hand_computed_block() {
        // amax 449 → s = 2: 449/2 = 224.5 → 224 (step 16 in [128, 256)); 3/2 = 1.5; 0.3/2 = 0.15 → 0.15625 (step 1/64)
        let mut x = [449.0, -3.0, 0.3, 0.0];
        act_quant_fp8(&mut x, 128, AMAX_FLOOR);
        assert_eq!(x, [448.0, -3.0, 0.3125, 0.0]);
        assert_eq!(
            encode_fp8(&[449.0, -3.0, 0.3, 0.0], 128, AMAX_FLOOR),
            (vec![0x76, 0xbc, 0x22, 0x00], vec![128])
        );
    }

    #[test]
    fn f32_scale_puts_amax_on_448_exactly() {
        // s = 7/448 = 2^-6; a scale that is no power of two: 3/448
        let mut x = [3.0, 1.0];
        act_quant_fp8_f32_scale(&mut x, 2, AMAX_FLOOR);
        let s = 3.0f32 / 448.0;
        assert_eq!(x, [448.0 * s, 144.0 * s]); // 1/s = 149.33 → 144 (step 16)
        let (codes, scales) = encode_fp8_f32_scale(&[0.0; 3], 2, AMAX_FLOOR);
        assert_eq!((codes, scales), (vec![0; 3], vec![1e-4 / 448.0; 2]));
    }

    #[test]
    fn blocks_are_separate_and_the_last_may_be_short() {
        let mut x = [448.0, 0.001, 0.001];
        act_quant_fp8(&mut x, 2, AMAX_FLOOR);
        assert_eq!(x[1], 1.0 / 512.0); // s = 1: the step is 2^-9 and 0.001 lies above half of it
        assert!((x[2] - 0.001).abs() <= 0.001 / 16.0);
        assert_eq!(encode_fp8(&[0.0; 5], 2, AMAX_FLOOR).1, vec![105; 3]); // all-zero block: 2^-22
    }

    #[test]
    fn non_finite_stays_visible() {
        let mut x = [1.0, f32::NAN, 2.0];
        act_quant_fp8(&mut x, 3, AMAX_FLOOR);
        assert!(x[0] == 1.0 && x[1].is_nan() && x[2] == 2.0);
        for rule in [ScaleRule::Pow2, ScaleRule::F32] {
            let mut x = [1.0, f32::INFINITY];
            act_quant_fp8_with(&mut x, 2, AMAX_FLOOR, rule);
            assert!(x.iter().all(|v| v.is_nan()));
        }
    }

    proptest! {
        #[test]
        fn codes_decode_to_the_fake_quantised_row(
            row in prop::collection::vec(-1000f32..1000.0, 1..200), block in 1usize..70, shift in -40i32..20,
        ) {
            let row: Vec<f32> = row.iter().map(|x| x * e8m0::pow2(shift)).collect();
            let mut fake = row.clone();
            act_quant_fp8(&mut fake, block, AMAX_FLOOR);
            let (codes, scales) = encode_fp8(&row, block, AMAX_FLOOR);
            for i in 0..row.len() {
                let s = e8m0::decode(scales[i / block]);
                prop_assert_eq!(fake[i].to_bits(), (e4m3::decode(codes[i]) * s).to_bits());
                prop_assert!(bf16::is_representable(fake[i]));
                // half a step of e4m3: relative in the normal range, absolute 2^-10·s below it
                let bound = (row[i].abs() / 16.0).max(s / 1024.0);
                prop_assert!((fake[i] - row[i]).abs() <= bound);
            }
            let once = fake.clone();
            act_quant_fp8(&mut fake, block, AMAX_FLOOR);
            prop_assert_eq!(once, fake);

            let mut fake = row.clone();
            act_quant_fp8_f32_scale(&mut fake, block, AMAX_FLOOR);
            let (codes, scales) = encode_fp8_f32_scale(&row, block, AMAX_FLOOR);
            for i in 0..row.len() {
                prop_assert_eq!(fake[i].to_bits(), (e4m3::decode(codes[i]) * scales[i / block]).to_bits());
            }
        }
    }
}
