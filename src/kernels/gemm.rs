//! Matrix product `y = x · Wᵀ` in f32 with a fixed summation order.
//!
//! Every output element is summed in three levels, each in ascending `k`: fused multiply-adds
//! inside runs of [`RUN`], runs inside blocks of [`KC`], blocks inside the row. The order depends
//! on nothing else: not on the number of rows, of threads, or on the instruction set. So prefill and decode,
//! any chunking and any thread count give the same bits, which a general GEMM library does not
//! promise. (Measured beside the `gemm` crate in `benches/`; it is also faster at the sizes here,
//! because weights are packed once.)

use super::mat::{Mat, par_rows};
use multiversion::multiversion;

/// Columns of one packed panel: two 512-bit vectors.
const NR: usize = 32;
/// Terms of one chain of fused multiply-adds. Short chains keep the rounding error of long sums
/// small: the worst case grows like `RUN + KC/RUN + K/KC` instead of `K`.
pub const RUN: usize = 16;
/// Terms of one block; a panel of that many rows stays in the first-level cache.
pub const KC: usize = 256;

/// A weight `[n, k]` (`out, in`) packed into panels of [`NR`] output columns, `k`-major inside.
#[derive(Debug, Clone, Default)]
pub struct Packed {
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    panels: Vec<f32>,
}

impl Packed {
    /// Packs a row-major `[n, k]` matrix.
    pub fn new(n: usize, k: usize, w: &[f32]) -> Self {
        let mut packed = Packed { n: 0, k, panels: Vec::new() };
        packed.extend(w, n);
        packed
    }
    /// Appends `rows` more output rows (used for the growing list of index keys).
    pub fn extend(&mut self, w: &[f32], rows: usize) {
        assert_eq!(w.len(), rows * self.k);
        let k = self.k;
        self.panels.resize((self.n + rows).div_ceil(NR) * NR * k, 0.0);
        for (r, row) in w.chunks_exact(k.max(1)).enumerate() {
            let j = self.n + r;
            let panel = &mut self.panels[(j / NR) * NR * k..][..NR * k];
            for (kk, v) in row.iter().enumerate() {
                panel[kk * NR + j % NR] = *v;
            }
        }
        self.n += rows;
    }
    /// The packed weight as a row-major `[n, k]` matrix again.
    pub fn unpack(&self) -> Mat {
        let mut m = Mat::zeros(self.n, self.k);
        for j in 0..self.n {
            let panel = &self.panels[(j / NR) * NR * self.k..];
            for kk in 0..self.k {
                m.data[j * self.k + kk] = panel[kk * NR + j % NR];
            }
        }
        m
    }
}

/// `y [rows, n] = x [rows, k] · wᵀ`, parallel over rows.
pub fn linear(x: &Mat, w: &Packed) -> Mat {
    assert_eq!(x.cols, w.k, "linear: input has {} columns, weight wants {}", x.cols, w.k);
    let mut y = Mat::zeros(x.rows, w.n);
    par_rows(&mut y, |r0, out| {
        let rows = out.len() / w.n;
        gemm_block(&x.data[r0 * w.k..(r0 + rows) * w.k], w.k, rows, w, 0, w.n, out, w.n);
    });
    y
}

/// One single-threaded block: rows of `x` (leading dimension `ldx`) against output columns
/// `n0..n1` of `w`, written to `out` (leading dimension `ldo`). `n0` must be a multiple of the
/// panel width.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub fn gemm_block(
    x: &[f32],
    ldx: usize,
    rows: usize,
    w: &Packed,
    n0: usize,
    n1: usize,
    out: &mut [f32],
    ldo: usize,
) {
    debug_assert_eq!(n0 % NR, 0);
    let k = w.k;
    if k == 0 {
        out.fill(0.0);
        return;
    }
    for p in n0 / NR..n1.div_ceil(NR) {
        let nc = NR.min(n1 - p * NR);
        let o0 = p * NR - n0;
        for k0 in (0..k).step_by(KC) {
            let kc = KC.min(k - k0);
            let panel = &w.panels[p * NR * k + k0 * NR..][..kc * NR];
            let first = k0 == 0;
            let mut r = 0;
            while r + 6 <= rows {
                micro::<6>(&x[r * ldx + k0..], ldx, kc, panel, &mut out[r * ldo + o0..], ldo, nc, first);
                r += 6;
            }
            while r + 2 <= rows {
                micro::<2>(&x[r * ldx + k0..], ldx, kc, panel, &mut out[r * ldo + o0..], ldo, nc, first);
                r += 2;
            }
            while r < rows {
                micro::<1>(&x[r * ldx + k0..], ldx, kc, panel, &mut out[r * ldo + o0..], ldo, nc, first);
                r += 1;
            }
        }
    }
}

/// `MR` rows times one panel. Chains and running sums live in registers.
#[inline(always)]
fn micro<const MR: usize>(
    x: &[f32],
    ldx: usize,
    kc: usize,
    panel: &[f32],
    out: &mut [f32],
    ldo: usize,
    nc: usize,
    first: bool,
) {
    let mut sum = [[0f32; NR]; MR];
    let rows: [&[f32]; MR] = std::array::from_fn(|r| &x[r * ldx..r * ldx + kc]);
    for k0 in (0..kc).step_by(RUN) {
        let k1 = (k0 + RUN).min(kc);
        let mut acc = [[0f32; NR]; MR];
        for (b, kk) in panel[k0 * NR..k1 * NR].chunks_exact(NR).zip(k0..) {
            for r in 0..MR {
                let a = rows[r][kk];
                for c in 0..NR {
                    acc[r][c] = a.mul_add(b[c], acc[r][c]);
                }
            }
        }
        for r in 0..MR {
            for c in 0..NR {
                sum[r][c] += acc[r][c];
            }
        }
    }
    for r in 0..MR {
        let o = &mut out[r * ldo..r * ldo + nc];
        if first {
            o.copy_from_slice(&sum[r][..nc]);
        } else {
            for c in 0..nc {
                o[c] += sum[r][c];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(n: usize, seed: u64) -> Vec<f32> {
        let mut s = seed;
        (0..n)
            .map(|_| {
                s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((s >> 40) as f32) / (1u64 << 24) as f32 - 0.5
            })
            .collect()
    }

    /// Catches a row that depends on how many rows are computed with it (decode ≠ prefill).
    #[test]
    fn a_row_has_the_same_bits_alone_and_in_a_batch() {
        for (rows, n, k) in [(100, 37, 300), (13, 64, 5), (49, 1, 513)] {
            let x = Mat::new(rows, k, data(rows * k, 1));
            let w = Packed::new(n, k, &data(n * k, 2));
            let all = linear(&x, &w);
            for r in 0..rows {
                let one = linear(&x.slice(r, r + 1), &w);
                assert_eq!(one.data, all.row(r), "row {r}");
            }
        }
    }

    /// Catches a wrong panel, run, block or tail. |error| <= (RUN + KC/RUN + K/KC) u Σ|x||w| is the
    /// textbook bound of blocked summation (Higham, Accuracy and Stability, §4.2).
    #[test]
    fn agrees_with_f64_within_the_summation_bound() {
        for (rows, n, k) in [(7, 33, 700), (12, 32, 256), (1, 31, 1), (5, 65, 257)] {
            let x = Mat::new(rows, k, data(rows * k, 3));
            let wd = data(n * k, 4);
            let y = linear(&x, &Packed::new(n, k, &wd));
            for r in 0..rows {
                for j in 0..n {
                    let (mut s, mut a) = (0f64, 0f64);
                    for kk in 0..k {
                        let p = x.row(r)[kk] as f64 * wd[j * k + kk] as f64;
                        s += p;
                        a += p.abs();
                    }
                    let bound = (RUN.min(k) + KC.min(k) / RUN + k / KC + 2) as f64 * 2f64.powi(-24) * a;
                    assert!((y.row(r)[j] as f64 - s).abs() <= bound, "[{r},{j}]");
                }
            }
        }
    }

    /// Catches a growing key list that differs from one packed at once.
    #[test]
    fn extending_equals_packing_at_once() {
        let w = data(70 * 9, 5);
        let mut a = Packed::new(0, 9, &[]);
        for r in 0..70 {
            a.extend(&w[r * 9..(r + 1) * 9], 1);
        }
        assert_eq!(a.unpack(), Packed::new(70, 9, &w).unpack());
        assert_eq!(a.unpack().data, w);
    }
}
