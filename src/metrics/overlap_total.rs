//! Totals of index-set comparisons over many rows.

use super::error::ratio;
use super::finding::Finding;
use super::overlap::RowOverlap;
use serde::Serialize;

/// Running totals over rows; merge in row order.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OverlapAccum {
    rows: u64,
    ranked: u64,
    exact: u64,
    overlap: f64,
    overlap_ranked: f64,
    jaccard: f64,
    worst: Option<(f64, u64)>,
    near_tie: u64,
    real: u64,
    min_margin: Option<f64>,
    mass: f64,
    mass_ranked: f64,
    mass_rows: u64,
    mass_max: f64,
    sentinel: u64,
    duplicate: u64,
    out_of_range: u64,
    wrong_count: u64,
}

/// A summary of many rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OverlapStats {
    /// Rows seen.
    pub rows: u64,
    /// Rows in which ranking decided something (fewer selected than visible).
    pub ranked_rows: u64,
    /// Rows whose set equals golden's.
    pub exact_rows: u64,
    /// Mean of |A∩B|/|B| over all rows; NaN for none.
    pub mean_overlap: f64,
    /// The same over ranked rows only: rows below the horizon agree whatever the scores are.
    pub mean_overlap_ranked: f64,
    /// Lowest overlap of a row; NaN for no rows.
    pub min_overlap: f64,
    /// The first row that attains it.
    pub min_overlap_row: Option<u64>,
    /// Mean Jaccard index over all rows.
    pub mean_jaccard: f64,
    /// Sum of near-tie flips.
    pub near_tie_flips: u64,
    /// Sum of real flips.
    pub real_flips: u64,
    /// Smallest margin at the cut, in the scores' unit.
    pub min_margin: Option<f64>,
    /// Mean golden mass lost, over rows with mass; NaN for none.
    pub mean_mass_lost: f64,
    /// The same over ranked rows only; NaN for none, or if a row had no mass.
    pub mean_mass_lost_ranked: f64,
    /// Largest golden mass lost in one row; NaN when no row had mass.
    pub max_mass_lost: f64,
    /// −1 entries inside a prefix.
    pub sentinel_inside: u64,
    /// Duplicate indices.
    pub duplicate: u64,
    /// Invalid or not yet visible indices.
    pub out_of_range: u64,
    /// Rows with a wrong number of entries.
    pub wrong_count_rows: u64,
}

impl OverlapAccum {
    /// Adds the next row.
    pub fn push(&mut self, row: &RowOverlap) {
        if self.worst.is_none_or(|(w, _)| row.overlap < w) {
            self.worst = Some((row.overlap, self.rows));
        }
        self.rows += 1;
        self.exact += (row.dropped == 0 && row.added == 0) as u64;
        self.overlap += row.overlap;
        if row.ranked {
            self.ranked += 1;
            self.overlap_ranked += row.overlap;
            self.mass_ranked += row.mass_lost.unwrap_or(f64::NAN);
        }
        self.jaccard += row.jaccard;
        self.near_tie += row.near_tie_flips;
        self.real += row.real_flips;
        self.min_margin = min(self.min_margin, row.margin);
        if let Some(m) = row.mass_lost {
            self.mass += m;
            self.mass_rows += 1;
            self.mass_max = self.mass_max.max(m);
        }
        self.sentinel += row.bad.sentinel_inside;
        self.duplicate += row.bad.duplicate;
        self.out_of_range += row.bad.out_of_range;
        self.wrong_count += row.bad.wrong_count as u64;
    }

    /// Appends `other`, whose rows follow this one's.
    pub fn merge(&mut self, other: &OverlapAccum) {
        if let Some((w, row)) = other.worst
            && self.worst.is_none_or(|(mine, _)| w < mine)
        {
            self.worst = Some((w, row + self.rows));
        }
        self.rows += other.rows;
        self.ranked += other.ranked;
        self.exact += other.exact;
        self.overlap += other.overlap;
        self.overlap_ranked += other.overlap_ranked;
        self.jaccard += other.jaccard;
        self.near_tie += other.near_tie;
        self.real += other.real;
        self.min_margin = min(self.min_margin, other.min_margin);
        self.mass += other.mass;
        self.mass_ranked += other.mass_ranked;
        self.mass_rows += other.mass_rows;
        self.mass_max = self.mass_max.max(other.mass_max);
        self.sentinel += other.sentinel;
        self.duplicate += other.duplicate;
        self.out_of_range += other.out_of_range;
        self.wrong_count += other.wrong_count;
    }

    /// The summary of everything pushed so far.
    pub fn finish(&self) -> OverlapStats {
        let n = self.rows as f64;
        OverlapStats {
            rows: self.rows,
            ranked_rows: self.ranked,
            exact_rows: self.exact,
            mean_overlap: self.overlap / n,
            mean_overlap_ranked: self.overlap_ranked / self.ranked as f64,
            min_overlap: self.worst.map_or(f64::NAN, |(w, _)| w),
            min_overlap_row: self.worst.map(|(_, row)| row),
            mean_jaccard: self.jaccard / n,
            near_tie_flips: self.near_tie,
            real_flips: self.real,
            min_margin: self.min_margin,
            mean_mass_lost: self.mass / self.mass_rows as f64,
            mean_mass_lost_ranked: self.mass_ranked / self.ranked as f64,
            max_mass_lost: if self.mass_rows == 0 { f64::NAN } else { self.mass_max },
            sentinel_inside: self.sentinel,
            duplicate: self.duplicate,
            out_of_range: self.out_of_range,
            wrong_count_rows: self.wrong_count,
        }
    }
}

impl OverlapStats {
    /// The structural findings among the measured indices.
    pub fn findings(&self) -> Vec<Finding> {
        let all = [
            (self.sentinel_inside, Finding::SentinelInside { count: self.sentinel_inside }),
            (self.duplicate, Finding::Duplicate { count: self.duplicate }),
            (self.out_of_range, Finding::OutOfRange { count: self.out_of_range }),
            (self.wrong_count_rows, Finding::WrongCount { rows: self.wrong_count_rows }),
        ];
        all.into_iter().filter(|(n, _)| *n > 0).map(|(_, f)| f).collect()
    }

    /// Share of flips that noise does not explain; 0 when nothing flipped.
    pub fn real_flip_share(&self) -> f64 {
        ratio(self.real_flips as f64, (self.real_flips + self.near_tie_flips) as f64)
    }
}

fn min(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::super::overlap::{RowContext, compare_row};
    use super::*;

    fn ctx(visible: usize, expected: usize) -> RowContext<'static> {
        RowContext { visible, expected, ..Default::default() }
    }

    #[test]
    fn totals_merge_and_separate_ranked_rows() {
        let rows = [
            compare_row(&[0, 1], &[0, 1], &ctx(2, 2)), // identity: nothing was ranked
            compare_row(&[0, 3], &[0, 1], &RowContext { mass: Some(&[0.0, 0.25, 0.0, 0.0]), ..ctx(4, 2) }),
            compare_row(&[9, 2], &[0, 1], &RowContext { mass: Some(&[0.25, 0.5, 0.0, 0.0]), ..ctx(4, 2) }),
        ];
        let mut whole = OverlapAccum::default();
        rows.iter().for_each(|r| whole.push(r));
        let mut parts = [OverlapAccum::default(); 2];
        parts[0].push(&rows[0]);
        parts[1].push(&rows[1]);
        parts[1].push(&rows[2]);
        let mut merged = parts[0];
        merged.merge(&parts[1]);
        assert_eq!(merged, whole);
        let s = whole.finish();
        assert_eq!((s.rows, s.ranked_rows, s.exact_rows), (3, 2, 1));
        assert_eq!((s.mean_overlap, s.mean_overlap_ranked), (0.5, 0.25));
        assert_eq!((s.min_overlap, s.min_overlap_row), (0.0, Some(2)));
        assert_eq!((s.real_flips, s.near_tie_flips, s.real_flip_share()), (3, 0, 1.0));
        assert_eq!((s.mean_mass_lost, s.mean_mass_lost_ranked, s.max_mass_lost), (0.5, 0.5, 0.75));
        assert_eq!(s.findings(), [Finding::OutOfRange { count: 1 }, Finding::WrongCount { rows: 1 }]);
        let none = OverlapAccum::default().finish();
        assert!(none.mean_overlap.is_nan() && none.min_overlap.is_nan() && none.max_mass_lost.is_nan());
        assert_eq!(none.real_flip_share(), 0.0);
    }
}
