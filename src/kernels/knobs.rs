//! The knob space: every numerics choice at every site, as data in one place.
//!
//! A kernel is a point in this space. Golden `ideal` is the default point, golden `qat` a named
//! one, every fast kernel and every fault another. There is no second mechanism: a run is a base
//! point plus overrides by layer and phase ([`KnobPlan`]).

use super::values::*;
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
}

/// Declares the knobs of every site.
macro_rules! knobs {
    ($($(#[$sdoc:meta])* $struct:ident $field:ident $site:ident {
        $($(#[$kdoc:meta])* $knob:ident: $ty:ty = $golden:expr, $class:ident, $doc:literal;)*
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
                }),*),+]
            }
            /// Sets `site.knob` to a value in words.
            fn set_raw(&mut self, site: Site, knob: &str, value: &str) -> Option<bool> {
                match site { $(Site::$site => match knob {
                    $(stringify!($knob) => Some(match <$ty>::parse(value) {
                        Some(v) => { self.$field.$knob = v; true }
                        None => false,
                    }),)*
                    _ => None,
                }),+ }
            }
            /// The value of every knob in words, in site order.
            fn values(&self) -> Vec<(Site, &'static str, String)> {
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

knobs! {
    /// Token embedding.
    EmbedKnobs embed Embed {
        dtype: Fmt = Fmt::F32, Format, "dtype of the embedded rows and so of the first residual streams";
    }
    /// Manifold-constrained hyper-connections: mixing weights, Sinkhorn, residual streams.
    MhcKnobs mhc Mhc {
        x_dtype: Fmt = Fmt::F32, Format, "dtype of the streams as input of the mixing GEMM";
        w_dtype: Fmt = Fmt::F32, Format, "dtype of the mixing weights hc_*_fn";
        mix_dtype: Fmt = Fmt::F32, Format, "dtype that pre, post and comb are rounded to";
        stream_dtype: Fmt = Fmt::F32, Format, "dtype of the residual streams and of the collapsed, normed sub-layer input";
        split_k: u32 = 1, Internal, "partial sums of the mixing GEMM along K, added in order";
        sinkhorn_iters: u32 = 0, Semantic, "Sinkhorn iterations; 0 = as configured";
        comb: Comb = Comb::Exact, Semantic, "index of the mixing matrix that is contracted";
        sublayer_norm: bool = true, Semantic, "RMSNorm between the collapse and the sub-layer";
    }
    /// Attention over window and compressed entries.
    AttnKnobs attn Attn {
        qk_dtype: Fmt = Fmt::F32, Format, "dtype of queries, keys and values as read by the products";
        out_dtype: Fmt = Fmt::F32, Format, "dtype of the output, before and after the inverse rotation";
        logits_dtype: Fmt = Fmt::F32, Internal, "dtype that QK products are rounded to";
        p_dtype: Fmt = Fmt::F32, Internal, "dtype of the un-normalised probabilities in the PV product";
        partial_dtype: Fmt = Fmt::F32, Internal, "dtype of the partial outputs of the splits";
        splits: u32 = 1, Internal, "number of splits of the key list, merged by their LSE";
        tile: u32 = 0, Internal, "keys per online-softmax tile; 0 = all at once";
        lse_base_mismatch: bool = false, Semantic, "partial LSEs are written to base 2 and merged as base e";
        sink: Sink = Sink::Once, Semantic, "how the sink enters the denominator";
        window: Window = Window::Exact, Semantic, "window positions a token sees";
        compressed: bool = true, Semantic, "compressed entries take part";
        derotate: bool = true, Semantic, "inverse rotation of the output";
    }
    /// What is stored between writing and reading keys and values.
    KvCacheKnobs kv_cache KvCache {
        window: Fmt = Fmt::F32, Format, "format of window entries; block formats cover the dims without rope, the rest is bf16";
        compressed: Fmt = Fmt::F32, Format, "format of compressed entries; as above";
        rope_bf16: bool = false, Format, "dims under rope are stored as bf16 beside a block format";
        ring_shift: u32 = 0, Semantic, "window entries are read this many slots away from where they were written";
    }
    /// Pooling of tokens into compressed entries (attention and indexer).
    CompressorKnobs compressor Compressor {
        in_dtype: Fmt = Fmt::F32, Format, "dtype of the input and weights of wkv and wgate";
        state_dtype: Fmt = Fmt::F32, Format, "dtype of the pending values and gates";
        out_dtype: Fmt = Fmt::F32, Format, "dtype of the pooled value, the norm and the rotation";
        overlap: Overlap = Overlap::On, Semantic, "previous window takes part (ratio 4)";
        ape: bool = true, Semantic, "position bias is added to the gates";
        pairing: Pairing = Pairing::Interleaved, Semantic, "rotary pairing of the entries";
        entry_pos: EntryPosition = EntryPosition::First, Semantic, "position an entry is rotated at";
        carry: bool = true, Semantic, "pending tokens and previous window survive from one chunk to the next";
    }
    /// Lightning indexer: query, key, score.
    IndexerKnobs indexer Indexer {
        in_dtype: Fmt = Fmt::F32, Format, "dtype of the projected queries, keys and head weights before encoding";
        q_dtype: Fmt = Fmt::F32, Format, "format of encoded queries";
        k_dtype: Fmt = Fmt::F32, Format, "format of encoded keys";
        score_dtype: Fmt = Fmt::F32, Format, "dtype scores are stored in";
        hadamard: Hadamard = Hadamard::None, Semantic, "rotation before encoding";
        dot_dtype: Fmt = Fmt::F32, Internal, "dtype each head's dot product is rounded to";
        relu: bool = true, Semantic, "negative products are dropped";
        pairing: Pairing = Pairing::Interleaved, Semantic, "rotary pairing of index queries and keys";
        key_pairing: Pairing = Pairing::Interleaved, Semantic, "rotary pairing of index keys alone";
        visible: Visible = Visible::Exact, Semantic, "entries that are scored";
        carry: bool = true, Semantic, "keys of earlier chunks are found again";
    }
    /// Selection of the best scored entries.
    TopkKnobs topk Topk {
        width: u32 = 0, Semantic, "entries kept; 0 = index_topk of the checkpoint";
        coarse_bits: u32 = 32, Internal, "leading bits of the score that the first pass compares";
        coarse_cap: u32 = 0, Semantic, "survivors the coarse pass can hold; 0 = unlimited";
        tie: Tie = Tie::Low, Internal, "order of equal scores";
    }
    /// Router: logits, selection, weights.
    RouterKnobs router Router {
        in_dtype: Fmt = Fmt::F32, Format, "dtype of the input and weights of the gate";
        logits_dtype: Fmt = Fmt::F32, Format, "dtype of the logits and of the weights";
        table: TableDtype = TableDtype::Int, Semantic, "dtype the hash table went through";
        scale: Scale = Scale::Once, Semantic, "how often the routed scaling factor is applied";
        bias: bool = true, Semantic, "selection uses the correction bias";
    }
    /// Routed and shared experts.
    ExpertsKnobs experts Experts {
        in_dtype: Fmt = Fmt::F32, Format, "dtype of the inputs of w1, w3 and w2";
        w_dtype: Fmt = Fmt::F32, Format, "dtype of the weights";
        out_dtype: Fmt = Fmt::F32, Format, "dtype of every product and of the sums";
        weight_site: WeightSite = WeightSite::BeforeW2, Internal, "where the routing weight and the factor multiply";
        clamp: Clamp = Clamp::Exact, Semantic, "which SwiGLU inputs are clamped";
        scale: Scale = Scale::Once, Semantic, "how often the runner applies the factor";
    }
    /// Dense projections of attention, their norms and rotations.
    LinearKnobs linear Linear {
        in_dtype: Fmt = Fmt::F32, Format, "dtype of the inputs";
        w_dtype: Fmt = Fmt::F32, Format, "dtype of the weights";
        out_dtype: Fmt = Fmt::F32, Format, "dtype of the outputs, norms and rotations";
        rope: RopeTableChoice = RopeTableChoice::Config, Semantic, "rotary table of the main path";
        pairing: Pairing = Pairing::Interleaved, Semantic, "rotary pairing of the main path";
        head_norm: bool = true, Semantic, "RMS norm of every query head";
    }
    /// Final collapse, norm and output projection.
    HeadKnobs head Head {
        in_dtype: Fmt = Fmt::F32, Format, "dtype of the collapsed, normed state and the weights";
        out_dtype: Fmt = Fmt::F32, Format, "dtype of the logits";
    }
}

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

/// One override of the base point.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// Layers it applies to; `None` = all (and the head).
    pub layers: Option<Vec<usize>>,
    /// Phase it applies to; `None` = both.
    pub phase: Option<Phase>,
    /// Knob settings, `(site.knob, value)`.
    pub settings: Vec<(String, String)>,
}

/// Knob settings of a whole run: golden `ideal` plus overrides, later ones winning.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KnobPlan {
    /// The overrides, in the order they apply.
    pub overrides: Vec<Override>,
}

impl KnobPlan {
    /// The point in force at `layer` (`None` = embedding and head) in `phase`.
    pub fn at(&self, layer: Option<usize>, phase: Phase) -> Knobs {
        let mut k = Knobs::default();
        for o in &self.overrides {
            let layer_ok = match (&o.layers, layer) {
                (None, _) => true,
                (Some(ls), Some(l)) => ls.contains(&l),
                (Some(_), None) => false,
            };
            if layer_ok && o.phase.is_none_or(|p| p == phase) {
                for (path, value) in &o.settings {
                    k.set(path, value).expect("plans hold checked settings only");
                }
            }
        }
        k
    }
    /// Appends settings for all layers and phases, checking every name and value.
    pub fn push(
        &mut self,
        layers: Option<Vec<usize>>,
        phase: Option<Phase>,
        settings: &[(String, String)],
    ) -> Result<()> {
        let mut probe = Knobs::default();
        for (p, v) in settings {
            probe.set(p, v)?;
        }
        self.overrides.push(Override { layers, phase, settings: settings.to_vec() });
        Ok(())
    }
}

impl KnobPlan {
    /// The plan with every setting that declares no format taken away: what an ideal kernel with
    /// the same formats does. Golden's own settings stay.
    pub fn formats_only(&self, golden: &KnobPlan) -> KnobPlan {
        let format = |path: &str| {
            Knobs::defs().iter().any(|d| d.class == Class::Format && path == format!("{}.{}", d.site, d.name))
        };
        let mut out = golden.clone();
        for o in &self.overrides {
            let settings: Vec<_> = o.settings.iter().filter(|(p, _)| format(p)).cloned().collect();
            if !settings.is_empty() {
                out.overrides.push(Override { settings, ..o.clone() });
            }
        }
        out
    }
}
