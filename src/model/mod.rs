//! The architecture, written once over the ops of [`crate::kernels`]. Knows no file and no screen.

pub mod layer;
pub mod outer;
mod stray;
pub mod taps;
pub mod weights;

pub use layer::{Block, LayerCache, LayerCtx, RopeTables};
pub use taps::{Axis, Observer, Silent, Tap, TapAt, TapId};
pub use weights::{CompressorWeights, IndexerWeights, LayerWeights, OuterWeights};
