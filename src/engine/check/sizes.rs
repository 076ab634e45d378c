//! Sizes and cases.

use crate::checkpoint::{LayerKind, LayerSpec, Rope, Yarn};
use crate::error::{Error, Result};
use std::fmt;

/// The layers a kernel spec is resolved against: one of each sort.
pub const LAYERS: [LayerSpec; 3] = [
    LayerSpec { kind: LayerKind::Window, ratio: 0, hash: true },
    LayerSpec { kind: LayerKind::Csa, ratio: 4, hash: false },
    LayerSpec { kind: LayerKind::Hca, ratio: 128, hash: false },
];
/// The one with hash routing.
pub(super) const HASH: usize = 0;
/// The one with an indexer.
pub(super) const CSA: usize = 1;
/// The one without an indexer.
pub(super) const HCA: usize = 2;

/// Declares a field-less enum with a word and a line of help a variant.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }
        impl $name {
            /// All of them.
            pub const ALL: &[$name] = &[$($name::$variant),+];
            /// The word on the command line and in reports.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
            /// The one of that name.
            pub fn parse(s: &str) -> Result<$name> {
                $name::ALL.iter().copied().find(|x| x.name() == s).ok_or_else(|| {
                    Error::usage(format!("there is no {} '{s}'", $what))
                        .hint(format!("it is one of {}", [$($word),+].join(", ")))
                })
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

words! {
    /// Data an operation is run on.
    Case, "case" {
        /// Independent, near-normal values; activations, as in all cases but the next, in numbers that bf16
        /// holds, since that is what an engine hands its kernels.
        Random = "random",
        /// The same with activations in f32: what rounding them costs a kernel before it computes.
        F32Inputs = "f32_inputs",
        /// Scores that share a large offset.
        Offset = "offset",
        /// Many equal scores at the cut.
        Ties = "ties",
        /// A few channels fifty times larger.
        Outliers = "outliers",
        /// Activations beyond the SwiGLU clamp.
        BeyondClamp = "beyond_clamp",
        /// Rows with empty slots, few valid entries, or the window alone.
        Masked = "masked",
        /// Fewer keys than splits.
        EmptySplits = "empty_splits",
        /// Lengths around every edge: first tokens, window, compression window, width of the selection.
        Short = "short",
    }
}

words! {
    /// How large the operations are.
    Sizes, "size" {
        /// DeepSeek-V4-Flash.
        Real = "real",
        /// Small enough for a test.
        Small = "small",
    }
}

/// The sizes themselves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dims {
    /// Hidden size.
    pub hidden: usize,
    /// Streams of the hyper-connections.
    pub streams: usize,
    /// Sinkhorn iterations.
    pub iters: usize,
    /// Attention heads.
    pub heads: usize,
    /// Head dim.
    pub dim: usize,
    /// Rotated dims of a head, attention and index.
    pub rope: usize,
    /// Sliding window.
    pub window: usize,
    /// Compression ratio of layers with an indexer, and of the others.
    pub ratios: [usize; 2],
    /// Index heads.
    pub index_heads: usize,
    /// Index head dim.
    pub index_dim: usize,
    /// Compressed entries that exist.
    pub entries: usize,
    /// Entries kept.
    pub topk: usize,
    /// Experts; of a table-routed layer (the larger model of the family, whose ids bf16 cannot hold).
    pub experts: [usize; 2],
    /// Experts a token.
    pub active: usize,
    /// Expert intermediate size.
    pub inter: usize,
    /// Output rows of a linear, and of the head (a part of the vocabulary).
    pub outs: [usize; 2],
}

impl Dims {
    /// The numbers behind the word.
    pub fn new(s: Sizes) -> Dims {
        match s {
            Sizes::Real => Dims {
                hidden: 4096,
                streams: 4,
                iters: 20,
                heads: 64,
                dim: 512,
                rope: 64,
                window: 128,
                ratios: [4, 128],
                index_heads: 64,
                index_dim: 128,
                entries: 4096,
                topk: 512,
                experts: [256, 384],
                active: 6,
                inter: 2048,
                outs: [1024, 2048],
            },
            Sizes::Small => Dims {
                hidden: 256,
                streams: 4,
                iters: 20,
                heads: 4,
                dim: 128,
                rope: 64,
                window: 16,
                ratios: [4, 16],
                index_heads: 4,
                index_dim: 128,
                entries: 160,
                topk: 24,
                experts: [32, 384],
                active: 4,
                inter: 128,
                outs: [64, 128],
            },
        }
    }
    /// A position at which half of twice `topk` compressed entries have to be left out.
    pub fn far(&self) -> usize {
        2 * self.topk * self.ratios[0] - 2
    }
}

/// Channels that are fifty times larger in case `outliers`: none of them under rope in a vector
/// of any width in use, in different blocks of 64.
pub(super) const OUTLIERS: [usize; 3] = [5, 23, 42];
/// How much larger.
pub(super) const OUTLIER: f32 = 50.0;
/// `rms_norm_eps` and `hc_eps`.
pub(super) const EPS: f32 = 1e-6;

/// The rotary table of layers with compressed entries.
pub(super) fn rope() -> Rope {
    let yarn =
        Yarn { factor: 16.0, original_max_position_embeddings: 65536, beta_fast: 32.0, beta_slow: 1.0 };
    Rope { theta: 160_000.0, yarn: Some(yarn) }
}
