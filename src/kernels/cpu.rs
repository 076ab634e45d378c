//! The CPU backend: golden and every emulation.
//!
//! Each op rounds its inputs and outputs as its knobs say around exact f32 arithmetic; at golden
//! settings no rounding happens and the exact result comes out bit for bit.
//!
//! One file because it is one table: each method of the trait, and which kernel serves it.

use super::gemm::{self, Packed};
use super::knobs::*;
use super::mat::{Index, Mat, par_rows};
use super::ops::*;
use super::quant::rounded_by;
use super::rope::RopeTable;
use super::round::{round, round_row, rounded};
use super::values::{Fmt, Hadamard, HcEps, KeyLayout, Layout, Pairing, PostFactor, Quant};
use super::{attention, attention_split, compress, index, index_emul, kv_pages, mhc, mhc_split, moe, norm};
use crate::error::{Error, Result};
use crate::numeric::hadamard;

pub use super::weight::Weight;

/// The CPU backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cpu;

/// Encoded index keys, packed for the scoring product.
#[derive(Debug, Clone)]
pub struct Keys(Packed);

impl Cpu {
    fn project(x: &Mat, w: &Weight, in_dtype: Fmt, w_dtype: Fmt, out_dtype: Fmt) -> Mat {
        let mut y = gemm::linear(&rounded(x, in_dtype), &w.at(w_dtype));
        round(&mut y, out_dtype);
        y
    }

    fn rotate(
        mut x: Mat,
        heads: usize,
        table: &RopeTable,
        pos0: usize,
        inverse: bool,
        pairing: Pairing,
    ) -> Mat {
        let (cols, dim) = (x.cols, x.cols / heads);
        par_rows(&mut x, |r0, rows| {
            for (r, row) in rows.chunks_exact_mut(cols).enumerate() {
                for head in row.chunks_exact_mut(dim) {
                    table.rotate(head, pos0 + r0 + r, inverse, pairing);
                }
            }
        });
        x
    }
}

impl Ops for Cpu {
    type T = Mat;
    type W = Weight;
    type Keys = Keys;
    type Pool = compress::PoolState;

    fn weight(&self, n: usize, k: usize, data: &[f32]) -> Weight {
        Weight::new(n, k, data)
    }
    fn upload(&self, m: Mat) -> Mat {
        m
    }
    fn download(&self, t: &Mat) -> Mat {
        t.clone()
    }
    fn zeros(&self, rows: usize, cols: usize) -> Mat {
        Mat::zeros(rows, cols)
    }
    fn retrieve(&self, t: Mat) -> Mat {
        t
    }
    fn rows(&self, t: &Mat) -> usize {
        t.rows
    }
    fn slice(&self, t: &Mat, from: usize, to: usize) -> Mat {
        t.slice(from, to)
    }
    fn append(&self, cache: &mut Mat, rows: &Mat) {
        cache.append(rows);
    }
    fn write(&self, t: &mut Mat, at: usize, rows: &Mat) {
        t.write_rows(at, rows);
    }

    fn embed(&self, table: &Mat, ids: &[u32], k: &EmbedKnobs) -> Mat {
        let mut x = Mat::zeros(ids.len(), table.cols);
        par_rows(&mut x, |r0, rows| {
            for (r, row) in rows.chunks_exact_mut(table.cols).enumerate() {
                row.copy_from_slice(table.row(ids[r0 + r] as usize));
            }
        });
        if k.scaled {
            let root = (table.cols as f32).sqrt();
            x.data.iter_mut().for_each(|v| *v *= root);
        }
        round(&mut x, k.dtype);
        x
    }
    fn broadcast(&self, x: &Mat, streams: usize) -> Mat {
        let mut out = Mat::zeros(x.rows, streams * x.cols);
        par_rows(&mut out, |r0, rows| {
            for (r, row) in rows.chunks_exact_mut(streams * x.cols).enumerate() {
                row.chunks_exact_mut(x.cols).for_each(|s| s.copy_from_slice(x.row(r0 + r)));
            }
        });
        out
    }

    fn mhc_mix(&self, x: &Mat, w: &HyperConnection<Weight>, s: &HcShape, k: &MhcKnobs) -> Mix<Mat> {
        let hc_eps = match k.eps {
            HcEps::Config => s.hc_eps,
            HcEps::Zero => 0.0,
            HcEps::Large => 1e-3,
        };
        let s = &HcShape { hc_eps, ..*s };
        let mu = mhc_split::product(x, &w.f.at(k.w_dtype), s, k);
        let mut m = mhc::mix(&mu, &w.base, &w.scale, s, k);
        if k.post == PostFactor::One {
            m.post.data.iter_mut().for_each(|v| *v *= 0.5);
        }
        for t in [&mut m.pre, &mut m.post, &mut m.comb] {
            round(t, k.mix_dtype);
        }
        m
    }
    fn mhc_collapse(&self, x: &Mat, pre: &Mat, s: &HcShape, k: &MhcKnobs) -> Mat {
        let mut y = mhc::collapse(x, pre, s);
        round(&mut y, k.stream_dtype);
        y
    }
    fn mhc_expand(&self, mut x: Mat, mix: &Mix<Mat>, y: &Mat, s: &HcShape, k: &MhcKnobs) -> Mat {
        mhc::expand(&mut x, mix, y, s, k);
        round(&mut x, k.stream_dtype);
        x
    }

    fn rms_norm(&self, x: &Mat, weight: &[f32], eps: f32, dtype: Fmt) -> Mat {
        let mut y = norm::rms_norm(x, weight, eps);
        round(&mut y, dtype);
        y
    }
    fn linear(&self, x: &Mat, w: &Weight, k: &LinearKnobs) -> Mat {
        let x = rounded_by(x, k.in_dtype, k.quant);
        Self::project(&x, w, Fmt::F32, k.w_dtype, k.out_dtype)
    }
    fn grouped_linear(&self, x: &Mat, w: &[Weight], k: &LinearKnobs) -> Mat {
        let x = rounded_by(x, if k.wo_a_bf16 { Fmt::Bf16 } else { k.in_dtype }, k.quant);
        let w: Vec<_> = w.iter().map(|w| w.at(k.w_dtype)).collect();
        let cols: usize = w.iter().map(|w| w.n).sum();
        let mut y = Mat::zeros(x.rows, cols);
        par_rows(&mut y, |r0, out| {
            let (mut xo, mut yo) = (0, 0);
            let rows = out.len() / cols;
            for w in &w {
                gemm::gemm_block(&x.data[r0 * x.cols + xo..], x.cols, rows, w, 0, w.n, &mut out[yo..], cols);
                xo += w.k;
                yo += w.n;
            }
        });
        round(&mut y, k.out_dtype);
        y
    }
    fn head_norm(&self, mut x: Mat, heads: usize, eps: f32, k: &LinearKnobs) -> Mat {
        if k.head_norm {
            if k.head_norm_dtype == Fmt::F32 {
                norm::head_norm(&mut x, heads, eps);
            } else {
                mhc_split::head_norm_in_steps(&mut x, heads, eps, k.head_norm_dtype);
            }
            round(&mut x, k.out_dtype);
        }
        x
    }
    fn rope(
        &self,
        x: Mat,
        heads: usize,
        table: &RopeTable,
        pos0: usize,
        pairing: Pairing,
        dtype: Fmt,
    ) -> Mat {
        let mut x = Self::rotate(x, heads, table, pos0, false, pairing);
        round(&mut x, dtype);
        x
    }
    fn derope(&self, mut x: Mat, heads: usize, table: &RopeTable, pos0: usize, k: &AttnKnobs) -> Mat {
        if k.derotate {
            x = Self::rotate(x, heads, table, pos0, true, Pairing::Interleaved);
            round(&mut x, k.out_dtype);
        }
        x
    }

    fn kv_store(&self, mut x: Mat, row0: usize, rope_dims: usize, format: Fmt, k: &KvCacheKnobs) -> Mat {
        if format == Fmt::Fp8x64 && (k.layout != Layout::Rows || k.quant != Quant::Exact) {
            kv_pages::through_pages(&mut x, row0, rope_dims, !k.rope_bf16, k);
        } else if format != Fmt::F32 {
            let cols = x.cols;
            // Dims under rope stay bf16 in the mixed formats; golden `qat` keeps them f32, which
            // is what "fp32 elsewhere" says.
            par_rows(&mut x, |_, rows| {
                for row in rows.chunks_exact_mut(cols) {
                    let (plain, rope) = row.split_at_mut(cols - rope_dims);
                    round_row(plain, format);
                    if k.rope_bf16 || matches!(format, Fmt::Bf16 | Fmt::F16 | Fmt::Tf32) {
                        round_row(rope, if format == Fmt::F16 { Fmt::F16 } else { Fmt::Bf16 });
                    }
                }
            });
        }
        x
    }
    fn compress(
        &self,
        state: &mut compress::PoolState,
        kv: &Mat,
        gate: &Mat,
        pos0: usize,
        s: &PoolShape,
        k: &CompressorKnobs,
    ) -> Mat {
        compress::compress(state, kv, gate, pos0, s, k)
    }
    fn compress_proj(&self, x: &Mat, w: &Weight, k: &CompressorKnobs) -> Mat {
        Self::project(x, w, k.in_dtype, k.in_dtype, Fmt::F32)
    }
    fn index_proj(&self, x: &Mat, w: &Weight, scale: f32, k: &IndexerKnobs) -> Mat {
        let mut y = Self::project(x, w, k.in_dtype, k.in_dtype, k.in_dtype);
        if scale != 1.0 {
            y.data.iter_mut().for_each(|v| *v *= scale);
            round(&mut y, k.in_dtype);
        }
        y
    }
    fn index_encode(&self, mut x: Mat, heads: usize, side: Side, k: &IndexerKnobs) -> Result<Mat> {
        let dim = x.cols / heads;
        let (rotate, format) = match side {
            Side::Query => (matches!(k.hadamard, Hadamard::Both | Hadamard::QOnly), k.q_dtype),
            Side::Key => (matches!(k.hadamard, Hadamard::Both | Hadamard::KOnly), k.k_dtype),
        };
        let apart = side == Side::Key && k.key_layout == KeyLayout::Interleaved;
        if rotate && !dim.is_power_of_two() {
            return Err(Error::input(format!(
                "the Hadamard rotation needs a power of two, index_head_dim is {dim}"
            ))
            .hint("use golden ideal, or kernels without indexer.hadamard, for this checkpoint"));
        }
        let cols = x.cols;
        par_rows(&mut x, |_, rows| {
            for row in rows.chunks_exact_mut(cols) {
                for v in row.chunks_exact_mut(dim) {
                    if rotate {
                        hadamard::in_place(v);
                    }
                    round_row(v, format);
                    if apart {
                        index_emul::misread(v);
                    }
                }
            }
        });
        Ok(x)
    }
    fn keys(&self, dim: usize) -> Keys {
        Keys(Packed::new(0, dim, &[]))
    }
    fn keys_append(&self, keys: &mut Keys, rows: &Mat) {
        if rows.rows > 0 {
            keys.0.extend(&rows.data, rows.rows);
        }
    }
    fn keys_len(&self, keys: &Keys) -> usize {
        keys.0.n
    }
    fn keys_forget(&self, keys: &mut Keys) {
        let (n, k) = (keys.0.n, keys.0.k);
        keys.0 = Packed::new(n, k, &vec![0.0; n * k]);
    }
    fn index_scores(
        &self,
        q: &Mat,
        w: &Mat,
        keys: &Keys,
        pos0: usize,
        s: &IndexShape,
        k: &IndexerKnobs,
    ) -> Mat {
        if index_emul::scores_needed(k) {
            index_emul::scores(q, w, &keys.0, pos0, s, k)
        } else {
            index::scores(q, w, &keys.0, pos0, s, k)
        }
    }
    fn topk(
        &self,
        scores: &Mat,
        pos0: usize,
        width: usize,
        s: &IndexShape,
        k: &IndexerKnobs,
        t: &TopkKnobs,
    ) -> Index {
        if index_emul::topk_needed(k, t) {
            index_emul::topk(scores, pos0, width, s, k, t)
        } else {
            index::topk(scores, pos0, width, s, k, t)
        }
    }
    fn index_topk(
        &self,
        q: &Mat,
        w: &Mat,
        keys: &Keys,
        pos0: usize,
        width: usize,
        s: &IndexShape,
        k: &IndexerKnobs,
        t: &TopkKnobs,
    ) -> Index {
        if index_emul::scores_needed(k) || index_emul::topk_needed(k, t) {
            index_emul::scores_topk(q, w, &keys.0, pos0, width, s, k, t)
        } else {
            index::scores_topk(q, w, &keys.0, pos0, width, s, k, t)
        }
    }
    fn attention(
        &self,
        q: &Mat,
        kv: &Mat,
        comp: &Mat,
        index: Option<&Index>,
        pos0: usize,
        s: &AttnShape,
        k: &AttnKnobs,
    ) -> (Mat, Mat) {
        let (mut o, lse) = if attention_split::needed(k) {
            attention_split::attention(q, kv, comp, index, pos0, s, k)
        } else {
            attention::attention(q, kv, comp, index, pos0, s, k.window, k.compressed)
        };
        round(&mut o, k.out_dtype);
        (o, lse)
    }
    fn router_logits(&self, x: &Mat, w: &Weight, k: &RouterKnobs) -> Mat {
        let mut y = Self::project(x, w, k.in_dtype, k.in_dtype, k.logits_dtype);
        if k.logit_gain != 1 {
            y.data.iter_mut().for_each(|v| *v *= k.logit_gain as f32);
        }
        y
    }
    fn router_select(
        &self,
        logits: &Mat,
        bias: Option<&[f32]>,
        table: Option<(&[i32], &[u32])>,
        s: &MoeShape,
        k: &RouterKnobs,
    ) -> Index {
        moe::select(logits, bias, table, s, k)
    }
    fn router_weights(
        &self,
        logits: &Mat,
        ids: &Index,
        bias: Option<&[f32]>,
        s: &MoeShape,
        k: &RouterKnobs,
    ) -> Mat {
        let mut w = moe::weights(logits, ids, bias.filter(|_| k.bias_in_weights), s, k);
        round(&mut w, k.logits_dtype);
        w
    }
    fn experts(
        &self,
        x: &Mat,
        ids: &Index,
        weights: &Mat,
        source: &dyn ExpertSource<Weight>,
        s: &MoeShape,
        k: &ExpertsKnobs,
    ) -> Result<Mat> {
        moe::routed(x, ids, weights, source, s, k)
    }
    fn shared(&self, x: &Mat, mlp: &Mlp<Weight>, s: &MoeShape, k: &ExpertsKnobs) -> Mat {
        moe::shared(x, mlp, s, k)
    }
    fn add(&self, a: &Mat, b: &Mat, k: &ExpertsKnobs) -> Mat {
        let mut y = Mat::zeros(a.rows, a.cols);
        par_rows(&mut y, |r0, rows| {
            let from = r0 * a.cols;
            for ((y, a), b) in rows.iter_mut().zip(&a.data[from..]).zip(&b.data[from..]) {
                *y = a + b;
            }
        });
        round(&mut y, k.out_dtype);
        y
    }
    fn logits(&self, x: &Mat, w: &Weight, k: &HeadKnobs) -> Mat {
        let mut y = Self::project(x, w, k.in_dtype, k.in_dtype, k.out_dtype);
        if k.softcap > 0 {
            let c = k.softcap as f32;
            y.data.iter_mut().for_each(|v| *v = c * (*v / c).tanh());
        }
        y
    }
}
