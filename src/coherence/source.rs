//! A run directory as a report sees it.

use crate::ab::table::Table;
use crate::error::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// Commands whose runs a report can read, with the tables each of them writes.
const COMMANDS: [(&str, &[&str]); 5] = [
    ("diff-layers", &["layers", "index", "router", "logits"]),
    ("ab", &["runs", "layers", "index", "router", "logits"]),
    ("needle", &["needle", "rank"]),
    ("selftest", &["selftest"]),
    ("inspect", &["inspect"]),
];

/// One run.
#[derive(Debug, Clone)]
pub struct Source {
    /// The directory, as it was named.
    pub path: String,
    /// The command that wrote it.
    pub command: String,
    /// `manifest.json`.
    pub manifest: Value,
    /// `summary.json`.
    pub summary: Value,
    /// Its tables.
    pub tables: Vec<Table>,
}

const HINT: &str =
    "a report reads the directories that diff-layers, ab, needle, selftest and inspect write with --out";

impl Source {
    /// Reads a run directory.
    ///
    /// # Errors
    /// Exit 3: a file is missing or torn, or the directory is no run of a command that reports are made of.
    pub fn read(dir: &Path) -> Result<Source> {
        let manifest = json(&dir.join("manifest.json"))?;
        let command = manifest.get("command").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some((_, tables)) = COMMANDS.iter().find(|(c, _)| *c == command) else {
            return Err(Error::input(format!("no report is made of runs of `{command}`"))
                .file(dir.join("manifest.json"))
                .hint(HINT));
        };
        let summary = json(&dir.join("summary.json"))?;
        let tables =
            tables.iter().map(|t| Table::read(&dir.join(format!("{t}.csv")))).collect::<Result<_>>()?;
        Ok(Source { path: dir.display().to_string(), command, manifest, summary, tables })
    }

    /// Fingerprint of the model the run is about.
    pub fn fingerprint(&self) -> &str {
        [&self.manifest, &self.summary]
            .iter()
            .flat_map(|v| [Some(*v), v.get("identity"), v.get("run")])
            .find_map(|v| v?.get("fingerprint")?.as_str())
            .unwrap_or_default()
    }

    /// A table by name.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|t| t.name == name)
    }
}

fn json(path: &Path) -> Result<Value> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, "read the run", &e).hint(HINT))?;
    serde_json::from_slice(&bytes).map_err(|e| Error::input(format!("not JSON: {e}")).file(path).hint(HINT))
}

/// Reads the runs, which must all be about one model.
///
/// # Errors
/// Exit 3: an unreadable run, or runs of different models.
pub fn read_all<P: AsRef<Path>>(dirs: &[P]) -> Result<Vec<Source>> {
    let runs: Vec<Source> = dirs.iter().map(|d| Source::read(d.as_ref())).collect::<Result<_>>()?;
    if let Some((a, b)) =
        runs.first().and_then(|a| Some((a, runs.iter().find(|b| b.fingerprint() != a.fingerprint())?)))
    {
        return Err(Error::input(format!(
            "runs of different models cannot be in one report: {} is about fingerprint {}, {} about {}",
            a.path,
            a.fingerprint(),
            b.path,
            b.fingerprint()
        ))
        .hint("make one report a model"));
    }
    Ok(runs)
}
