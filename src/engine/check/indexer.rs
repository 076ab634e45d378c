//! The lightning indexer: encoding and scoring, and the selection from given scores.

use super::data::{Gen, channel0, handed, outliers};
use super::sizes::{Case, Dims, rope};
use super::{Bench, Run, Selection, Tap, Value};
use crate::error::Result;
use crate::kernels::knobs::{IndexerKnobs, TopkKnobs};
use crate::kernels::ops::{IndexShape, Side};
use crate::kernels::rope::RopeTable;
use crate::kernels::values::Fmt;
use crate::kernels::{Index, Mat, Ops, index};

/// Products of case `offset` share this; their own spread is about `sqrt(index_dim)`.
const OFFSET: f32 = 128.0;
/// Different keys of case `ties`: no divisor of any number of entries in use, so that equal
/// scores straddle the cut.
const DISTINCT: usize = 48;

/// Of a call whose first token is at `pos0`.
fn shape(d: &Dims, pos0: usize) -> IndexShape {
    IndexShape { heads: d.index_heads, dim: d.index_dim, ratio: d.ratios[0], topk: d.topk, chunk_from: pos0 }
}

/// Position and number of tokens of each block of a case.
fn blocks(d: &Dims, case: Case) -> Option<Vec<(usize, usize)>> {
    let last = d.entries * d.ratios[0] - 4;
    let full = d.topk * d.ratios[0];
    match case {
        Case::Random | Case::F32Inputs | Case::Offset | Case::Ties | Case::Outliers => Some(vec![(last, 4)]),
        // Far fewer entries than may be chosen; all others lie in the future.
        Case::Masked => Some(vec![(10 * d.ratios[0], 4)]),
        Case::Short => Some(vec![(0, 5), (full - 2, 6)]),
        Case::BeyondClamp | Case::EmptySplits => None,
    }
}

fn visible(d: &Dims, blocks: &[(usize, usize)]) -> Vec<usize> {
    let all = blocks.iter().flat_map(|(p, n)| *p..p + n);
    all.map(|t| ((t + 1) / d.ratios[0]).min(d.entries)).collect()
}

/// Clears the dims under rope.
fn unrotated(m: &mut Mat, d: &Dims) {
    m.data.chunks_exact_mut(d.index_dim).for_each(|v| v[d.index_dim - d.rope..].fill(0.0));
}

/// Encoding of queries and keys, scores, and the entries they select.
pub(super) struct Scoring<O: Ops> {
    d: Dims,
    data: Gen,
    /// Projection to the head weights.
    proj: O::W,
}

impl<O: Ops> Scoring<O> {
    pub fn new(ops: &O, d: &Dims, data: Gen) -> Self {
        let data = data.of("indexer");
        let w = data.of("proj").mat(d.index_heads, d.hidden, 1.0 / (d.hidden as f32).sqrt());
        Scoring { d: *d, data, proj: ops.weight(w.rows, w.cols, &w.data) }
    }
}

impl<O: Ops + 'static> Bench<O> for Scoring<O> {
    fn case(&self, ops: &O, case: Case) -> Result<Option<Run<'_, O>>> {
        let d = self.d;
        let Some(blocks) = blocks(&d, case) else { return Ok(None) };
        let data = self.data.of(case.name());
        let rows: usize = blocks.iter().map(|(_, n)| n).sum();
        let mut q = data.of("q").mat(rows, d.index_heads * d.index_dim, 1.0);
        let mut keys = data.of("keys").mat(d.entries, d.index_dim, 1.0);
        let mut x = data.of("x").mat(rows, d.hidden, 1.0);
        match case {
            Case::Offset => {
                channel0(&mut q, d.index_dim, |_| OFFSET);
                channel0(&mut keys, d.index_dim, |_| 1.0);
            }
            Case::Outliers => {
                outliers(&mut keys, d.index_dim);
                outliers(&mut x, d.hidden);
            }
            // Equal but for their position, which queries without rotated dims do not see.
            Case::Ties => {
                for j in DISTINCT.min(d.entries)..d.entries {
                    let from = keys.row(j % DISTINCT).to_vec();
                    keys.row_mut(j).copy_from_slice(&from);
                }
                [&mut q, &mut keys].into_iter().for_each(|m| unrotated(m, &d));
            }
            _ => {}
        }
        handed(&mut x, case);
        let tokens = d.entries * d.ratios[0];
        let table = RopeTable::new(&rope(), d.rope, tokens);
        let scale = 1.0 / ((d.index_dim * d.index_heads) as f32).sqrt();
        let weights = ops.upload(data.of("weights").mat(rows, d.index_heads, scale));
        let (q, keys, x) = (ops.upload(q), ops.upload(keys), ops.upload(x));
        let seen = visible(&d, &blocks);
        // What the encoding gets is the output of a rotation, which an engine hands on in bf16.
        let pass_on = move |ops: &O, t: O::T| {
            let mut m = ops.download(&t);
            handed(&mut m, case);
            ops.upload(m)
        };
        Ok(Some(Box::new(move |ops, k| {
            let ik = &k.indexer;
            // Entry j is rotated at the first token of its window.
            let mut rotated = ops.upload(Mat::zeros(0, d.index_dim));
            for j in 0..d.entries {
                let key = ops.slice(&keys, j, j + 1);
                let key = ops.rope(key, 1, &table, j * d.ratios[0], ik.key_pairing, Fmt::F32);
                ops.append(&mut rotated, &key);
            }
            let rotated = ops.index_encode(pass_on(ops, rotated), 1, Side::Key, ik)?;
            let mut list = ops.keys(d.index_dim);
            ops.keys_append(&mut list, &rotated);
            let (mut scores, mut row) = (Mat::default(), 0);
            let mut ids = Index::default();
            for (pos0, n) in &blocks {
                let s = shape(&d, *pos0);
                let qb = ops.slice(&q, row, row + n);
                let wb = ops.slice(&weights, row, row + n);
                row += n;
                let qb = ops.rope(qb, d.index_heads, &table, *pos0, ik.pairing, ik.in_dtype);
                let qb = ops.index_encode(pass_on(ops, qb), d.index_heads, Side::Query, ik)?;
                scores.append(&ops.download(&ops.index_scores(&qb, &wb, &list, *pos0, &s, ik)));
                let t = TopkKnobs::default();
                push(&mut ids, ops.index_topk(&qb, &wb, &list, *pos0, d.topk, &s, ik, &t));
            }
            let sum = d.index_dim * d.index_heads;
            let picked =
                Selection { ids, scores: Some(scores.clone()), visible: seen.clone(), width: d.topk };
            Ok(vec![
                Tap::tensor(
                    "indexer.weights",
                    d.hidden,
                    ops.download(&ops.index_proj(&x, &self.proj, scale, ik)),
                ),
                Tap::tensor("indexer.scores", sum, scores),
                Tap { op: "indexer.topk", sum, value: Value::Chosen(picked) },
            ])
        })))
    }
}

fn push(all: &mut Index, more: Index) {
    all.rows += more.rows;
    all.k = more.k;
    all.ids.extend(more.ids);
}

/// Selection from given scores.
pub(super) struct Selecting {
    d: Dims,
    data: Gen,
}

impl Selecting {
    pub fn new(d: &Dims, data: Gen) -> Self {
        Selecting { d: *d, data: data.of("topk") }
    }
}

impl<O: Ops + 'static> Bench<O> for Selecting {
    fn case(&self, ops: &O, case: Case) -> Result<Option<Run<'_, O>>> {
        let d = self.d;
        let Some(blocks) = blocks(&d, case).filter(|_| case != Case::F32Inputs) else { return Ok(None) };
        let data = self.data.of(case.name());
        let seen = visible(&d, &blocks);
        let mut scores = data.of("scores").mat(seen.len(), d.entries, 10.0);
        match case {
            // Differences far below the leading bits of the scores.
            Case::Offset => scores.data.iter_mut().for_each(|v| *v = 1000.0 + *v * 1e-2),
            Case::Ties => scores.data.iter_mut().for_each(|v| *v = (*v / 4.0).round() * 4.0),
            Case::Outliers => outliers(&mut scores, d.entries),
            _ => {}
        }
        for (r, v) in seen.iter().enumerate() {
            scores.row_mut(r)[*v..].fill(f32::NEG_INFINITY);
        }
        let (host, scores) = (scores.clone(), ops.upload(scores));
        Ok(Some(Box::new(move |ops, k| {
            let width = index::width(d.entries, &shape(&d, 0), &k.topk);
            let (mut ids, mut row) = (Index::default(), 0);
            for (pos0, n) in &blocks {
                let s = shape(&d, *pos0);
                let part = ops.slice(&scores, row, row + n);
                row += n;
                push(&mut ids, ops.topk(&part, *pos0, width, &s, &IndexerKnobs::default(), &k.topk));
            }
            let picked = Selection { ids, scores: Some(host.clone()), visible: seen.clone(), width: d.topk };
            Ok(vec![Tap { op: "topk.ids", sum: 1, value: Value::Chosen(picked) }])
        })))
    }
}
