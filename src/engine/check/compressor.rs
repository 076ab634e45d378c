//! The compressor: projections and pooling, with and without overlap.

use super::data::{Gen, handed, outliers};
use super::sizes::{Case, Dims, EPS, rope};
use super::{Bench, Run, Tap};
use crate::error::Result;
use crate::kernels::ops::PoolShape;
use crate::kernels::rope::RopeTable;
use crate::kernels::{Mat, Ops};

/// Windows completed.
const WINDOWS: usize = 4;
/// Added to every gate in case `offset`; the softmax does not see it.
const OFFSET: f32 = 100.0;

pub(super) struct Pooling<O: Ops> {
    d: Dims,
    data: Gen,
    overlap: bool,
    proj: O::W,
    ape: Vec<f32>,
    norm: Vec<f32>,
}

impl<O: Ops> Pooling<O> {
    /// The compressor of layers with an indexer (`overlap`), or of the others.
    pub fn new(ops: &O, d: &Dims, data: Gen, overlap: bool) -> Self {
        let data = data.of(if overlap { "csa" } else { "hca" });
        let (ratio, cols) = Self::shape(d, overlap);
        let w = data.of("proj").mat(cols, d.hidden, 1.0 / (d.hidden as f32).sqrt());
        let norm = data.of("norm").vec(d.dim, 0.1).iter().map(|v| 1.0 + v).collect();
        Pooling {
            d: *d,
            data,
            overlap,
            proj: ops.weight(w.rows, w.cols, &w.data),
            ape: data.of("ape").vec(ratio * cols, 0.5),
            norm,
        }
    }
    /// Ratio and columns of the projections.
    fn shape(d: &Dims, overlap: bool) -> (usize, usize) {
        if overlap { (d.ratios[0], 2 * d.dim) } else { (d.ratios[1], d.dim) }
    }
}

impl<O: Ops + 'static> Bench<O> for Pooling<O> {
    fn case(&self, ops: &O, case: Case) -> Result<Option<Run<'_, O>>> {
        let d = self.d;
        let (ratio, cols) = Self::shape(&d, self.overlap);
        // Calls of one prefill and of decode steps, which carry a state from one to the next.
        let calls: Vec<usize> = match case {
            Case::Random | Case::F32Inputs | Case::Offset | Case::Outliers => vec![WINDOWS * ratio + 1],
            Case::Short => [ratio - 1].into_iter().chain(vec![1; ratio + 2]).collect(),
            _ => return Ok(None),
        };
        let data = self.data.of(case.name());
        let tokens = calls.iter().sum();
        let mut kv = data.of("kv").mat(tokens, cols, 1.0);
        let mut gate = data.of("gate").mat(tokens, cols, 1.0);
        let mut x = data.of("x").mat(WINDOWS, d.hidden, 1.0);
        match case {
            Case::Offset => gate.data.iter_mut().for_each(|v| *v += OFFSET),
            Case::Outliers => {
                outliers(&mut kv, d.dim);
                outliers(&mut x, d.hidden);
            }
            _ => {}
        }
        // Pooling follows an f32 projection.
        handed(&mut x, case);
        let table = RopeTable::new(&rope(), d.rope, tokens + ratio);
        let (kv, gate, x) = (ops.upload(kv), ops.upload(gate), ops.upload(x));
        Ok(Some(Box::new(move |ops, k| {
            let ck = &k.compressor;
            let s = PoolShape {
                ratio,
                dim: d.dim,
                overlap: self.overlap,
                ape: &self.ape,
                norm: &self.norm,
                eps: EPS,
                rope: &table,
                pairing: ck.pairing,
            };
            let (mut state, mut out, mut pos) = (O::Pool::default(), Mat::zeros(0, d.dim), 0);
            for n in &calls {
                if !ck.carry {
                    state = O::Pool::default();
                }
                let (kv, gate) = (ops.slice(&kv, pos, pos + n), ops.slice(&gate, pos, pos + n));
                out.append(&ops.download(&ops.compress(&mut state, &kv, &gate, pos, &s, ck)));
                pos += n;
            }
            // Pooling sums over the window, its norm over the dims.
            let sum = d.dim.max(2 * ratio);
            let proj = ops.download(&ops.compress_proj(&x, &self.proj, ck));
            Ok(if self.overlap {
                vec![Tap::tensor("compressor.csa", sum, out), Tap::tensor("compressor.proj", d.hidden, proj)]
            } else {
                vec![Tap::tensor("compressor.hca", sum, out)]
            })
        })))
    }
}
