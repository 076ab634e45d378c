//! Routed and shared experts.

use super::data::{Gen, handed, outliers};
use super::router::shape;
use super::sizes::{Case, Dims};
use super::{Bench, Run, Tap};
use crate::error::Result;
use crate::kernels::knobs::ExpertsKnobs;
use crate::kernels::ops::{ExpertSource, Mlp};
use crate::kernels::{Index, Ops};
use std::sync::Arc;

/// Tokens.
const TOKENS: usize = 4;
/// Different sets of weights: the experts of a layer share them by turns, which changes no
/// arithmetic and keeps 25 million weights an expert within memory and time.
const DISTINCT: usize = 2;
/// Size of the inputs of case `beyond_clamp`: most SwiGLU inputs lie beyond the limit of 10.
const LARGE: f32 = 30.0;

struct Turns<W> {
    sets: Vec<Arc<Mlp<W>>>,
    count: usize,
}

impl<W: Send + Sync> ExpertSource<W> for Turns<W> {
    fn expert(&self, e: usize) -> Result<Arc<Mlp<W>>> {
        Ok(self.sets[e % self.sets.len()].clone())
    }
    fn count(&self) -> usize {
        self.count
    }
}

pub(super) struct Experts<O: Ops> {
    d: Dims,
    data: Gen,
    source: Turns<O::W>,
}

impl<O: Ops> Experts<O> {
    pub fn new(ops: &O, d: &Dims, data: Gen) -> Self {
        let data = data.of("experts");
        let weight = |name: String, n: usize, k: usize| {
            ops.weight(n, k, &data.of(&name).mat(n, k, 1.0 / (k as f32).sqrt()).data)
        };
        let sets = (0..DISTINCT)
            .map(|i| {
                Arc::new(Mlp {
                    w1: weight(format!("w1.{i}"), d.inter, d.hidden),
                    w2: weight(format!("w2.{i}"), d.hidden, d.inter),
                    w3: weight(format!("w3.{i}"), d.inter, d.hidden),
                })
            })
            .collect();
        Experts { d: *d, data, source: Turns { sets, count: d.experts[0] } }
    }
}

impl<O: Ops + 'static> Bench<O> for Experts<O> {
    fn case(&self, ops: &O, case: Case) -> Result<Option<Run<'_, O>>> {
        let d = self.d;
        let (n, size) = match case {
            Case::Random | Case::F32Inputs | Case::Outliers => (TOKENS, 1.0),
            Case::BeyondClamp => (TOKENS, LARGE),
            Case::Masked => (2, 1.0),
            _ => return Ok(None),
        };
        let data = self.data.of(case.name());
        let mut x = data.of("x").mat(n, d.hidden, size);
        if case == Case::Outliers {
            outliers(&mut x, d.hidden);
        }
        handed(&mut x, case);
        let s = shape(&d, n);
        // Every token takes the same experts, spread over the layer, in an order of its own.
        let mut ids = Index::empty(n, d.active);
        let mut weights = data.of("weights").mat(n, d.active, 0.2);
        for r in 0..n {
            for i in 0..d.active {
                let e = (i + r) % d.active;
                ids.row_mut(r)[i] = (e * d.experts[0] / d.active + e % 2) as i32;
            }
            // Masked: the second token has one expert, its other slots are empty.
            if case == Case::Masked && r == 1 {
                ids.row_mut(r)[1..].fill(-1);
            }
            let used = ids.row(r).iter().filter(|i| **i >= 0).count();
            let w = &mut weights.row_mut(r)[..used];
            w.iter_mut().for_each(|v| *v = v.abs() + 0.05);
            let total: f32 = w.iter().sum();
            w.iter_mut().for_each(|v| *v *= s.factor / total);
            weights.row_mut(r)[used..].fill(0.0);
        }
        let (x, weights) = (ops.upload(x), ops.upload(weights));
        let g = ExpertsKnobs::default();
        // The sum is an operation of its own: golden's two terms go in.
        let pass_on = |t: O::T| {
            let mut m = ops.download(&t);
            handed(&mut m, case);
            ops.upload(m)
        };
        let routed = pass_on(ops.experts(&x, &ids, &weights, &self.source, &s, &g)?);
        let shared = pass_on(ops.shared(&x, &self.source.sets[0], &s, &g));
        Ok(Some(Box::new(move |ops, k| {
            let out = ops.experts(&x, &ids, &weights, &self.source, &s, &k.experts)?;
            let own = ops.shared(&x, &self.source.sets[0], &s, &k.experts);
            let sum = ops.add(&routed, &shared, &k.experts);
            Ok(vec![
                Tap::tensor("experts.routed", d.hidden, ops.download(&out)),
                Tap::tensor("experts.shared", d.hidden, ops.download(&own)),
                Tap::tensor("experts.add", 2, ops.download(&sum)),
            ])
        })))
    }
}
