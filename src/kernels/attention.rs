//! Exact attention: one shared key/value latent, window and compressed entries, sink.

use super::mat::{Index, Mat};
use super::ops::AttnShape;
use super::qk::scores;
use super::simd::{LANES, exp, tree_sum};
use super::values::Window;
use multiversion::multiversion;
use rayon::prelude::*;

/// Tokens a task works on; each token is independent.
const TASK_TOKENS: usize = 16;

/// First window position that position `t` may see.
pub fn window_start(t: usize, window: usize, choice: Window) -> usize {
    match choice {
        Window::Exact | Window::OneFuture => (t + 1).saturating_sub(window),
        Window::OneShort => (t + 1).saturating_sub(window.saturating_sub(1).max(1)),
        Window::OneLong => (t + 1).saturating_sub(window + 1),
        Window::Unlimited => 0,
    }
}

/// The positions that position `t` may see, of `n` that are held.
pub fn window_positions(t: usize, window: usize, choice: Window, n: usize) -> std::ops::Range<usize> {
    let end = if choice == Window::OneFuture { t + 2 } else { t + 1 };
    window_start(t, window, choice)..end.min(n)
}

/// The key rows of one token: window first, oldest to newest, then compressed entries.
pub fn key_rows<'a>(
    keys: &mut Vec<&'a [f32]>,
    t: usize,
    kv: &'a Mat,
    comp: &'a Mat,
    chosen: Option<&[i32]>,
    s: &AttnShape,
    window: Window,
    compressed: bool,
) {
    keys.clear();
    keys.extend(window_positions(t, s.window, window, kv.rows).map(|p| kv.row(p)));
    if s.ratio == 0 || !compressed {
        return;
    }
    match chosen {
        Some(ids) => keys.extend(ids.iter().filter(|&&j| j >= 0).map(|&j| comp.row(j as usize))),
        None => keys.extend((0..((t + 1) / s.ratio).min(comp.rows)).map(|j| comp.row(j))),
    }
}

/// Exact attention in f32. Softmax is taken over keys and sink together with the sink inside the
/// maximum; the sink adds to the denominator only. Returns output `[n, H·C]` and LSE `[n, H]`.
pub fn attention(
    q: &Mat,
    kv: &Mat,
    comp: &Mat,
    index: Option<&Index>,
    pos0: usize,
    s: &AttnShape,
    window: Window,
    compressed: bool,
) -> (Mat, Mat) {
    let width = s.heads * s.dim;
    let mut out = Mat::zeros(q.rows, width);
    let mut lse = Mat::zeros(q.rows, s.heads);
    let scale = 1.0 / (s.dim as f32).sqrt();
    out.data
        .par_chunks_mut(TASK_TOKENS * width)
        .zip(lse.data.par_chunks_mut(TASK_TOKENS * s.heads))
        .enumerate()
        .for_each(|(task, (o, l))| {
            let mut keys = Vec::new();
            let mut p = Vec::new();
            for (i, (o, l)) in o.chunks_exact_mut(width).zip(l.chunks_exact_mut(s.heads)).enumerate() {
                let r = task * TASK_TOKENS + i;
                let chosen = index.map(|x| x.row(r));
                key_rows(&mut keys, pos0 + r, kv, comp, chosen, s, window, compressed);
                // Rows of whole vectors; scores of −inf beyond the last key add nothing.
                let n = keys.len().next_multiple_of(LANES);
                p.resize(s.heads * n, 0.0);
                scores(q.row(r), &keys, s.dim, scale, n, &mut p);
                one_token(&mut p, &keys, s.heads, s.dim, s.sinks, o, l);
            }
        });
    (out, lse)
}

/// Softmax of the scores `p` (a row a head) with the sinks, and the weighted sums of the keys.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn one_token(
    p: &mut [f32],
    keys: &[&[f32]],
    heads: usize,
    dim: usize,
    sinks: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
) {
    let n = p.len() / heads;
    for h in 0..heads {
        let row = p[h * n..(h + 1) * n].as_chunks_mut::<LANES>().0;
        let mut max = [sinks[h]; LANES];
        for v in row.iter() {
            for i in 0..LANES {
                max[i] = if v[i] > max[i] { v[i] } else { max[i] };
            }
        }
        let m = max.iter().fold(sinks[h], |m, v| if *v > m { *v } else { m });
        let mut lanes = [0f32; LANES];
        for v in row.iter_mut() {
            for i in 0..LANES {
                v[i] = exp(v[i] - m);
                lanes[i] += v[i];
            }
        }
        let sum = tree_sum(lanes) + exp(sinks[h] - m);
        lse[h] = m + sum.ln();
        row.iter_mut().flatten().for_each(|v| *v /= sum);
    }
    let mut h = 0;
    while h + 4 <= heads {
        weighted_sum::<4>(p, n, h, keys, dim, out);
        h += 4;
    }
    while h < heads {
        weighted_sum::<1>(p, n, h, keys, dim, out);
        h += 1;
    }
}

/// `out[h] = Σ_j p[h,j] · key_j` for `H` heads from `h0`, in ascending `j`.
#[inline(always)]
fn weighted_sum<const H: usize>(
    p: &[f32],
    n: usize,
    h0: usize,
    keys: &[&[f32]],
    dim: usize,
    out: &mut [f32],
) {
    const W: usize = 64;
    let full = dim / W * W;
    for c in (0..full).step_by(W) {
        let mut acc = [[0f32; W]; H];
        for (j, key) in keys.iter().enumerate() {
            let v: &[f32; W] = key[c..c + W].try_into().unwrap();
            for h in 0..H {
                let w = p[(h0 + h) * n + j];
                for i in 0..W {
                    acc[h][i] = w.mul_add(v[i], acc[h][i]);
                }
            }
        }
        for h in 0..H {
            out[(h0 + h) * dim + c..(h0 + h) * dim + c + W].copy_from_slice(&acc[h]);
        }
    }
    for h in 0..H {
        let o = &mut out[(h0 + h) * dim + full..(h0 + h + 1) * dim];
        for (j, key) in keys.iter().enumerate() {
            let w = p[(h0 + h) * n + j];
            for (v, x) in o.iter_mut().zip(&key[full..]) {
                *v = w.mul_add(*x, *v);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(sinks: &[f32]) -> AttnShape<'_> {
        AttnShape { heads: 1, dim: 1, window: 2, ratio: 4, sinks }
    }

    /// Catches a window that is one off, a sink left out of denominator or LSE, a sink that is
    /// scaled, and a wrong softmax scale, on numbers small enough to do by hand.
    #[test]
    fn window_and_sink_by_hand() {
        let q = Mat::new(1, 1, vec![1.0]);
        let kv = Mat::new(4, 1, vec![100.0, 7.0, 1.0, 2.0]);
        let sinks = [0.5];
        let (o, l) = attention(
            &q,
            &kv,
            &Mat::default(),
            None,
            3,
            &AttnShape { ratio: 0, ..shape(&sinks) },
            Window::Exact,
            true,
        );
        let den = 1f64.exp() + 2f64.exp() + 0.5f64.exp();
        let want = (1.0 * 1f64.exp() + 2.0 * 2f64.exp()) / den;
        assert!((o.data[0] as f64 - want).abs() < 1e-6);
        assert!((l.data[0] as f64 - den.ln()).abs() < 1e-6);
    }

    /// Catches an entry that is visible too late or too early, and −1 read as entry 0.
    #[test]
    fn compressed_entries_are_visible_when_their_window_closes() {
        let kv = Mat::new(8, 1, vec![0.0; 8]);
        let comp = Mat::new(2, 1, vec![1.0, 1.0]);
        let q = Mat::new(1, 1, vec![0.0]);
        let sinks = [f32::NEG_INFINITY];
        let at = |t, idx: Option<&Index>| {
            attention(&q, &kv, &comp, idx, t, &shape(&sinks), Window::Exact, true).0.data[0]
        };
        assert_eq!(at(2, None), 0.0);
        assert!((at(3, None) - 1.0 / 3.0).abs() < 1e-6);
        assert!((at(7, None) - 0.5).abs() < 1e-6);
        let none = Index { rows: 1, k: 2, ids: vec![-1, -1] };
        assert_eq!(at(7, Some(&none)), 0.0);
    }
}
