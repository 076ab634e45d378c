//! Attention as fast kernels do it: rounded operands, tiles with online softmax, splits of the slot list merged by their
//! log-sum-exp. True to the rounding points its knobs name; at golden settings it computes what [`super::attention`]
//! does, up to the order of sums.

use super::attention::window_positions;
use super::knobs::AttnKnobs;
use super::mat::{Index, Mat};
use super::ops::AttnShape;
use super::round::round_row;
use super::simd::{dot, exp};
use super::values::{Base, Empty, Fmt, Invalid, Lanes, Passes, Sink, SoftmaxScale, SplitRule};
use multiversion::multiversion;
use rayon::prelude::*;
use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

/// Tokens a task works on.
const TASK_TOKENS: usize = 8;
/// Slots of a page, for splits by page.
const PAGE: usize = 64;
/// Tile of a kernel whose length mask is missing and that names no tile of its own.
const TILE: usize = 64;

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

/// The slots of one token: window positions, then compressed entries; a slot without a key is masked.
struct Slots {
    keys: Vec<f32>,
    values: Vec<f32>,
    valid: Vec<bool>,
    /// Slots of the window.
    window: usize,
}

impl Slots {
    fn new(t: usize, kv: &Mat, comp: &Mat, chosen: Option<&[i32]>, s: &AttnShape, k: &AttnKnobs) -> Slots {
        let mut rows: Vec<Option<&[f32]>> =
            window_positions(t, s.window, k.window, kv.rows).map(|p| Some(kv.row(p))).collect();
        let window = rows.len();
        let wrap = if k.entry_wrap == 0 { usize::MAX } else { k.entry_wrap as usize };
        let entry = |j: usize| Some(j % wrap).filter(|j| *j < comp.rows).map(|j| comp.row(j));
        if s.ratio > 0 && k.compressed {
            match chosen {
                Some(ids) => rows.extend(ids.iter().map(|j| match usize::try_from(*j) {
                    Ok(j) => entry(j),
                    Err(_) if k.invalid == Invalid::EntryZero => entry(0),
                    Err(_) => None,
                })),
                None => rows.extend((0..((t + 1) / s.ratio).min(comp.rows)).map(entry)),
            }
        }
        let zeros = vec![0f32; s.dim];
        let mut keys: Vec<f32> = rows.iter().flat_map(|r| r.unwrap_or(&zeros)).copied().collect();
        let mut values = Vec::new();
        let round = |m: &mut [f32], f: Fmt| m.chunks_exact_mut(s.dim).for_each(|row| round_row(row, f));
        round(&mut keys, k.qk_dtype);
        if k.k_dtype != k.v_dtype {
            values = keys.clone();
            round(&mut values, k.v_dtype);
        }
        round(&mut keys, k.k_dtype);
        Slots { keys, values, valid: rows.iter().map(Option::is_some).collect(), window }
    }
    fn values(&self) -> &[f32] {
        if self.values.is_empty() { &self.keys } else { &self.values }
    }
}

/// Where the slot list is cut: for each pass its slots, by the split rule.
fn cuts(n: usize, window: usize, k: &AttnKnobs) -> Vec<Range<usize>> {
    let border = if k.passes == Passes::Two { window } else { n };
    let passes = [0..border, border..n];
    let splits = k.splits.max(1) as usize;
    passes
        .into_iter()
        .take(if k.passes == Passes::Two { 2 } else { 1 })
        .flat_map(|pass| {
            let len = pass.len();
            let (per, count) = match k.split_rule {
                SplitRule::Even => (len.div_ceil(splits), splits),
                SplitRule::Page => (len.div_ceil(PAGE).div_ceil(splits) * PAGE, splits),
                SplitRule::Chunk => {
                    let per = k.chunk.max(1) as usize;
                    (per, len.div_ceil(per).max(1))
                }
            };
            let at = move |i: usize| pass.start + (i * per).min(len);
            (0..count).map(move |i| at(i)..at(i + 1)).collect::<Vec<_>>()
        })
        .collect()
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
    let half = s.heads.div_ceil(2);
    out.data
        .par_chunks_mut(TASK_TOKENS * width)
        .zip(lse.data.par_chunks_mut(TASK_TOKENS * s.heads))
        .enumerate()
        .for_each(|(task, (o, l))| {
            for (i, (o, l)) in o.chunks_exact_mut(width).zip(l.chunks_exact_mut(s.heads)).enumerate() {
                let r = task * TASK_TOKENS + i;
                let slots = Slots::new(pos0 + r, kv, comp, index.map(|x| x.row(r)), s, k);
                let cuts = cuts(slots.valid.len(), slots.window, k);
                let mut query = q.row(r).to_vec();
                for head in query.chunks_exact_mut(s.dim) {
                    round_row(head, k.qk_dtype);
                    round_row(head, k.q_dtype);
                }
                for h in 0..s.heads {
                    let (qh, oh) = (&query[h * s.dim..(h + 1) * s.dim], &mut o[h * s.dim..(h + 1) * s.dim]);
                    let sink = if k.sink == Sink::RankSlice { s.sinks[h % half] } else { s.sinks[h] };
                    l[h] = one_head(qh, &slots, &cuts, sink, k, oh);
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
fn one_head(
    q: &[f32],
    slots: &Slots,
    cuts: &[Range<usize>],
    sink: f32,
    k: &AttnKnobs,
    out: &mut [f32],
) -> f32 {
    let mut scale = 1.0 / (q.len() as f32).sqrt();
    let sink = if k.sink == Sink::Scaled { sink * scale } else { sink };
    if k.scale == SoftmaxScale::Mscale {
        scale *= (0.1 * 16f32.ln() + 1.0).powi(2);
    }
    let partials: Vec<Partial> = cuts.iter().map(|c| one_split(q, slots, c.clone(), scale, k)).collect();
    let sinks = match k.sink {
        Sink::Once | Sink::Scaled | Sink::RankSlice => 1.0,
        Sink::Dropped => 0.0,
        Sink::Twice => 2.0,
        Sink::PerSplit => partials.len() as f32,
    };
    // LSEs as stored, in the base they are merged in; the merge reads a mismatched one as natural.
    let two = k.lse_base == Base::Two && !k.lse_base_mismatch;
    let power = |x: f32| if two { x.exp2() } else { exp(x) };
    let stored = |lse: f32| if two || k.lse_base_mismatch { lse * LOG2_E } else { lse };
    let sink = if two { sink * LOG2_E } else { sink };
    let mut m = f32::NEG_INFINITY;
    for p in &partials {
        m = m.max(stored(p.lse));
    }
    if sinks > 0.0 && (k.sink_in_max || m == f32::NEG_INFINITY) {
        m = m.max(sink);
    }
    let mut den = if sinks > 0.0 { sinks * power(sink - m) } else { 0.0 };
    out.fill(0.0);
    for p in partials.iter().filter(|p| p.lse > f32::NEG_INFINITY) {
        let w = power(stored(p.lse) - m);
        den += w;
        for (o, v) in out.iter_mut().zip(&p.out) {
            *o = w.mul_add(*v, *o);
        }
    }
    if den > 0.0 {
        out.iter_mut().for_each(|o| *o /= den);
    }
    if two { (m + den.log2()) * LN_2 } else { m + den.ln() }
}

/// One split: online softmax over tiles, denominator from unrounded and products from rounded probabilities, output
/// normalised and rounded to the partials' dtype.
#[inline(always)]
fn one_split(q: &[f32], slots: &Slots, cut: Range<usize>, scale: f32, k: &AttnKnobs) -> Partial {
    let dim = q.len();
    let mut acc = vec![0f32; dim];
    let two = k.exp_base == Base::Two;
    let power = |x: f32| if two { x.exp2() } else { exp(x) };
    let scale = if two { scale * LOG2_E } else { scale };
    let garbage = k.lanes == Lanes::Garbage;
    let tile = match k.tile as usize {
        0 if garbage => TILE,
        0 => cut.len().max(1),
        n => n,
    };
    let (mut m, mut den) = (f32::NEG_INFINITY, 0f32);
    let mut from = cut.start;
    while from < cut.end {
        let to = (from + tile).min(cut.end);
        // The slots whose keys the lanes hold, `None` for a buffer of zeros, and whether the lane is masked.
        let mut lanes: Vec<(Option<usize>, bool)> = (from..to).map(|j| (Some(j), !slots.valid[j])).collect();
        if garbage {
            let stale =
                (to - from..tile).map(|l| ((from >= cut.start + tile).then(|| from - tile + l), false));
            lanes.extend(stale);
        }
        let row = |m: &'_ [f32], j: usize| -> Range<usize> { j * dim..(j * dim + dim).min(m.len()) };
        let mut z: Vec<f32> =
            lanes.iter().map(|(j, _)| j.map_or(0.0, |j| dot(q, &slots.keys[row(&slots.keys, j)]))).collect();
        round_row(&mut z, k.logits_dtype);
        let mut mt = m;
        for (v, (_, masked)) in z.iter_mut().zip(&lanes) {
            *v = if *masked { f32::NEG_INFINITY } else { *v * scale };
            mt = if *v > mt { *v } else { mt };
        }
        from = to;
        if mt == f32::NEG_INFINITY {
            continue;
        }
        let fade = if m == f32::NEG_INFINITY { 0.0 } else { power(m - mt) };
        den *= fade;
        acc.iter_mut().for_each(|a| *a *= fade);
        for v in z.iter_mut() {
            *v = power(*v - mt);
            den += *v;
        }
        round_row(&mut z, k.p_dtype);
        let values = slots.values();
        for (p, lane) in z.iter().zip(&lanes) {
            let (Some(j), false) = *lane else { continue };
            for (a, v) in acc.iter_mut().zip(&values[row(values, j)]) {
                *a = p.mul_add(*v, *a);
            }
        }
        m = mt;
    }
    if m == f32::NEG_INFINITY {
        let lse = match k.empty {
            Empty::NegInf => f32::NEG_INFINITY,
            Empty::PosInf => f32::INFINITY,
            Empty::Zero => 0.0,
        };
        return Partial { out: acc, lse };
    }
    acc.iter_mut().for_each(|a| *a /= den);
    round_row(&mut acc, k.partial_dtype);
    Partial { out: acc, lse: if two { (m + den.log2()) * LN_2 } else { m + den.ln() } }
}

#[cfg(test)]
mod tests;
