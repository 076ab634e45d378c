//! Rounding whole matrices to a declared format.

use super::mat::{Mat, par_rows};
use super::values::Fmt;
use crate::numeric::{act_fp4, act_fp8, bf16, e2m1, e4m3, f16, nvfp4, scale, tf32};
use std::borrow::Cow;

/// Rounds every value of `m` to `f`, block formats along rows.
pub fn round(m: &mut Mat, f: Fmt) {
    if f == Fmt::F32 {
        return;
    }
    let cols = m.cols;
    par_rows(m, |_, rows| {
        for row in rows.chunks_exact_mut(cols) {
            round_row(row, f);
        }
    });
}

/// Rounds one row to `f`.
pub fn round_row(row: &mut [f32], f: Fmt) {
    match f {
        Fmt::F32 => {}
        Fmt::Tf32 => tf32::round_slice(row),
        Fmt::Bf16 => bf16::round_slice(row),
        Fmt::F16 => f16::round_slice(row),
        Fmt::Fp8x128 => act_fp8::act_quant_fp8(row, 128, act_fp8::AMAX_FLOOR),
        Fmt::Fp8x64 => act_fp8::act_quant_fp8(row, 64, act_fp8::AMAX_FLOOR),
        Fmt::Fp8Row => act_fp8::act_quant_fp8_f32_scale(row, row.len().max(1), act_fp8::AMAX_FLOOR),
        Fmt::Fp8RowPow2 => act_fp8::act_quant_fp8(row, row.len().max(1), act_fp8::AMAX_FLOOR),
        Fmt::E4m3 => e4m3::round_slice(row),
        Fmt::MxFp4HalfDown => act_fp4::fp4_act_quant(row, act_fp4::BLOCK, 1e-4, e2m1::Rounding::HalfDown),
        Fmt::MxFp4 => {
            act_fp4::fp4_act_quant(row, act_fp4::BLOCK, act_fp4::AMAX_FLOOR, e2m1::Rounding::NearestEven)
        }
        // The per-tensor scale of a data-derived NVFP4 encoding: amax / (6·448).
        Fmt::NvFp4 => nvfp4::act_quant_nvfp4(row, (scale::amax(row) / (6.0 * 448.0)).max(f32::MIN_POSITIVE)),
    }
}

/// `x` itself, or a rounded copy.
pub fn rounded(x: &Mat, f: Fmt) -> Cow<'_, Mat> {
    if f == Fmt::F32 {
        return Cow::Borrowed(x);
    }
    let mut m = x.clone();
    round(&mut m, f);
    Cow::Owned(m)
}
