//! The lightning indexer: scores and top-k.

use super::gemm::{Packed, gemm_block};
use super::knobs::{IndexerKnobs, TopkKnobs};
use super::mat::{Index, Mat};
use super::ops::IndexShape;
use super::round::round_row;
use super::simd::LANES;
use super::values::{Tie, Visible};
use multiversion::multiversion;
use rayon::prelude::*;

/// Tokens a task scores; entries a tile holds. Speed only.
const TASK_TOKENS: usize = 12;
const TILE: usize = 512;

/// Entries visible to position `t`, of `n` that exist.
pub fn visible(t: usize, ratio: usize, n: usize, rule: Visible) -> usize {
    let v = match rule {
        Visible::Exact => (t + 1) / ratio,
        Visible::QDivR => t / ratio,
        Visible::OneFuture | Visible::Shifted => (t + 1) / ratio + 1,
        Visible::RawLength => t + 1,
    };
    v.min(n)
}

/// `score_j = Σ_h w_h · relu(q_h · k_j)` for all keys, −inf where not visible: `[n, N]`.
pub fn scores(q: &Mat, w: &Mat, keys: &Packed, pos0: usize, s: &IndexShape, k: &IndexerKnobs) -> Mat {
    let mut out = Mat::zeros(q.rows, keys.n);
    if keys.n == 0 {
        return out;
    }
    out.data.par_chunks_mut(TASK_TOKENS * keys.n).enumerate().for_each(|(task, rows)| {
        let r0 = task * TASK_TOKENS;
        score_rows(q, w, keys, r0, pos0 + r0, s, k, keys.n, rows);
    });
    out
}

/// Scores of the first `n` entries by a few tokens (`rows.len() / n` of them) starting at row `r0`,
/// position `p0`. No token may see more than `n`.
fn score_rows(
    q: &Mat,
    w: &Mat,
    keys: &Packed,
    r0: usize,
    p0: usize,
    s: &IndexShape,
    k: &IndexerKnobs,
    n: usize,
    rows: &mut [f32],
) {
    let tokens = rows.len() / n;
    let seen = visible(p0 + tokens - 1, s.ratio, n, k.visible);
    let mut dots = vec![0f32; tokens * s.heads * TILE];
    for n0 in (0..seen).step_by(TILE) {
        let n1 = (n0 + TILE).min(seen);
        let tile = n1 - n0;
        let x = &q.data[r0 * q.cols..(r0 + tokens) * q.cols];
        let dots = &mut dots[..tokens * s.heads * tile];
        gemm_block(x, s.dim, tokens * s.heads, keys, n0, n1, dots, tile);
        round_row(dots, k.dot_dtype);
        for t in 0..tokens {
            let out = &mut rows[t * n + n0..t * n + n1];
            combine(out, &dots[t * s.heads * tile..][..s.heads * tile], w.row(r0 + t), k.relu);
        }
    }
    for t in 0..tokens {
        let v = visible(p0 + t, s.ratio, n, k.visible);
        round_row(&mut rows[t * n..t * n + v], k.score_dtype);
        rows[t * n + v..(t + 1) * n].fill(f32::NEG_INFINITY);
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn combine(out: &mut [f32], dots: &[f32], w: &[f32], relu: bool) {
    let n = out.len();
    out.fill(0.0);
    for (h, wh) in w.iter().enumerate() {
        let d = &dots[h * n..(h + 1) * n];
        if relu {
            for (o, x) in out.iter_mut().zip(d) {
                let r = if *x > 0.0 { *x } else { 0.0 };
                *o = wh.mul_add(r, *o);
            }
        } else {
            for (o, x) in out.iter_mut().zip(d) {
                *o = wh.mul_add(*x, *o);
            }
        }
    }
}

/// The chosen entries of every token by given scores, ascending ids, −1 after the last.
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
    out.ids.par_chunks_mut(TASK_TOKENS * width).enumerate().for_each(|(task, ids)| {
        let mut scratch = Scratch::default();
        for (i, row) in ids.chunks_exact_mut(width).enumerate() {
            let r = task * TASK_TOKENS + i;
            let v = visible(pos0 + r, s.ratio, scores.cols, k.visible);
            select(&scores.row(r)[..v], row, t, &mut scratch);
        }
    });
    out
}

/// Scores and selects without keeping more than a few tokens' scores.
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
    if width == 0 || keys.n == 0 {
        return out;
    }
    let new = || (Vec::new(), Scratch::default());
    out.ids.par_chunks_mut(TASK_TOKENS * width).enumerate().for_each_init(
        new,
        |(rows, scratch), (task, ids)| {
            let r0 = task * TASK_TOKENS;
            let tokens = ids.len() / width;
            let last = visible(pos0 + r0 + tokens - 1, s.ratio, keys.n, k.visible);
            if last > width {
                rows.resize(tokens * last, 0.0);
                score_rows(q, w, keys, r0, pos0 + r0, s, k, last, rows);
            }
            for (i, row) in ids.chunks_exact_mut(width).enumerate() {
                let v = visible(pos0 + r0 + i, s.ratio, keys.n, k.visible);
                if v <= width {
                    // Below the horizon everything visible is chosen, whatever its score.
                    row[..v].iter_mut().enumerate().for_each(|(j, id)| *id = j as i32);
                } else {
                    select(&rows[i * last..i * last + v], row, t, scratch);
                }
            }
        },
    );
    out
}

/// A key that orders like the score, −0 equal to +0 and NaN below everything.
#[inline(always)]
pub fn ordered(x: f32) -> u32 {
    if x.is_nan() {
        return 0;
    }
    let b = (x + 0.0).to_bits();
    if b >> 31 == 1 { !b } else { b | 0x8000_0000 }
}

/// The `out.len()` highest of `scores` by the tie rule, written in ascending id.
pub fn select(scores: &[f32], out: &mut [i32], t: &TopkKnobs, scratch: &mut Scratch) {
    let (n, k) = (scores.len(), out.len());
    out.fill(-1);
    if n <= k {
        out[..n].iter_mut().enumerate().for_each(|(j, id)| *id = j as i32);
        return;
    }
    if t.coarse_bits < 32 {
        return super::index_emul::select_coarse(scores, out, t);
    }
    // Score and id in one number: no two are equal, and their order is the tie rule.
    let keys = &mut scratch.keys;
    keys.clear();
    let flip = if t.tie == Tie::Low { u32::MAX } else { 0 };
    let key = |j: usize, s: f32| (ordered(s) as u64) << 32 | (j as u32 ^ flip) as u64;
    candidates(scores, at_least_k_reach(scores, k, &mut scratch.groups), |j| keys.push(key(j, scores[j])));
    if keys.len() > k {
        let cut = keys.len() - k;
        keys.select_nth_unstable(cut);
        keys.drain(..cut);
    }
    out.iter_mut().zip(&*keys).for_each(|(id, key)| *id = (*key as u32 ^ flip) as i32);
    out.sort_unstable();
}

/// Working memory of [`select`].
#[derive(Default)]
pub struct Scratch {
    keys: Vec<u64>,
    groups: Vec<f32>,
}

/// A score that at least `k` scores reach, found in one pass: every score belongs to one of `2k`
/// groups, and the k-th largest group maximum is reached by `k` different groups. `None` if the
/// pass would not narrow the choice (few scores, or too few that are numbers).
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn at_least_k_reach(scores: &[f32], k: usize, groups: &mut Vec<f32>) -> Option<f32> {
    let g = (2 * k).next_multiple_of(LANES);
    if scores.len() < 2 * g {
        return None;
    }
    groups.clear();
    groups.resize(g, f32::NEG_INFINITY);
    for row in scores.chunks(g) {
        for (max, s) in groups.iter_mut().zip(row) {
            *max = if *s > *max { *s } else { *max };
        }
    }
    let (_, bound, _) = groups.select_nth_unstable_by(g - k, f32::total_cmp);
    // −inf may stand for a group of NaNs.
    (*bound > f32::NEG_INFINITY).then_some(*bound)
}

/// Calls `f` with every id whose score reaches `bound`, ascending.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn candidates(scores: &[f32], bound: Option<f32>, mut f: impl FnMut(usize)) {
    let Some(bound) = bound else { return (0..scores.len()).for_each(f) };
    let (blocks, rest) = scores.as_chunks::<LANES>();
    for (i, block) in blocks.iter().enumerate() {
        let mut reach = 0u16;
        for l in 0..LANES {
            reach |= ((block[l] >= bound) as u16) << l;
        }
        while reach != 0 {
            f(i * LANES + reach.trailing_zeros() as usize);
            reach &= reach - 1;
        }
    }
    let from = blocks.len() * LANES;
    (0..rest.len()).filter(|j| rest[*j] >= bound).for_each(|j| f(from + j));
}

/// The width of the selection: `index_topk`, or the knob's, never more than exist.
pub fn width(total: usize, s: &IndexShape, t: &TopkKnobs) -> usize {
    let w = if t.width == 0 { s.topk } else { t.width as usize };
    let w = if t.halved { w / 2 } else { w };
    w.min(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pick(scores: &[f32], k: usize, t: &TopkKnobs) -> Vec<i32> {
        let mut out = vec![-1; k];
        select(scores, &mut out, t, &mut Scratch::default());
        out
    }

    /// Catches a tie rule that depends on order or on the sign of zero.
    #[test]
    fn equal_scores_keep_the_lower_index() {
        let t = TopkKnobs::default();
        assert_eq!(pick(&[0.0, -0.0, 0.0, -0.0], 2, &t), [0, 1]);
        assert_eq!(pick(&[1.0, 2.0, 1.0, 1.0], 2, &t), [0, 1]);
        assert_eq!(pick(&[1.0, 2.0, 1.0, 1.0], 2, &TopkKnobs { tie: Tie::High, ..t }), [1, 3]);
        assert_eq!(pick(&[f32::NAN, -5.0, -6.0], 2, &t), [1, 2]);
        assert_eq!(pick(&[3.0], 2, &t), [0, -1]);
    }

    proptest! {
        /// Catches any selection that is not the sorted prefix.
        #[test]
        fn selection_is_the_sorted_prefix(v in prop::collection::vec(-4i32..4, 1..200), k in 1usize..40) {
            let scores: Vec<f32> = v.iter().map(|x| *x as f32 / 2.0).collect();
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by(|a, b| scores[*b].partial_cmp(&scores[*a]).unwrap().then(a.cmp(b)));
            let mut want: Vec<i32> = order[..k.min(order.len())].iter().map(|j| *j as i32).collect();
            want.sort_unstable();
            want.resize(k, -1);
            prop_assert_eq!(pick(&scores, k, &TopkKnobs::default()), want.clone());
            // A coarse pass without a cap chooses the same set when the coarse key is exact.
            let t = TopkKnobs { coarse_bits: 16, ..TopkKnobs::default() };
            prop_assert_eq!(pick(&scores, k, &t), want);
        }
    }

    /// Catches a first pass that loses an entry it must keep, or keeps one that is not a number,
    /// where scores are few, equal, infinite or NaN in long rows.
    #[test]
    fn long_rows_with_unusual_scores_select_the_same() {
        let n = 1000;
        let spread: Vec<f32> = (0..n).map(|j| ((j * 7919) % 613) as f32 - 300.0).collect();
        let mut rows = vec![spread.clone(), vec![0.5; n], vec![f32::NEG_INFINITY; n], vec![f32::NAN; n]];
        rows.push(spread.iter().map(|s| if *s > -280.0 { f32::NAN } else { *s }).collect());
        rows.push(spread.iter().map(|s| if *s > -290.0 { f32::NEG_INFINITY } else { *s }).collect());
        rows.push(spread.iter().map(|s| if *s > 290.0 { f32::INFINITY } else { *s }).collect());
        for (i, scores) in rows.iter().enumerate() {
            for k in [1, 7, 64, 300, 999] {
                for tie in [Tie::Low, Tie::High] {
                    let mut order: Vec<i32> = (0..n as i32).collect();
                    let by_id = |j: &i32| if tie == Tie::Low { *j } else { -*j };
                    order.sort_by_key(|j| (std::cmp::Reverse(ordered(scores[*j as usize])), by_id(j)));
                    let mut want = order[..k].to_vec();
                    want.sort_unstable();
                    assert_eq!(
                        pick(scores, k, &TopkKnobs { tie, ..TopkKnobs::default() }),
                        want,
                        "row {i}, k {k}"
                    );
                }
            }
        }
    }

    /// Catches a cap that is not applied: a bucket larger than the cap loses entries.
    #[test]
    fn a_capped_coarse_bucket_loses_entries() {
        let scores: Vec<f32> = (0..64).map(|j| 1000.0 + j as f32 * 1e-3).collect();
        let t = TopkKnobs { coarse_bits: 16, coarse_cap: 8, ..TopkKnobs::default() };
        let got = pick(&scores, 4, &t);
        assert_ne!(got, pick(&scores, 4, &TopkKnobs::default()));
    }
}
