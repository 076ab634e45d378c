//! The knob space: every numerics choice at every site, as data in one place.
//!
//! A kernel is a point in this space. Golden `ideal` is the default point, golden `qat` a named
//! one, every fast kernel and every fault another. There is no second mechanism: a run is a base
//! point plus overrides by layer and phase ([`KnobPlan`]).

use crate::error::{Error, Result};
use std::fmt;

/// A named place in the forward pass where a kernel can differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// Token embedding.
    Embed,
    /// Hyper-connections and the residual streams.
    Mhc,
    /// Attention core.
    Attn,
    /// Stored keys and values.
    KvCache,
    /// Pooling into compressed entries.
    Compressor,
    /// Index queries, keys and scores.
    Indexer,
    /// Selection of entries.
    Topk,
    /// Expert selection and weights.
    Router,
    /// Routed and shared experts.
    Experts,
    /// Projections, their norms and rotations.
    Linear,
    /// Final collapse, norm and logits.
    Head,
}

impl Site {
    /// Every site, in the order of the house's list.
    pub const ALL: [Site; 11] = [
        Site::Embed,
        Site::Mhc,
        Site::Attn,
        Site::KvCache,
        Site::Compressor,
        Site::Indexer,
        Site::Topk,
        Site::Router,
        Site::Experts,
        Site::Linear,
        Site::Head,
    ];
    /// The word used in knobs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Site::Embed => "embed",
            Site::Mhc => "mhc",
            Site::Attn => "attn",
            Site::KvCache => "kv_cache",
            Site::Compressor => "compressor",
            Site::Indexer => "indexer",
            Site::Topk => "topk",
            Site::Router => "router",
            Site::Experts => "experts",
            Site::Linear => "linear",
            Site::Head => "head",
        }
    }
    /// True for embedding and head, which belong to no layer.
    pub fn outside_layers(self) -> bool {
        matches!(self, Site::Embed | Site::Head)
    }
    /// The site of that name.
    pub fn parse(s: &str) -> Option<Site> {
        Site::ALL.into_iter().find(|x| x.name() == s)
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a knob declares, which decides whether the floor grants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A declared number format of an input or output. The floor pays for it.
    Format,
    /// An internal choice: order, intermediate precision, tiling. The floor does not pay for it.
    Internal,
    /// A choice whose other values compute something else than the model.
    Semantic,
}

/// One knob as data: what `kernels list` prints.
#[derive(Debug, Clone)]
pub struct KnobDef {
    /// Site it belongs to.
    pub site: Site,
    /// Name within the site.
    pub name: &'static str,
    /// What it declares.
    pub class: Class,
    /// Value of golden `ideal`.
    pub golden: String,
    /// Values it takes, in words.
    pub values: String,
    /// What it does.
    pub doc: &'static str,
    /// Where kernels that differ here are found.
    pub source: &'static str,
}

/// Declares the knobs of every site.
macro_rules! knobs {
    ($($(#[$sdoc:meta])* $struct:ident $field:ident $site:ident {
        $($(#[$kdoc:meta])* $knob:ident: $ty:ty = $golden:expr, $class:ident, $doc:literal, $source:literal;)*
    })+) => {
        $($(#[$sdoc])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $struct { $(#[doc = $doc] pub $knob: $ty),* }
        impl Default for $struct {
            fn default() -> Self { $struct { $($knob: $golden),* } }
        })+

        /// A point in knob space: the settings of every site.
        #[derive(Debug, Clone, Copy, PartialEq, Default)]
        pub struct Knobs { $($(#[$sdoc])* pub $field: $struct),+ }

        impl Knobs {
            /// Every knob, in site order.
            pub fn defs() -> Vec<KnobDef> {
                vec![$($(KnobDef {
                    site: Site::$site, name: stringify!($knob), class: Class::$class,
                    golden: { let g: $ty = $golden; g.print() }, values: <$ty>::choices(), doc: $doc,
                    source: $source,
                }),*),+]
            }
            /// Sets `site.knob` to a value in words.
            pub(super) fn set_raw(&mut self, site: Site, knob: &str, value: &str) -> Option<bool> {
                match site { $(Site::$site => match knob {
                    $(stringify!($knob) => Some(match <$ty>::parse(value) {
                        Some(v) => { self.$field.$knob = v; true }
                        None => false,
                    }),)*
                    _ => None,
                }),+ }
            }
            /// The value of every knob in words, in site order.
            pub(super) fn values(&self) -> Vec<(Site, &'static str, String)> {
                vec![$($((Site::$site, stringify!($knob), self.$field.$knob.print())),*),+]
            }
            /// The point an ideal kernel with the same declared formats would be at: every
            /// internal and semantic knob back at golden.
            pub fn formats_only(&self) -> Knobs {
                let mut k = Knobs::default();
                $($(if matches!(Class::$class, Class::Format) { k.$field.$knob = self.$field.$knob; })*)+
                k
            }
            /// True if the settings of `site` are golden `ideal`.
            pub fn is_golden_at(&self, site: Site) -> bool {
                match site { $(Site::$site => self.$field == $struct::default()),+ }
            }
            /// Copies the settings of one site from another point.
            pub fn copy_site(&mut self, site: Site, from: &Knobs) {
                match site { $(Site::$site => self.$field = from.$field),+ }
            }
        }
    };
}

mod plan;
mod space;
pub use plan::{KnobPlan, Override};
pub use space::*;

impl Knobs {
    /// Sets one knob from words: `site.knob` and a value.
    pub fn set(&mut self, path: &str, value: &str) -> Result<()> {
        let unknown = || {
            let names: Vec<String> = Knobs::defs().iter().map(|d| format!("{}.{}", d.site, d.name)).collect();
            Error::usage(format!("unknown knob '{path}'")).hint(match nearest(path, &names) {
                Some(n) => format!("did you mean '{n}'? `dsv4 kernels list` shows all"),
                None => "`dsv4 kernels list` shows all knobs".into(),
            })
        };
        let (site, knob) = path.split_once('.').ok_or_else(unknown)?;
        let site = Site::parse(site).ok_or_else(unknown)?;
        match self.set_raw(site, knob, value) {
            Some(true) => Ok(()),
            Some(false) => {
                let def = Knobs::defs().into_iter().find(|d| d.site == site && d.name == knob);
                let values = def.map(|d| d.values).unwrap_or_default();
                Err(Error::usage(format!("'{value}' is not a value of {path}"))
                    .hint(format!("it takes {values}")))
            }
            None => Err(unknown()),
        }
    }
    /// The value of `site.knob` in words.
    pub fn get(&self, path: &str) -> Option<String> {
        let (site, knob) = path.split_once('.')?;
        self.values().into_iter().find(|(s, k, _)| s.name() == site && *k == knob).map(|(_, _, v)| v)
    }
    /// The settings that differ from `base`, as `site.knob=value` words.
    pub fn diff(&self, base: &Knobs) -> Vec<String> {
        self.values()
            .into_iter()
            .zip(base.values())
            .filter(|(a, b)| a.2 != b.2)
            .map(|((s, k, v), _)| format!("{s}.{k}={v}"))
            .collect()
    }
}

impl fmt::Display for Knobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = self.diff(&Knobs::default());
        f.write_str(&if d.is_empty() { "golden".to_string() } else { d.join(",") })
    }
}

/// The nearest of `names` to a mistyped word, if one is near at all.
pub fn nearest(word: &str, names: &[String]) -> Option<String> {
    names
        .iter()
        .map(|n| (strsim::damerau_levenshtein(word, n), n))
        .filter(|(d, n)| *d <= 2.max(n.len() / 3))
        .min()
        .map(|(_, n)| n.clone())
}

/// In which phase a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Many tokens at once.
    Prefill,
    /// One token at a time against the caches.
    Decode,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        })
    }
}
