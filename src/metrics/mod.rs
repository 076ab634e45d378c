//! Error, overlap, logits, intervals, verdict: pure functions over slices. Knows nothing of models.
//!
//! `x` is the measured tensor, `g` the golden one, everywhere. Sums run in f64 in element order, so streaming a tensor
//! in pieces gives the same bits as one call. A number that could not be measured is NaN or `None`, never 0.

pub mod error;
pub mod finding;
pub mod interval;
pub mod logits;
pub mod overlap;
pub mod overlap_total;
pub mod router;
pub mod verdict;

pub use error::{ErrorAccum, ErrorStats};
pub use finding::Finding;
pub use logits::{LogitAccum, LogitRow, LogitStats};
pub use overlap::{RowContext, RowOverlap};
pub use overlap_total::{OverlapAccum, OverlapStats};
pub use verdict::{Limits, Status};
