//! Knobs, presets, faults, and the operations they steer.
//!
//! [`Ops`] is the trait the forward pass is written over; [`Cpu`] implements it for golden and
//! for every emulation. [`Knobs`] is the space, [`presets`] and [`faults`] its named points,
//! [`Spec`] the language that picks one.

pub mod attention;
pub mod attention_split;
pub mod compress;
pub mod cpu;
pub mod faults;
pub mod gemm;
pub mod index;
pub mod index_emul;
pub mod knobs;
pub mod kv_pages;
pub mod mat;
pub mod mhc;
pub mod mhc_split;
pub mod moe;
pub mod moe_emul;
pub mod norm;
pub mod ops;
pub mod presets;
mod qk;
pub mod quant;
pub mod rope;
pub mod round;
pub mod simd;
pub mod spec;
pub mod values;
pub mod weight;

pub use cpu::Cpu;
pub use knobs::{Class, KnobDef, KnobPlan, Knobs, Phase, Site};
pub use mat::{Index, Mat};
pub use ops::Ops;
pub use presets::Golden;
pub use spec::Spec;
