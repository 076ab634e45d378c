//! Number formats and rounding: bf16, f16, tf32, e4m3, e2m1, e8m0, block scales, Hadamard. Knows nothing of models.
//!
//! Every function is pure, allocation aside, and gives the same bits on every instruction set: only IEEE add,
//! multiply, divide and integer operations are used, never a fast-math form.
//!
//! One rule for NaN everywhere: a function that gives back `f32` keeps a NaN a NaN, so that a report can name the
//! place where it was born. Only encoders to a format without NaN (e2m1) must choose a code; they say which.

pub mod act_fp4;
pub mod act_fp8;
pub mod bf16;
mod bits;
pub mod e2m1;
pub mod e4m3;
pub mod e8m0;
pub mod f16;
pub mod fp8_block;
pub mod hadamard;
pub mod mxfp4;
pub mod nvfp4;
pub mod scale;
mod shape;
pub mod tf32;

#[cfg(test)]
mod testing;
