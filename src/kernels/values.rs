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
        /// e4m3 with one power-of-two scale per row.
        Fp8RowPow2 = "fp8_row_pow2",
        /// e4m3 as it is, without a scale: saturates at 448, vanishes below 2^-10.
        E4m3 = "e4m3",
        /// e2m1 with a power-of-two scale per 32 values (MXFP4).
        MxFp4 = "mxfp4",
        /// The same with ties towards zero and a floor of 1e-4 under the block's amax.
        MxFp4HalfDown = "mxfp4_half_down",
        /// e2m1 with an e4m3 scale per 16 values (NVFP4).
        NvFp4 = "nvfp4",
    }
}

mod choosing;
mod mixing;
pub use choosing::*;
pub use mixing::*;
