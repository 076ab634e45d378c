//! Knobs, presets, faults, and the operations they steer.
//!
//! [`Ops`] is the trait the forward pass is written over; [`Cpu`] implements it for golden and
//! for every emulation. [`Knobs`] is the space, [`presets`] its named points.

pub mod attention;
pub mod attention_split;
pub mod compress;
pub mod cpu;
pub mod gemm;
pub mod index;
pub mod knobs;
pub mod mat;
pub mod mhc;
pub mod moe;
pub mod norm;
pub mod ops;
mod qk;
pub mod rope;
pub mod round;
pub mod simd;
pub mod values;

pub use cpu::Cpu;
pub use knobs::{Class, KnobDef, KnobPlan, Knobs, Phase, Site};
pub use mat::{Index, Mat};
pub use ops::Ops;
