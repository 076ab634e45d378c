//! A run directory: CSV, JSON and the manifest of one command, each file whole or absent.

use super::temp::TempFile;
use crate::error::{Error, Result};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A directory that one command fills.
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Creates the directory (and its parents). An older run in it is overwritten file by file.
    pub fn create(path: &Path) -> Result<RunDir> {
        std::fs::create_dir_all(path).map_err(|e| {
            Error::io(path, "create the run directory", &e).hint("choose another with --out DIR")
        })?;
        Ok(RunDir { path: path.to_path_buf() })
    }
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Writes one file, atomically.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let target = self.path.join(name);
        let file = TempFile::beside(&target)?;
        let mut w = file.file();
        w.write_all(bytes).map_err(|e| Error::io(&target, "write the file", &e))?;
        file.keep()
    }
    /// Adds to the end of a file that is already there, and waits until it is on disk: what a crash leaves is a
    /// beginning of the file, at worst with a torn last line.
    pub fn append(&self, name: &str, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let target = self.path.join(name);
        let failed = |e: std::io::Error| Error::io(&target, "write the file", &e).hint("is the disk full?");
        let mut file = std::fs::OpenOptions::new().append(true).open(&target).map_err(failed)?;
        file.write_all(bytes).map_err(failed)?;
        file.sync_data().map_err(failed)
    }
    /// Writes a JSON file.
    pub fn json(&self, name: &str, value: &serde_json::Value) -> Result<()> {
        let mut text = serde_json::to_string_pretty(value).map_err(|e| Error::bug(e.to_string()))?;
        text.push('\n');
        self.write(name, text.as_bytes())
    }
    /// Writes a CSV file with a header even when there are no rows.
    pub fn csv<T: Serialize>(
        &self,
        name: &str,
        header: &[&str],
        rows: impl IntoIterator<Item = T>,
    ) -> Result<()> {
        let mut w = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
        let bad = |e: csv::Error| Error::bug(format!("{name}: {e}"));
        w.write_record(header).map_err(bad)?;
        for row in rows {
            w.serialize(row).map_err(bad)?;
        }
        let bytes = w.into_inner().map_err(|e| Error::bug(format!("{name}: {e}")))?;
        self.write(name, &bytes)
    }
}

/// Seconds since 1970, for the manifest only.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
