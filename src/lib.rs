//! `dsv4`: numerical-fidelity forensics for DeepSeek-V4 deployments.
//!
//! The crate is layered and imports run one way, downwards:
//! `cli → engine → model, kernels, metrics, checkpoint, encoding → numeric`.
//! The forward pass is written once, in `model`, over the [`kernels::Ops`] trait;
//! golden, every fast kernel and every fault are points in one knob space ([`kernels::Knobs`]).

pub mod ab;
pub mod checkpoint;
pub mod cli;
pub mod coherence;
pub mod encoding;
pub mod engine;
pub mod error;
pub mod fnv;
pub mod kernels;
pub mod metrics;
pub mod model;
pub mod needle;
pub mod numeric;
pub mod report;

pub use error::{Error, ErrorKind, Result};
