//! Matrix product `y = x · Wᵀ` in f32 with a fixed summation order.
//!
//! Every output element is summed in three levels, each in ascending `k`: fused multiply-adds
//! inside runs of [`RUN`], runs inside blocks of [`KC`], blocks inside the row. The order depends
//! on nothing else: not on the number of rows, of threads, or on the instruction set. So prefill
//! and decode, any chunking and any thread count give the same bits, which a general GEMM library
//! does not promise. Measured beside the `gemm` crate in `benches/product.rs`: about as fast at
//! most sizes of the built-in model, slower for one row and for weights larger than the caches.
//!
//! One file because its three instruction-set paths must be read side by side: they give the same bits.

use super::mat::{Mat, par_rows};

/// Columns of one packed panel: two 512-bit vectors.
const NR: usize = 32;
/// Terms of one chain of fused multiply-adds. Short chains keep the rounding error of long sums
/// small: the worst case grows like `RUN + KC/RUN + K/KC` instead of `K`.
pub const RUN: usize = 16;
/// Terms of one block; a panel of that many rows stays in the first-level cache.
pub const KC: usize = 256;

/// A weight `[n, k]` (`out, in`) packed into panels of `NR` output columns, `k`-major inside.
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
    assert_eq!(n0 % NR, 0, "blocks start at a panel");
    if rows == 0 || n0 >= n1 {
        return;
    }
    assert!(x.len() >= (rows - 1) * ldx + w.k && out.len() >= (rows - 1) * ldo + (n1 - n0));
    if w.k == 0 {
        out.fill(0.0);
        return;
    }
    let b = Block { x, ldx, rows, w, n0, n1, ldo };
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has AVX-512F.
            return unsafe { simd::avx512(&b, out) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the CPU has AVX2 and FMA.
            return unsafe { simd::avx2(&b, out) };
        }
    }
    portable(&b, out);
}

/// Arguments of one block.
struct Block<'a> {
    x: &'a [f32],
    ldx: usize,
    rows: usize,
    w: &'a Packed,
    n0: usize,
    n1: usize,
    ldo: usize,
}

/// Rows of one tile: a first row, its `x` from column `k0`, a panel of `kc` terms, its output.
struct Tile<'a> {
    x: &'a [f32],
    ldx: usize,
    kc: usize,
    panel: &'a [f32],
    ldo: usize,
    nc: usize,
    first: bool,
}

impl Block<'_> {
    /// Calls a kernel for every tile: `many` for `mr` rows, `half` for half as many, and the rest
    /// one by one.
    #[inline(always)]
    fn tiles(
        &self,
        out: &mut [f32],
        mr: usize,
        many: impl Fn(&Tile, &mut [f32]),
        half: impl Fn(&Tile, &mut [f32]),
        one: impl Fn(&Tile, &mut [f32]),
    ) {
        let k = self.w.k;
        for p in self.n0 / NR..self.n1.div_ceil(NR) {
            let nc = NR.min(self.n1 - p * NR);
            let o0 = p * NR - self.n0;
            for k0 in (0..k).step_by(KC) {
                let kc = KC.min(k - k0);
                let panel = &self.w.panels[p * NR * k + k0 * NR..][..kc * NR];
                let mut r = 0;
                while r < self.rows {
                    let x = &self.x[r * self.ldx + k0..];
                    let t = Tile { x, ldx: self.ldx, kc, panel, ldo: self.ldo, nc, first: k0 == 0 };
                    let o = &mut out[r * self.ldo + o0..];
                    if r + mr <= self.rows {
                        many(&t, o);
                        r += mr;
                    } else if mr > 1 && r + mr / 2 <= self.rows {
                        half(&t, o);
                        r += mr / 2;
                    } else {
                        one(&t, o);
                        r += 1;
                    }
                }
            }
        }
    }
}

/// Stores or adds one row of a finished tile.
#[inline(always)]
fn put(t: &Tile, r: usize, sum: &[f32; NR], out: &mut [f32]) {
    let o = &mut out[r * t.ldo..r * t.ldo + t.nc];
    if t.first {
        o.copy_from_slice(&sum[..t.nc]);
    } else {
        o.iter_mut().zip(sum).for_each(|(o, s)| *o += s);
    }
}

/// The arithmetic every other path must match bit for bit.
fn portable(b: &Block, out: &mut [f32]) {
    let row = |t: &Tile, out: &mut [f32]| {
        let mut sum = [0f32; NR];
        for (x, panel) in t.x[..t.kc].chunks(RUN).zip(t.panel.chunks(RUN * NR)) {
            let mut acc = [0f32; NR];
            for (a, w) in x.iter().zip(panel.chunks_exact(NR)) {
                for c in 0..NR {
                    acc[c] = a.mul_add(w[c], acc[c]);
                }
            }
            for c in 0..NR {
                sum[c] += acc[c];
            }
        }
        put(t, 0, &sum, out);
    };
    b.tiles(out, 1, row, row, row);
}

/// The same arithmetic with vector registers. Written with intrinsics because both the running
/// chains and the sums must stay in registers, which the auto-vectoriser does not do.
#[cfg(target_arch = "x86_64")]
mod simd {
    use super::{Block, NR, RUN, Tile, put};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512(b: &Block, out: &mut [f32]) {
        b.tiles(out, 6, |t, o| tile512::<6>(t, o), |t, o| tile512::<3>(t, o), |t, o| tile512::<1>(t, o));
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn tile512<const MR: usize>(t: &Tile, out: &mut [f32]) {
        assert!(t.panel.len() >= t.kc * NR && t.x.len() >= (MR - 1) * t.ldx + t.kc);
        let zero = _mm512_setzero_ps();
        let mut sum = [[zero; 2]; MR];
        let mut k0 = 0;
        while k0 < t.kc {
            let k1 = (k0 + RUN).min(t.kc);
            let mut acc = [[zero; 2]; MR];
            for k in k0..k1 {
                // SAFETY: k < kc, and the assertion above bounds every access.
                unsafe {
                    let b0 = _mm512_loadu_ps(t.panel.as_ptr().add(k * NR));
                    let b1 = _mm512_loadu_ps(t.panel.as_ptr().add(k * NR + 16));
                    for r in 0..MR {
                        let a = _mm512_set1_ps(*t.x.get_unchecked(r * t.ldx + k));
                        acc[r][0] = _mm512_fmadd_ps(a, b0, acc[r][0]);
                        acc[r][1] = _mm512_fmadd_ps(a, b1, acc[r][1]);
                    }
                }
            }
            for r in 0..MR {
                sum[r][0] = _mm512_add_ps(sum[r][0], acc[r][0]);
                sum[r][1] = _mm512_add_ps(sum[r][1], acc[r][1]);
            }
            k0 = k1;
        }
        for r in 0..MR {
            if t.nc == NR {
                let o = &mut out[r * t.ldo..][..NR];
                // SAFETY: `o` holds two vectors.
                unsafe {
                    let p = o.as_mut_ptr();
                    if !t.first {
                        sum[r][0] = _mm512_add_ps(_mm512_loadu_ps(p), sum[r][0]);
                        sum[r][1] = _mm512_add_ps(_mm512_loadu_ps(p.add(16)), sum[r][1]);
                    }
                    _mm512_storeu_ps(p, sum[r][0]);
                    _mm512_storeu_ps(p.add(16), sum[r][1]);
                }
                continue;
            }
            let mut row = [0f32; NR];
            // SAFETY: the array holds two vectors.
            unsafe {
                _mm512_storeu_ps(row.as_mut_ptr(), sum[r][0]);
                _mm512_storeu_ps(row.as_mut_ptr().add(16), sum[r][1]);
            }
            put(t, r, &row, out);
        }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2(b: &Block, out: &mut [f32]) {
        b.tiles(out, 3, |t, o| tile256::<3>(t, o), |t, o| tile256::<1>(t, o), |t, o| tile256::<1>(t, o));
    }

    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn tile256<const MR: usize>(t: &Tile, out: &mut [f32]) {
        assert!(t.panel.len() >= t.kc * NR && t.x.len() >= (MR - 1) * t.ldx + t.kc);
        let mut rows = [[0f32; NR]; MR];
        // Two halves of 16 columns, so that chains and sums fit sixteen registers.
        for half in [0, 16] {
            let zero = _mm256_setzero_ps();
            let mut sum = [[zero; 2]; MR];
            let mut k0 = 0;
            while k0 < t.kc {
                let k1 = (k0 + RUN).min(t.kc);
                let mut acc = [[zero; 2]; MR];
                for k in k0..k1 {
                    // SAFETY: k < kc, and the assertion above bounds every access.
                    unsafe {
                        let b0 = _mm256_loadu_ps(t.panel.as_ptr().add(k * NR + half));
                        let b1 = _mm256_loadu_ps(t.panel.as_ptr().add(k * NR + half + 8));
                        for r in 0..MR {
                            let a = _mm256_set1_ps(*t.x.get_unchecked(r * t.ldx + k));
                            acc[r][0] = _mm256_fmadd_ps(a, b0, acc[r][0]);
                            acc[r][1] = _mm256_fmadd_ps(a, b1, acc[r][1]);
                        }
                    }
                }
                for r in 0..MR {
                    sum[r][0] = _mm256_add_ps(sum[r][0], acc[r][0]);
                    sum[r][1] = _mm256_add_ps(sum[r][1], acc[r][1]);
                }
                k0 = k1;
            }
            for r in 0..MR {
                // SAFETY: half + 16 <= NR.
                unsafe {
                    _mm256_storeu_ps(rows[r].as_mut_ptr().add(half), sum[r][0]);
                    _mm256_storeu_ps(rows[r].as_mut_ptr().add(half + 8), sum[r][1]);
                }
            }
        }
        for r in 0..MR {
            put(t, r, &rows[r], out);
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

    /// Catches an instruction set whose sums round differently.
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for (rows, n, k) in [(13, 70, 300), (1, 3, 17), (7, 32, 256)] {
            let (x, w) = (data(rows * k, 6), Packed::new(n, k, &data(n * k, 7)));
            let b = Block { x: &x, ldx: k, rows, w: &w, n0: 0, n1: n, ldo: n };
            let mut want = vec![0f32; rows * n];
            portable(&b, &mut want);
            #[cfg(target_arch = "x86_64")]
            {
                let mut got = vec![0f32; rows * n];
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: just detected.
                    unsafe { simd::avx2(&b, &mut got) };
                    assert_eq!(got, want, "avx2");
                }
                if is_x86_feature_detected!("avx512f") {
                    // SAFETY: just detected.
                    unsafe { simd::avx512(&b, &mut got) };
                    assert_eq!(got, want, "avx512");
                }
            }
        }
    }

    /// Catches a wrong panel, run, block or tail. |error| <= (RUN + KC/RUN + K/KC) u Σ|x||w| is
    /// the textbook bound of blocked summation (Higham, Accuracy and Stability, §4.2).
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
