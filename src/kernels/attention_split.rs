//! Attention as fast kernels do it: rounded operands, tiles with online softmax, splits of the
//! key list merged by their log-sum-exp. True to the rounding points its knobs name; at golden
//! settings it computes what [`super::attention`] does, up to the order of sums.

use super::attention::key_rows;
use super::knobs::AttnKnobs;
use super::mat::{Index, Mat};
use super::ops::AttnShape;
use super::round::round_row;
use super::simd::{dot, exp};
use super::values::{Fmt, Sink};
use multiversion::multiversion;
use rayon::prelude::*;

/// Tokens a task works on.
const TASK_TOKENS: usize = 8;

/// True if `k` asks for anything but exact attention.
pub fn needed(k: &AttnKnobs) -> bool {
    let g = AttnKnobs {
        window: k.window,
        compressed: k.compressed,
        derotate: k.derotate,
        out_dtype: k.out_dtype,
        ..AttnKnobs::default()
    };
    *k != g
}

/// Attention with the roundings, tiles, splits and sink handling of `k`.
pub fn attention(
    q: &Mat,
    kv: &Mat,
    comp: &Mat,
    index: Option<&Index>,
    pos0: usize,
    s: &AttnShape,
    k: &AttnKnobs,
) -> (Mat, Mat) {
    let width = s.heads * s.dim;
    let mut out = Mat::zeros(q.rows, width);
    let mut lse = Mat::zeros(q.rows, s.heads);
    out.data
        .par_chunks_mut(TASK_TOKENS * width)
        .zip(lse.data.par_chunks_mut(TASK_TOKENS * s.heads))
        .enumerate()
        .for_each(|(task, (o, l))| {
            let mut keys = Vec::new();
            for (i, (o, l)) in o.chunks_exact_mut(width).zip(l.chunks_exact_mut(s.heads)).enumerate() {
                let r = task * TASK_TOKENS + i;
                key_rows(&mut keys, pos0 + r, kv, comp, index.map(|x| x.row(r)), s, k.window, k.compressed);
                let mut rounded: Vec<f32> = keys.concat();
                let mut query = q.row(r).to_vec();
                if k.qk_dtype != Fmt::F32 {
                    rounded.chunks_exact_mut(s.dim).for_each(|row| round_row(row, k.qk_dtype));
                    query.chunks_exact_mut(s.dim).for_each(|row| round_row(row, k.qk_dtype));
                }
                for h in 0..s.heads {
                    let (qh, oh) = (&query[h * s.dim..(h + 1) * s.dim], &mut o[h * s.dim..(h + 1) * s.dim]);
                    l[h] = one_head(qh, &rounded, s.sinks[h], k, oh);
                }
            }
        });
    (out, lse)
}

/// A split's result: normalised partial output and its natural LSE (−inf if it saw no key).
struct Partial {
    out: Vec<f32>,
    lse: f32,
}

/// One head of one token; returns the LSE with the sink as the kernel counts it.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn one_head(q: &[f32], keys: &[f32], sink: f32, k: &AttnKnobs, out: &mut [f32]) -> f32 {
    let dim = q.len();
    let n = keys.len() / dim;
    let scale = 1.0 / (dim as f32).sqrt();
    let sink = if k.sink == Sink::Scaled { sink * scale } else { sink };
    let splits = k.splits.max(1) as usize;
    let per = n.div_ceil(splits).max(1);
    let mut partials = Vec::with_capacity(splits);
    for i in 0..splits {
        let (a, b) = ((i * per).min(n), ((i + 1) * per).min(n));
        partials.push(one_split(q, &keys[a * dim..b * dim], scale, k));
    }
    let sinks = match k.sink {
        Sink::Once | Sink::Scaled => 1.0,
        Sink::Dropped => 0.0,
        Sink::Twice => 2.0,
        Sink::PerSplit => splits as f32,
    };
    let stored = |lse: f32| if k.lse_base_mismatch { lse * std::f32::consts::LOG2_E } else { lse };
    let mut m = if sinks > 0.0 { sink } else { f32::NEG_INFINITY };
    for p in &partials {
        m = m.max(stored(p.lse));
    }
    let mut den = if sinks > 0.0 { sinks * exp(sink - m) } else { 0.0 };
    out.fill(0.0);
    for p in partials.iter().filter(|p| p.lse > f32::NEG_INFINITY) {
        let w = exp(stored(p.lse) - m);
        den += w;
        for (o, v) in out.iter_mut().zip(&p.out) {
            *o = w.mul_add(*v, *o);
        }
    }
    if den > 0.0 {
        out.iter_mut().for_each(|o| *o /= den);
    }
    m + den.ln()
}

/// One split: online softmax over tiles, denominator from unrounded and products from rounded
/// probabilities, output normalised and rounded to the partials' dtype.
#[inline(always)]
fn one_split(q: &[f32], keys: &[f32], scale: f32, k: &AttnKnobs) -> Partial {
    let dim = q.len();
    let n = keys.len() / dim;
    let mut acc = vec![0f32; dim];
    if n == 0 {
        return Partial { out: acc, lse: f32::NEG_INFINITY };
    }
    let tile = if k.tile == 0 { n } else { k.tile as usize };
    let (mut m, mut den) = (f32::NEG_INFINITY, 0f32);
    for t in keys.chunks(tile * dim) {
        let mut z: Vec<f32> = t.chunks_exact(dim).map(|key| dot(q, key)).collect();
        round_row(&mut z, k.logits_dtype);
        let mut mt = m;
        for v in z.iter_mut() {
            *v *= scale;
            mt = if *v > mt { *v } else { mt };
        }
        let fade = if m == f32::NEG_INFINITY { 0.0 } else { exp(m - mt) };
        den *= fade;
        acc.iter_mut().for_each(|a| *a *= fade);
        for v in z.iter_mut() {
            *v = exp(*v - mt);
            den += *v;
        }
        round_row(&mut z, k.p_dtype);
        for (p, key) in z.iter().zip(t.chunks_exact(dim)) {
            for (a, v) in acc.iter_mut().zip(key) {
                *a = p.mul_add(*v, *a);
            }
        }
        m = mt;
    }
    acc.iter_mut().for_each(|a| *a /= den);
    round_row(&mut acc, k.partial_dtype);
    Partial { out: acc, lse: m + den.ln() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::attention;
    use crate::kernels::values::Window;
    use proptest::prelude::*;

    fn data(rows: usize, cols: usize, seed: u64) -> Mat {
        let mut s = seed;
        let v = (0..rows * cols)
            .map(|_| {
                s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((s >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 4.0
            })
            .collect();
        Mat::new(rows, cols, v)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Catches a split, tile or merge that changes more than the order of sums. Each output is
        /// a convex combination of values |v| <= 2; splits and tiles change only how exp arguments
        /// and sums round: exp has relative error 1.5u plus |z − m| u from its argument, a sum of n
        /// terms n·u. With |z| <= 4·dim^½ <= 16 that is below (16 + 3 + n)·2u·|v| per side.
        #[test]
        fn splits_and_tiles_change_summation_order_only(
            splits in 1u32..33, tile in 0u32..70, t in 0usize..40, seed in 0u64..1000
        ) {
            let (h, c) = (2, 16);
            let kv = data(40, c, seed);
            let comp = data(10, c, seed + 1);
            let q = data(1, h * c, seed + 2);
            let sinks = [0.3, -2.0];
            let s = AttnShape { heads: h, dim: c, window: 8, ratio: 4, sinks: &sinks };
            let k = AttnKnobs { splits, tile, ..AttnKnobs::default() };
            let (a, la) = attention::attention(&q, &kv, &comp, None, t, &s, Window::Exact, true);
            let (b, lb) = attention(&q, &kv, &comp, None, t, &s, &k);
            let bound = 2.0 * (16.0 + 3.0 + 18.0) * 2.0 * 2f32.powi(-24) * 2.0;
            for (x, y) in a.data.iter().zip(&b.data).chain(la.data.iter().zip(&lb.data)) {
                prop_assert!((x - y).abs() <= bound, "{} vs {}", x, y);
            }
        }
    }

    /// Catches a sink fault that leaves the LSE alone, and a per-split sink that is not counted.
    #[test]
    fn sink_faults_show_in_the_lse() {
        let (kv, q) = (data(8, 4, 1), data(1, 4, 2));
        let sinks = [1.0];
        let s = AttnShape { heads: 1, dim: 4, window: 8, ratio: 0, sinks: &sinks };
        let at = |k: AttnKnobs| attention(&q, &kv, &Mat::default(), None, 7, &s, &k).1.data[0] as f64;
        let g = AttnKnobs::default();
        let none = at(AttnKnobs { sink: Sink::Dropped, ..g });
        let sum = |n: f64| (none.exp() + n * 1f64.exp()).ln();
        assert!((at(g) - sum(1.0)).abs() < 1e-6);
        assert!((at(AttnKnobs { sink: Sink::Twice, ..g }) - sum(2.0)).abs() < 1e-6);
        assert!((at(AttnKnobs { sink: Sink::PerSplit, splits: 3, ..g }) - sum(3.0)).abs() < 1e-6);
    }
}
