//! Needles: are planted facts recalled, at which context length and depth and with which `index_topk`; and if not,
//! why not.
//!
//! [`grid`] says which prompts there are, [`work`] grades them, [`summary`] counts, [`diagnosis`] explains.

pub mod ctx;
pub mod custom;
pub mod diagnosis;
pub mod document;
pub mod evidence;
pub mod grid;
pub mod identity;
pub mod language;
pub mod prompt;
pub mod record;
pub mod rng;
pub mod stats;
pub mod summary;
pub mod words;
pub mod work;

pub use grid::{Grid, Kind, Place, Trial};
pub use language::Language;
