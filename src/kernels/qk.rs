//! Attention scores of one token: every head's query with every key it sees.

use super::simd::dot;
use multiversion::multiversion;

/// `p[h·n + j] = (q_h · key_j) · scale` for the heads of `q` (`dim` apart); columns of `p` from
/// `keys.len()` to `n` become −inf. Every product is summed in the order of [`dot`].
pub fn scores(q: &[f32], keys: &[&[f32]], dim: usize, scale: f32, n: usize, p: &mut [f32]) {
    assert!(n >= keys.len() && p.len() == q.len() / dim * n && keys.iter().all(|k| k.len() == dim));
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && dim.is_multiple_of(16) && n >= keys.len().next_multiple_of(4) {
        // SAFETY: the CPU has AVX-512F.
        unsafe { avx512::scores(q, keys, dim, scale, n, p) };
        p.chunks_exact_mut(n).for_each(|row| row[keys.len()..].fill(f32::NEG_INFINITY));
        return;
    }
    portable(q, keys, dim, scale, n, p);
}

/// The arithmetic the other path must match bit for bit.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn portable(q: &[f32], keys: &[&[f32]], dim: usize, scale: f32, n: usize, p: &mut [f32]) {
    for (q, row) in q.chunks_exact(dim).zip(p.chunks_exact_mut(n)) {
        let (seen, rest) = row.split_at_mut(keys.len());
        seen.iter_mut().zip(keys).for_each(|(p, key)| *p = dot(q, key) * scale);
        rest.fill(f32::NEG_INFINITY);
    }
}

/// Four heads by four keys at a time: sixteen running sums in registers and one reduction for all
/// of them. Intrinsics, because the auto-vectoriser keeps the sums in memory.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    pub(super) fn scores(q: &[f32], keys: &[&[f32]], dim: usize, scale: f32, n: usize, p: &mut [f32]) {
        let heads = q.len() / dim;
        let scale = _mm512_set1_ps(scale);
        for j in (0..keys.len()).step_by(4) {
            // Beyond the last head or key a tile repeats it; of the repeated heads nothing is kept,
            // and what stands beyond the last key is overwritten.
            let keys: [&[f32]; 4] = std::array::from_fn(|i| keys[(j + i).min(keys.len() - 1)]);
            for h in (0..heads).step_by(4) {
                let q: [&[f32]; 4] = std::array::from_fn(|i| &q[(h + i).min(heads - 1) * dim..][..dim]);
                let z = _mm512_mul_ps(tile(q, keys, dim), scale);
                let mut out = [0f32; 16];
                // SAFETY: the array holds one vector.
                unsafe { _mm512_storeu_ps(out.as_mut_ptr(), z) };
                for (i, z) in out.as_chunks::<4>().0.iter().enumerate().take(heads - h) {
                    p[(h + i) * n + j..][..4].copy_from_slice(z);
                }
            }
        }
    }

    /// Element `4·head + key` is the product of that head and key.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn tile(q: [&[f32]; 4], keys: [&[f32]; 4], dim: usize) -> __m512 {
        assert!(dim.is_multiple_of(16) && q.iter().chain(&keys).all(|v| v.len() >= dim));
        // Number 4·key + head, which the reduction below takes to block `head`, lane `key`.
        let mut acc = [_mm512_setzero_ps(); 16];
        for c in (0..dim).step_by(16) {
            // SAFETY: c + 16 <= dim, which no vector is shorter than.
            let load = |v: &[f32]| unsafe { _mm512_loadu_ps(v.as_ptr().add(c)) };
            let q = [load(q[0]), load(q[1]), load(q[2]), load(q[3])];
            for k in 0..4 {
                let key = load(keys[k]);
                for h in 0..4 {
                    acc[4 * k + h] = _mm512_fmadd_ps(q[h], key, acc[4 * k + h]);
                }
            }
        }
        // The tree of `tree_sum`, for sixteen sums at once. Each step adds the two halves that the
        // tree adds and packs the results of two vectors into one.
        let mut by8 = [_mm512_setzero_ps(); 8];
        for i in 0..8 {
            let (a, b) = (acc[2 * i], acc[2 * i + 1]);
            by8[i] = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
        }
        let mut by4 = [_mm512_setzero_ps(); 4];
        for i in 0..4 {
            let (a, b) = (by8[2 * i], by8[2 * i + 1]);
            by4[i] = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xDD>(a, b));
        }
        let pairs = |a, b| _mm512_add_ps(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xEE>(a, b));
        let (a, b) = (pairs(by4[0], by4[1]), pairs(by4[2], by4[3]));
        _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xDD>(a, b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a tile that sums in another order than one product alone, mixes up heads or keys,
    /// or leaves something beyond the last key.
    #[test]
    fn every_path_gives_the_bits_of_a_single_product() {
        for (heads, keys, dim) in [(1, 1, 16), (4, 7, 128), (3, 5, 32), (6, 12, 48), (4, 3, 20), (9, 4, 64)] {
            let q: Vec<f32> = (0..heads * dim).map(|i| (i as f32 * 0.7).sin()).collect();
            let k: Vec<f32> = (0..keys * dim).map(|i| (i as f32 * 1.3).cos()).collect();
            let rows: Vec<&[f32]> = k.chunks_exact(dim).collect();
            let n = keys.next_multiple_of(16);
            for f in [scores, portable] {
                let mut p = vec![7f32; heads * n];
                f(&q, &rows, dim, 0.25, n, &mut p);
                for h in 0..heads {
                    for j in 0..n {
                        let want = match rows.get(j) {
                            Some(key) => dot(&q[h * dim..][..dim], key) * 0.25,
                            None => f32::NEG_INFINITY,
                        };
                        assert_eq!(p[h * n + j], want, "{heads} heads, {keys} keys, dim {dim}: [{h},{j}]");
                    }
                }
            }
        }
    }
}
