//! The run directory of an experiment, written and read back.

use super::{Record, field};
use crate::ab::measure::{Run, no_tables};
use crate::ab::recall;
use crate::ab::table::Table;
use crate::ab::toggles::MOST;
use crate::error::{Error, Result};
use crate::report::run_dir::{RunDir, now};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

/// Writes everything; the manifest comes last, so a directory that has one is whole.
pub(super) fn write(path: &Path, r: &Record, object: &Value, junit: &[u8], summary: &str) -> Result<()> {
    let dir = RunDir::create(path)?;
    for t in &r.tables {
        let header: Vec<&str> = t.columns.iter().map(String::as_str).collect();
        dir.csv(&format!("{}.csv", t.name), &header, &t.rows)?;
    }
    dir.json("summary.json", object)?;
    dir.write("junit.xml", junit)?;
    dir.write("summary.md", summary.as_bytes())?;
    let mut manifest = r.manifest.clone();
    manifest["finished_unix"] = json!(now());
    manifest["device"] = json!("cpu");
    manifest["threads"] = json!(rayon::current_num_threads());
    dir.json("manifest.json", &manifest)
}

/// Reads a stored run.
///
/// # Errors
/// Exit 3: something is missing, torn, or of another command or schema.
pub(super) fn read(dir: &Path) -> Result<Record> {
    let path = dir.join("manifest.json");
    let hint = "give the directory that a `dsv4 ab` run wrote";
    let bytes = std::fs::read(&path).map_err(|e| Error::io(&path, "read the manifest", &e).hint(hint))?;
    let manifest: Value = serde_json::from_slice(&bytes)
        .map_err(|e| Error::input(format!("not JSON: {e}")).file(&path).hint(hint))?;
    let bad = |e: Error| e.file(&path);
    let text = |v: &Value, name: &str| -> Result<String> {
        let s = field(v, name)?.as_str().map(str::to_owned);
        s.ok_or_else(|| Error::input(format!("`{name}` of the manifest is no text")))
    };
    if text(&manifest, "schema").map_err(bad)? != "dsv4.run/1"
        || text(&manifest, "command").map_err(bad)? != "ab"
    {
        return Err(Error::input("not the run of a `dsv4 ab` experiment of this version")
            .file(&path)
            .hint(hint));
    }
    let list = |name: &str| -> Result<Vec<Value>> {
        let l = field(&manifest, name)?.as_array().cloned();
        l.ok_or_else(|| Error::input(format!("`{name}` of the manifest is no list")))
    };
    let (mut names, mut kernels, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    for t in list("toggles").map_err(bad)? {
        names.push(text(&t, "name").map_err(bad)?);
        kernels.push(text(&t, "kernels").map_err(bad)?);
    }
    if names.len() > MOST {
        return Err(bad(Error::input(format!("{} toggles are more than {MOST}", names.len()))));
    }
    for r in list("runs").map_err(bad)? {
        let set = field(&r, "set").map_err(bad)?.as_u64().filter(|s| s >> names.len() == 0);
        runs.push(Run {
            name: text(&r, "name").map_err(bad)?,
            set: set.ok_or_else(|| bad(Error::input("a run's set names toggles that there are not")))?,
            kernels: text(&r, "kernels").map_err(bad)?,
        });
    }
    let mut tables = Vec::new();
    let recall = !field(&manifest, "needle").map_err(bad)?.is_null();
    for want in no_tables().into_iter().chain(recall.then(recall::no_table)) {
        let path = dir.join(format!("{}.csv", want.name));
        let t = Table::read(&path)?;
        if t.columns != want.columns {
            return Err(Error::input("the table has other columns than this version writes").file(&path));
        }
        tables.push(t);
    }
    Ok(Record { manifest, names, kernels, runs, tables })
}

/// A baseline of another experiment says nothing about this one.
pub(super) fn same_experiment(mine: &Value, stored: &Value) -> Result<()> {
    for key in ["fingerprint", "prompts", "golden", "run", "needle", "toggles", "capture_points"] {
        if mine[key] != stored[key] {
            return Err(Error::input(format!(
                "the baseline is no run of this experiment: `{key}` is {} here and {} there",
                mine[key], stored[key]
            ))
            .hint("make a new baseline with this experiment: dsv4 ab --out DIR"));
        }
    }
    Ok(())
}

/// Writes a file, or appends to it.
pub(super) fn put(path: &Path, append: bool, bytes: &[u8]) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).write(true).append(append).truncate(!append);
    let failed = |e: std::io::Error| Error::io(path, "write the file", &e);
    options.open(path).and_then(|mut f| f.write_all(bytes)).map_err(failed)
}
