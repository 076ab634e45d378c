//! Router and experts.

use super::cpu::Weight;
use super::gemm::gemm_block;
use super::knobs::{ExpertsKnobs, RouterKnobs};
use super::mat::{Index, Mat, TASK_ROWS};
use super::moe_emul::{self, AlphaFactors};
use super::ops::{ExpertSource, Mlp, MoeShape};
use super::quant::round_row_by;
use super::round::round_row;
use super::simd::exp;
use super::values::{Clamp, Scale, WeightSite};
use crate::error::Result;
use multiversion::multiversion;
use rayon::prelude::*;

/// Router score `sqrt(softplus(logit))`, evaluated in f64 so that its own error is one rounding.
pub fn score(logit: f32) -> f32 {
    let x = logit as f64;
    // softplus(x) = max(x, 0) + ln(1 + e^-|x|) never overflows.
    (x.max(0.0) + (-x.abs()).exp().ln_1p()).sqrt() as f32
}

/// Chosen experts of every token: the hash table's row, or the `topk` largest `score + bias`
/// (ties: lower id), best first.
pub fn select(
    logits: &Mat,
    bias: Option<&[f32]>,
    table: Option<(&[i32], &[u32])>,
    s: &MoeShape,
    k: &RouterKnobs,
) -> Index {
    let mut out = Index::empty(logits.rows, s.topk);
    let experts = logits.cols;
    out.ids.par_chunks_mut(s.topk * TASK_ROWS).enumerate().for_each(|(task, ids)| {
        let mut biased = vec![0f32; experts];
        for (i, row) in ids.chunks_exact_mut(s.topk).enumerate() {
            let r = task * TASK_ROWS + i;
            if let Some((table, tokens)) = table {
                row.copy_from_slice(&table[tokens[r] as usize * s.topk..][..s.topk]);
                moe_emul::read_ids(row, experts, k.table);
                continue;
            }
            for (e, v) in biased.iter_mut().enumerate() {
                let b = bias.filter(|_| k.bias).map_or(0.0, |b| b[e]);
                *v = moe_emul::score(logits.row(r)[e], k) + b;
            }
            for id in row.iter_mut() {
                let mut best = 0;
                for e in 1..experts {
                    if biased[e] > biased[best] || biased[best].is_nan() {
                        best = e;
                    }
                }
                *id = best as i32;
                biased[best] = f32::NEG_INFINITY;
            }
        }
    });
    out
}

/// `w_i = factor · s_i / Σ s` over the chosen experts; a `bias` is given only to routers that let it in.
pub fn weights(logits: &Mat, ids: &Index, bias: Option<&[f32]>, s: &MoeShape, k: &RouterKnobs) -> Mat {
    let mut out = Mat::zeros(ids.rows, ids.k);
    let factor = match k.scale {
        Scale::Once => s.factor,
        Scale::Never => 1.0,
        Scale::Twice => s.factor * s.factor,
    };
    for r in 0..ids.rows {
        let row = out.row_mut(r);
        for (w, id) in row.iter_mut().zip(ids.row(r)) {
            let e = usize::try_from(*id).ok().filter(|e| *e < logits.cols);
            *w = e.map_or(0.0, |e| moe_emul::score(logits.row(r)[e], k) + bias.map_or(0.0, |b| b[e]));
        }
        let sum: f32 = if k.renorm { row.iter().sum() } else { 1.0 };
        row.iter_mut().for_each(|w| *w = *w / sum * factor);
    }
    out
}

/// Weighted sum of the routed experts in ascending expert id.
pub fn routed(
    x: &Mat,
    ids: &Index,
    w: &Mat,
    source: &dyn ExpertSource<Weight>,
    s: &MoeShape,
    k: &ExpertsKnobs,
) -> Result<Mat> {
    let mut out = Mat::zeros(x.rows, x.cols);
    let mut of_expert: Vec<Vec<(usize, f32)>> = vec![Vec::new(); source.count()];
    for r in 0..ids.rows {
        for (slot, id) in ids.row(r).iter().enumerate() {
            if let Some(list) = usize::try_from(*id).ok().and_then(|e| of_expert.get_mut(e)) {
                list.push((r, w.row(r)[slot]));
            }
        }
    }
    let clamp = !matches!(k.clamp, Clamp::OffRouted);
    for (e, list) in of_expert.iter().enumerate().filter(|(_, l)| !l.is_empty()) {
        let mlp = source.expert(e)?;
        let rows: Vec<usize> = list.iter().map(|(r, _)| *r).collect();
        let before: Vec<f32> =
            list.iter().map(|(_, w)| if k.weight_site == WeightSite::BeforeW2 { *w } else { 1.0 }).collect();
        let y = swiglu(x, Some(&rows), Some(&before), &mlp, s, k, clamp);
        let computed = if k.max_rows == 0 { list.len() } else { k.max_rows as usize };
        for (i, (r, w)) in list.iter().enumerate().take(computed) {
            let w = match k.weight_site {
                WeightSite::BeforeW2 => 1.0,
                WeightSite::AfterW2 => *w,
                WeightSite::FactorOnSum => *w / s.factor,
            };
            let o = out.row_mut(*r);
            for (o, v) in o.iter_mut().zip(y.row(i)) {
                *o = w.mul_add(*v, *o);
            }
        }
    }
    let runner = moe_emul::runner_factor(s, k);
    let factor = if k.weight_site == WeightSite::FactorOnSum { s.factor } else { 1.0 } * runner;
    if factor != 1.0 || k.out_dtype != super::values::Fmt::F32 {
        for r in 0..out.rows {
            let row = out.row_mut(r);
            if k.weight_site == WeightSite::FactorOnSum {
                round_row(row, k.out_dtype);
            }
            row.iter_mut().for_each(|v| *v *= factor);
            round_row(row, k.out_dtype);
        }
    }
    Ok(out)
}

/// `w2 · (silu(clamp(w1·x)) · clamp(w3·x) · weight)` of the listed rows (`None`: all).
pub fn swiglu(
    x: &Mat,
    rows: Option<&[usize]>,
    weight: Option<&[f32]>,
    mlp: &Mlp<Weight>,
    s: &MoeShape,
    k: &ExpertsKnobs,
    clamp: bool,
) -> Mat {
    let n = rows.map_or(x.rows, <[usize]>::len);
    let (w1, w2, w3) = (mlp.w1.at(k.w_dtype), mlp.w2.at(k.w_dtype), mlp.w3.at(k.w_dtype));
    let (d, inter) = (x.cols, w1.n);
    let mut out = Mat::zeros(n, w2.n);
    let limit = moe_emul::limit(s, k).filter(|_| clamp);
    let alpha = AlphaFactors::new(&w1, &w3, k.alpha);
    out.data.par_chunks_mut(TASK_ROWS * w2.n).enumerate().for_each(|(task, out)| {
        let r0 = task * TASK_ROWS;
        let m = out.len() / w2.n;
        let mut input = vec![0f32; m * d];
        for (i, row) in input.chunks_exact_mut(d).enumerate() {
            row.copy_from_slice(x.row(rows.map_or(r0 + i, |r| r[r0 + i])));
            round_row_by(row, k.in_dtype, k.quant);
        }
        let (mut g, mut u) = (vec![0f32; m * inter], vec![0f32; m * inter]);
        gemm_block(&input, d, m, &w1, 0, inter, &mut g, inter);
        gemm_block(&input, d, m, &w3, 0, inter, &mut u, inter);
        for (i, (g, u)) in g.chunks_exact_mut(inter).zip(u.chunks_exact_mut(inter)).enumerate() {
            if let Some(alpha) = &alpha {
                alpha.apply(&input[i * d..(i + 1) * d], g, u);
            }
            round_row(g, k.out_dtype);
            round_row(u, k.out_dtype);
            activate(g, u, weight.map_or(1.0, |w| w[r0 + i]), limit, k.clamp);
            round_row_by(g, k.in_dtype, k.quant);
        }
        gemm_block(&g, inter, m, &w2, 0, w2.n, out, w2.n);
        for row in out.chunks_exact_mut(w2.n) {
            round_row(row, k.out_dtype);
        }
    });
    out
}

/// `g ← silu(min(g, L)) · clamp(u, ±L) · w`; the gate is clamped from above only.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn activate(g: &mut [f32], u: &[f32], w: f32, limit: Option<f32>, clamp: Clamp) {
    let l = limit.unwrap_or(f32::INFINITY);
    let after_silu = clamp == Clamp::AfterSilu;
    let gate_max = if matches!(clamp, Clamp::AfterSilu | Clamp::GateOff) { f32::INFINITY } else { l };
    let gate_min = if clamp == Clamp::Symmetric { -l } else { f32::NEG_INFINITY };
    let up_max = if clamp == Clamp::UpOff { f32::INFINITY } else { l };
    for (g, u) in g.iter_mut().zip(u) {
        let gate = if *g > gate_max { gate_max } else { *g };
        let gate = if gate < gate_min { gate_min } else { gate };
        let up = if *u > up_max { up_max } else { *u };
        let up = if up < -up_max { -up_max } else { up };
        let mut a = gate / (1.0 + exp(-gate));
        if after_silu && a > l {
            a = l;
        }
        *g = a * up * w;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moe() -> MoeShape {
        MoeShape { limit: Some(10.0), factor: 1.5, topk: 2, batch: 1 }
    }

    /// Catches a factor applied zero times or twice, and a bias that leaks into the weights.
    #[test]
    fn weights_sum_to_the_factor_and_ignore_the_bias() {
        let logits = Mat::new(2, 4, vec![1.0, -2.0, 0.5, 3.0, 0.0, 0.0, 0.0, 0.0]);
        let k = RouterKnobs::default();
        let ids = select(&logits, Some(&[0.0, 9.0, 0.0, 0.0]), None, &moe(), &k);
        assert_eq!(ids.row(0), [1, 3]);
        let w = weights(&logits, &ids, None, &moe(), &k);
        for r in 0..2 {
            assert!((w.row(r).iter().sum::<f32>() - 1.5).abs() < 1e-6);
        }
        let s = |x: f32| ((x.exp() + 1.0).ln()).sqrt();
        assert!((w.row(0)[0] - 1.5 * s(-2.0) / (s(-2.0) + s(3.0))).abs() < 1e-6);
        let twice = weights(&logits, &ids, None, &moe(), &RouterKnobs { scale: Scale::Twice, ..k });
        assert!((twice.row(0).iter().sum::<f32>() - 2.25).abs() < 1e-6);
    }

    /// Catches ties broken towards the higher expert id.
    #[test]
    fn equal_experts_keep_the_lower_id() {
        let ids = select(&Mat::zeros(1, 5), None, None, &moe(), &RouterKnobs::default());
        assert_eq!(ids.ids, [0, 1]);
    }

    /// Catches a two-sided gate clamp and a missing clamp.
    #[test]
    fn the_gate_is_clamped_from_above_only() {
        let mut g = vec![20.0, -20.0, 1.0];
        activate(&mut g, &[-30.0, 1.0, 2.0], 1.0, Some(10.0), Clamp::Exact);
        let silu = |x: f64| x / (1.0 + (-x).exp());
        assert!((g[0] as f64 - silu(10.0) * -10.0).abs() < 1e-4);
        assert!((g[1] as f64 - silu(-20.0)).abs() < 1e-9);
        let mut h = vec![20.0];
        activate(&mut h, &[30.0], 1.0, None, Clamp::Exact);
        assert!((h[0] as f64 - silu(20.0) * 30.0).abs() < 1e-3);
    }

    #[test]
    fn softplus_does_not_overflow() {
        assert!((score(100.0) - 10.0).abs() < 1e-6);
        assert!(score(-200.0) >= 0.0);
        assert!((score(0.0) as f64 - 2f64.ln().sqrt()).abs() < 1e-7);
    }
}
