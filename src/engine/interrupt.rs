//! Ctrl-C: a flag that long loops look at, so that a stop leaves no half-written file.

use crate::error::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// Asks every running loop to stop at its next check.
pub fn request() {
    STOP.store(true, Ordering::SeqCst);
}

/// An error once [`request`] was called.
pub fn check() -> Result<()> {
    if STOP.load(Ordering::SeqCst) {
        return Err(Error::new(ErrorKind::Interrupted, "interrupted").hint("nothing was left half-written"));
    }
    Ok(())
}
