//! Checkpoints: config, shard index, names, lazily decoded tensors.
//!
//! [`Checkpoint::open`] reads the config and every header, and nothing else. Tensors are asked for by their official name,
//! whatever the file calls them and however it stores them, and come back as finite f32 of the shape the config calls for.

mod config;
mod decode;
mod fingerprint;
mod inventory;
mod load;
mod names;
mod open;
pub mod safetensors;
mod spec;
mod stored;
mod strict_json;

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

pub use config::{Config, LayerKind, LayerSpec, QuantConfig, Rope, Yarn};
pub use inventory::{Inventory, LISTED, RoleSummary, Share, Wrong};
pub use open::BUILTINS;
pub use spec::Role;
pub use stored::{ScaleType, Stored};

use crate::error::Result;

/// A decoded tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Logical shape, row-major.
    pub shape: Vec<usize>,
    /// Values; all finite.
    pub data: Vec<f32>,
    /// How it was stored.
    pub stored: Stored,
}

/// An open checkpoint. Cheap to share between threads: loading takes `&self`.
pub struct Checkpoint {
    source: String,
    home: Home,
    config: Config,
    config_bytes: Vec<u8>,
    files: Vec<safetensors::SafeTensors>,
    /// Official name → place, scales included.
    tensors: HashMap<String, Loc>,
    /// (layer, is down_proj) → place of all experts in one tensor.
    packed: HashMap<(usize, bool), Loc>,
    mtp: Unused,
}

enum Home {
    Builtin,
    Dir(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Loc {
    file: usize,
    entry: usize,
}

/// Tensors nobody reads.
#[derive(Debug, Clone, Copy, Default)]
struct Unused {
    tensors: usize,
    params: u64,
    bytes: u64,
}

impl Unused {
    fn add(&mut self, e: &safetensors::Entry) {
        self.tensors += 1;
        self.bytes += (e.end - e.begin) as u64;
        if !e.name.ends_with("scale") && !e.name.ends_with("scale_inv") && !e.name.ends_with("scale_2") {
            let n: usize = e.shape.iter().product();
            let per = if matches!(e.dtype, safetensors::Dtype::I8 | safetensors::Dtype::U8) { 2 } else { 1 };
            self.params += n as u64 * per;
        }
    }
}

impl Checkpoint {
    /// Opens `builtin:pico` or a directory. Reads the config and all headers; a missing or damaged file fails here,
    /// a missing or mis-shaped tensor when it is loaded (or in [`Checkpoint::check`]).
    pub fn open(spec: &str) -> Result<Checkpoint> {
        open::open(spec)
    }

    /// The architecture.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What [`Checkpoint::open`] was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether a tensor is there, by its official name, alone or packed.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
            || self.packed_slot(name).is_some_and(|(_, e, _)| e < self.config.n_routed_experts)
    }

    /// Decodes a tensor.
    pub fn load(&self, name: &str) -> Result<Tensor> {
        self.decode(name, None)
    }

    /// Decodes some rows (of the first dimension): an embedding is large and a prompt touches little of it.
    pub fn load_rows(&self, name: &str, rows: Range<usize>) -> Result<Tensor> {
        self.decode(name, Some(rows))
    }

    /// Reads a hash layer's token → experts table: shape and ids, each checked to be an expert.
    pub fn load_i64(&self, name: &str) -> Result<(Vec<usize>, Vec<i64>)> {
        self.decode_ids(name)
    }

    /// How a tensor is stored; `None` if it is missing or unusable.
    pub fn stored(&self, name: &str) -> Option<Stored> {
        self.find(name).ok().map(|f| f.stored)
    }

    /// The activation scale an NVFP4 checkpoint carries beside a weight, if it does.
    pub fn input_scale(&self, weight: &str) -> Result<Option<f32>> {
        self.scalar(weight, "input_scale")
    }

    /// The tensor scale of an NVFP4 weight, if it has one.
    pub fn weight_scale_2(&self, weight: &str) -> Result<Option<f32>> {
        self.scalar(weight, "weight_scale_2")
    }

    /// `tokenizer.json`, if there is one.
    pub fn tokenizer_json(&self) -> Result<Option<Vec<u8>>> {
        open::tokenizer(&self.home)
    }

    /// A stable identity of the content: config, headers, sizes, and data (all of it for small models, samples for large).
    /// The same content gives the same fingerprint wherever it lies.
    pub fn fingerprint(&self) -> String {
        fingerprint::of(self)
    }

    /// Fails on the first expected tensor that is missing or of the wrong type or shape. Reads headers only.
    pub fn check(&self) -> Result<()> {
        let mut result = Ok(());
        spec::for_each(&self.config, |name| {
            if result.is_ok() {
                result = self.find(name).map(|_| ());
            }
        });
        result
    }

    /// Everything that is there, and everything that should be.
    pub fn inventory(&self) -> Inventory {
        inventory::of(self)
    }
}

#[cfg(test)]
mod tests;
