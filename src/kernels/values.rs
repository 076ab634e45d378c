//! The types a knob can have. Each parses from and prints to one word.

use std::fmt;

/// A type that a knob can have: one word in, one word out.
pub trait KnobValue: Copy + PartialEq + fmt::Debug + Sized {
    /// Parses one word, e.g. `bf16`.
    fn parse(s: &str) -> Option<Self>;
    /// The word that [`KnobValue::parse`] reads back.
    fn print(&self) -> String;
    /// The values in words, for help and error messages.
    fn choices() -> String;
}

/// Largest number a knob takes: above every width and split count that makes sense, below what a
/// loop or an allocation of that size would hurt.
const MAX_NUMBER: u32 = 1 << 20;

impl KnobValue for u32 {
    fn parse(s: &str) -> Option<Self> {
        s.parse().ok().filter(|v| *v <= MAX_NUMBER)
    }
    fn print(&self) -> String {
        self.to_string()
    }
    fn choices() -> String {
        format!("a whole number up to {MAX_NUMBER}")
    }
}

impl KnobValue for bool {
    fn parse(s: &str) -> Option<Self> {
        match s {
            "on" | "true" => Some(true),
            "off" | "false" => Some(false),
            _ => None,
        }
    }
    fn print(&self) -> String {
        if *self { "on" } else { "off" }.into()
    }
    fn choices() -> String {
        "on, off".into()
    }
}

/// Declares a field-less enum that is a [`KnobValue`]: one word a variant.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }
        impl KnobValue for $name {
            fn parse(s: &str) -> Option<Self> {
                match s { $($word => Some($name::$variant),)+ _ => None }
            }
            fn print(&self) -> String {
                match self { $($name::$variant => $word,)+ }.into()
            }
            fn choices() -> String {
                [$($word),+].join(", ")
            }
        }
    };
}

words! {
    /// A number format values are rounded to where a knob says so.
    Fmt {
        /// IEEE binary32: nothing is rounded.
        F32 = "f32",
        /// NVIDIA TF32: 10 stored mantissa bits, f32 range.
        Tf32 = "tf32",
        /// bfloat16, round to nearest even.
        Bf16 = "bf16",
        /// IEEE binary16.
        F16 = "f16",
        /// e4m3 with a power-of-two scale per 128 values of a row.
        Fp8x128 = "fp8_128",
        /// e4m3 with a power-of-two scale per 64 values of a row.
        Fp8x64 = "fp8_64",
        /// e4m3 with one f32 scale `amax/448` per row.
        Fp8Row = "fp8_row",
        /// e2m1 with a power-of-two scale per 32 values (MXFP4).
        MxFp4 = "mxfp4",
        /// e2m1 with an e4m3 scale per 16 values (NVFP4).
        NvFp4 = "nvfp4",
    }
}

words! {
    /// On which side of the index product the Hadamard rotation is applied.
    Hadamard {
        /// On neither side.
        None = "none",
        /// On queries and keys: scores are unchanged but for quantisation.
        Both = "both",
        /// On queries only: the ranking carries no information.
        QOnly = "q_only",
        /// On keys only.
        KOnly = "k_only",
    }
}

words! {
    /// How the attention sink enters the softmax.
    Sink {
        /// Once, in the denominator.
        Once = "once",
        /// Never.
        Dropped = "dropped",
        /// Twice.
        Twice = "twice",
        /// Once in every split, so `splits` times.
        PerSplit = "per_split",
        /// Multiplied by the softmax scale.
        Scaled = "scaled",
    }
}

words! {
    /// The window a token may see.
    Window {
        /// The last `sliding_window` positions, itself included.
        Exact = "exact",
        /// One position fewer.
        OneShort = "one_short",
        /// One position more.
        OneLong = "one_long",
        /// Everything before it.
        Unlimited = "unlimited",
    }
}

words! {
    /// Which compressed entries are visible to position `t`.
    Visible {
        /// `j < (t+1) / ratio`.
        Exact = "exact",
        /// `j < t / ratio`: the entry closing at `t` is hidden.
        QDivR = "q_div_r",
        /// `j <= (t+1) / ratio`: one entry of the future.
        OneFuture = "one_future",
    }
}

words! {
    /// Pairing of rotary dimensions.
    Pairing {
        /// Adjacent pairs `(2i, 2i+1)`, as the model was trained.
        Interleaved = "interleaved",
        /// Halves `(i, i + r/2)`.
        HalfSplit = "half_split",
        /// No rotation.
        Off = "off",
    }
}

words! {
    /// Position used to rotate a compressed entry.
    EntryPosition {
        /// The first token of its window, `ratio · j`.
        First = "first",
        /// The entry number `j` itself.
        Index = "index",
        /// The last token of its window.
        Last = "last",
    }
}

words! {
    /// Where the previous window enters the overlapping compressor.
    Overlap {
        /// Always.
        On = "on",
        /// Never.
        Off = "off",
    }
}

words! {
    /// Which rotary table a layer uses.
    RopeTableChoice {
        /// The one its kind is configured with.
        Config = "config",
        /// The other kind's.
        Swapped = "swapped",
    }
}

words! {
    /// How often `routed_scaling_factor` reaches the routed sum.
    Scale {
        /// Once.
        Once = "once",
        /// Not at all.
        Never = "never",
        /// Twice.
        Twice = "twice",
    }
}

words! {
    /// Where the routing weight (with its factor) multiplies a routed expert's output.
    WeightSite {
        /// On the activation, before `w2` (the official script).
        BeforeW2 = "before_w2",
        /// On the rounded output of `w2`.
        AfterW2 = "after_w2",
        /// Normalised weight after `w2`; the factor on the rounded routed sum.
        FactorOnSum = "factor_on_sum",
    }
}

words! {
    /// Which SwiGLU inputs are clamped.
    Clamp {
        /// Up to ±limit, gate from above, in routed and shared experts.
        Exact = "exact",
        /// No clamp in the shared expert.
        OffShared = "off_shared",
        /// No clamp in the routed experts.
        OffRouted = "off_routed",
        /// The product is clamped instead of its factors.
        AfterSilu = "after_silu",
    }
}

words! {
    /// Order of equal scores at the cut of top-k.
    Tie {
        /// The lower entry index wins.
        Low = "low",
        /// The higher entry index wins.
        High = "high",
    }
}

words! {
    /// Which of the two indices of the mHC mixing matrix is contracted.
    Comb {
        /// The first: `X'[k] = Σ_j C[j][k] X[j]`.
        Exact = "exact",
        /// The second.
        Transposed = "transposed",
    }
}

words! {
    /// How hash-table expert ids are stored.
    TableDtype {
        /// Integers.
        Int = "int",
        /// Rounded to bfloat16: exact up to 256.
        Bf16 = "bf16",
    }
}
