//! Stored bytes → f32, in parallel for large tensors, refusing what is not a finite number.

use std::ops::Range;

use rayon::prelude::*;

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
    /// E4M3 with one scale per block of `rows` x `cols`.
    Fp8 {
        scales: Scales<'a>,
        rows: usize,
        cols: usize,
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

/// Block scales, row-major.
#[derive(Clone, Copy)]
pub(super) enum Scales<'a> {
    E8m0(&'a [u8]),
    F32(&'a [u8]),
}

impl Scales<'_> {
    fn get(&self, i: usize) -> f32 {
        match self {
            Scales::E8m0(b) => e8m0(b[i]),
            Scales::F32(b) => f32::from_le_bytes(b[4 * i..4 * i + 4].try_into().expect("four bytes")),
        }
    }
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
        Form::F16 => {
            for (o, b) in out.iter_mut().zip(wide(2).as_chunks::<2>().0) {
                *o = half::f16::from_le_bytes(*b).to_f32();
            }
        }
        Form::Bf16 => {
            for (o, b) in out.iter_mut().zip(wide(2).as_chunks::<2>().0) {
                *o = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
            }
        }
        Form::Fp8 { scales, rows: block_rows, cols: block_cols } => {
            let per_row = cols.div_ceil(*block_cols);
            for (r, line) in out.chunks_mut(cols).enumerate() {
                let codes = &src.data[(row + r) * cols..][..cols];
                let first = (row + r) / block_rows * per_row;
                for (b, (o, c)) in line.chunks_mut(*block_cols).zip(codes.chunks(*block_cols)).enumerate() {
                    let s = scales.get(first + b);
                    for (o, c) in o.iter_mut().zip(c) {
                        *o = E4M3[*c as usize] * s;
                    }
                }
            }
        }
        Form::Mx { scales } => {
            let per_row = cols.div_ceil(32);
            for (r, line) in out.chunks_mut(cols).enumerate() {
                let s = &scales[(row + r) * per_row..][..per_row];
                fp4_row(&src.data[(row + r) * (cols / 2)..], line, 32, |b| e8m0(s[b]));
            }
        }
        Form::Nv { scales, global } => {
            let per_row = cols.div_ceil(16);
            for (r, line) in out.chunks_mut(cols).enumerate() {
                let s = &scales[(row + r) * per_row..][..per_row];
                fp4_row(&src.data[(row + r) * (cols / 2)..], line, 16, |b| E4M3[s[b] as usize] * global);
            }
        }
    }
}

/// One row of packed FP4: the low nibble is the even element.
fn fp4_row(packed: &[u8], out: &mut [f32], block: usize, scale: impl Fn(usize) -> f32) {
    for (b, (o, bytes)) in out.chunks_mut(block).zip(packed.chunks(block / 2)).enumerate() {
        let s = scale(b);
        for (pair, byte) in o.chunks_exact_mut(2).zip(bytes) {
            pair[0] = E2M1[(byte & 15) as usize] * s;
            pair[1] = E2M1[(byte >> 4) as usize] * s;
        }
    }
}

fn e8m0(b: u8) -> f32 {
    match b {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        b => f32::from_bits(u32::from(b) << 23),
    }
}

static E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

static E4M3: [f32; 256] = {
    let mut t = [0.0; 256];
    let mut i = 0;
    while i < 256 {
        let (e, m) = ((i >> 3) & 15, (i & 7) as f32);
        let magnitude = if i & 127 == 127 {
            f32::NAN
        } else if e == 0 {
            m / 512.0
        } else {
            f32::from_bits(((e as u32) + 120) << 23) * (1.0 + m / 8.0)
        };
        t[i] = if i & 128 == 0 { magnitude } else { -magnitude };
        i += 1;
    }
    t
};
