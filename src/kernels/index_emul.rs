//! The indexer and top-k as they go wrong, or merely differ, in fast kernels. Every function works row by row, so that
//! blocks of tokens change nothing.

use super::gemm::Packed;
use super::index;
use super::knobs::{IndexerKnobs, TopkKnobs};
use super::mat::{Index, Mat};
use super::ops::IndexShape;
use super::values::{EarlyExit, Output, Sentinel, ShortPath, Tie, Visible};
use crate::numeric::{e4m3, f16, scale};
use rayon::prelude::*;

/// Keys of a block of the scoring loop.
const BLOCK: usize = 64;
/// Tokens scored at once.
const TASK_TOKENS: usize = 64;

/// True if the scores are anything but [`index::scores`].
pub fn scores_needed(k: &IndexerKnobs) -> bool {
    k.fold_scale
        || k.early_exit != EarlyExit::None
        || k.sentinel != Sentinel::NegInf
        || k.visible == Visible::Shifted
}

/// True if the selection is anything but [`index::topk`].
pub fn topk_needed(k: &IndexerKnobs, t: &TopkKnobs) -> bool {
    k.sentinel != Sentinel::NegInf
        || k.visible == Visible::Shifted
        || t.seed != 0
        || t.tie == Tie::Arrival
        || t.short_path != ShortPath::Exact
        || t.output != Output::Exact
}

/// [`index::scores`] with folded query scales, then what the loop bounds and the buffer make of them.
pub fn scores(q: &Mat, w: &Mat, keys: &Packed, pos0: usize, s: &IndexShape, k: &IndexerKnobs) -> Mat {
    let mut out = if k.fold_scale {
        let (q, w) = folded(q, w, s.dim);
        index::scores(&q, &w, keys, pos0, s, k)
    } else {
        index::scores(q, w, keys, pos0, s, k)
    };
    for r in 0..out.rows {
        let row = out.row_mut(r);
        let v = index::visible(pos0 + r, s.ratio, keys.n, k.visible);
        if v > 0 {
            let from = (v - 1) / BLOCK * BLOCK;
            match k.early_exit {
                EarlyExit::None => {}
                EarlyExit::OneBlock => row[from..v].fill(f32::NEG_INFINITY),
                EarlyExit::ZeroBuffer => row[from..v].fill(0.0),
                EarlyExit::StaleBuffer if from == 0 => row[..v].fill(0.0),
                EarlyExit::StaleBuffer => row.copy_within(from - BLOCK..v - BLOCK, from),
            }
        }
        if k.visible == Visible::Shifted && v > 0 {
            row[0] = f32::NEG_INFINITY;
        }
        if k.sentinel == Sentinel::Zero {
            row[v..].fill(0.0);
        }
    }
    out
}

/// Queries divided by the scale of their head, head weights multiplied by it: the fp8 codes as they are in memory, if
/// the queries are in fp8 with a scale a row.
fn folded(q: &Mat, w: &Mat, dim: usize) -> (Mat, Mat) {
    let (mut q, mut w) = (q.clone(), w.clone());
    for r in 0..q.rows {
        for (h, w) in w.row_mut(r).iter_mut().enumerate() {
            let head = &mut q.data[r * q.cols + h * dim..][..dim];
            let s = scale::amax(head) / e4m3::MAX;
            if s > 0.0 && s.is_finite() {
                head.iter_mut().for_each(|v| *v /= s);
                *w *= s;
            }
        }
    }
    (q, w)
}

/// A key written in order and read as if its even and odd values lay apart.
pub fn misread(key: &mut [f32]) {
    let half = key.len() / 2;
    let written = key.to_vec();
    for i in 0..half {
        key[2 * i] = written[i];
        key[2 * i + 1] = written[half + i];
    }
}

/// Scores and selects a few tokens at a time.
pub fn scores_topk(
    q: &Mat,
    w: &Mat,
    keys: &Packed,
    pos0: usize,
    width: usize,
    s: &IndexShape,
    k: &IndexerKnobs,
    t: &TopkKnobs,
) -> Index {
    let mut out = Index::empty(q.rows, width);
    for r in (0..q.rows).step_by(TASK_TOKENS) {
        let e = (r + TASK_TOKENS).min(q.rows);
        let part = scores(&q.slice(r, e), &w.slice(r, e), keys, pos0 + r, s, k);
        let ids = topk(&part, pos0 + r, width, s, k, t);
        out.ids[r * width..e * width].copy_from_slice(&ids.ids);
    }
    out
}

/// The chosen entries of every token, with the faults of `t`.
pub fn topk(
    scores: &Mat,
    pos0: usize,
    width: usize,
    s: &IndexShape,
    k: &IndexerKnobs,
    t: &TopkKnobs,
) -> Index {
    let mut out = Index::empty(scores.rows, width);
    if width == 0 {
        return out;
    }
    let first = (k.visible == Visible::Shifted) as usize;
    // Of a call that starts a prefill every token takes the path of the first.
    let short = t.short_path == ShortPath::BatchMin && (s.chunk_from + 1) / s.ratio <= width;
    out.ids.par_chunks_mut(width).enumerate().for_each(|(r, ids)| {
        let p = pos0 + r;
        let v = index::visible(p, s.ratio, scores.cols, k.visible);
        let reach = if k.sentinel == Sentinel::Zero { scores.cols } else { v };
        let row = &scores.row(r)[first.min(reach)..reach];
        if short || (t.output == Output::NanRows && p % 8 == 7) {
            let n = row.len().min(width);
            ids[..n].iter_mut().enumerate().for_each(|(j, id)| *id = j as i32);
        } else if t.tie == Tie::Arrival || (t.seed != 0 && t.coarse_bits >= 32) {
            select_by_arrival(row, ids, t);
        } else {
            index::select(row, ids, t, &mut Default::default());
        }
        ids.iter_mut().filter(|id| **id >= 0).for_each(|id| *id += first as i32);
        write(ids, p, scores.cols, t);
    });
    out
}

/// What a faulty writer leaves in the output row of position `p`.
fn write(ids: &mut [i32], p: usize, entries: usize, t: &TopkKnobs) {
    let valid = ids.iter().take_while(|id| **id >= 0).count();
    match t.output {
        Output::SentinelInside if valid > 2 => ids[valid / 2] = -1,
        Output::UninitialisedTail if entries > 0 => {
            for (j, id) in ids.iter_mut().enumerate().skip(valid) {
                *id = (arrival(t.seed ^ p as u32, j) % entries as u64) as i32;
            }
        }
        _ => {}
    }
}

/// A number that orders entries as threads may arrive, the same for the same seed.
pub fn arrival(seed: u32, j: usize) -> u64 {
    let mut z = ((seed as u64) << 32 ^ j as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The position of entry `j` in the order that decides between equals.
fn rank(j: i32, t: &TopkKnobs) -> u64 {
    match t.tie {
        Tie::Arrival => arrival(t.seed, j as usize),
        Tie::Low => j as u64,
        Tie::High => u64::MAX - j as u64,
    }
}

/// The best scores; of equal ones those that arrive first.
fn select_by_arrival(scores: &[f32], out: &mut [i32], t: &TopkKnobs) {
    out.fill(-1);
    let mut all: Vec<i32> = (0..scores.len() as i32).collect();
    all.sort_by_key(|j| (std::cmp::Reverse(index::ordered(scores[*j as usize])), rank(*j, t)));
    all.truncate(out.len());
    all.sort_unstable();
    out[..all.len()].copy_from_slice(&all);
}

/// Two passes as radix kernels do it: the leading bits of the score rounded to f16 decide first, and only the bucket at
/// the cut is compared exactly; of that bucket at most `coarse_cap` entries are held, in order of arrival, the rest are
/// lost.
pub fn select_coarse(scores: &[f32], out: &mut [i32], t: &TopkKnobs) {
    let k = out.len();
    let coarse = |s: f32| -> u16 {
        let b = f16::encode(s + 0.0);
        let o = if b >> 15 == 1 { !b } else { b | 0x8000 };
        o >> (16 - t.coarse_bits.clamp(1, 16))
    };
    let keys: Vec<u16> = scores.iter().map(|s| coarse(*s)).collect();
    let cut = *keys.clone().select_nth_unstable(scores.len() - k).1;
    let mut chosen: Vec<i32> = (0..keys.len()).filter(|j| keys[*j] > cut).map(|j| j as i32).collect();
    let mut bucket: Vec<i32> = (0..keys.len()).filter(|j| keys[*j] == cut).map(|j| j as i32).collect();
    if t.seed != 0 {
        bucket.sort_by_key(|j| arrival(t.seed, *j as usize));
    }
    if t.coarse_cap > 0 {
        bucket.truncate(t.coarse_cap as usize);
    }
    bucket.sort_by_key(|j| (std::cmp::Reverse(index::ordered(scores[*j as usize])), rank(*j, t)));
    let room = k - chosen.len();
    chosen.extend(bucket.into_iter().take(room));
    chosen.sort_unstable();
    out[..chosen.len()].copy_from_slice(&chosen);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::knobs::Knobs;
    use proptest::prelude::*;

    fn shape(topk: usize) -> IndexShape {
        IndexShape { heads: 2, dim: 8, ratio: 1, topk, chunk_from: 0 }
    }

    fn row(v: Vec<f32>) -> Mat {
        Mat::new(1, v.len(), v)
    }

    fn chosen(v: &[f32], k: usize, ik: IndexerKnobs, t: TopkKnobs) -> Vec<i32> {
        topk(&row(v.to_vec()), v.len() - 1, k, &shape(k), &ik, &t).ids
    }

    /// Catches an order of arrival that leaks into what is chosen where no scores are equal, and one that a seed does
    /// not repeat.
    #[test]
    fn arrival_decides_between_equals_only() {
        let g = Knobs::default();
        let t = |seed| TopkKnobs { tie: Tie::Arrival, seed, ..g.topk };
        let distinct: Vec<f32> = (0..40).map(|j| ((j * 17) % 40) as f32).collect();
        let want = chosen(&distinct, 8, g.indexer, g.topk);
        for seed in 0..20 {
            assert_eq!(chosen(&distinct, 8, g.indexer, t(seed)), want);
        }
        let equal = vec![1.0; 40];
        assert_eq!(chosen(&equal, 8, g.indexer, t(3)), chosen(&equal, 8, g.indexer, t(3)));
        assert_ne!(chosen(&equal, 8, g.indexer, t(3)), chosen(&equal, 8, g.indexer, t(4)));
        assert_ne!(chosen(&equal, 8, g.indexer, t(3)), chosen(&equal, 8, g.indexer, g.topk));
    }

    /// Catches output faults that leave the prefix rule intact.
    #[test]
    fn output_faults_break_the_row() {
        let g = Knobs::default();
        let s: Vec<f32> = (0..6).map(|j| j as f32).collect();
        let out = |output| chosen(&s, 8, g.indexer, TopkKnobs { output, ..g.topk });
        assert_eq!(out(Output::Exact), [0, 1, 2, 3, 4, 5, -1, -1]);
        assert_eq!(out(Output::SentinelInside), [0, 1, 2, -1, 4, 5, -1, -1]);
        assert!(out(Output::UninitialisedTail).iter().all(|id| (0..6).contains(id)));
    }

    /// Catches an early exit that loses more or less than the last block, and a sentinel that loses to negative scores.
    #[test]
    fn the_last_block_is_lost() {
        let keys = Packed::new(130, 8, &(0..130 * 8).map(|i| (i % 13) as f32 - 6.0).collect::<Vec<_>>());
        let q = Mat::new(1, 16, (0..16).map(|i| (i % 5) as f32 - 2.0).collect());
        let w = Mat::new(1, 2, vec![0.5, -1.0]);
        let g = Knobs::default().indexer;
        let at = |early_exit| scores(&q, &w, &keys, 128, &shape(8), &IndexerKnobs { early_exit, ..g });
        let exact = at(EarlyExit::None);
        let lost = at(EarlyExit::OneBlock);
        assert_eq!(exact.data[..128], lost.data[..128]);
        assert_eq!(lost.data[128], f32::NEG_INFINITY);
        assert_eq!(at(EarlyExit::StaleBuffer).data[128], exact.data[64]);
        let z = scores(&q, &w, &keys, 9, &shape(8), &IndexerKnobs { sentinel: Sentinel::Zero, ..g });
        assert!(z.data[10..].iter().all(|v| *v == 0.0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Catches a folded scale that changes more than the last rounding. Division and multiplication by the same
        /// factor cost one rounding each in every product and weight, so with dots of `dim` terms and sums over heads a
        /// score moves by at most (dim + heads + 4) u · Σ|q||k||w|, u = 2^-24.
        #[test]
        fn folding_changes_rounding_only(seed in 0u32..1000) {
            let v = |n: usize, salt: u32| -> Vec<f32> {
                (0..n).map(|i| (arrival(seed ^ salt, i) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
            };
            let (q, w, k) = (Mat::new(3, 16, v(48, 1)), Mat::new(3, 2, v(6, 2)), v(20 * 8, 3));
            let keys = Packed::new(20, 8, &k);
            let g = Knobs::default().indexer;
            let a = scores(&q, &w, &keys, 19, &shape(8), &g);
            let b = scores(&q, &w, &keys, 19, &shape(8), &IndexerKnobs { fold_scale: true, ..g });
            let bound = (8.0 + 2.0 + 4.0) * 2f32.powi(-24) * 16.0;
            for (x, y) in a.data.iter().zip(&b.data) {
                prop_assert!((x - y).abs() <= bound, "{} {}", x, y);
            }
        }
    }
}
