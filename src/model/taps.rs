//! Taps: the named tensors a path lets us observe, and replace.

use crate::error::Result;
use crate::kernels::{Index, Ops, Phase, Site};
use std::fmt;

/// What the rows of a tap are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// One row a token.
    Token,
    /// One row a compressed entry.
    Entry,
}

macro_rules! taps {
    ($($(#[$doc:meta])* $variant:ident $name:literal $site:ident $axis:ident $layered:literal $int:literal;)+) => {
        /// A tap, in execution order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Tap { $($(#[$doc])* $variant),+ }
        impl Tap {
            /// Every tap, in execution order.
            pub const ALL: &'static [Tap] = &[$(Tap::$variant),+];
            /// The name without the layer.
            pub fn suffix(self) -> &'static str { match self { $(Tap::$variant => $name),+ } }
            /// The site an error born at this tap is blamed on.
            pub fn site(self) -> Site { match self { $(Tap::$variant => Site::$site),+ } }
            /// What its rows are.
            pub fn axis(self) -> Axis { match self { $(Tap::$variant => Axis::$axis),+ } }
            /// True if there is one a layer.
            pub fn layered(self) -> bool { match self { $(Tap::$variant => $layered),+ } }
            /// True if it holds ids instead of numbers.
            pub fn is_index(self) -> bool { match self { $(Tap::$variant => $int),+ } }
        }
    };
}

taps! {
    /// First residual stream `[T,D]`.
    EmbedOut "embed.out" Embed Token false false;
    /// Collapse weights of attention `[T,S]`, eps included.
    AttnPre "attn.mhc.pre" Mhc Token true false;
    /// Output weights of attention `[T,S]`.
    AttnPost "attn.mhc.post" Mhc Token true false;
    /// Stream mixing of attention `[T,S,S]`.
    AttnComb "attn.mhc.comb" Mhc Token true false;
    /// Attention input after the norm `[T,D]`.
    AttnIn "attn.in" Mhc Token true false;
    /// Queries after rope `[T,H,C]`.
    AttnQ "attn.q" Linear Token true false;
    /// Window keys/values as the next operation reads them `[T,C]`.
    AttnKv "attn.kv" Linear Token true false;
    /// Compressed entries as the next operation reads them `[N,C]`.
    CompressorKv "compressor.kv" Compressor Entry true false;
    /// Index queries as the next operation reads them `[T,Hi,Ci]`.
    IndexerQ "indexer.q" Indexer Token true false;
    /// Index keys as the next operation reads them `[N,Ci]`.
    IndexerK "indexer.k" Indexer Entry true false;
    /// Head weights with both scale factors `[T,Hi]`.
    IndexerWeights "indexer.weights" Indexer Token true false;
    /// Index scores `[T,N]`, −inf where not visible.
    IndexerScores "indexer.scores" Indexer Token true false;
    /// Chosen entries `[T,k]`, −1 after the last.
    IndexTopk "index.topk" Topk Token true true;
    /// Natural log-sum-exp, sink included `[T,H]`.
    AttnLse "attn.lse" Attn Token true false;
    /// Attention output after the inverse rope `[T,H,C]`.
    AttnOut "attn.out" Attn Token true false;
    /// Output projection `[T,D]`.
    AttnProj "attn.proj" Linear Token true false;
    /// Streams after attention `[T,S,D]`.
    Mid "mid" Mhc Token true false;
    /// Collapse weights of the experts `[T,S]`.
    FfnPre "ffn.mhc.pre" Mhc Token true false;
    /// Output weights of the experts `[T,S]`.
    FfnPost "ffn.mhc.post" Mhc Token true false;
    /// Stream mixing of the experts `[T,S,S]`.
    FfnComb "ffn.mhc.comb" Mhc Token true false;
    /// Expert input after the norm `[T,D]`.
    FfnIn "ffn.in" Mhc Token true false;
    /// Router logits `[T,E]`.
    RouterLogits "router.logits" Router Token true false;
    /// Chosen experts `[T,k]`.
    RouterTopk "router.topk" Router Token true true;
    /// Their weights `[T,k]`.
    RouterWeights "router.weights" Router Token true false;
    /// Weighted, scaled routed sum `[T,D]`.
    ExpertsOut "experts.out" Experts Token true false;
    /// Shared expert `[T,D]`.
    SharedOut "shared.out" Experts Token true false;
    /// Routed plus shared `[T,D]`.
    FfnOut "ffn.out" Experts Token true false;
    /// Streams after the layer `[T,S,D]`.
    LayerOut "out" Mhc Token true false;
    /// Final collapse and norm `[T,D]`.
    HeadIn "head.in" Head Token false false;
    /// Logits `[T,V]`.
    Logits "logits" Head Token false false;
}

/// One tap of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TapId {
    /// The layer, `None` for embedding and head.
    pub layer: Option<usize>,
    /// The tap.
    pub tap: Tap,
}

impl TapId {
    /// The tap of that name (`layers.7.attn.out`, `logits`).
    pub fn parse(name: &str) -> Option<TapId> {
        let (layer, suffix) = match name.strip_prefix("layers.") {
            Some(rest) => {
                let (n, suffix) = rest.split_once('.')?;
                (Some(n.parse().ok()?), suffix)
            }
            None => (None, name),
        };
        let tap =
            Tap::ALL.iter().copied().find(|t| t.suffix() == suffix && t.layered() == layer.is_some())?;
        Some(TapId { layer, tap })
    }
    /// Sorts in execution order.
    pub fn order(&self) -> (usize, Tap) {
        let stage = match (self.layer, self.tap) {
            (Some(l), _) => l + 1,
            (None, Tap::EmbedOut) => 0,
            (None, _) => usize::MAX,
        };
        (stage, self.tap)
    }
}

impl fmt::Display for TapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(l) => write!(f, "layers.{l}.{}", self.tap.suffix()),
            None => f.write_str(self.tap.suffix()),
        }
    }
}

/// Where in the run a tap fires.
#[derive(Debug, Clone, Copy)]
pub struct TapAt {
    /// Which tap.
    pub id: TapId,
    /// Row of the whole tap that the first row of this block is.
    pub row0: usize,
    /// Phase of the step.
    pub phase: Phase,
}

/// Sees every tap in execution order, block by block, and may replace its values: what it leaves
/// behind is what the next operation reads. That is how isolated runs and the search for the
/// birthplace of an error work: the forward pass itself is written once.
pub trait Observer<O: Ops> {
    /// True if the (costly, `[T,N]`) index scores should be materialised for this layer.
    fn wants_scores(&self, _layer: usize) -> bool {
        false
    }
    /// A tensor tap.
    fn tensor(&mut self, ops: &O, at: TapAt, t: &mut O::T) -> Result<()>;
    /// An index tap.
    fn index(&mut self, at: TapAt, ids: &mut Index) -> Result<()>;
}

/// Observes nothing.
pub struct Silent;

impl<O: Ops> Observer<O> for Silent {
    fn tensor(&mut self, _: &O, _: TapAt, _: &mut O::T) -> Result<()> {
        Ok(())
    }
    fn index(&mut self, _: TapAt, _: &mut Index) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a tap whose name does not lead back to it.
    #[test]
    fn names_round_trip() {
        for &tap in Tap::ALL {
            let id = TapId { layer: tap.layered().then_some(12), tap };
            assert_eq!(TapId::parse(&id.to_string()), Some(id));
        }
        assert_eq!(TapId::parse("layers.x.out"), None);
        assert_eq!(TapId::parse("layers.1.logits"), None);
        assert_eq!(TapId::parse("out"), None);
    }
}
