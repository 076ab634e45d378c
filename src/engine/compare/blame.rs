//! Differences with a structure: what kind of mistake turns golden's values into the measured
//! ones.

use crate::kernels::round::round_row;
use crate::kernels::values::Fmt;
use crate::kernels::{Mat, Site};
use crate::model::Tap;
use crate::numeric::hadamard;

/// Taps whose two sides are kept until the layer ends.
pub const KEPT: &[Tap] = &[Tap::AttnKv, Tap::CompressorKv, Tap::IndexerQ, Tap::IndexerK];

/// A named structure.
pub struct Blame {
    /// Where it belongs.
    pub site: Site,
    /// In words.
    pub note: String,
    /// True if it is a legitimate choice of format or layout.
    pub explained: bool,
}

fn rel(x: &[f32], g: &[f32]) -> f64 {
    let (mut e, mut n) = (0f64, 0f64);
    for (x, g) in x.iter().zip(g) {
        e += (*x as f64 - *g as f64).powi(2);
        n += (*g as f64).powi(2);
    }
    if e == 0.0 { 0.0 } else { (e / n).sqrt() }
}

/// The rows of `m` whose error is beyond `limit`.
fn bad_rows(g: &Mat, m: &Mat, limit: f64) -> Vec<usize> {
    (0..g.rows).filter(|r| rel(m.row(*r), g.row(*r)).is_nan() || rel(m.row(*r), g.row(*r)) > limit).collect()
}

/// Why window or compressed keys/values differ: formats, rows or bytes in the wrong place.
/// `None`: they look computed differently, not stored differently.
pub fn stored_kv(g: &Mat, m: &Mat, rope: usize, floor: f64) -> Option<Blame> {
    let limit = (8.0 * floor).max(1e-4);
    let bad = bad_rows(g, m, limit);
    if bad.is_empty() {
        return None;
    }
    let cache = |note: String| Some(Blame { site: Site::KvCache, note, explained: false });
    if let Some(note) = fp8(g, m, rope, floor, &bad) {
        return Some(Blame { site: Site::KvCache, note, explained: true });
    }
    let zero = bad.iter().filter(|r| m.row(**r).iter().all(|v| *v == 0.0)).count();
    if zero * 2 > bad.len() {
        return cache(format!(
            "{zero} of {} rows hold zeros: nothing was written where they are read",
            g.rows
        ));
    }
    let near = (4.0 * floor).max(1e-3);
    let sample: Vec<usize> = bad.iter().copied().step_by((bad.len() / 48).max(1)).collect();
    let moved: Vec<(usize, usize)> = sample
        .iter()
        .filter_map(|&r| (0..g.rows).find(|&o| o != r && rel(m.row(r), g.row(o)) < near).map(|o| (r, o)))
        .collect();
    if moved.len() * 5 >= sample.len() * 4 {
        let (r, o) = moved[0];
        return cache(format!("rows hold other positions' values (row {r} holds row {o})"));
    }
    let sorted = |v: &[f32]| {
        let mut v = v.to_vec();
        v.sort_unstable_by(f32::total_cmp);
        v
    };
    let shuffled = sample.iter().filter(|r| rel(&sorted(m.row(**r)), &sorted(g.row(**r))) < near).count();
    if shuffled * 5 >= sample.len() * 4 {
        return cache("rows hold their own values in another order: the layout is misread".into());
    }
    if let Some(d) = displaced(g, m, &sample) {
        return cache(format!(
            "dims of other places are read (row {} dims {}.. hold those of row {} dims {}..): the address or the \
             layout is wrong",
            d.row, d.dim, d.from_row, d.from_dim
        ));
    }
    if let Some(f) = block_factor(g, m, rope, &sample, near.max(0.04)) {
        return cache(format!(
            "blocks of 64 are off by constant factors (the first by {f}): scales are misread"
        ));
    }
    None
}

/// Golden through an fp8 cache, if that is what was measured.
fn fp8(g: &Mat, m: &Mat, rope: usize, floor: f64, bad: &[usize]) -> Option<String> {
    for (f, name) in [(Fmt::Fp8x64, "64"), (Fmt::Fp8x128, "128"), (Fmt::Fp8Row, "a row")] {
        let hits = bad
            .iter()
            .filter(|r| {
                let mut q = g.row(**r).to_vec();
                let plain = q.len() - rope;
                round_row(&mut q[..plain], f);
                let before = rel(m.row(**r), g.row(**r));
                // fp8 moves a value by up to 6 %; what is left must be far smaller than that.
                before < 0.08 && rel(m.row(**r), &q) < (2.0 * floor).max(0.35 * before)
            })
            .count();
        if hits * 10 >= bad.len() * 9 {
            return Some(format!(
                "the values are those of an fp8 cache with a scale per {name}; compare with golden qat"
            ));
        }
    }
    None
}

/// Consecutive dims that are looked for elsewhere.
const RUN: usize = 16;
/// Of these, how many must be there: what e4m3 cannot hold beside the largest of its block is lost.
const RUN_HITS: usize = RUN - 2;
/// Rows whose runs are looked for: each costs a walk over all of golden.
const RUN_ROWS: usize = 24;

/// Values of one place found at another.
struct Displaced {
    row: usize,
    dim: usize,
    from_row: usize,
    from_dim: usize,
}

/// True if `x` is a positive multiple of `g` but for the rounding to e4m3: that moves a value by a
/// sixteenth of itself at most, so a ratio to the largest by an eighth and a little.
fn multiple(x: &[f32], g: &[f32]) -> bool {
    let top = (0..x.len()).max_by(|a, b| x[*a].abs().total_cmp(&x[*b].abs())).unwrap_or(0);
    let factor = x[top] as f64 / g[top] as f64;
    if !(factor > 0.0 && factor.is_finite()) {
        return false;
    }
    let near = |(x, g): (&f32, &f32)| {
        let g = *g as f64 * factor;
        (*x as f64 - g).abs() <= 0.13 * g.abs()
    };
    let misses = x.len() - RUN_HITS;
    let mut missed = 0;
    for pair in x.iter().zip(g) {
        missed += !near(pair) as usize;
        if missed > misses {
            return false;
        }
    }
    true
}

/// Runs of dims that hold what golden has in other rows or dims, whatever their scale: one in five
/// at least, since runs that straddle two blocks or records are found nowhere. Two unrelated runs
/// agree in 14 of 16 ratios once in 10^15 (a ratio is within an eighth, of the same sign, about once
/// in twenty), and a page of a real cache has 10^7 places.
fn displaced(g: &Mat, m: &Mat, rows: &[usize]) -> Option<Displaced> {
    let (mut first, mut seen, mut found) = (None, 0, 0);
    for &row in rows.iter().step_by(rows.len().div_ceil(RUN_ROWS).max(1)) {
        for dim in (0..(m.cols + 1).saturating_sub(RUN)).step_by(RUN) {
            let x = &m.row(row)[dim..dim + RUN];
            if x.iter().any(|v| !v.is_finite()) || x.iter().all(|v| *v == 0.0) {
                continue;
            }
            seen += 1;
            if multiple(x, &g.row(row)[dim..dim + RUN]) {
                continue;
            }
            let mut places = (0..g.rows).flat_map(|r| (0..=g.cols - RUN).map(move |d| (r, d)));
            if let Some((from_row, from_dim)) = places.find(|(r, d)| multiple(x, &g.row(*r)[*d..*d + RUN])) {
                found += 1;
                first.get_or_insert(Displaced { row, dim, from_row, from_dim });
            }
        }
    }
    first.filter(|_| found >= 3 && found * 5 >= seen)
}

/// A constant factor other than 1 in every block of 64 plain dims, if the rows show one.
fn block_factor(g: &Mat, m: &Mat, rope: usize, rows: &[usize], near: f64) -> Option<f64> {
    let mut first = None;
    let mut off = 0;
    for &r in rows {
        let plain = g.cols - rope;
        for (gb, mb) in g.row(r)[..plain].chunks(64).zip(m.row(r)[..plain].chunks(64)) {
            let (mut xg, mut gg) = (0f64, 0f64);
            for (a, b) in gb.iter().zip(mb) {
                xg += *a as f64 * *b as f64;
                gg += *a as f64 * *a as f64;
            }
            let c = xg / gg;
            let scaled: Vec<f32> = gb.iter().map(|v| (*v as f64 * c) as f32).collect();
            if !c.is_finite() || rel(mb, &scaled) > near {
                return None;
            }
            if (c - 1.0).abs() > 0.1 {
                off += 1;
                first.get_or_insert(c);
            }
        }
    }
    first.filter(|_| off > 0)
}

/// True if the measured vectors are golden's after a Hadamard rotation (quantised or not).
pub fn is_rotated(g: &Mat, m: &Mat, dim: usize, floor: f64) -> bool {
    if !dim.is_power_of_two() || g.rows == 0 {
        return false;
    }
    let before = rel(&m.data, &g.data);
    let mut h = g.clone();
    h.data.chunks_exact_mut(dim).for_each(hadamard::in_place);
    // fp4 is the coarsest encoding in use; it moves a vector by about 0.1 to 0.2.
    before > 0.5 && rel(&m.data, &h.data) < (4.0 * floor).max(0.25)
}

/// True if the weights are golden's without the routed scaling factor.
pub fn is_unscaled(g: &Mat, m: &Mat, factor: f32) -> bool {
    if (factor - 1.0).abs() < 1e-3 {
        return false;
    }
    let scaled: Vec<f32> = m.data.iter().map(|v| v * factor).collect();
    rel(&scaled, &g.data) < 0.02
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::knobs::KvCacheKnobs;
    use crate::kernels::kv_pages::through_pages;
    use crate::kernels::values::Layout;

    fn rows(n: usize, c: usize) -> Mat {
        Mat::new(
            n,
            c,
            (0..n * c).map(|i| ((i * 7919 % 1009) as f32 / 504.0 - 1.0) * (1.0 + (i % 7) as f32)).collect(),
        )
    }

    /// Catches storage faults blamed on the projection, and computed differences blamed on storage.
    #[test]
    fn storage_is_told_from_arithmetic() {
        let g = rows(40, 144);
        let site = |m: &Mat| stored_kv(&g, m, 16, 1e-6).map(|b| (b.site, b.explained));
        assert_eq!(site(&g), None);
        let mut shifted = g.clone();
        shifted.data.rotate_right(144);
        assert_eq!(site(&shifted), Some((Site::KvCache, false)));
        let mut q = g.clone();
        q.data.chunks_exact_mut(144).for_each(|r| round_row(&mut r[..128], Fmt::Fp8x64));
        assert_eq!(site(&q), Some((Site::KvCache, true)));
        let mut zero = g.clone();
        zero.data[144 * 5..144 * 9].fill(0.0);
        assert_eq!(site(&zero), Some((Site::KvCache, false)));
        let mut scaled = g.clone();
        scaled.data.chunks_exact_mut(144).for_each(|r| r[..64].iter_mut().for_each(|v| *v *= 2.0));
        assert_eq!(site(&scaled), Some((Site::KvCache, false)));
        // Another position's row, through an fp8 cache; and records found at another pitch.
        let mut other = shifted.clone();
        other.data.chunks_exact_mut(144).for_each(|r| round_row(&mut r[..128], Fmt::Fp8x64));
        assert_eq!(site(&other), Some((Site::KvCache, false)));
        let mut pitch = g.clone();
        let k = KvCacheKnobs { layout: Layout::Interleaved, ..KvCacheKnobs::default() };
        through_pages(&mut pitch, 0, 16, false, &k);
        assert_eq!(site(&pitch), Some((Site::KvCache, false)));
        // Every row of the cache one dim further, in full precision.
        let mut stride = g.clone();
        stride.data.rotate_right(1);
        assert_eq!(site(&stride), Some((Site::KvCache, false)));
        // Half of the dims turned, as by a wrong rotation: arithmetic.
        let mut turned = g.clone();
        turned.data.chunks_exact_mut(144).enumerate().for_each(|(r, row)| {
            let (s, c) = (1.0 + r as f32).sin_cos();
            row[72..]
                .chunks_exact_mut(2)
                .for_each(|p| (p[0], p[1]) = (c * p[0] - s * p[1], s * p[0] + c * p[1]));
        });
        assert_eq!(site(&turned), None);
        let mut noisy = g.clone();
        noisy.data.iter_mut().enumerate().for_each(|(i, v)| *v += ((i * 31 % 17) as f32 - 8.0) * 0.05);
        assert_eq!(site(&noisy), None);
    }

    #[test]
    fn rotation_and_factor_are_recognised() {
        let g = rows(8, 32);
        let mut h = g.clone();
        h.data.chunks_exact_mut(32).for_each(hadamard::in_place);
        assert!(is_rotated(&g, &h, 32, 1e-6));
        assert!(!is_rotated(&g, &g, 32, 1e-6));
        let u = Mat::new(8, 32, g.data.iter().map(|v| v / 1.5).collect());
        assert!(is_unscaled(&g, &u, 1.5) && !is_unscaled(&g, &g, 1.5));
    }
}
