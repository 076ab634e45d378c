//! From excess and findings to a word.

use super::finding::Finding;
use crate::{Error, Result};
use serde::Serialize;
use std::fmt;

/// How a row is judged, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The number formats explain the error.
    Ok,
    /// More than they explain, but little enough that order of summation or an unmodelled rounding may be the cause.
    Elevated,
    /// Far more than the declared formats explain, or a structural finding.
    Suspect,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Status::Ok => "ok",
            Status::Elevated => "elevated",
            Status::Suspect => "suspect",
        })
    }
}

/// The limits on excess (a ratio): `ok` up to the first, `elevated` up to the second, both inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limits {
    ok: f64,
    elevated: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { ok: 2.0, elevated: 8.0 }
    }
}

impl Limits {
    /// Limits with `0 < ok <= elevated`, both finite.
    pub fn new(ok: f64, elevated: f64) -> Result<Self> {
        if ok > 0.0 && ok <= elevated && elevated.is_finite() {
            Ok(Limits { ok, elevated })
        } else {
            Err(Error::usage(format!(
                "excess limits must satisfy 0 < ok <= elevated, got {ok} and {elevated}"
            )))
        }
    }

    /// The largest excess that is `ok`.
    pub fn ok(&self) -> f64 {
        self.ok
    }

    /// The largest excess that is `elevated`.
    pub fn elevated(&self) -> f64 {
        self.elevated
    }

    /// The status of a row with this excess and these findings. A NaN excess is suspect: it was not measured.
    pub fn judge(&self, excess: f64, findings: &[Finding]) -> Status {
        if !findings.is_empty() || excess.is_nan() || excess > self.elevated {
            Status::Suspect
        } else if excess > self.ok {
            Status::Elevated
        } else {
            Status::Ok
        }
    }
}

/// `error / floor`: how many times the unavoidable error was measured. No error is 0 whatever the floor; an error over
/// a zero floor (formats that lose nothing) is +inf; a NaN error or floor gives NaN.
pub fn excess(error: f64, floor: f64) -> f64 {
    super::error::ratio(error, floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_inclusive() {
        let l = Limits::default();
        let cases = [
            (0.0, Status::Ok),
            (2.0, Status::Ok),
            (2.0f64.next_up(), Status::Elevated),
            (8.0, Status::Elevated),
            (8.0f64.next_up(), Status::Suspect),
            (f64::INFINITY, Status::Suspect),
            (f64::NAN, Status::Suspect),
        ];
        for (e, want) in cases {
            assert_eq!(l.judge(e, &[]), want, "excess {e}");
        }
    }

    #[test]
    fn a_finding_overrules_a_small_excess() {
        assert_eq!(Limits::default().judge(0.5, &[Finding::Duplicate { count: 1 }]), Status::Suspect);
    }

    #[test]
    fn limits_are_checked() {
        let l = Limits::new(1.5, 3.0).unwrap();
        assert_eq!((l.judge(1.6, &[]), l.ok(), l.elevated()), (Status::Elevated, 1.5, 3.0));
        assert!(Limits::new(1.0, 1.0).is_ok());
        for (ok, el) in [(0.0, 1.0), (3.0, 2.0), (f64::NAN, 2.0), (1.0, f64::INFINITY), (-1.0, 2.0)] {
            assert!(Limits::new(ok, el).is_err(), "{ok} {el}");
        }
    }

    #[test]
    fn excess_of_zero_floor() {
        assert_eq!((excess(0.0, 0.0), excess(0.0, 1.0), excess(3.0, 1.5)), (0.0, 0.0, 2.0));
        assert_eq!(excess(1e-9, 0.0), f64::INFINITY);
        assert!(excess(f64::NAN, 0.0).is_nan() && excess(1.0, f64::NAN).is_nan());
    }

    #[test]
    fn words_order_and_pad() {
        assert!(Status::Ok < Status::Elevated && Status::Elevated < Status::Suspect);
        assert_eq!(format!("{:>8}", Status::Ok), "      ok");
        assert_eq!(serde_json::to_string(&Status::Suspect).unwrap(), "\"suspect\"");
    }
}
