//! FP4 (e2m1) quantisation of activation rows with power-of-two block scales (the MXFP4 recipe).
//!
//! `amax = max(max|x|, floor)`, `s = 2^⌈log2(amax/6)⌉`, `q = e2m1(x / s)`; the fake-quantised value `q·s` is exact
//! in f32 and is a bf16 value. The last block may be shorter.

use super::scale::{amax, exponent_byte, pow2_exponent};
use super::{e2m1, e8m0};

pub use super::e2m1::Rounding;

/// Block length of MXFP4.
pub const BLOCK: usize = 32;
/// The DeepSeek reference's floor under `amax`, `6·2^-126`: the smallest scale is 2^-126.
pub const AMAX_FLOOR: f32 = 6.0 * e8m0::pow2(-126);

/// Fake-quantises `row` in place. `block > 0`; pass [`BLOCK`], [`AMAX_FLOOR`] and
/// [`Rounding::NearestEven`] for the reference, a floor of 1e-4 and [`Rounding::HalfDown`] for SGLang's fused kernels.
/// A NaN stays a NaN; an infinity makes its whole block NaN.
pub fn fp4_act_quant(row: &mut [f32], block: usize, amax_floor: f32, rounding: Rounding) {
    for xs in row.chunks_mut(block) {
        let k = pow2_exponent(amax(xs), amax_floor, e2m1::MAX, false);
        let (s, inv) = (e8m0::decode(exponent_byte(k)), e8m0::pow2(-k));
        for x in xs {
            *x = e2m1::round_with(*x * inv, rounding) * s;
        }
    }
}

/// Packed codes (low nibble = even index) and E8M0 scale bytes of `row`, one scale a block.
/// Decoding them gives [`fp4_act_quant`]'s values, except that a NaN cannot be stored (see [`e2m1::encode`]).
pub fn encode_fp4(row: &[f32], block: usize, amax_floor: f32, rounding: Rounding) -> (Vec<u8>, Vec<u8>) {
    let (mut packed, mut scales) = (vec![0; row.len().div_ceil(2)], vec![0; row.len().div_ceil(block)]);
    encode_fp4_into(row, block, amax_floor, rounding, &mut packed, &mut scales);
    (packed, scales)
}

/// [`encode_fp4`] into a cache's own bytes: `packed` holds `ceil(row / 2)`, `scales` one byte a block.
pub fn encode_fp4_into(
    row: &[f32],
    block: usize,
    amax_floor: f32,
    rounding: Rounding,
    packed: &mut [u8],
    scales: &mut [u8],
) {
    debug_assert_eq!((packed.len(), scales.len()), (row.len().div_ceil(2), row.len().div_ceil(block)));
    packed.fill(0);
    for (b, (xs, s)) in row.chunks(block).zip(scales).enumerate() {
        let k = pow2_exponent(amax(xs), amax_floor, e2m1::MAX, false);
        *s = exponent_byte(k);
        let inv = e8m0::pow2(-k);
        for (j, &x) in xs.iter().enumerate() {
            let i = b * block + j;
            packed[i / 2] |= e2m1::encode_with(x * inv, rounding) << (4 * (i % 2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::bf16;
    use proptest::prelude::*;

    #[test]
    fn a_hand_computed_block_under_both_roundings() {
        // amax 6 → s = 1
        let row = [6.0, 0.75, -1.75, 3.5, -0.25, 2.4];
        let mut even = row;
        fp4_act_quant(&mut even, BLOCK, AMAX_FLOOR, Rounding::NearestEven);
        assert_eq!(even, [6.0, 1.0, -2.0, 4.0, -0.0, 2.0]);
        assert!(even[4].is_sign_negative());
        let mut down = row;
        fp4_act_quant(&mut down, BLOCK, AMAX_FLOOR, Rounding::HalfDown);
        assert_eq!(down, [6.0, 0.5, -1.5, 3.0, 0.0, 2.0]);
        assert!(down[4].is_sign_positive());
        // codes 7 2 | 12 6 | 8 4, even index low
        assert_eq!(
            encode_fp4(&row, BLOCK, AMAX_FLOOR, Rounding::NearestEven),
            (vec![0x27, 0x6c, 0x48], vec![127])
        );
    }

    #[test]
    fn the_floors_and_zero_blocks() {
        assert_eq!(encode_fp4(&[0.0; 33], 32, AMAX_FLOOR, Rounding::NearestEven), (vec![0; 17], vec![1, 1]));
        // 1e-4/6 = 1.67e-5, between 2^-16 and 2^-15
        assert_eq!(encode_fp4(&[1e-6], 32, 1e-4, Rounding::HalfDown), (vec![0], vec![127 - 15]));
        let mut tiny = [3.0 * e8m0::pow2(-126), e8m0::pow2(-127)];
        let before = tiny;
        fp4_act_quant(&mut tiny, 32, AMAX_FLOOR, Rounding::NearestEven);
        assert_eq!(tiny, before);
        let mut bad = [1.0, f32::NAN];
        fp4_act_quant(&mut bad, 2, AMAX_FLOOR, Rounding::NearestEven);
        assert!(bad[0] == 1.0 && bad[1].is_nan());
    }

    proptest! {
        #[test]
        fn codes_decode_to_the_fake_quantised_row(
            row in prop::collection::vec(-10f32..10.0, 1..150), block in 1usize..40, down in any::<bool>(),
        ) {
            let rounding = if down { Rounding::HalfDown } else { Rounding::NearestEven };
            let mut fake = row.clone();
            fp4_act_quant(&mut fake, block, AMAX_FLOOR, rounding);
            let (packed, scales) = encode_fp4(&row, block, AMAX_FLOOR, rounding);
            for i in 0..row.len() {
                let s = e8m0::decode(scales[i / block]);
                let v = e2m1::decode(packed[i / 2] >> (4 * (i % 2))) * s;
                prop_assert_eq!(fake[i].to_bits(), v.to_bits());
                prop_assert!(bf16::is_representable(v));
                prop_assert!((v - row[i]).abs() <= s); // the widest step, 4 to 6, is 2s
            }
        }
    }
}
