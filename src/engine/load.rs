//! Loading a layer's weights from a checkpoint into a backend, experts on demand.

use crate::checkpoint::{Checkpoint, Config, LayerKind, Tensor};
use crate::error::Result;
use crate::kernels::ops::{ExpertSource, HyperConnection, Mlp};
use crate::kernels::{Mat, Ops};
use crate::model::{CompressorWeights, IndexerWeights, LayerWeights, OuterWeights};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Routed experts of a layer are kept decoded while they take no more than this many bytes;
/// above it each is decoded anew when tokens are routed to it.
const KEEP_EXPERTS_BYTES: usize = 1 << 30;

/// True if the routed experts of a layer stay decoded until the layer is dropped.
pub(super) fn keeps_experts(c: &Config) -> bool {
    c.n_routed_experts * 3 * c.hidden_size * c.moe_intermediate_size * 4 <= KEEP_EXPERTS_BYTES
}

/// A checkpoint seen through a backend.
pub struct Loader<O: Ops> {
    ops: O,
    ckpt: Arc<Checkpoint>,
}

impl<O: Ops + Clone + Send + 'static> Loader<O> {
    /// Loads `ckpt` for `ops`.
    pub fn new(ops: O, ckpt: Arc<Checkpoint>) -> Self {
        Loader { ops, ckpt }
    }

    fn matrix(&self, name: &str) -> Result<(usize, usize, Vec<f32>)> {
        let Tensor { shape, data, .. } = self.ckpt.load(name)?;
        let cols = shape.last().copied().unwrap_or(1).max(1);
        Ok((data.len() / cols, cols, data))
    }
    fn weight(&self, name: &str) -> Result<O::W> {
        let (n, k, data) = self.matrix(name)?;
        Ok(self.ops.weight(n, k, &data))
    }
    fn vector(&self, name: &str) -> Result<Vec<f32>> {
        Ok(self.ckpt.load(name)?.data)
    }
    fn hc(&self, prefix: &str) -> Result<HyperConnection<O::W>> {
        Ok(HyperConnection {
            f: self.weight(&format!("{prefix}_fn"))?,
            base: self.vector(&format!("{prefix}_base"))?,
            scale: self.vector(&format!("{prefix}_scale"))?,
        })
    }
    fn compressor(&self, prefix: &str, dim: usize) -> Result<CompressorWeights<O>> {
        Ok(CompressorWeights {
            wkv: self.weight(&format!("{prefix}.wkv.weight"))?,
            wgate: self.weight(&format!("{prefix}.wgate.weight"))?,
            ape: self.vector(&format!("{prefix}.ape"))?,
            norm: self.vector(&format!("{prefix}.norm.weight"))?,
            dim,
        })
    }

    /// Everything layer `i` computes with.
    pub fn layer(&self, i: usize) -> Result<LayerWeights<O>> {
        let c = self.ckpt.config();
        let spec = c.layers[i];
        let a = format!("layers.{i}.attn");
        let f = format!("layers.{i}.ffn");
        let (n, k, wo_a) = self.matrix(&format!("{a}.wo_a.weight"))?;
        let per = n / c.o_groups;
        let compressed = spec.kind != LayerKind::Window;
        Ok(LayerWeights {
            hc_attn: self.hc(&format!("layers.{i}.hc_attn"))?,
            hc_ffn: self.hc(&format!("layers.{i}.hc_ffn"))?,
            attn_norm: self.vector(&format!("layers.{i}.attn_norm.weight"))?,
            ffn_norm: self.vector(&format!("layers.{i}.ffn_norm.weight"))?,
            wq_a: self.weight(&format!("{a}.wq_a.weight"))?,
            q_norm: self.vector(&format!("{a}.q_norm.weight"))?,
            wq_b: self.weight(&format!("{a}.wq_b.weight"))?,
            wkv: self.weight(&format!("{a}.wkv.weight"))?,
            kv_norm: self.vector(&format!("{a}.kv_norm.weight"))?,
            sinks: self.vector(&format!("{a}.attn_sink"))?,
            wo_a: wo_a.chunks_exact(per * k).map(|g| self.ops.weight(per, k, g)).collect(),
            wo_b: self.weight(&format!("{a}.wo_b.weight"))?,
            compressor: if compressed {
                Some(self.compressor(&format!("{a}.compressor"), c.head_dim)?)
            } else {
                None
            },
            indexer: if spec.kind == LayerKind::Csa {
                Some(IndexerWeights {
                    wq_b: self.weight(&format!("{a}.indexer.wq_b.weight"))?,
                    weights_proj: self.weight(&format!("{a}.indexer.weights_proj.weight"))?,
                    compressor: self.compressor(&format!("{a}.indexer.compressor"), c.index_head_dim)?,
                })
            } else {
                None
            },
            gate: self.weight(&format!("{f}.gate.weight"))?,
            gate_bias: if spec.hash { None } else { Some(self.vector(&format!("{f}.gate.bias"))?) },
            tid2eid: if spec.hash {
                let (_, ids) = self.ckpt.load_i64(&format!("{f}.gate.tid2eid"))?;
                Some(ids.into_iter().map(|v| v as i32).collect())
            } else {
                None
            },
            experts: Box::new(CheckpointExperts {
                loader: Loader { ops: self.ops.clone(), ckpt: self.ckpt.clone() },
                prefix: format!("{f}.experts"),
                count: c.n_routed_experts,
                keep: keeps_experts(c),
                kept: Mutex::default(),
            }),
            shared: self.mlp(&format!("{f}.shared_experts"))?,
        })
    }

    fn mlp(&self, prefix: &str) -> Result<Mlp<O::W>> {
        Ok(Mlp {
            w1: self.weight(&format!("{prefix}.w1.weight"))?,
            w2: self.weight(&format!("{prefix}.w2.weight"))?,
            w3: self.weight(&format!("{prefix}.w3.weight"))?,
        })
    }

    /// Embedding and head.
    pub fn outer(&self) -> Result<OuterWeights<O>> {
        let (n, k, data) = self.matrix("embed.weight")?;
        Ok(OuterWeights {
            embed: self.ops.upload(Mat::new(n, k, data)),
            hc_head: self.hc("hc_head")?,
            norm: self.vector("norm.weight")?,
            head: self.weight("head.weight")?,
        })
    }
}

/// Routed experts of one layer, decoded when a token is routed to them.
struct CheckpointExperts<O: Ops> {
    loader: Loader<O>,
    prefix: String,
    count: usize,
    keep: bool,
    kept: Mutex<HashMap<usize, Arc<Mlp<O::W>>>>,
}

impl<O: Ops + Clone + Send + 'static> ExpertSource<O::W> for CheckpointExperts<O> {
    fn expert(&self, e: usize) -> Result<Arc<Mlp<O::W>>> {
        if let Some(m) = self.kept.lock().expect("no panic while held").get(&e) {
            return Ok(m.clone());
        }
        let m = Arc::new(self.loader.mlp(&format!("{}.{e}", self.prefix))?);
        if self.keep {
            self.kept.lock().expect("no panic while held").insert(e, m.clone());
        }
        Ok(m)
    }
    fn count(&self) -> usize {
        self.count
    }
}
