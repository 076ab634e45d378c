//! Seeded data: the same bits on every machine and for every number of threads.

use super::sizes::{Case, OUTLIER, OUTLIERS};
use crate::kernels::Mat;
use crate::numeric::bf16;
use rayon::prelude::*;

/// A source of data. Every tensor is named, so that none depends on which others are made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gen(u64);

impl Gen {
    pub fn new(seed: u64) -> Gen {
        Gen(seed)
    }
    /// The source of what is called `label`.
    pub fn of(self, label: &str) -> Gen {
        let fnv = label
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ b as u64).wrapping_mul(0x100_0000_01b3));
        Gen(mix(self.0 ^ mix(fnv)))
    }
    /// `rows x cols` values of mean 0 and standard deviation `std`, nearly normal: the sum of
    /// four uniform 16-bit numbers, which needs integer arithmetic and one multiplication only.
    pub fn mat(self, rows: usize, cols: usize, std: f32) -> Mat {
        let mut m = Mat::zeros(rows, cols);
        if cols == 0 {
            return m;
        }
        // A uniform number on [0, 1) has variance 1/12, four of them 1/3.
        let scale = std * 3f32.sqrt() / 65536.0;
        m.data.par_chunks_mut(cols).enumerate().for_each(|(r, row)| {
            let mut state = mix(self.0 ^ mix(r as u64 + 1));
            for v in row {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let z = mix(state);
                let sum = (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48);
                *v = (sum as i32 - 131_070) as f32 * scale;
            }
        });
        m
    }
    /// One row.
    pub fn vec(self, n: usize, std: f32) -> Vec<f32> {
        self.mat(1, n, std).data
    }
}

/// The finaliser of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Multiplies the outlier channels of every vector of width `dim`.
pub(super) fn outliers(m: &mut Mat, dim: usize) {
    for v in m.data.chunks_exact_mut(dim) {
        OUTLIERS.iter().for_each(|c| v[*c] *= OUTLIER);
    }
}

/// Rounds activations to what an engine hands on between its kernels: bf16, but in the case that
/// shows what this costs.
pub(super) fn handed(m: &mut Mat, case: Case) {
    if case != Case::F32Inputs {
        bf16::round_slice(&mut m.data);
    }
}

/// Sets channel 0 of every vector of width `dim`.
pub(super) fn channel0(m: &mut Mat, dim: usize, value: impl Fn(usize) -> f32) {
    m.data.chunks_exact_mut(dim).enumerate().for_each(|(i, v)| v[0] = value(i));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a generator with a bias, a wrong spread, or rows that repeat.
    #[test]
    fn values_are_centred_and_independent() {
        let m = Gen::new(7).of("x").mat(64, 1024, 2.0);
        let n = m.data.len() as f64;
        let mean = m.data.iter().map(|v| *v as f64).sum::<f64>() / n;
        let var = m.data.iter().map(|v| (*v as f64).powi(2)).sum::<f64>() / n;
        // Four standard errors of the mean (2/√n) and of the variance (4·√(2/n)).
        assert!(mean.abs() < 4.0 * 2.0 / n.sqrt(), "{mean}");
        assert!((var - 4.0).abs() < 4.0 * 4.0 * (2.0 / n).sqrt(), "{var}");
        let dot: f64 = m.row(0).iter().zip(m.row(1)).map(|(a, b)| (*a * *b) as f64).sum();
        assert!(dot.abs() < 4.0 * 4.0 * 1024f64.sqrt(), "{dot}");
        assert_ne!(m, Gen::new(8).of("x").mat(64, 1024, 2.0));
        assert_ne!(m, Gen::new(7).of("y").mat(64, 1024, 2.0));
        assert_eq!(m, Gen::new(7).of("x").mat(64, 1024, 2.0));
    }
}
