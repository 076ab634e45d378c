//! Pooling of tokens into compressed entries, with the state that carries over between calls.

use super::knobs::CompressorKnobs;
use super::mat::Mat;
use super::norm::norm_into;
use super::ops::PoolShape;
use super::round::{round, round_row};
use super::simd::exp;
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
    let (mut kv, mut gate) = (kv.clone(), gate.clone());
    if k.ape {
        for r in 0..gate.rows {
            let bias = &s.ape[((pos0 + r + k.ape_phase as usize) % ratio) * cols..][..cols];
            gate.row_mut(r).iter_mut().zip(bias).for_each(|(g, b)| *g += b);
        }
    }
    round(&mut kv, k.state_dtype);
    round(&mut gate, k.state_dtype);
    state.kv.append(&kv);
    state.gate.append(&gate);

    let end = state.first + state.kv.rows;
    // Windows complete before this call are those closed before `pos0`.
    let (j0, j1) = (pos0 / ratio, end / ratio);
    let mut out = Mat::zeros(j1 - j0, s.dim);
    let st = &*state;
    out.data.par_chunks_mut(s.dim.max(1)).enumerate().for_each(|(i, u)| {
        let j = j0 + i;
        let own = j * ratio - st.first;
        let mut rows: Vec<(&[f32], &[f32])> = Vec::with_capacity(2 * ratio);
        let (own_from, before_from) = match k.overlap {
            _ if !s.overlap => (0, 0),
            Overlap::Swapped => (0, s.dim),
            _ => (s.dim, 0),
        };
        if s.overlap && k.overlap != Overlap::Off && own >= ratio {
            let cols = before_from..before_from + s.dim;
            rows.extend(
                (own - ratio..own).map(|r| (&st.kv.row(r)[cols.clone()], &st.gate.row(r)[cols.clone()])),
            );
        }
        rows.extend((own..own + ratio).map(|r| {
            (&st.kv.row(r)[own_from..own_from + s.dim], &st.gate.row(r)[own_from..own_from + s.dim])
        }));
        pool(&rows, u);
        round_row(u, k.out_dtype);
        let pooled = u.to_vec();
        norm_into(u, &pooled, Some(s.norm), s.eps);
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
    });

    // Keep the last complete window (the next one's overlap) and the partial one.
    let keep = if s.overlap { j1.saturating_sub(1) * ratio } else { j1 * ratio };
    let drop = keep.saturating_sub(state.first);
    if drop > 0 {
        state.kv = state.kv.slice(drop, state.kv.rows);
        state.gate = state.gate.slice(drop, state.gate.rows);
        state.first += drop;
    }
    out
}

/// Per channel: softmax of the gates over the rows, weighted sum of the values. A channel whose
/// gates are all −inf pools to 0.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn pool(rows: &[(&[f32], &[f32])], out: &mut [f32]) {
    const W: usize = 16;
    let n = out.len();
    let mut c = 0;
    while c < n {
        let w = W.min(n - c);
        let mut m = [f32::NEG_INFINITY; W];
        for (_, g) in rows {
            for i in 0..w {
                let v = g[c + i];
                m[i] = if v > m[i] { v } else { m[i] };
            }
        }
        let (mut sum, mut acc) = ([0f32; W], [0f32; W]);
        for (k, g) in rows {
            for i in 0..w {
                let e = if m[i] == f32::NEG_INFINITY { 0.0 } else { exp(g[c + i] - m[i]) };
                sum[i] += e;
                acc[i] = e.mul_add(k[c + i], acc[i]);
            }
        }
        for i in 0..w {
            out[c + i] = if sum[i] == 0.0 { 0.0 } else { acc[i] / sum[i] };
        }
        c += w;
    }
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
