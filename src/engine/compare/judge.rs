//! The verdict over all rows.

use super::rows::TapRow;
use crate::metrics::Status;
use serde::Serialize;

/// The conclusion.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// Worst status that counts.
    pub status: Status,
    /// Layer of the first error that is born, `None` when ok or outside layers.
    pub layer: Option<usize>,
    /// Site of it, `None` when ok.
    pub site: Option<String>,
    /// Tap of it, `None` when ok.
    pub tap: Option<String>,
    /// One or two sentences.
    pub why: String,
}

/// The first suspect row decides; without one the first elevated; without one all is well.
pub fn verdict(rows: &[TapRow], context: &str, gap: impl Fn(&TapRow) -> Option<String>) -> Verdict {
    let worst = rows.iter().map(|r| r.status).max().unwrap_or(Status::Ok);
    let Some(row) = rows.iter().find(|r| r.status == worst).filter(|_| worst != Status::Ok) else {
        let top = rows.iter().max_by(|a, b| a.excess.total_cmp(&b.excess));
        let most = top.map_or(String::new(), |r| format!("; largest excess {:.2} at {}", r.excess, r.tap));
        return Verdict {
            status: Status::Ok,
            layer: None,
            site: None,
            tap: None,
            why: format!("{} taps agree with golden within what {context}{most}", rows.len()),
        };
    };
    let mut why = match &row.index {
        Some(ix) => format!(
            "{} selects other entries than golden does from the same inputs: overlap {:.3}, {} real flips beyond near ties",
            row.tap, ix.local_overlap, ix.real_flips
        ),
        None => format!(
            "recomputed from its own inputs, {} is off by rel_l2 {:.2e}; {context} {:.2e} (excess {})",
            row.tap,
            row.local_rel_l2,
            row.floor,
            short(row.excess)
        ),
    };
    // Against a dump only the whole difference from free golden has golden's attention to weigh it.
    if let Some(ix) = &row.index
        && let Some(lost) = ix.local_mass_lost.or(ix.mass_lost)
    {
        why += &format!("; golden pays {:.2} % of its attention to the entries lost", 100.0 * lost);
        if let Some(most) = ix.max_mass_lost.filter(|m| *m > lost) {
            why += &format!(", up to {:.2} % at one position", 100.0 * most);
        }
    }
    if row.row_excess > 4.0 * row.excess.max(1.0) {
        why +=
            &format!("; worst at row {} ({}x its floor)", row.worst_row.unwrap_or(0), short(row.row_excess));
    }
    for f in &row.findings {
        why += &format!("; {f}");
    }
    if let Some(n) = &row.note {
        why += &format!("; {n}");
    }
    if let Some(g) = gap(row) {
        why += &format!("; {g}");
    }
    Verdict { status: worst, layer: row.layer, site: Some(row.site.clone()), tap: Some(row.tap.clone()), why }
}

/// A ratio in few characters.
pub fn short(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() { "not measured".into() } else { "beyond any".into() };
    }
    match x {
        x if x < 99.95 => format!("{x:.1}"),
        x if x < 9999.5 => format!("{x:.0}"),
        x => format!("{x:.0e}"),
    }
}
