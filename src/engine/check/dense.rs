//! Embedding, cache store, dense projections, head.

use super::data::{Gen, handed, outliers};
use super::sizes::{Case, Dims, EPS, rope};
use super::{Bench, Run, Tap};
use crate::error::Result;
use crate::kernels::Ops;
use crate::kernels::rope::RopeTable;

/// Tokens.
const TOKENS: usize = 16;

/// Rows of case `case`, or `None` where the case means nothing to a row-wise operation.
fn rows(case: Case) -> Option<usize> {
    match case {
        Case::Random | Case::F32Inputs | Case::Outliers => Some(TOKENS),
        Case::Short => Some(1),
        _ => None,
    }
}

/// Inputs `[rows, cols]` of a case, `dim` wide vectors.
fn input<O: Ops>(ops: &O, data: Gen, case: Case, rows: usize, cols: usize, dim: usize) -> O::T {
    let mut x = data.of(case.name()).of("x").mat(rows, cols, 1.0);
    if case == Case::Outliers {
        outliers(&mut x, dim);
    }
    handed(&mut x, case);
    ops.upload(x)
}

fn weight<O: Ops>(ops: &O, data: Gen, n: usize, k: usize) -> O::W {
    ops.weight(n, k, &data.mat(n, k, 1.0 / (k as f32).sqrt()).data)
}

/// Embedding rows.
pub(super) struct Embed<O: Ops> {
    table: O::T,
}

impl<O: Ops> Embed<O> {
    pub fn new(ops: &O, d: &Dims, data: Gen) -> Self {
        Embed { table: ops.upload(data.of("embed").mat(64, d.hidden, 1.0)) }
    }
}

impl<O: Ops + 'static> Bench<O> for Embed<O> {
    fn case(&self, _: &O, case: Case) -> Result<Option<Run<'_, O>>> {
        if case != Case::Random {
            return Ok(None);
        }
        let ids: Vec<u32> = (0..TOKENS as u32).map(|i| i * 7 % 64).collect();
        Ok(Some(Box::new(move |ops, k| {
            let out = ops.embed(&self.table, &ids, &k.embed);
            Ok(vec![Tap::tensor("embed.out", 1, ops.download(&out))])
        })))
    }
}

/// What a reader of the cache gets.
pub(super) struct Cache {
    d: Dims,
    data: Gen,
}

impl Cache {
    pub fn new(d: &Dims, data: Gen) -> Self {
        Cache { d: *d, data: data.of("cache") }
    }
}

impl<O: Ops + 'static> Bench<O> for Cache {
    fn case(&self, ops: &O, case: Case) -> Result<Option<Run<'_, O>>> {
        let d = self.d;
        let Some(n) = rows(case) else { return Ok(None) };
        // More rows than a page of any layout holds.
        let x = input(ops, self.data, case, n * 10, d.dim, d.dim);
        Ok(Some(Box::new(move |ops, k| {
            let c = &k.kv_cache;
            let window = ops.kv_store(x.clone(), 0, d.rope, c.window, c);
            let entries = ops.kv_store(x.clone(), 0, d.rope, c.compressed, c);
            Ok(vec![
                Tap::tensor("kv_cache.window", 1, ops.download(&window)),
                Tap::tensor("kv_cache.entries", 1, ops.download(&entries)),
            ])
        })))
    }
}

/// Projections, and the norm and rotation of queries.
pub(super) struct Linear<O: Ops> {
    d: Dims,
    data: Gen,
    w: Vec<O::W>,
}

impl<O: Ops> Linear<O> {
    pub fn new(ops: &O, d: &Dims, data: Gen) -> Self {
        let data = data.of("linear");
        let w = (0..2).map(|g| weight(ops, data.of(&format!("w{g}")), d.outs[0], d.hidden)).collect();
        Linear { d: *d, data, w }
    }
}

impl<O: Ops + 'static> Bench<O> for Linear<O> {
    fn case(&self, ops: &O, case: Case) -> Result<Option<Run<'_, O>>> {
        let d = self.d;
        let Some(n) = rows(case) else { return Ok(None) };
        let x = input(ops, self.data, case, n, 2 * d.hidden, d.hidden);
        let one = input(ops, self.data.of("one"), case, n, d.hidden, d.hidden);
        let q = input(ops, self.data.of("q"), case, n, d.heads * d.dim, d.dim);
        let gain: Vec<f32> = self.data.of("gain").vec(d.hidden, 0.1).iter().map(|v| 1.0 + v).collect();
        let pos0 = d.far();
        let table = RopeTable::new(&rope(), d.rope, pos0 + n);
        Ok(Some(Box::new(move |ops, k| {
            let lk = &k.linear;
            let y = ops.linear(&one, &self.w[0], lk);
            let grouped = ops.grouped_linear(&x, &self.w, lk);
            let normed = ops.rms_norm(&one, &gain, EPS, lk.out_dtype);
            let turned = ops.head_norm(q.clone(), d.heads, EPS, lk);
            let turned = ops.rope(turned, d.heads, &table, pos0, lk.pairing, lk.out_dtype);
            Ok(vec![
                Tap::tensor("linear.out", d.hidden, ops.download(&y)),
                Tap::tensor("linear.grouped", d.hidden, ops.download(&grouped)),
                Tap::tensor("linear.norm", d.hidden, ops.download(&normed)),
                Tap::tensor("linear.q", d.dim, ops.download(&turned)),
            ])
        })))
    }
}

/// Logits of a part of the vocabulary.
pub(super) struct Head<O: Ops> {
    d: Dims,
    data: Gen,
    w: O::W,
}

impl<O: Ops> Head<O> {
    pub fn new(ops: &O, d: &Dims, data: Gen) -> Self {
        let data = data.of("head");
        Head { d: *d, data, w: weight(ops, data.of("w"), d.outs[1], d.hidden) }
    }
}

impl<O: Ops + 'static> Bench<O> for Head<O> {
    fn case(&self, ops: &O, case: Case) -> Result<Option<Run<'_, O>>> {
        let d = self.d;
        let Some(n) = rows(case) else { return Ok(None) };
        let x = input(ops, self.data, case, n, d.hidden, d.hidden);
        Ok(Some(Box::new(move |ops, k| {
            let logits = ops.logits(&x, &self.w, &k.head);
            Ok(vec![Tap::tensor("head.logits", d.hidden, ops.download(&logits))])
        })))
    }
}
