//! RMS norm over rows and over heads.

use super::mat::{Mat, par_rows};
use super::simd::inv_rms;
use multiversion::multiversion;

/// `w · x / sqrt(mean(x²) + eps)` for every row.
pub fn rms_norm(x: &Mat, weight: &[f32], eps: f32) -> Mat {
    assert_eq!(x.cols, weight.len());
    let mut y = Mat::zeros(x.rows, x.cols);
    par_rows(&mut y, |r0, rows| {
        for (r, out) in rows.chunks_exact_mut(x.cols).enumerate() {
            norm_into(out, x.row(r0 + r), weight, eps);
        }
    });
    y
}

/// RMS norm without weight of each of `heads` parts of every row, in place.
pub fn head_norm(x: &mut Mat, heads: usize, eps: f32) {
    let (cols, dim) = (x.cols, x.cols / heads);
    par_rows(x, |_, rows| {
        for row in rows.chunks_exact_mut(cols) {
            for head in row.chunks_exact_mut(dim) {
                scale_in_place(head, eps);
            }
        }
    });
}

/// The norm of one vector written to `out`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn norm_into(out: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
    let r = inv_rms(x, eps);
    for ((o, x), w) in out.iter_mut().zip(x).zip(weight) {
        *o = (*w as f64 * (*x as f64 * r)) as f32;
    }
}

/// The norm of one vector, in place.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub fn norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let r = inv_rms(x, eps);
    for (x, w) in x.iter_mut().zip(weight) {
        *x = (*w as f64 * (*x as f64 * r)) as f32;
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn scale_in_place(x: &mut [f32], eps: f32) {
    let r = inv_rms(x, eps);
    x.iter_mut().for_each(|v| *v = (*v as f64 * r) as f32);
}
