//! The flags that choose a path through the model: golden, kernels, phases.

use crate::checkpoint::Checkpoint;
use crate::engine::Schedule;
use crate::error::Result;
use crate::kernels::{Golden, KnobPlan, Spec};

/// Golden, kernels and phases of a run.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PathArgs {
    /// Exact path to start from: ideal (all f32) or qat (the official script's fake quantisation)
    #[arg(long, value_name = "ideal|qat", default_value = "ideal", value_parser = Golden::parse)]
    pub golden: Golden,
    /// Kernels of the path: presets, faults and single knobs; `dsv4 kernels list` shows them all
    #[arg(long, value_name = "SPEC", env = "DSV4_KERNELS", allow_hyphen_values = true)]
    pub kernels: Option<Spec>,
    /// Run the last N positions through the decode phase, one by one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub decode_last: usize,
    /// Prefill in chunks of N tokens, carrying state across; 0 = in one go
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub chunk: usize,
}

impl PathArgs {
    /// How the tokens are fed.
    pub fn schedule(&self) -> Schedule {
        Schedule { chunk: self.chunk, decode_last: self.decode_last }
    }
    /// The kernels, or `default` where none were named.
    pub fn spec(&self, default: &Spec) -> Spec {
        self.kernels.clone().unwrap_or_else(|| default.clone())
    }
    /// The knob settings of `spec` for `checkpoint`.
    pub fn plan(&self, spec: &Spec, checkpoint: &Checkpoint) -> Result<KnobPlan> {
        spec.plan(self.golden, &checkpoint.config().layers)
    }
}
