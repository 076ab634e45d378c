//! Pooling of tokens into compressed entries, with the state that carries over between calls.

use super::knobs::CompressorKnobs;
use super::mat::{Mat, TASK_ROWS};
use super::norm::norm_in_place;
use super::ops::PoolShape;
use super::round::{round_row, rounded};
use super::simd::{LANES, exp};
use super::values::{Boundary, EntryPosition, Overlap};
use multiversion::multiversion;
use rayon::prelude::*;

/// Projected rows (values, and gates with position bias) that later windows still need: the
/// previous complete window and the current partial one.
#[derive(Debug, Clone, Default)]
pub struct PoolState {
    kv: Mat,
    gate: Mat,
    /// Position of the first kept row; always a multiple of the ratio.
    first: usize,
}

/// Adds the tokens at `pos0..` and returns the entries whose window they complete, `[new, dim]`,
/// normed and rotated. Pooling is local to a window, so any chunking gives the same bits.
pub fn compress(
    state: &mut PoolState,
    kv: &Mat,
    gate: &Mat,
    pos0: usize,
    s: &PoolShape,
    k: &CompressorKnobs,
) -> Mat {
    let ratio = s.ratio;
    let cols = kv.cols;
    let next = state.first + state.kv.rows;
    if next != pos0 {
        // A fresh state: rows before `pos0` in its window are absent (value 0, gate −inf).
        let missing = pos0 % ratio;
        state.first = pos0 - missing;
        state.kv = Mat::zeros(missing, cols);
        state.gate = Mat::new(missing, cols, vec![f32::NEG_INFINITY; missing * cols]);
    }
    state.kv.append(&rounded(kv, k.state_dtype));
    let kept = state.gate.rows;
    state.gate.append(gate);
    state.gate.data[kept * cols..].par_chunks_mut(cols * TASK_ROWS).enumerate().for_each(|(task, rows)| {
        for (i, gate) in rows.chunks_exact_mut(cols).enumerate() {
            if k.ape {
                let slot = (pos0 + task * TASK_ROWS + i + k.ape_phase as usize) % ratio;
                let bias = &s.ape[slot * cols..][..cols];
                gate.iter_mut().zip(bias).for_each(|(g, b)| *g += b);
            }
            round_row(gate, k.state_dtype);
        }
    });

    let end = state.first + state.kv.rows;
    // Windows complete before this call are those closed before `pos0`.
    let (j0, j1) = (pos0 / ratio, end / ratio);
    let mut out = Mat::zeros(j1 - j0, s.dim);
    let st = &*state;
    let (own_from, before_from) = match k.overlap {
        _ if !s.overlap => (0, 0),
        Overlap::Swapped => (0, s.dim),
        _ => (s.dim, 0),
    };
    let part =
        |r: usize, from: usize| (&st.kv.row(r)[from..from + s.dim], &st.gate.row(r)[from..from + s.dim]);
    // A task pools about as many tokens as a task of any other op works on.
    let per_task = TASK_ROWS.div_ceil(ratio);
    out.data.par_chunks_mut(per_task * s.dim.max(1)).enumerate().for_each(|(task, entries)| {
        let mut rows = Vec::with_capacity(2 * ratio);
        for (i, u) in entries.chunks_exact_mut(s.dim).enumerate() {
            let j = j0 + task * per_task + i;
            let own = j * ratio - st.first;
            rows.clear();
            if s.overlap && k.overlap != Overlap::Off && own >= ratio {
                rows.extend((own - ratio..own).map(|r| part(r, before_from)));
            }
            rows.extend((own..own + ratio).map(|r| part(r, own_from)));
            pool(&rows, u);
            round_row(u, k.out_dtype);
            norm_in_place(u, s.norm, s.eps);
            round_row(u, k.out_dtype);
            let position = match k.entry_pos {
                EntryPosition::First => j * ratio,
                EntryPosition::Index => j,
                EntryPosition::Last => j * ratio + ratio - 1,
            };
            s.rope.rotate(u, position, false, s.pairing);
            round_row(u, k.out_dtype);
            if k.boundary != Boundary::Exact && ((j + 1) * ratio).is_multiple_of(128) {
                u.fill(if k.boundary == Boundary::Nan { f32::NAN } else { 0.0 });
            }
        }
    });

    // Keep the last complete window (the next one's overlap) and the partial one.
    let keep = if s.overlap { j1.saturating_sub(1) * ratio } else { j1 * ratio };
    let drop = keep.saturating_sub(state.first);
    if drop > 0 {
        state.kv.forget_rows(drop);
        state.gate.forget_rows(drop);
        state.first += drop;
    }
    out
}

/// Per channel: softmax of the gates over the rows, weighted sum of the values. A channel whose
/// gates are all −inf pools to 0.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn pool(rows: &[(&[f32], &[f32])], out: &mut [f32]) {
    let (blocks, rest) = out.as_chunks_mut::<LANES>();
    let tail = blocks.len() * LANES;
    for (i, out) in blocks.iter_mut().enumerate() {
        let at = |v: &[f32]| -> [f32; LANES] { std::array::from_fn(|l| v[i * LANES..][..LANES][l]) };
        *out = pool_lanes(rows.iter().map(|(k, g)| (at(k), at(g))));
    }
    let width = rest.len();
    if width > 0 {
        let at = |v: &[f32]| -> [f32; LANES] {
            let mut lanes = [0f32; LANES];
            lanes[..width].copy_from_slice(&v[tail..tail + width]);
            lanes
        };
        rest.copy_from_slice(&pool_lanes(rows.iter().map(|(k, g)| (at(k), at(g))))[..width]);
    }
}

/// Sixteen channels of the pooling.
#[inline(always)]
fn pool_lanes(rows: impl Iterator<Item = ([f32; LANES], [f32; LANES])> + Clone) -> [f32; LANES] {
    let mut m = [f32::NEG_INFINITY; LANES];
    for (_, g) in rows.clone() {
        for l in 0..LANES {
            m[l] = if g[l] > m[l] { g[l] } else { m[l] };
        }
    }
    let (mut sum, mut acc) = ([0f32; LANES], [0f32; LANES]);
    for (k, g) in rows {
        for l in 0..LANES {
            let e = exp(g[l] - m[l]);
            let e = if m[l] == f32::NEG_INFINITY { 0.0 } else { e };
            sum[l] += e;
            acc[l] = e.mul_add(k[l], acc[l]);
        }
    }
    std::array::from_fn(|l| if sum[l] == 0.0 { 0.0 } else { acc[l] / sum[l] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Rope;
    use crate::kernels::rope::RopeTable;
    use crate::kernels::values::Pairing;

    fn data(rows: usize, cols: usize, seed: usize) -> Mat {
        let v = (0..rows * cols)
            .map(|i| (((i * 7919 + seed * 104729) % 1009) as f32 / 1009.0) * 4.0 - 2.0)
            .collect();
        Mat::new(rows, cols, v)
    }

    /// Catches state that is lost, doubled or shifted at a chunk border: every chunking gives the
    /// bits of the whole, for the overlapping and the plain compressor.
    #[test]
    fn any_chunking_gives_the_same_bits() {
        let rope = RopeTable::new(&Rope { theta: 10000.0, yarn: None }, 4, 64);
        for (ratio, overlap) in [(4, true), (5, false), (3, true)] {
            let cols = if overlap { 16 } else { 8 };
            let (kv, gate) = (data(41, cols, 1), data(41, cols, 2));
            let (ape, norm) = (data(ratio, cols, 3).data, vec![1.0; 8]);
            let s = PoolShape {
                ratio,
                dim: 8,
                overlap,
                ape: &ape,
                norm: &norm,
                eps: 1e-6,
                rope: &rope,
                pairing: Pairing::Interleaved,
            };
            let k = CompressorKnobs::default();
            let whole = compress(&mut PoolState::default(), &kv, &gate, 0, &s, &k);
            assert_eq!(whole.rows, 41 / ratio);
            for chunk in [1, 2, 3, 4, 7, 16] {
                let mut state = PoolState::default();
                let mut all = Mat::default();
                for p in (0..41).step_by(chunk) {
                    let e = (p + chunk).min(41);
                    all.append(&compress(&mut state, &kv.slice(p, e), &gate.slice(p, e), p, &s, &k));
                }
                assert_eq!(all.data, whole.data, "ratio {ratio} chunk {chunk}");
            }
            let mut all = Mat::default();
            for p in (0..41).step_by(7) {
                let (e, mut lost) = ((p + 7).min(41), PoolState::default());
                all.append(&compress(&mut lost, &kv.slice(p, e), &gate.slice(p, e), p, &s, &k));
            }
            assert_ne!(all.data, whole.data, "a lost state must show");
        }
    }
}
