//! How a tensor is stored, for people and for kernels that care.

use std::fmt;

/// Storage of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Stored {
    F64,
    F32,
    F16,
    Bf16,
    /// E4M3 with one scale per `rows` x `cols` block.
    Fp8Block {
        rows: usize,
        cols: usize,
        scale: ScaleType,
    },
    /// Packed E2M1, one E8M0 scale per 32 columns.
    MxFp4,
    /// Packed E2M1, one E4M3 scale per 16 columns and one F32 scale a tensor.
    NvFp4,
    I64,
    I32,
}

/// Type of FP8 block scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScaleType {
    /// A power of two in a byte.
    E8m0,
    /// Any number.
    F32,
}

impl Stored {
    /// Whether values went through a block-scaled format.
    pub fn is_quantised(self) -> bool {
        matches!(self, Stored::Fp8Block { .. } | Stored::MxFp4 | Stored::NvFp4)
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = match self {
            Stored::F64 => "f64",
            Stored::F32 => "f32",
            Stored::F16 => "f16",
            Stored::Bf16 => "bf16",
            Stored::Fp8Block { rows, cols, scale } => {
                let scale = match scale {
                    ScaleType::E8m0 => "e8m0",
                    ScaleType::F32 => "f32",
                };
                return f.pad(&format!("fp8 {rows}x{cols} ({scale} scales)"));
            }
            Stored::MxFp4 => "mxfp4 (e8m0 per 32)",
            Stored::NvFp4 => "nvfp4 (e4m3 per 16, f32)",
            Stored::I64 => "i64",
            Stored::I32 => "i32",
        };
        f.pad(s)
    }
}
