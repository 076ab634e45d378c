//! Small vector helpers whose results do not depend on the instruction set: every reduction has
//! a fixed number of lanes and a fixed tree, and fused multiply-adds are written out, never
//! left to the compiler. All are `#[inline(always)]` so that a `#[multiversion]` caller compiles
//! them for the widest vectors of the machine.

/// Lanes of the fixed reduction tree.
pub const LANES: usize = 16;

/// Sums 16 lanes in a fixed tree.
#[inline(always)]
pub fn tree_sum(mut a: [f32; LANES]) -> f32 {
    for i in 0..8 {
        a[i] += a[i + 8];
    }
    for i in 0..4 {
        a[i] += a[i + 4];
    }
    (a[0] + a[2]) + (a[1] + a[3])
}

/// `1/sqrt(mean(x²) + eps)` with 16 f32 lanes of squares and everything after them in f64, so
/// that the factor, which scales a whole row, carries one rounding.
#[inline(always)]
pub fn inv_rms(x: &[f32], eps: f32) -> f64 {
    let mut acc = [0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for c in chunks {
        for i in 0..LANES {
            acc[i] = c[i].mul_add(c[i], acc[i]);
        }
    }
    for i in 0..rest.len() {
        acc[i] = rest[i].mul_add(rest[i], acc[i]);
    }
    let mut sum = 0f64;
    for v in acc {
        sum += v as f64;
    }
    1.0 / (sum / x.len() as f64 + eps as f64).sqrt()
}

/// Dot product of equal-length slices.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut acc = [0f32; LANES];
    let (ac, bc) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (ar, br) = (ac.remainder(), bc.remainder());
    for (x, y) in ac.zip(bc) {
        for i in 0..LANES {
            acc[i] = x[i].mul_add(y[i], acc[i]);
        }
    }
    for i in 0..ar.len().min(br.len()) {
        acc[i] = ar[i].mul_add(br[i], acc[i]);
    }
    tree_sum(acc)
}

/// e^x in f32, within 1.5 ulp over the finite range (checked in the tests); 0 below −104, inf
/// above 88.73, NaN stays NaN.
///
/// Cody–Waite reduction `x = n·ln2 + r`, `|r| <= ln2/2`, then the minimax polynomial of degree 6
/// from the Cephes library's `expf` (S. Moshier, public domain) and a two-step scaling by 2^n that
/// stays correct for subnormal results.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOG2E: f32 = std::f32::consts::LOG2_E;
    const HI: f32 = 0.693_359_4; // exact in 9 bits, so n·HI is exact
    const LO: f32 = -2.121_944_4e-4;
    // Adding 1.5·2^23 rounds to the nearest integer in the low mantissa bits.
    const MAGIC: f32 = 12_582_912.0;
    let xc = if x > 89.0 { 89.0 } else { x };
    let xc = if xc < -104.0 { -104.0 } else { xc };
    let n = xc.mul_add(LOG2E, MAGIC) - MAGIC;
    let r = n.mul_add(-HI, xc);
    let r = n.mul_add(-LO, r);
    let mut p = 1.987_569_1e-4f32;
    p = p.mul_add(r, 1.398_199_9e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    let y = (p * r).mul_add(r, r) + 1.0;
    // Two factors of 2^(n/2): each is a normal f32 for every n in [-150, 128].
    let ni = n as i32;
    let n1 = ni >> 1;
    let n2 = ni - n1;
    let s1 = f32::from_bits(((n1 + 127) as u32) << 23);
    let s2 = f32::from_bits(((n2 + 127) as u32) << 23);
    if x.is_nan() { x } else { y * s1 * s2 }
}

/// Logistic sigmoid `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a polynomial or scaling that is off: error in units of the last place vs f64.
    #[test]
    fn exp_is_within_one_and_a_half_ulp() {
        let mut worst = 0f64;
        let mut i = 0u32;
        while i < 2_000_000 {
            let x = -87.0 + 175.0 * (i as f32 / 2_000_000.0);
            let (y, t) = (exp(x) as f64, (x as f64).exp());
            if t < f32::MAX as f64 {
                let ulp = 2f64.powi((t.log2().floor() as i32) - 23);
                worst = worst.max((y - t).abs() / ulp);
            }
            i += 1;
        }
        assert!(worst <= 1.5, "{worst} ulp");
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        let sub = exp(-100.0) as f64;
        assert!((sub - (-100f64).exp()).abs() <= 2f64.powi(-149));
    }
}
