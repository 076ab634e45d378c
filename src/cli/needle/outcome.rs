//! What a finished grid came to: the same object for a run and for merged shards.

use super::files::Files;
use crate::error::{Error, ErrorKind, Result, exit};
use crate::needle::diagnosis::{Cause, Diagnosis, diagnose};
use crate::needle::identity::Identity;
use crate::needle::record::{Record, Width};
use crate::needle::summary::{Summary, summarise};
use crate::report::plots;
use serde_json::{Value, json};

/// A finished grid.
pub struct Outcome {
    /// The run.
    pub id: Identity,
    /// Its paths, a confirmation included.
    pub paths: Vec<(String, Width)>,
    /// Everything counted.
    pub summary: Summary,
    /// A diagnosis a path, golden first.
    pub diagnoses: Vec<Diagnosis>,
    /// What `--json` prints and `summary.json` holds.
    pub object: Value,
}

impl Outcome {
    /// Counts and explains the records of a run.
    pub fn of(id: Identity, paths: Vec<(String, Width)>, records: Vec<Record>) -> Outcome {
        let summary = summarise(&id, &paths, &records);
        let diagnoses = diagnose(&id, &paths, &records);
        let run = records.iter().filter(|r| r.outcome.is_ok()).count();
        let mut o = Outcome { id, paths, summary, diagnoses, object: Value::Null };
        let verdict = o.verdict();
        o.object = json!({
            "schema": "dsv4.needle/1",
            "verdict": verdict.map(|d| json!({"cause": d.cause, "path": d.path, "headline": d.headline})),
            "run": o.id,
            "records": {"run": run, "not_run": records.len() - run},
            "diagnosis": o.diagnoses,
            "ranges": o.summary.ranges,
            "width_needed": o.summary.width_needed.iter().map(|(p, k)| json!({"path": p, "width": k})).collect::<Vec<_>>(),
            "recall": o.summary.recall,
            "pairs": o.summary.pairs,
            "ranks": o.summary.ranks,
            "ceiling": {"estimate": true, "rows": o.summary.ceiling},
        });
        o
    }

    /// The verdict that is said first: a candidate that fails, else golden's failure, else golden's.
    pub fn verdict(&self) -> Option<&Diagnosis> {
        let fails = |d: &&Diagnosis| !d.cause.passes();
        let candidates = self.diagnoses.iter().filter(|d| d.path != "golden");
        candidates
            .clone()
            .find(fails)
            .or_else(|| self.diagnoses.iter().find(fails))
            .or(self.diagnoses.first())
    }

    /// Summary, plots and manifest.
    pub fn write(&self, files: &Files) -> Result<()> {
        files.finish(&self.object, &plots::needle(&self.id, &self.paths, &self.summary))
    }

    /// The exit code; an error if nothing was run.
    pub fn exit_code(&self) -> Result<i32> {
        match self.verdict().map(|d| d.cause) {
            None | Some(Cause::NotRun) => {
                Err(Error::new(ErrorKind::NothingCompared, "no trial could be run")
                    .hint("needle.csv says why; try a longer --ctx or another --depth"))
            }
            Some(c) => Ok(if c.passes() { exit::OK } else { exit::DIFFERENCE }),
        }
    }
}
