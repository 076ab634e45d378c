//! The one error type, and the exit codes that are this tool's contract.
//!
//! An error says what happened, where (file, tensor, byte offset) and what to do (`hint:`).
//! Its [`ErrorKind`] decides the process exit code and nothing else does.

use std::fmt;
use std::path::{Path, PathBuf};

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Process exit codes. A script may rely on these numbers.
pub mod exit {
    /// All gates hold; no difference was found.
    pub const OK: i32 = 0;
    /// A gate failed or a difference was found.
    pub const DIFFERENCE: i32 = 1;
    /// The command line was wrong.
    pub const USAGE: i32 = 2;
    /// A checkpoint, prompt or dump was unusable.
    pub const BAD_INPUT: i32 = 3;
    /// A device or server is not available.
    pub const UNAVAILABLE: i32 = 4;
    /// Nothing was compared. Never reported as success.
    pub const NOTHING_COMPARED: i32 = 5;
    /// A bug in this tool.
    pub const BUG: i32 = 70;
    /// Interrupted by Ctrl-C (128 + SIGINT), the shell's own convention.
    pub const INTERRUPTED: i32 = 130;
}

/// What kind of failure it is; maps one to one onto [`exit`] codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Wrong flags or values on the command line.
    Usage,
    /// Unusable checkpoint, config, prompt or dump.
    Input,
    /// Device or server unavailable.
    Unavailable,
    /// Two things had nothing in common to compare.
    NothingCompared,
    /// Stopped by the user.
    Interrupted,
    /// An invariant of ours does not hold.
    Bug,
}

impl ErrorKind {
    /// The process exit code of this kind.
    pub fn exit_code(self) -> i32 {
        match self {
            ErrorKind::Usage => exit::USAGE,
            ErrorKind::Input => exit::BAD_INPUT,
            ErrorKind::Unavailable => exit::UNAVAILABLE,
            ErrorKind::NothingCompared => exit::NOTHING_COMPARED,
            ErrorKind::Interrupted => exit::INTERRUPTED,
            ErrorKind::Bug => exit::BUG,
        }
    }
}

/// An error with its place and a hint. Build it with [`Error::input`] and friends, then
/// [`Error::file`], [`Error::tensor`], [`Error::offset`], [`Error::hint`].
#[derive(Debug, Clone, thiserror::Error)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    file: Option<PathBuf>,
    tensor: Option<String>,
    offset: Option<u64>,
    hint: Option<String>,
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), file: None, tensor: None, offset: None, hint: None }
    }
    /// A bad command line (exit 2).
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }
    /// Bad input: checkpoint, config, prompt or dump (exit 3).
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Input, message)
    }
    /// A broken invariant of ours (exit 70).
    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Bug, message)
    }
    /// An I/O failure on `path` (exit 3: the user's file or disk, not our logic).
    pub fn io(path: &Path, action: &str, e: &std::io::Error) -> Self {
        Self::input(format!("cannot {action}: {e}")).file(path)
    }
    /// Says first what was being looked at.
    pub fn context(mut self, what: impl std::fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
    /// Names the file. The first name given stays: the innermost frame knows best.
    pub fn file(mut self, path: impl AsRef<Path>) -> Self {
        self.file.get_or_insert_with(|| path.as_ref().to_path_buf());
        self
    }
    /// Names the tensor.
    pub fn tensor(mut self, name: impl Into<String>) -> Self {
        self.tensor.get_or_insert_with(|| name.into());
        self
    }
    /// Names the byte offset in the file.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset.get_or_insert(offset);
        self
    }
    /// Says what the user can do.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }
    /// The kind, which decides the exit code.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
    /// The message without place and hint.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        if let Some(t) = &self.tensor {
            write!(f, "\n  tensor: {t}")?;
        }
        if let Some(p) = &self.file {
            write!(f, "\n  file: {}", p.display())?;
        }
        if let Some(o) = self.offset {
            write!(f, "\n  offset: {o}")?;
        }
        if let Some(h) = &self.hint {
            write!(f, "\n  hint: {h}")?;
        }
        Ok(())
    }
}
