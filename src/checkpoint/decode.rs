//! Stored bytes → f32, in parallel for large tensors, refusing what is not a finite number.

use std::ops::Range;

use rayon::prelude::*;

use crate::numeric::fp8_block::{self, Scales};
use crate::numeric::{act_fp4, bf16, f16, mxfp4, nvfp4};

/// A tensor's bytes and how to read them. Lengths have been checked against the shape.
pub(super) struct Source<'a> {
    /// Rows as the outermost dimension; the rest is flattened into columns.
    pub cols: usize,
    pub data: &'a [u8],
    pub form: Form<'a>,
}

/// How elements are stored.
pub(super) enum Form<'a> {
    F64,
    F32,
    F16,
    Bf16,
    /// E4M3 with one scale per block of rows x columns.
    Fp8 {
        scales: Scales<'a>,
        block: [usize; 2],
    },
    /// Packed E2M1 with one E8M0 scale per 32 columns.
    Mx {
        scales: &'a [u8],
    },
    /// Packed E2M1 with one E4M3 scale per 16 columns and a scale of the tensor.
    Nv {
        scales: &'a [u8],
        global: f32,
    },
}

/// Elements below which threads cost more than they save.
const CHUNK: usize = 1 << 16;

/// Decodes `rows`. `Err` is the first element (counted from the start of the range) that is NaN or infinite, and its value.
pub(super) fn decode(src: &Source, rows: Range<usize>) -> Result<Vec<f32>, (usize, f32)> {
    let cols = src.cols.max(1);
    let mut out = vec![0f32; rows.len() * src.cols];
    let step = CHUNK.div_ceil(cols) * cols;
    let piece = |(i, chunk): (usize, &mut [f32])| -> Option<(usize, f32)> {
        decode_rows(src, rows.start + i * step / cols, chunk);
        let bad = chunk.iter().position(|x| !x.is_finite())?;
        Some((i * step + bad, chunk[bad]))
    };
    let bad = if out.len() <= step {
        out.chunks_mut(step).enumerate().find_map(piece)
    } else {
        out.par_chunks_mut(step).enumerate().filter_map(piece).min_by_key(|(i, _)| *i)
    };
    match bad {
        Some(at) => Err(at),
        None => Ok(out),
    }
}

/// Decodes whole rows, starting at `row`, into `out`.
fn decode_rows(src: &Source, row: usize, out: &mut [f32]) {
    let cols = src.cols;
    let n = out.len();
    let wide = |size: usize| &src.data[row * cols * size..][..n * size];
    match &src.form {
        Form::F64 => {
            for (o, b) in out.iter_mut().zip(wide(8).as_chunks::<8>().0) {
                *o = f64::from_le_bytes(*b) as f32;
            }
        }
        Form::F32 => {
            for (o, b) in out.iter_mut().zip(wide(4).as_chunks::<4>().0) {
                *o = f32::from_le_bytes(*b);
            }
        }
        Form::F16 => f16::decode_le(wide(2), out),
        Form::Bf16 => bf16::decode_le(wide(2), out),
        Form::Fp8 { scales, block } => fp8_rows(src.data, *scales, *block, row, cols, out),
        Form::Mx { scales } => {
            let per_row = cols.div_ceil(act_fp4::BLOCK);
            let packed = &src.data[row * (cols / 2)..][..n / 2];
            mxfp4::decode_unchecked(packed, &scales[row * per_row..], cols, out);
        }
        Form::Nv { scales, global } => {
            let per_row = cols.div_ceil(nvfp4::BLOCK);
            let packed = &src.data[row * (cols / 2)..][..n / 2];
            nvfp4::decode_unchecked(packed, &scales[row * per_row..], *global, cols, out);
        }
    }
}

/// FP8 rows from any row on: block rows are decoded one by one, as the first may be entered in its middle.
fn fp8_rows(data: &[u8], scales: Scales, block: [usize; 2], row: usize, cols: usize, out: &mut [f32]) {
    let per_row = cols.div_ceil(block[1]);
    let (mut row, mut out) = (row, out);
    while !out.is_empty() {
        let rows = (block[0] - row % block[0]).min(out.len() / cols);
        let (now, later) = out.split_at_mut(rows * cols);
        let first = row / block[0] * per_row;
        let scales = match scales {
            Scales::E8m0(b) => Scales::E8m0(&b[first..]),
            Scales::F32(b) => Scales::F32(&b[4 * first..]),
        };
        fp8_block::decode_unchecked(&data[row * cols..][..rows * cols], scales, cols, block, now);
        row += rows;
        out = later;
    }
}
