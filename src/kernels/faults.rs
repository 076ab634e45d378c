//! Faults: named wrong points in knob space, one line of data each, used as positive controls;
//! and harmless points that must not raise an alarm.
//!
//! The classes are those of public reports: A index scoring, B top-k, C cache layout, D state
//! between chunks and steps, E attention masks, merge and sink, F rotary policy, G compressor,
//! H hyper-connections, I router and scaling, J clamp, K formats, N configuration.
//!
//! Not here, because no number computed by a kernel expresses them: faults of the prompt ([`crate::encoding`] has
//! those), of speculative rollback, of concurrency, and an oracle that shares the fault.

use super::knobs::{Phase, Site};
use super::presets::{settings, sites};
use crate::checkpoint::{LayerKind, LayerSpec};

/// The layers a fault can be planted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// Every layer.
    Any,
    /// Layers without compressed entries.
    Window,
    /// Layers with compressed entries.
    Compressed,
    /// Layers with an indexer.
    Csa,
    /// Layers that attend every compressed entry.
    Hca,
    /// Layers routed by the hash table.
    Hash,
    /// Layers routed by the router's logits.
    Routed,
}

impl Where {
    /// The word in lists.
    pub fn name(self) -> &'static str {
        match self {
            Where::Any => "any",
            Where::Window => "window",
            Where::Compressed => "compressed",
            Where::Csa => "csa",
            Where::Hca => "hca",
            Where::Hash => "hash",
            Where::Routed => "routed",
        }
    }
    /// True if it can be planted in a layer of that kind.
    pub fn holds(self, layer: &LayerSpec) -> bool {
        match self {
            Where::Any => true,
            Where::Window => layer.kind == LayerKind::Window,
            Where::Compressed => layer.kind != LayerKind::Window,
            Where::Csa => layer.kind == LayerKind::Csa,
            Where::Hca => layer.kind == LayerKind::Hca,
            Where::Hash => layer.hash,
            Where::Routed => !layer.hash,
        }
    }
}

/// What a run needs for the fault to change a bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Any prompt.
    Nothing,
    /// A prompt longer than the window.
    PastWindow,
    /// A prompt above the identity horizon, where the indexer ranks.
    Horizon,
    /// A second prefill chunk, past the window.
    Chunk,
    /// A second prefill chunk, or decode steps.
    Chunks,
    /// [`Needs::Chunks`] above the identity horizon.
    HorizonChunks,
    /// Decode steps.
    Decode,
    /// Decode steps above the identity horizon.
    HorizonDecode,
    /// A prompt that closes a window of 128 tokens.
    Window128,
    /// A prompt of more than 64 tokens.
    Large,
    /// Equal scores at the cut, above the horizon; [`Fault::both`] brings them about.
    Ties,
    /// Activations beyond the clamp; [`Fault::both`] brings them about.
    Clamp,
    /// Router logits beyond the range of an exponential; [`Fault::both`] brings them about.
    Overflow,
    /// More than 256 experts.
    ManyExperts,
    /// A prompt of at most 32 tokens.
    Short,
    /// A checkpoint with another `index_topk`, above the horizon.
    Width,
}

impl Needs {
    /// The word in lists.
    pub fn name(self) -> &'static str {
        match self {
            Needs::Nothing => "nothing",
            Needs::PastWindow => "prompt > window",
            Needs::Horizon => "prompt > horizon",
            Needs::Chunk => "a second chunk",
            Needs::Chunks => "chunks or decode",
            Needs::HorizonChunks => "chunks or decode, prompt > horizon",
            Needs::Decode => "decode",
            Needs::HorizonDecode => "decode, prompt > horizon",
            Needs::Window128 => "prompt >= 128",
            Needs::Large => "prompt > 64",
            Needs::Ties => "equal scores at the cut",
            Needs::Clamp => "activations > clamp",
            Needs::Overflow => "router logits > 88",
            Needs::ManyExperts => "> 256 experts",
            Needs::Short => "prompt <= 32",
            Needs::Width => "index_topk != 512, prompt > horizon",
        }
    }
    /// True if the prompt must reach above the identity horizon.
    pub fn horizon(self) -> bool {
        use Needs::*;
        matches!(self, Horizon | HorizonChunks | HorizonDecode | Ties | Width)
    }
    /// True if a prefill in chunks shows it.
    pub fn chunk(self) -> bool {
        use Needs::*;
        matches!(self, Chunk | Chunks | HorizonChunks)
    }
    /// True if only decode steps show it.
    pub fn decode(self) -> bool {
        matches!(self, Needs::Decode | Needs::HorizonDecode)
    }
}

/// A wrong (or harmless) point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Name in a kernel spec.
    pub name: &'static str,
    /// Class letter.
    pub class: char,
    /// The site a comparison must name: that of the first tap it shows at.
    pub found: Site,
    /// Layers it can be planted in.
    pub layers: Where,
    /// Phase it is confined to; `None` = both.
    pub phase: Option<Phase>,
    /// What a run needs to show it.
    pub needs: Needs,
    /// `site.knob=value`, comma separated; the first one is the fault, others bring it about.
    pub settings: &'static str,
    /// Settings to plant on both sides, golden's too, so that a small model can show it; empty as a rule.
    pub both: &'static str,
    /// What it looks like.
    pub looks: &'static str,
}

impl Fault {
    /// The settings, one by one.
    pub fn settings(&self) -> Vec<(String, String)> {
        settings(self.settings)
    }
    /// The settings golden needs, too.
    pub fn both(&self) -> Vec<(String, String)> {
        settings(self.both)
    }
    /// The site a comparison must name.
    pub fn site(&self) -> Site {
        self.found
    }
    /// The site of the knob it turns.
    pub fn guilty(&self) -> Site {
        sites(&self.settings()[..1])[0]
    }
    /// The fault or control of that name.
    pub fn find(name: &str) -> Option<&'static Fault> {
        FAULTS.iter().chain(CONTROLS).find(|f| f.name == name)
    }
}

mod list;
pub use list::{CONTROLS, FAULTS};

#[cfg(test)]
mod tests;
