//! Structural findings: what no number format explains, however small the error beside it.

use serde::Serialize;
use std::fmt;

/// One kind of structural fault and how often it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Finding {
    /// `count` elements are non-finite where golden is finite (or another non-finite); the first at flat index `first`.
    NonFinite {
        /// How many.
        count: u64,
        /// Flat index of the first.
        first: u64,
    },
    /// −1 entries before the last real index of a row.
    SentinelInside {
        /// How many.
        count: u64,
    },
    /// Indices that repeat an earlier one of their row.
    Duplicate {
        /// How many.
        count: u64,
    },
    /// Indices at or past the visible count (the future), or negative ones other than −1.
    OutOfRange {
        /// How many.
        count: u64,
    },
    /// Rows whose number of valid distinct indices is not the number that must be selected.
    WrongCount {
        /// How many rows.
        rows: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::NonFinite { count, first } => {
                write!(f, "{count} non-finite values where golden has none, first at element {first}")
            }
            Finding::SentinelInside { count } => {
                write!(f, "{count} empty slots (-1) before the last index of a row")
            }
            Finding::Duplicate { count } => write!(f, "{count} duplicate indices"),
            Finding::OutOfRange { count } => write!(f, "{count} indices that are not visible or not valid"),
            Finding::WrongCount { rows } => write!(f, "{rows} rows select a wrong number of entries"),
        }
    }
}
