//! Per-tap accumulators and the finished row.

use super::floor::{FloorRule, RowErr, RowErrs};
use crate::metrics::overlap_total::{OverlapAccum, OverlapStats};
use crate::metrics::{ErrorAccum, Finding, Status};
use crate::model::TapId;
use serde::Serialize;

/// Everything gathered about one tap.
#[derive(Debug, Default)]
pub(super) struct TapAcc {
    /// Measured against free golden.
    pub total: ErrorAccum,
    /// Candidate fed golden's layer input, against golden.
    pub layer: ErrorAccum,
    pub layer_index: Option<OverlapAccum>,
    /// Measured against its recomputation.
    pub local: ErrorAccum,
    pub local_rows: RowErrs,
    pub format_rows: RowErrs,
    /// Index taps: measured against free golden, and against the recomputation.
    pub total_index: Option<OverlapAccum>,
    pub local_index: Option<OverlapAccum>,
    /// Findings that only the observer can make.
    pub findings: Vec<Finding>,
    /// Rows that hang on a choice between near ties that is not in the dump. The noise lane takes
    /// every such choice the other way, so its error there is the floor at any precision.
    pub unstable: std::collections::BTreeSet<usize>,
    /// What the observer has to say about this tap.
    pub note: Option<String>,
    /// The note explains the difference as a legitimate layout or format choice.
    pub explained: bool,
    /// The note moves the blame to this site.
    pub site: Option<crate::kernels::Site>,
}

/// Counts of an index tap.
#[derive(Debug, Clone, Serialize)]
pub struct IndexCounts {
    /// |A∩B|/|B| against free golden, mean over rows in which ranking decided.
    pub overlap: f64,
    /// The same against the recomputation from the measured path's own inputs.
    pub local_overlap: f64,
    /// Candidate runs: the same with the layer fed golden's streams (isolated).
    pub isolated_overlap: Option<f64>,
    /// Mean Jaccard index against free golden.
    pub jaccard: f64,
    /// Rows compared, and those in which ranking decided something.
    pub rows: u64,
    /// Rows in which fewer entries are selected than visible.
    pub ranked_rows: u64,
    /// Golden's attention (a share of 1, heads averaged) of the entries that are not selected, against
    /// free golden: mean over the rows that `overlap` is the mean of. `None` for experts.
    pub mass_lost: Option<f64>,
    /// The same in the row that loses most.
    pub max_mass_lost: Option<f64>,
    /// Candidate runs: as `mass_lost`, of the entries dropped from golden's own inputs.
    pub local_mass_lost: Option<f64>,
    /// Flips that the score noise explains.
    pub near_tie_flips: u64,
    /// Flips it does not explain.
    pub real_flips: u64,
    /// −1 before the last valid id.
    pub sentinel_inside: u64,
    /// Repeated ids.
    pub duplicate: u64,
    /// Ids that do not exist or are not visible yet.
    pub out_of_range: u64,
    /// Rows with a wrong number of ids.
    pub wrong_count_rows: u64,
}

/// One finished row: one tap.
#[derive(Debug, Clone, Serialize)]
pub struct TapRow {
    /// Tap name.
    pub tap: String,
    /// Layer, `None` for embedding and head.
    pub layer: Option<usize>,
    /// Layer kind (`window`, `csa`, `hca`), empty outside layers.
    pub kind: &'static str,
    /// Site blamed when an error is born here.
    pub site: String,
    /// Total error against free golden.
    pub rel_l2: f64,
    /// Largest absolute difference from free golden.
    pub max_abs: f64,
    /// Largest absolute difference over golden's largest magnitude.
    pub max_rel: f64,
    /// `1 − cos`.
    pub cosine: f64,
    /// `1 − 2x·g/(x·x + g·g)`.
    pub calc_diff: f64,
    /// Candidate runs: error when the layer is fed golden's streams (isolated).
    pub isolated_rel_l2: Option<f64>,
    /// Error born at this tap.
    pub local_rel_l2: f64,
    /// Error that declared formats and precision explain at this tap.
    pub floor: f64,
    /// `local_rel_l2 / floor`.
    pub excess: f64,
    /// Largest excess of a single row, and that row.
    pub row_excess: f64,
    /// The row (position or entry) with that excess.
    pub worst_row: Option<usize>,
    /// Golden differs in total, but what is born here is explained.
    pub inherited: bool,
    /// Rows judged by what a near tie does that was chosen upstream and is not in the dump.
    pub unstable_rows: usize,
    /// Noise moves this tap in steps of a quantiser, so its floor depends little on the precision.
    #[serde(skip)]
    pub stepped: bool,
    /// Excess that nine rows in ten reach: a run's precision shows in all of them, a fault may not.
    #[serde(skip)]
    pub calm_excess: f64,
    /// Error born in the rows that hang on no near tie; all rows if there are none such.
    #[serde(skip)]
    pub firm_rel_l2: f64,
    /// Elements compared.
    pub n: u64,
    /// The judgement of this tap.
    pub status: Status,
    /// Index taps only.
    pub index: Option<IndexCounts>,
    /// Structural findings.
    pub findings: Vec<Finding>,
    /// Anything else to know.
    pub note: Option<String>,
}

/// What decides how one tap is judged.
pub(super) struct Judging<'a> {
    pub rule: FloorRule,
    /// How far the noise lane moved this tap.
    pub noise: &'a RowErrs,
    /// The tap's values went through a quantiser with steps of at most this size, relative to the
    /// value.
    pub steps: Option<f64>,
    pub limits: &'a crate::metrics::Limits,
    pub isolated: bool,
}

/// Error and floor of a part of the rows.
#[derive(Clone, Copy)]
struct Part {
    born: f64,
    floor: f64,
    excess: f64,
}

impl TapAcc {
    /// True if what was measured is golden's: no value, no entry and no count differs.
    pub fn same(&self) -> bool {
        // Without a finite pair there is no distance, and none that differs.
        let equal = |a: &ErrorAccum| {
            let e = a.finish();
            (e.compared == 0 || e.max_abs == 0.0) && e.mismatched == 0
        };
        let exact = |a: &Option<OverlapAccum>| {
            a.as_ref()
                .map(OverlapAccum::finish)
                .is_none_or(|s| s.exact_rows == s.rows && structural(&s).is_empty())
        };
        equal(&self.total) && equal(&self.local) && exact(&self.total_index) && exact(&self.local_index)
    }

    /// Finishes the row.
    pub fn finish(&self, id: TapId, kind: &'static str, j: &Judging) -> TapRow {
        let total = self.total.finish();
        let local = self.local.finish();
        let mut findings = self.findings.clone();
        findings.extend(local.finding());
        let (scale, least) = (j.rule.scale(j.steps.is_some()), j.rule.least);
        let extra =
            j.steps.map_or(0.0, |q| j.rule.one_more(q, self.local_rows.rows.len(), local.compared as usize));
        // A near tie taken the other way moves its rows by a whole choice, not by a rounding:
        // they are judged apart, by what the other choice does, or they would hide the rest.
        let part = |unstable, scale| self.part(j.noise, unstable, scale, extra, least);
        let (stable, unstable) = (part(false, scale), part(true, 1.0));
        let part = if unstable.excess > stable.excess { unstable } else { stable };
        let (born, floor, excess) = (part.born, part.floor, part.excess);
        let mut rows = self.row_excesses(j.noise, stable.floor, scale);
        let firm = rows.iter().filter(|(r, x)| *x > 0.0 && !self.unstable.contains(r));
        let worst = firm.max_by(|a, b| a.1.total_cmp(&b.1)).copied();
        let (worst_row, row_excess) = (worst.map(|w| w.0), worst.map_or(0.0, |w| w.1));
        rows.sort_unstable_by(|a, b| a.1.total_cmp(&b.1));
        let calm_excess = rows.get(rows.len() / 10).map_or(0.0, |r| r.1);
        let index = self.index_counts();
        if let Some(a) = &self.local_index {
            let mut bad = a.finish();
            // Near-tie flips and the count they change are not structural.
            bad.wrong_count_rows = self.structural_count_rows(&bad);
            findings.extend(structural(&bad));
        }
        let mut status = j.limits.judge(excess, &findings);
        if j.steps.is_none() && row_excess > j.rule.row_slack * j.limits.elevated() {
            status = Status::Suspect;
        } else if j.steps.is_none() && row_excess > j.rule.row_slack * j.limits.ok() {
            status = status.max(Status::Elevated);
        }
        if let Some(ix) = &index
            && ix.real_flips > 0
        {
            status = Status::Suspect;
        }
        if self.explained {
            status = Status::Elevated;
        }
        let differs = match &index {
            Some(ix) => ix.overlap < 1.0,
            None => total.rel_l2 > j.limits.ok() * floor || total.mismatched > 0,
        };
        TapRow {
            tap: id.to_string(),
            layer: id.layer,
            kind,
            site: self.site.unwrap_or(id.tap.site()).to_string(),
            rel_l2: total.rel_l2,
            max_abs: total.max_abs,
            max_rel: total.max_rel,
            cosine: total.cosine,
            calc_diff: total.calc_diff,
            isolated_rel_l2: j.isolated.then(|| self.layer.finish().rel_l2),
            local_rel_l2: born,
            floor,
            excess,
            row_excess,
            worst_row,
            inherited: differs && status == Status::Ok,
            unstable_rows: self.unstable.len(),
            stepped: j.steps.is_some(),
            calm_excess,
            firm_rel_l2: if self.unstable.len() < self.local_rows.rows.len() { stable.born } else { born },
            n: total.compared,
            status,
            index,
            findings,
            note: self.note.clone(),
        }
    }

    /// Rows with a wrong count matter only as structural findings: duplicates and invalid ids
    /// already count for themselves.
    fn structural_count_rows(&self, s: &OverlapStats) -> u64 {
        if s.duplicate + s.out_of_range + s.sentinel_inside > 0 { 0 } else { s.wrong_count_rows }
    }

    /// Error and floor over the stable or the unstable rows.
    fn part(&self, noise: &RowErrs, unstable: bool, scale: f64, extra: f64, least: f64) -> Part {
        let measured = self.local_rows.first..self.local_rows.first + self.local_rows.rows.len();
        let keep = |r: usize| measured.contains(&r) && self.unstable.contains(&r) == unstable;
        let noise = noise.rel_l2(keep) * scale;
        let floor = noise.hypot(self.format_rows.rel_l2(keep)).hypot(extra).max(least);
        let born = self.local_rows.rel_l2(keep);
        Part { born, floor, excess: crate::metrics::verdict::excess(born, floor) }
    }

    /// Every row's error over its own floor. What a row's sum of rounded terms loses follows the
    /// size of the terms, not of a result that cancelled or was cut to nearly nothing (a gate that
    /// is all but closed, scores that are all but zero): rows smaller than the median row get its
    /// floor.
    fn row_excesses(&self, noise: &RowErrs, floor: f64, scale: f64) -> Vec<(usize, f64)> {
        let rows = &self.local_rows;
        let mut norms: Vec<f64> = rows.rows.iter().map(|r| r.norm2).filter(|n| *n > 0.0).collect();
        norms.sort_unstable_by(f64::total_cmp);
        let median = norms.get(norms.len() / 2).copied().unwrap_or(0.0);
        let one = |(i, e): (usize, &RowErr)| {
            let r = rows.first + i;
            let sq = |rows: &RowErrs| rows.row(r).map_or(0.0, |n| n.err2);
            let own = sq(noise) * scale * scale + sq(&self.format_rows);
            let floor2 = own.max(floor * floor * e.norm2.max(median));
            (r, if e.err2 == 0.0 { 0.0 } else { (e.err2 / floor2).sqrt() })
        };
        rows.rows.iter().enumerate().map(one).collect()
    }

    fn index_counts(&self) -> Option<IndexCounts> {
        let local = self.local_index.as_ref()?.finish();
        let total = self.total_index.as_ref().map_or(local, OverlapAccum::finish);
        let ranked =
            |s: &OverlapStats| if s.ranked_rows > 0 { s.mean_overlap_ranked } else { s.mean_overlap };
        let mass = |s: &OverlapStats| {
            let m = if s.ranked_rows > 0 { s.mean_mass_lost_ranked } else { s.mean_mass_lost };
            (!m.is_nan()).then_some(m)
        };
        Some(IndexCounts {
            overlap: ranked(&total),
            local_overlap: ranked(&local),
            isolated_overlap: self.layer_index.as_ref().map(|a| ranked(&a.finish())),
            jaccard: total.mean_jaccard,
            rows: total.rows,
            ranked_rows: total.ranked_rows,
            mass_lost: mass(&total),
            max_mass_lost: (!total.max_mass_lost.is_nan()).then_some(total.max_mass_lost),
            local_mass_lost: mass(&local),
            near_tie_flips: local.near_tie_flips,
            real_flips: local.real_flips,
            sentinel_inside: local.sentinel_inside,
            duplicate: local.duplicate,
            out_of_range: local.out_of_range,
            wrong_count_rows: local.wrong_count_rows,
        })
    }
}

fn structural(s: &OverlapStats) -> Vec<Finding> {
    let mut out = Vec::new();
    let mut add = |n: u64, f: Finding| {
        if n > 0 {
            out.push(f);
        }
    };
    add(s.sentinel_inside, Finding::SentinelInside { count: s.sentinel_inside });
    add(s.duplicate, Finding::Duplicate { count: s.duplicate });
    add(s.out_of_range, Finding::OutOfRange { count: s.out_of_range });
    add(s.wrong_count_rows, Finding::WrongCount { rows: s.wrong_count_rows });
    out
}
