//! Hyper-connections on the CPU: mixing weights with exact Sinkhorn order, collapse, expansion.

use super::gemm::{self, Packed};
use super::knobs::MhcKnobs;
use super::mat::{Mat, TASK_ROWS, par_rows};
use super::ops::{HcShape, Mix};
use super::simd::{self, exp, sigmoid};
use super::values::Comb;
use multiversion::multiversion;
use rayon::prelude::*;

/// Largest number of streams the mixing kernel is compiled for.
pub const MAX_STREAMS: usize = 8;

/// `μ = (fn · x)·ν` with `ν = 1/sqrt(mean(x²) + eps)` over all `S·D` inputs of a token; the
/// normalisation multiplies after the product. With `split_k > 1` the product is the ordered sum
/// of that many partial products along K.
pub fn scaled_product(x: &Mat, norm_of: &Mat, f: &Packed, s: &HcShape, split_k: usize) -> Mat {
    let mut mu = if split_k <= 1 {
        gemm::linear(x, f)
    } else {
        let full = f.unpack();
        let step = x.cols.div_ceil(split_k).max(1);
        let mut sum = Mat::zeros(x.rows, f.n);
        for k0 in (0..x.cols).step_by(step) {
            let part = gemm::linear(&columns(x, k0, step), &{
                let w = columns(&full, k0, step);
                Packed::new(w.rows, w.cols, &w.data)
            });
            for (a, b) in sum.data.iter_mut().zip(&part.data) {
                *a += b;
            }
        }
        sum
    };
    par_rows(&mut mu, |r0, rows| {
        for (r, row) in rows.chunks_exact_mut(f.n).enumerate() {
            let nu = inv_rms(norm_of.row(r0 + r), s.norm_eps);
            row.iter_mut().for_each(|v| *v = (*v as f64 * nu) as f32);
        }
    });
    mu
}

fn columns(x: &Mat, from: usize, width: usize) -> Mat {
    let to = (from + width).min(x.cols);
    let mut out = Mat::zeros(x.rows, to - from);
    for r in 0..x.rows {
        out.row_mut(r).copy_from_slice(&x.row(r)[from..to]);
    }
    out
}

/// `1/sqrt(mean(x²) + eps)`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn inv_rms(x: &[f32], eps: f32) -> f64 {
    simd::inv_rms(x, eps)
}

/// Splits `μ [n, (2+S)S]` into pre, post and the Sinkhorn-projected comb. A `μ` of width `S`
/// (the head) gives `pre` only.
pub fn mix(mu: &Mat, base: &[f32], scale: &[f32], s: &HcShape, k: &MhcKnobs) -> Mix<Mat> {
    let n = mu.rows;
    let st = s.streams;
    let iters = if k.sinkhorn_iters == 0 { s.iters } else { k.sinkhorn_iters as usize };
    let mut pre = Mat::zeros(n, st);
    let (mut post, mut comb) = (Mat::zeros(n, st), Mat::zeros(n, st * st));
    if mu.cols == st {
        for r in 0..n {
            for j in 0..st {
                pre.row_mut(r)[j] = sigmoid(mu.row(r)[j] * scale[0] + base[j]) + s.hc_eps;
            }
        }
        return Mix { pre, post: Mat::default(), comb: Mat::default() };
    }
    let finish = match st {
        1 => finish::<1>,
        2 => finish::<2>,
        3 => finish::<3>,
        4 => finish::<4>,
        5 => finish::<5>,
        6 => finish::<6>,
        7 => finish::<7>,
        8 => finish::<8>,
        _ => unreachable!("the config reader admits at most {MAX_STREAMS} streams"),
    };
    (mu.data.par_chunks(TASK_ROWS * (2 + st) * st))
        .zip(pre.data.par_chunks_mut(TASK_ROWS * st))
        .zip(post.data.par_chunks_mut(TASK_ROWS * st))
        .zip(comb.data.par_chunks_mut(TASK_ROWS * st * st))
        .for_each(|(((m, pre), post), comb)| finish(m, pre, post, comb, base, scale, s.hc_eps, iters));
    Mix { pre, post, comb }
}

/// Tokens the mixing works on at a time, one a lane. More than a vector register holds, so that
/// every step is a loop over lanes, which the compiler turns into full vectors.
const LANES: usize = TASK_ROWS;

/// The mixing weights of the tokens of one task.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn finish<const S: usize>(
    mu: &[f32],
    pre: &mut [f32],
    post: &mut [f32],
    comb: &mut [f32],
    base: &[f32],
    scale: &[f32],
    eps: f32,
    iters: usize,
) {
    let width = (2 + S) * S;
    for (group, m) in mu.chunks(LANES * width).enumerate() {
        let tokens = m.len() / width;
        let t0 = group * LANES;
        let at = |i: usize, sc: f32| -> [f32; LANES] {
            std::array::from_fn(|l| m[l.min(tokens - 1) * width + i] * sc + base[i])
        };
        let put = |out: &mut [f32], cols: usize, i: usize, v: &[f32; LANES]| {
            for l in 0..tokens {
                out[(t0 + l) * cols + i] = v[l];
            }
        };
        for j in 0..S {
            let v = at(j, scale[0]);
            put(pre, S, j, &std::array::from_fn(|l| sigmoid(v[l]) + eps));
            let v = at(S + j, scale[1]);
            put(post, S, j, &std::array::from_fn(|l| 2.0 * sigmoid(v[l])));
        }
        let mut c = [[[0f32; LANES]; S]; S];
        for (j, row) in c.iter_mut().enumerate() {
            for (k, v) in row.iter_mut().enumerate() {
                *v = at(2 * S + j * S + k, scale[2]);
            }
        }
        sinkhorn(&mut c, eps, iters);
        for (j, row) in c.iter().enumerate() {
            for (k, v) in row.iter().enumerate() {
                put(comb, S * S, j * S + k, v);
            }
        }
    }
}

/// Row softmax, `+ eps`, column normalisation, then `iters − 1` times rows and columns; every
/// normalisation divides by `sum + eps`.
#[inline(always)]
fn sinkhorn<const S: usize>(c: &mut [[[f32; LANES]; S]; S], eps: f32, iters: usize) {
    for row in c.iter_mut() {
        for l in 0..LANES {
            let mut max = row[0][l];
            for v in row.iter().skip(1) {
                max = if v[l] > max { v[l] } else { max };
            }
            let mut sum = 0.0;
            for v in row.iter_mut() {
                v[l] = exp(v[l] - max);
                sum += v[l];
            }
            for v in row.iter_mut() {
                v[l] = v[l] / sum + eps;
            }
        }
    }
    if iters <= 1 {
        return columns_normalised::<S, true>(c, eps);
    }
    columns_normalised::<S, false>(c, eps);
    for i in 1..iters {
        for row in c.iter_mut() {
            let mut sum = [eps; LANES];
            for v in row.iter() {
                for l in 0..LANES {
                    sum[l] += v[l];
                }
            }
            scaled(row.iter_mut(), sum);
        }
        if i + 1 < iters {
            columns_normalised::<S, false>(c, eps);
        } else {
            columns_normalised::<S, true>(c, eps);
        }
    }
}

/// Divides columns by `sum + eps`. Where a later step normalises again (`EXACT` false) the
/// quotient is a product with the rounded reciprocal: what the reciprocal is off by scales a whole
/// column alike, and the next normalisation takes that out.
#[inline(always)]
fn columns_normalised<const S: usize, const EXACT: bool>(c: &mut [[[f32; LANES]; S]; S], eps: f32) {
    for k in 0..S {
        let mut sum = [eps; LANES];
        for row in c.iter() {
            for l in 0..LANES {
                sum[l] += row[k][l];
            }
        }
        if EXACT {
            for row in c.iter_mut() {
                for l in 0..LANES {
                    row[k][l] /= sum[l];
                }
            }
        } else {
            scaled(c.iter_mut().map(|row| &mut row[k]), sum);
        }
    }
}

/// Multiplies by the reciprocal of `sum`.
#[inline(always)]
fn scaled<'a>(values: impl Iterator<Item = &'a mut [f32; LANES]>, sum: [f32; LANES]) {
    let r = sum.map(|s| 1.0 / s);
    for v in values {
        for l in 0..LANES {
            v[l] *= r[l];
        }
    }
}

/// `Σ_j pre_j · x_j`, summed over j in ascending order.
pub fn collapse(x: &Mat, pre: &Mat, s: &HcShape) -> Mat {
    let mut y = Mat::zeros(x.rows, s.hidden);
    par_rows(&mut y, |r0, rows| {
        for (r, out) in rows.chunks_exact_mut(s.hidden).enumerate() {
            weighted(out, pre.row(r0 + r), x.row(r0 + r), s.hidden);
        }
    });
    y
}

/// `out = Σ_j w_j · x[j·d..]`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn weighted(out: &mut [f32], w: &[f32], x: &[f32], d: usize) {
    for (v, a) in out.iter_mut().zip(&x[..d]) {
        *v = w[0] * a;
    }
    for j in 1..w.len() {
        for (v, a) in out.iter_mut().zip(&x[j * d..(j + 1) * d]) {
            *v = w[j].mul_add(*a, *v);
        }
    }
}

/// `x'_k = post_k · y + Σ_j C[j,k] · x_j`, contracted over the first index of `C`, in place.
pub fn expand(x: &mut Mat, mix: &Mix<Mat>, y: &Mat, s: &HcShape, k: &MhcKnobs) {
    let (st, d) = (s.streams, s.hidden);
    par_rows(x, |r0, rows| {
        let mut before = vec![0f32; st * d];
        for (r, row) in rows.chunks_exact_mut(st * d).enumerate() {
            before.copy_from_slice(row);
            let t = r0 + r;
            let c = mix.comb.row(t);
            for (kk, out) in row.chunks_exact_mut(d).enumerate() {
                let mut w = [0f32; MAX_STREAMS];
                for j in 0..st {
                    w[j] = if k.comb == Comb::Exact { c[j * st + kk] } else { c[kk * st + j] };
                }
                add_output(out, mix.post.row(t)[kk], y.row(t), &w[..st], &before);
            }
        }
    });
}

/// `out = post · y + Σ_j w_j · x_j`, a vector of columns at a time.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn add_output(out: &mut [f32], post: f32, y: &[f32], w: &[f32], x: &[f32]) {
    let d = out.len();
    match w {
        // The streams of every released model: one pass over the row.
        &[w0, w1, w2, w3] => {
            let (a, b, c, e) = (&x[..d], &x[d..2 * d], &x[2 * d..3 * d], &x[3 * d..4 * d]);
            for i in 0..d {
                let v = w1.mul_add(b[i], w0.mul_add(a[i], post * y[i]));
                out[i] = w3.mul_add(e[i], w2.mul_add(c[i], v));
            }
        }
        _ => {
            for (v, a) in out.iter_mut().zip(y) {
                *v = post * a;
            }
            for (w, x) in w.iter().zip(x.chunks_exact(d)) {
                out.iter_mut().zip(x).for_each(|(v, a)| *v = w.mul_add(*a, *v));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> HcShape {
        HcShape { streams: 4, hidden: 1, iters: 20, norm_eps: 1e-6, hc_eps: 1e-6 }
    }

    fn close(got: &[f32], want: &[f64]) {
        for (g, w) in got.iter().zip(want) {
            assert!((*g as f64 - w).abs() < 2e-7, "{got:?} vs {want:?}");
        }
    }

    /// Catches a Sinkhorn with another order, eps placement or iteration count, and pre/post with
    /// a wrong eps or factor: values of the architecture's worked example.
    #[test]
    fn mixing_weights_match_the_worked_example() {
        let mu: Vec<f32> = (0..24).map(|i| (((7 * i) % 24) as f32 - 12.0) / 8.0).collect();
        let m = Mat::new(1, 24, mu);
        let k = MhcKnobs::default();
        let x = mix(&m, &[0.0; 24], &[1.0; 3], &shape(), &k);
        close(&x.pre.data, &[0.18242653, 0.34864613, 0.56217754, 0.75491601]);
        close(&x.post.data, &[0.53788286, 0.93758124, 1.35835743, 0.40362644]);
        close(&x.comb.data[..4], &[0.09121334, 0.14914680, 0.66842532, 0.09121355]);
        close(&x.comb.data[4..8], &[0.24999960, 0.40878633, 0.09121344, 0.24999966]);
        close(&x.comb.data[12..], &[0.40878648, 0.03327959, 0.14914672, 0.40878618]);
        for (iters, want) in [
            (1, [0.09801783, 0.17436510, 0.68579555, 0.09801805]),
            (2, [0.09395446, 0.15523571, 0.67561710, 0.09395470]),
            (5, [0.09131153, 0.14930475, 0.66868776, 0.09131176]),
        ] {
            let y = mix(&m, &[0.0; 24], &[1.0; 3], &HcShape { iters, ..shape() }, &k);
            close(&y.comb.data[..4], &want);
        }
        let base: Vec<f32> = (0..24).map(|i| -1.0 + 2.0 * i as f32 / 23.0).collect();
        let z = mix(&m, &base, &[0.5, 0.25, 2.0], &shape(), &k);
        close(&z.pre.data, &[0.14804819, 0.22696336, 0.33157229, 0.45595783]);
        close(&z.post.data, &[0.57720792, 0.71030462, 0.85563517, 0.64817315]);
        close(&z.comb.data[..4], &[0.02375117, 0.04524703, 0.90752745, 0.02375179]);
    }

    /// Catches a contraction over the second index.
    #[test]
    fn expansion_contracts_the_first_index() {
        let s = HcShape { streams: 2, hidden: 1, iters: 1, norm_eps: 0.0, hc_eps: 0.0 };
        let m = Mix {
            pre: Mat::zeros(1, 2),
            post: Mat::new(1, 2, vec![10.0, 20.0]),
            comb: Mat::new(1, 4, vec![1.0, 2.0, 3.0, 4.0]),
        };
        let x = Mat::new(1, 2, vec![0.5, 0.25]);
        let y = Mat::new(1, 1, vec![1.0]);
        let k = MhcKnobs::default();
        let expanded = |k: &MhcKnobs| {
            let mut x = x.clone();
            expand(&mut x, &m, &y, &s, k);
            x.data
        };
        assert_eq!(expanded(&k), vec![10.0 + 0.5 + 0.75, 20.0 + 1.0 + 1.0]);
        let t = MhcKnobs { comb: Comb::Transposed, ..k };
        assert_eq!(expanded(&t), vec![10.0 + 0.5 + 0.5, 20.0 + 1.5 + 1.0]);
    }

    /// Catches a token whose result depends on its neighbours in the vector.
    #[test]
    fn a_token_has_the_same_bits_alone_and_in_a_batch() {
        let mu = Mat::new(37, 24, (0..37 * 24).map(|i| ((i * 37 % 101) as f32 - 50.0) / 20.0).collect());
        let k = MhcKnobs::default();
        let all = mix(&mu, &[0.1; 24], &[1.0; 3], &shape(), &k);
        for r in 0..37 {
            let one = mix(&mu.slice(r, r + 1), &[0.1; 24], &[1.0; 3], &shape(), &k);
            assert_eq!(one.comb.data, all.comb.row(r));
            assert_eq!(one.pre.data, all.pre.row(r));
        }
    }
}
