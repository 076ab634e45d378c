//! Length checks shared by the block formats. They run before any allocation, so a false shape cannot cause one.

use crate::{Error, Result};

/// `a * b`, or an input error naming `what`.
pub fn product(what: &str, a: usize, b: usize) -> Result<usize> {
    a.checked_mul(b).ok_or_else(|| Error::input(format!("{what}: shape [{a}, {b}] overflows")))
}

/// Fails unless `got == want` (both counted in `unit`).
pub fn expect(what: &str, unit: &str, got: usize, want: usize) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(Error::input(format!("{what}: {got} {unit} where the shape needs {want}")).hint(
        "the tensor's shape and data do not belong together; the file may be damaged or of another layout",
    ))
}
