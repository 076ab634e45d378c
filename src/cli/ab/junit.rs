//! JUnit XML: a suite a run, a case a gate.

use crate::ab::judge::{Conclusion, Judged};
use crate::error::{Error, Result};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

/// Rows of a broken gate that are spelled out.
const ROWS: usize = 10;

/// The report as XML. It holds no time, so the same result gives the same bytes.
pub fn xml(c: &Conclusion) -> Result<Vec<u8>> {
    let mut report = Report::new("dsv4 ab");
    let mut aa = TestSuite::new("A/A");
    let case = "golden against itself changes no bit";
    aa.add_test_case(if c.aa_identical {
        TestCase::new(case, TestCaseStatus::success())
    } else {
        failure(case, "golden differs from itself: the machine or the build is not deterministic", "")
    });
    report.add_test_suite(aa);
    let mut suites: Vec<(&str, Vec<&Judged>)> = Vec::new();
    for j in &c.gates {
        let name = if j.run.is_empty() { "experiment" } else { j.run.as_str() };
        match suites.iter_mut().find(|(n, _)| *n == name) {
            Some((_, all)) => all.push(j),
            None => suites.push((name, vec![j])),
        }
    }
    for (name, judged) in suites {
        let mut suite = TestSuite::new(name);
        for j in judged {
            suite.add_test_case(if j.passed {
                TestCase::new(j.result.gate.as_str(), TestCaseStatus::success())
            } else {
                failure(&j.result.gate, &message(j), &rows(j))
            });
        }
        report.add_test_suite(suite);
    }
    let text = report.to_string().map_err(|e| Error::bug(format!("JUnit: {e}")))?;
    Ok(text.into_bytes())
}

fn failure(name: &str, message: &str, text: &str) -> TestCase {
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
    status.set_message(message).set_type("gate");
    if !text.is_empty() {
        status.set_description(text);
    }
    TestCase::new(name, status)
}

/// Why a gate failed, in one line.
pub fn message(j: &Judged) -> String {
    let r = &j.result;
    match r.broken.first() {
        None => "matched no row: nothing was checked".into(),
        Some(b) => {
            format!(
                "{} of {} rows break it, first {}: {} = {} must be {}",
                r.broken.len(),
                r.matched,
                b.row,
                column(&r.require),
                b.value,
                b.bound
            )
        }
    }
}

fn column(require: &str) -> &str {
    require.split(['<', '>', '=', '!', '≤', '≥']).next().unwrap_or("").trim()
}

fn rows(j: &Judged) -> String {
    let mut out: String = j
        .result
        .broken
        .iter()
        .take(ROWS)
        .map(|b| format!("{}: {} must be {}\n", b.row, b.value, b.bound))
        .collect();
    if j.result.broken.len() > ROWS {
        out += &format!("and {} more\n", j.result.broken.len() - ROWS);
    }
    out
}
