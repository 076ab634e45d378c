//! The coherence report: what several runs say together.
//!
//! Everything here is read from run directories, so every number of a report stands in a CSV of one of its runs.

mod context;
mod inventory;
mod isolation;
mod plots;
mod risk;
mod source;

pub use context::{Report, build};
pub use source::Source;
