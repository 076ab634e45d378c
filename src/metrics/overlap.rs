//! Sets of selected indices (sparse attention's top-k, the router's experts): what was lost, and whether it matters.
//!
//! A row lists entry ids; −1 means "none" and may only follow the last id. Order within a row carries no meaning.

use serde::Serialize;

/// What is known about one row besides the two index lists.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowContext<'a> {
    /// Entries that may be selected: ids `0..visible`.
    pub visible: usize,
    /// How many must be selected, `min(k, visible)`.
    pub expected: usize,
    /// Golden score of each visible entry.
    pub scores: Option<&'a [f32]>,
    /// The largest difference of two scores that the number formats explain, in the scores' unit. (If each score may
    /// move by `e`, two may cross when they are `2e` apart.)
    pub floor: f64,
    /// Golden mass (e.g. attention probability) of each visible entry.
    pub mass: Option<&'a [f32]>,
}

/// Bad indices of one row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BadIndices {
    /// −1 before the last index that is not −1.
    pub sentinel_inside: u64,
    /// Repeats of an earlier valid index.
    pub duplicate: u64,
    /// Indices `>= visible`, or below −1.
    pub out_of_range: u64,
    /// The count of valid distinct indices is not the expected one.
    pub wrong_count: bool,
}

/// One row, measured against golden. A = valid distinct measured indices, B = golden ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RowOverlap {
    /// |A∩B| / |B|; 1 when B is empty.
    pub overlap: f64,
    /// |A∩B| / |A∪B|; 1 when both are empty.
    pub jaccard: f64,
    /// Entries in B but not in A.
    pub dropped: u64,
    /// Entries in A but not in B.
    pub added: u64,
    /// Flips that score noise up to `floor` explains; 0 when no scores were given.
    pub near_tie_flips: u64,
    /// Flips it does not explain: `max(dropped, added) − near_tie_flips`.
    pub real_flips: u64,
    /// Lowest selected minus highest unselected golden score; `None` without scores or when all visible are selected.
    pub margin: Option<f64>,
    /// Golden mass of the dropped entries; `None` when no mass was given.
    pub mass_lost: Option<f64>,
    /// True when fewer entries are selected than are visible: the ranking decided something.
    pub ranked: bool,
    /// Bad indices of the measured row.
    pub bad: BadIndices,
}

/// Bad indices of a row, and its valid distinct ids in ascending order.
pub fn inspect(row: &[i32], visible: usize, expected: usize) -> (BadIndices, Vec<usize>) {
    let mut bad = BadIndices::default();
    let used = row.iter().rposition(|&i| i != -1).map_or(0, |p| p + 1);
    let mut ids = Vec::with_capacity(used);
    for &i in &row[..used] {
        match usize::try_from(i) {
            Ok(i) if i < visible => ids.push(i),
            _ if i == -1 => bad.sentinel_inside += 1,
            _ => bad.out_of_range += 1,
        }
    }
    ids.sort_unstable();
    let valid = ids.len();
    ids.dedup();
    bad.duplicate = (valid - ids.len()) as u64;
    bad.wrong_count = ids.len() != expected;
    (bad, ids)
}

/// Compares a measured row `x` with a golden row `g`. `scores` and `mass`, where given, hold at least
/// `ctx.visible` values (panics otherwise).
///
/// A dropped entry is a near tie when its score is at most `floor` above the best unselected one, an added entry when
/// its score is at most `floor` below the worst selected one: without that, noise of that size could not have moved
/// it across the cut. A flip has two ends and is real when either end is.
pub fn compare_row(x: &[i32], g: &[i32], ctx: &RowContext<'_>) -> RowOverlap {
    let (bad, a) = inspect(x, ctx.visible, ctx.expected);
    let (_, b) = inspect(g, ctx.visible, ctx.expected);
    let dropped = difference(&b, &a);
    let added = difference(&a, &b);
    let common = b.len() - dropped.len();
    let flips = dropped.len().max(added.len()) as u64;
    let (mut margin, mut real_flips) = (None, flips);
    if let Some(scores) = ctx.scores {
        let (worst_in, best_out) = cut(&scores[..ctx.visible], &b);
        if !b.is_empty() && b.len() < ctx.visible {
            margin = Some(worst_in - best_out);
        }
        // written so that a NaN score counts as real
        let real_dropped = dropped.iter().filter(|&&d| !near(scores[d] as f64 - best_out, ctx.floor)).count();
        let real_added = added.iter().filter(|&&a| !near(worst_in - scores[a] as f64, ctx.floor)).count();
        real_flips = real_dropped.max(real_added) as u64;
    }
    RowOverlap {
        overlap: if b.is_empty() { 1.0 } else { common as f64 / b.len() as f64 },
        jaccard: if a.is_empty() && b.is_empty() {
            1.0
        } else {
            common as f64 / (b.len() + added.len()) as f64
        },
        dropped: dropped.len() as u64,
        added: added.len() as u64,
        near_tie_flips: flips - real_flips,
        real_flips,
        margin,
        mass_lost: ctx.mass.map(|m| dropped.iter().map(|&d| m[d] as f64).sum()),
        ranked: ctx.expected < ctx.visible,
        bad,
    }
}

fn near(gap: f64, floor: f64) -> bool {
    gap <= floor
}

/// Sorted `a` without the members of sorted `b`.
fn difference(a: &[usize], b: &[usize]) -> Vec<usize> {
    a.iter().copied().filter(|i| b.binary_search(i).is_err()).collect()
}

/// Lowest score inside the sorted set `b` and highest outside it (+inf, −inf when there is none).
fn cut(scores: &[f32], b: &[usize]) -> (f64, f64) {
    let (mut worst_in, mut best_out) = (f64::INFINITY, f64::NEG_INFINITY);
    let mut inside = b.iter().peekable();
    for (i, &s) in scores.iter().enumerate() {
        if inside.next_if(|&&j| j == i).is_some() {
            worst_in = worst_in.min(s as f64);
        } else {
            best_out = best_out.max(s as f64);
        }
    }
    (worst_in, best_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ctx(visible: usize, expected: usize) -> RowContext<'static> {
        RowContext { visible, expected, ..Default::default() }
    }

    #[test]
    fn hand_computed_overlap_margin_mass() {
        // golden picks {0, 2, 4}; measured picks {0, 2, 5}
        let scores = [9.0, 1.0, 8.0, 2.0, 5.0, 4.5];
        let mass = [0.5, 0.0, 0.2, 0.0, 0.25, 0.05];
        let c = RowContext { scores: Some(&scores), mass: Some(&mass), floor: 0.5, ..ctx(6, 3) };
        let r = compare_row(&[2, 0, 5, -1], &[0, 2, 4, -1], &c);
        assert_eq!((r.overlap, r.jaccard, r.dropped, r.added), (2.0 / 3.0, 0.5, 1, 1));
        assert_eq!((r.margin, r.mass_lost, r.ranked), (Some(0.5), Some(0.25), true));
        assert_eq!((r.near_tie_flips, r.real_flips), (1, 0));
        assert_eq!(r.bad, BadIndices::default());
        let tighter = RowContext { floor: 0.4, ..c };
        let r = compare_row(&[2, 0, 5], &[0, 2, 4], &tighter);
        assert_eq!((r.near_tie_flips, r.real_flips), (0, 1));
    }

    #[test]
    fn a_near_tie_drop_for_a_far_addition_is_real() {
        let scores = [9.0, 1.0, 8.0, 2.0, 5.0, 4.5];
        let c = RowContext { scores: Some(&scores), floor: 0.5, ..ctx(6, 3) };
        let r = compare_row(&[0, 2, 1], &[0, 2, 4], &c);
        assert_eq!((r.near_tie_flips, r.real_flips), (0, 1));
        let nan = [9.0, f32::NAN, 8.0, 2.0, 5.0, 4.5];
        let r = compare_row(&[0, 2, 1], &[0, 2, 4], &RowContext { scores: Some(&nan), ..c });
        assert_eq!(r.real_flips, 1);
    }

    #[test]
    fn without_scores_every_flip_is_real_and_margin_unknown() {
        let r = compare_row(&[1, 2], &[3, 4], &ctx(5, 2));
        assert_eq!((r.overlap, r.jaccard, r.real_flips, r.margin, r.mass_lost), (0.0, 0.0, 2, None, None));
    }

    #[test]
    fn each_kind_of_bad_index() {
        let bad = |row: &[i32], expected| inspect(row, 10, expected).0;
        assert_eq!(bad(&[3, -1, 4, -1, -1], 2), BadIndices { sentinel_inside: 1, ..Default::default() });
        assert_eq!(bad(&[3, 4, 3], 2), BadIndices { duplicate: 1, ..Default::default() });
        assert_eq!(bad(&[3, 10, -2, 4], 2), BadIndices { out_of_range: 2, ..Default::default() });
        assert_eq!(
            bad(&[3, i32::MIN, i32::MAX], 2),
            BadIndices { out_of_range: 2, wrong_count: true, ..Default::default() }
        );
        assert_eq!(bad(&[3], 2), BadIndices { wrong_count: true, ..Default::default() });
        // a duplicate that takes the place of an entry shows as both
        assert_eq!(bad(&[3, 3], 2), BadIndices { duplicate: 1, wrong_count: true, ..Default::default() });
        assert_eq!(inspect(&[7, -1, 2, 7, 11], 10, 2).1, [2, 7]);
    }

    #[test]
    fn empty_rows_agree() {
        for row in [&[][..], &[-1, -1][..]] {
            let r = compare_row(row, &[-1, -1], &ctx(0, 0));
            assert_eq!((r.overlap, r.jaccard, r.ranked, r.bad), (1.0, 1.0, false, BadIndices::default()));
        }
        let scores = [1.0, 2.0];
        let all = RowContext { scores: Some(&scores), ..ctx(2, 2) };
        assert_eq!(compare_row(&[1, 0], &[0, 1], &all).margin, None);
        assert_eq!(compare_row(&[-1, -1], &[0, 1], &all).overlap, 0.0);
    }
}
