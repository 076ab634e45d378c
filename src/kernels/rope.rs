//! Rotary tables and the rotation, with the frequencies in f32 exactly as the official script
//! computes them (the f32 angle is the definition; cos and sin are accurate for that angle).

use super::mat::{Mat, par_rows};
use super::round::round_row;
use super::values::{Fmt, Pairing};
use crate::checkpoint::{Rope, Yarn};

/// `cos` and `sin` of every position and frequency, `[positions, r/2]`.
#[derive(Debug, Clone, Default)]
pub struct RopeTable {
    /// Rotary dims `r` (trailing dims of a head).
    pub dims: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// Frequencies `f_i = θ^(−2i/r)`, YaRN-corrected where configured, f32 in the order of the
/// official script.
pub fn frequencies(rope: &Rope, dims: usize) -> Vec<f32> {
    let theta = rope.theta;
    (0..dims / 2)
        .map(|i| {
            let exponent = (2 * i) as f32 / dims as f32;
            let f = 1.0 / (theta.powf(exponent as f64) as f32);
            match &rope.yarn {
                None => f,
                Some(y) => {
                    let (low, high) = correction_range(y, theta, dims);
                    let ramp = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
                    let smooth = 1.0 - ramp;
                    f / y.factor as f32 * (1.0 - smooth) + f * smooth
                }
            }
        })
        .collect()
}

/// `low` and `high` of the YaRN ramp: `corr(n) = r·ln(L/(2πn)) / (2·ln θ)`, floored and ceiled.
fn correction_range(y: &Yarn, theta: f64, dims: usize) -> (f32, f32) {
    let corr = |n: f64| {
        dims as f64 * (y.original_max_position_embeddings as f64 / (n * 2.0 * std::f64::consts::PI)).ln()
            / (2.0 * theta.ln())
    };
    let low = corr(y.beta_fast).floor().max(0.0);
    let high = corr(y.beta_slow).ceil().min(dims as f64 - 1.0);
    (low as f32, if low == high { (high + 0.001) as f32 } else { high as f32 })
}

impl RopeTable {
    /// Tables for positions `0..positions`.
    pub fn new(rope: &Rope, dims: usize, positions: usize) -> Self {
        let f = frequencies(rope, dims);
        let half = f.len();
        let mut cos = Mat::zeros(positions, half);
        let mut sin = Mat::zeros(positions, half);
        for (out, func) in [(&mut cos, f64::cos as fn(f64) -> f64), (&mut sin, f64::sin)] {
            par_rows(out, |p0, rows| {
                for (r, row) in rows.chunks_exact_mut(half).enumerate() {
                    for (v, f) in row.iter_mut().zip(&f) {
                        // The f32 product is the angle; its cosine is taken accurately.
                        *v = func(((p0 + r) as f32 * f) as f64) as f32;
                    }
                }
            });
        }
        RopeTable { dims, cos: cos.data, sin: sin.data }
    }

    /// The table with cos and sin rounded to `f`.
    pub fn rounded(&self, f: Fmt) -> RopeTable {
        let mut t = self.clone();
        round_row(&mut t.cos, f);
        round_row(&mut t.sin, f);
        t
    }

    /// Rotates the trailing `dims` of one vector as at `position`; `inverse` rotates back.
    #[inline(always)]
    pub fn rotate(&self, v: &mut [f32], position: usize, inverse: bool, pairing: Pairing) {
        let half = self.dims / 2;
        if pairing == Pairing::Off || half == 0 {
            return;
        }
        let (cos, sin) = (&self.cos[position * half..][..half], &self.sin[position * half..][..half]);
        let at = v.len() - self.dims;
        let tail = &mut v[at..];
        for i in 0..half {
            let (a, b) = match pairing {
                Pairing::Interleaved => (2 * i, 2 * i + 1),
                _ => (i, i + half),
            };
            let (c, s) = (cos[i], if inverse { -sin[i] } else { sin[i] });
            let (x, y) = (tail[a], tail[b]);
            tail[a] = x * c - y * s;
            tail[b] = x * s + y * c;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(words: &str) -> Vec<u32> {
        words.split_whitespace().map(|w| u32::from_str_radix(w, 16).unwrap()).collect()
    }

    /// Catches a YaRN ramp, exponent or evaluation order that differs from the official script:
    /// the bit patterns of the released models' tables.
    #[test]
    fn frequencies_match_the_released_models_bit_for_bit() {
        let yarn = Rope {
            theta: 160000.0,
            yarn: Some(Yarn {
                factor: 16.0,
                original_max_position_embeddings: 65536,
                beta_fast: 32.0,
                beta_slow: 1.0,
            }),
        };
        let want = bits(
            "3f800000 3f300a3a 3ef21c1f 3ea67d01 3e64f92e 3e1d7475 3dd88cb4 3d94e963 3d4ccccd 3d0cd4fb 3cc1b019 \
             3c8530ce 3c372dbf 3bfbed88 3bad3d5e 3b6e4237 3b147ae1 3ab714e0 3a5ebdb6 3a0530ce 399bb3af 39305978 \
             38be904d 383e9b5f 37a3d70c 36b443d0 3677eba6 362a7be8 35ea77ff 35a13bdc 355dbf30 35187c4d",
        );
        let got: Vec<u32> = frequencies(&yarn, 64).iter().map(|f| f.to_bits()).collect();
        assert_eq!(got, want);
        let plain = Rope { theta: 10000.0, yarn: None };
        let want = bits(
            "3f800000 3f3ff911 3f0ff59a 3ed7e89b 3ea1e89b 3e72d423 3e361887 3e088d77 3dcccccd 3d99940d 3d6655c2 \
             3d2cba15 3d0186e3 3cc2434f 3c91ad39 3c5a7bf2 3c23d70a 3bf5b9b0 3bb8449c 3b8a2e77 3b4f3e38 3b1b690d \
             3ae91528 3aaec98e 3a83126f 3a44948c 3a136a16 39dd1725 39a5cb60 3978a815 393a7753 390bd472",
        );
        let got: Vec<u32> = frequencies(&plain, 64).iter().map(|f| f.to_bits()).collect();
        assert_eq!(got, want);
    }

    /// Catches a half-split rotation and a wrong sign of the inverse.
    #[test]
    fn rotation_is_interleaved_and_undone_by_its_inverse() {
        let t = RopeTable::new(&Rope { theta: 10000.0, yarn: None }, 4, 8);
        let mut v = vec![9.0, 1.0, 0.0, 0.0, 2.0];
        t.rotate(&mut v, 3, false, Pairing::Interleaved);
        assert_eq!(v[0], 9.0);
        assert!((v[1] - 3f32.cos()).abs() < 1e-6 && (v[2] - 3f32.sin()).abs() < 1e-6);
        t.rotate(&mut v, 3, true, Pairing::Interleaved);
        for (a, b) in v.iter().zip([9.0, 1.0, 0.0, 0.0, 2.0]) {
            assert!((a - b).abs() < 1e-6);
        }
    }
}
