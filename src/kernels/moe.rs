//! Router and experts.

use super::cpu::Weight;
use super::gemm::{Packed, gemm_block};
use super::knobs::{ExpertsKnobs, RouterKnobs};
use super::mat::{Index, Mat, TASK_ROWS, par_rows};
use super::moe_emul::{self, AlphaFactors};
use super::ops::{ExpertSource, Mlp, MoeShape};
use super::quant::{round_row_by, rounded_by};
use super::round::round_row;
use super::simd::exp;
use super::values::{Clamp, Fmt, Scale, WeightSite};
use crate::error::Result;
use multiversion::multiversion;
use rayon::prelude::*;
use std::sync::Arc;

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
    par_rows(&mut out, |r0, rows| {
        for (i, row) in rows.chunks_exact_mut(ids.k).enumerate() {
            let logits = logits.row(r0 + i);
            for (w, id) in row.iter_mut().zip(ids.row(r0 + i)) {
                let e = usize::try_from(*id).ok().filter(|e| *e < logits.len());
                *w = e.map_or(0.0, |e| moe_emul::score(logits[e], k) + bias.map_or(0.0, |b| b[e]));
            }
            let sum: f32 = if k.renorm { row.iter().sum() } else { 1.0 };
            row.iter_mut().for_each(|w| *w = *w / sum * factor);
        }
    });
    out
}

/// A token routed to an expert: its row and its weight.
#[derive(Clone, Copy)]
struct Routed {
    row: usize,
    weight: f32,
}

/// Decoded weights that may be held at once: experts are computed together, so that all threads
/// have work, until their weights reach this many values.
const HELD_WEIGHTS: usize = 1 << 24;

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
    let mut of_expert: Vec<Vec<Routed>> = vec![Vec::new(); source.count()];
    for row in 0..ids.rows {
        for (id, weight) in ids.row(row).iter().zip(w.row(row)) {
            if let Some(list) = usize::try_from(*id).ok().and_then(|e| of_expert.get_mut(e)) {
                list.push(Routed { row, weight: *weight });
            }
        }
    }
    let clamp = !matches!(k.clamp, Clamp::OffRouted);
    let mut group = Vec::new();
    let mut held = 0;
    for (e, list) in of_expert.iter().enumerate().filter(|(_, l)| !l.is_empty()) {
        let computed = if k.max_rows == 0 { list.len() } else { list.len().min(k.max_rows as usize) };
        let mlp = Swiglu::new(source.expert(e)?.as_ref(), s, k, clamp);
        held += 3 * mlp.w1.n * mlp.w1.k;
        group.push((mlp, &list[..computed]));
        if held >= HELD_WEIGHTS {
            add_experts(&mut out, x, &group, ids.k, s, k);
            group.clear();
            held = 0;
        }
    }
    add_experts(&mut out, x, &group, ids.k, s, k);
    let runner = moe_emul::runner_factor(s, k);
    let factor = if k.weight_site == WeightSite::FactorOnSum { s.factor } else { 1.0 } * runner;
    if factor != 1.0 || k.out_dtype != Fmt::F32 {
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

/// Adds the outputs of a few experts, in their order. At most `slots` of them hold one token.
fn add_experts(
    out: &mut Mat,
    x: &Mat,
    group: &[(Swiglu, &[Routed])],
    slots: usize,
    s: &MoeShape,
    k: &ExpertsKnobs,
) {
    // Every expert's outputs, one expert after the other.
    let mut y = Mat::zeros(group.iter().map(|(_, list)| list.len()).sum(), x.cols);
    let mut rest = &mut y.data[..];
    let mut tasks = Vec::new();
    // Where the outputs of a token are and what they count, in the order they are added.
    let mut places = vec![Vec::with_capacity(slots); out.rows];
    let mut at = 0;
    for (mlp, list) in group {
        for list in list.chunks(TASK_ROWS) {
            let (mine, others) = rest.split_at_mut(list.len() * x.cols);
            tasks.push((mlp, list, mine));
            rest = others;
        }
        for r in *list {
            let weight = match k.weight_site {
                WeightSite::BeforeW2 => 1.0,
                WeightSite::AfterW2 => r.weight,
                WeightSite::FactorOnSum => r.weight / s.factor,
            };
            places[r.row].push((at, weight));
            at += 1;
        }
    }
    tasks.into_par_iter().for_each_init(Scratch::default, |scratch, (mlp, list, y)| {
        let Scratch { input, weights, inner } = scratch;
        input.clear();
        list.iter().for_each(|r| input.extend_from_slice(x.row(r.row)));
        input.chunks_exact_mut(x.cols).for_each(|row| round_row_by(row, k.in_dtype, k.quant));
        weights.clear();
        weights.extend(list.iter().map(|r| r.weight));
        let before = (k.weight_site == WeightSite::BeforeW2).then_some(&weights[..]);
        mlp.apply(input, before, inner, y);
    });
    par_rows(out, |r0, rows| {
        for (i, out) in rows.chunks_exact_mut(x.cols).enumerate() {
            places[r0 + i].iter().for_each(|(at, weight)| add_scaled(out, y.row(*at), *weight));
        }
    });
}

/// `out += w · y`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn add_scaled(out: &mut [f32], y: &[f32], w: f32) {
    for (o, v) in out.iter_mut().zip(y) {
        *o = w.mul_add(*v, *o);
    }
}

/// The shared expert, for every row of `x`.
pub fn shared(x: &Mat, mlp: &Mlp<Weight>, s: &MoeShape, k: &ExpertsKnobs) -> Mat {
    let mlp = Swiglu::new(mlp, s, k, k.clamp != Clamp::OffShared);
    let x = rounded_by(x, k.in_dtype, k.quant);
    let mut out = Mat::zeros(x.rows, mlp.w2.n);
    par_rows(&mut out, |r0, out| {
        let rows = out.len() / mlp.w2.n;
        mlp.apply(&x.data[r0 * x.cols..][..rows * x.cols], None, &mut Inner::default(), out);
    });
    out
}

/// Working memory of a task.
#[derive(Default)]
struct Scratch {
    input: Vec<f32>,
    weights: Vec<f32>,
    inner: Inner,
}

/// Gate and up projections of a few rows.
#[derive(Default)]
struct Inner {
    gate: Vec<f32>,
    up: Vec<f32>,
}

/// One expert with the settings it runs at.
struct Swiglu<'a> {
    w1: Arc<Packed>,
    w2: Arc<Packed>,
    w3: Arc<Packed>,
    limit: Option<f32>,
    alpha: Option<AlphaFactors>,
    k: &'a ExpertsKnobs,
}

impl<'a> Swiglu<'a> {
    fn new(mlp: &Mlp<Weight>, s: &MoeShape, k: &'a ExpertsKnobs, clamp: bool) -> Self {
        let [w1, w2, w3] = [&mlp.w1, &mlp.w2, &mlp.w3].map(|w| w.at(k.w_dtype));
        let alpha = AlphaFactors::new(&w1, &w3, k.alpha);
        Swiglu { w1, w2, w3, limit: moe_emul::limit(s, k).filter(|_| clamp), alpha, k }
    }

    /// `w2 · (silu(clamp(w1·x)) · clamp(w3·x) · weight)` of the rows of `x`, already rounded.
    fn apply(&self, x: &[f32], weights: Option<&[f32]>, inner: &mut Inner, out: &mut [f32]) {
        let (k, m, n) = (self.k, x.len() / self.w1.k, self.w1.n);
        inner.gate.resize(m * n, 0.0);
        inner.up.resize(m * n, 0.0);
        gemm_block(x, self.w1.k, m, &self.w1, 0, n, &mut inner.gate, n);
        gemm_block(x, self.w3.k, m, &self.w3, 0, n, &mut inner.up, n);
        for (i, (g, u)) in inner.gate.chunks_exact_mut(n).zip(inner.up.chunks_exact_mut(n)).enumerate() {
            if let Some(alpha) = &self.alpha {
                alpha.apply(&x[i * self.w1.k..][..self.w1.k], g, u);
            }
            round_row(g, k.out_dtype);
            round_row(u, k.out_dtype);
            activate(g, u, weights.map_or(1.0, |w| w[i]), self.limit, k.clamp);
            round_row_by(g, k.in_dtype, k.quant);
        }
        gemm_block(&inner.gate, n, m, &self.w2, 0, self.w2.n, out, self.w2.n);
        out.chunks_exact_mut(self.w2.n).for_each(|row| round_row(row, k.out_dtype));
    }
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
