//! Orthonormal Walsh–Hadamard transform in natural (Sylvester) order: `y = n^-1/2 · H·x`,
//! `H[i][j] = (−1)^popcount(i & j)`. It is its own inverse and keeps dot products.

use crate::{Error, Result};

/// Transforms `row` in place. The length must be a power of two (checked in debug builds; [`rows`] checks always).
///
/// f32 butterflies of stride 1, 2, 4, …; the scale `n^-1/2` (rounded to f32) multiplies once at the end, so a caller
/// that wants a bf16 result rounds once afterwards.
pub fn in_place(row: &mut [f32]) {
    let n = row.len();
    debug_assert!(n.is_power_of_two());
    let mut h = 1;
    while h < n {
        for block in row.chunks_exact_mut(2 * h) {
            let (lo, hi) = block.split_at_mut(h);
            for (a, b) in lo.iter_mut().zip(hi) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        h *= 2;
    }
    let scale = (1.0 / (n as f64).sqrt()) as f32;
    for x in row {
        *x *= scale;
    }
}

/// Transforms each consecutive row of length `n` of `xs`.
pub fn rows(xs: &mut [f32], n: usize) -> Result<()> {
    if !n.is_power_of_two() {
        return Err(Error::input(format!("a Hadamard transform needs a power-of-two length, got {n}")));
    }
    if !xs.len().is_multiple_of(n) {
        return Err(Error::input(format!("{} values are not whole rows of {n}", xs.len())));
    }
    xs.chunks_exact_mut(n).for_each(in_place);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::bf16;
    use proptest::prelude::*;

    #[test]
    fn the_fifth_unit_vector() {
        let mut x = vec![0.0; 128];
        x[5] = 1.0;
        in_place(&mut x);
        let signs = [1.0, -1.0, 1.0, -1.0, -1.0, 1.0, -1.0, 1.0];
        for (i, &y) in x.iter().enumerate() {
            assert_eq!(y, (0.088_388_347_6_f64 as f32) * signs[i % 8]);
            assert_eq!(bf16::round(y), 181.0 / 2048.0 * signs[i % 8]);
        }
    }

    #[test]
    fn equals_the_matrix_by_definition() {
        for n in [1usize, 2, 4, 16, 128] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 37 + 11) % 17) as f32 - 8.0).collect();
            let mut y = x.clone();
            in_place(&mut y);
            for (i, &got) in y.iter().enumerate() {
                let sum: f64 =
                    (0..n).map(|j| if (i & j).count_ones() % 2 == 0 { x[j] } else { -x[j] } as f64).sum();
                assert!((got as f64 - sum / (n as f64).sqrt()).abs() < 1e-5, "n {n} i {i}");
            }
        }
    }

    #[test]
    fn wrong_lengths_are_errors() {
        assert!(rows(&mut [0.0; 12], 12).is_err());
        assert!(rows(&mut [0.0; 12], 0).is_err());
        assert!(rows(&mut [0.0; 12], 8).is_err());
        let mut two = [1.0, 1.0, 1.0, -1.0];
        rows(&mut two, 2).unwrap();
        let r = std::f32::consts::SQRT_2;
        assert!((two[0] - r).abs() < 1e-6 && two[1] == 0.0 && two[2] == 0.0 && (two[3] - r).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn orthogonal_and_its_own_inverse(
            a in prop::collection::vec(-4f32..4.0, 64),
            b in prop::collection::vec(-4f32..4.0, 64),
        ) {
            let dot = |p: &[f32], q: &[f32]| p.iter().zip(q).map(|(&x, &y)| x as f64 * y as f64).sum::<f64>();
            let (mut ha, mut hb) = (a.clone(), b.clone());
            in_place(&mut ha);
            in_place(&mut hb);
            prop_assert!((dot(&a, &b) - dot(&ha, &hb)).abs() < 1e-3);
            in_place(&mut ha);
            for (x, y) in ha.iter().zip(&a) { prop_assert!((x - y).abs() < 1e-5); }
        }
    }
}
