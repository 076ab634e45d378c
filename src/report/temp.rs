//! Files that appear whole or not at all: written beside their target, renamed at the end.

use crate::error::{Error, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Temporary files that exist now, for [`remove_all`].
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A temporary file beside `target`. Dropped without [`TempFile::keep`], it is removed.
pub struct TempFile {
    file: tempfile::NamedTempFile,
    target: PathBuf,
}

fn live() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Removes every temporary file: for an exit that runs no destructors.
pub fn remove_all() {
    for path in live().drain(..) {
        let _ = std::fs::remove_file(path);
    }
}

impl TempFile {
    /// Creates it, which tells early whether the target's directory can be written.
    pub fn beside(target: &Path) -> Result<TempFile> {
        let name = target.file_name().ok_or_else(|| {
            Error::usage("the output has no file name").file(target).hint("give a file, not a directory")
        })?;
        if target.is_dir() {
            return Err(Error::usage("the output is a directory")
                .file(target)
                .hint("give a file name in it"));
        }
        let dir = target.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".tmp");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As any new file: the umask decides, not the habit of temporary files.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let file = builder.tempfile_in(dir).map_err(|e| {
            Error::io(target, "create the output", &e).hint("the directory must exist and be writable")
        })?;
        live().push(file.path().to_path_buf());
        Ok(TempFile { file, target: target.to_path_buf() })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Where it will be.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Makes it the target, on disk.
    pub fn keep(self) -> Result<()> {
        let TempFile { file, target } = self;
        file.as_file().sync_all().map_err(|e| Error::io(&target, "write the output", &e))?;
        let from = file.path().to_path_buf();
        let done = file.persist(&target).map_err(|e| Error::io(&target, "put the output in place", &e.error));
        live().retain(|p| *p != from);
        done.map(|_| ())
    }
}
