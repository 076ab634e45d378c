//! Hyper-connections: mixing weights, collapse, expansion.

use super::data::{Gen, handed, outliers};
use super::sizes::{Case, Dims, EPS};
use super::{Bench, Run, Tap};
use crate::error::Result;
use crate::kernels::Ops;
use crate::kernels::knobs::MhcKnobs;
use crate::kernels::ops::{HcShape, HyperConnection};

/// Tokens.
const TOKENS: usize = 32;
/// Added to every logit of `comb` in case `offset`; the softmax of its rows does not see it.
const OFFSET: f32 = 80.0;

pub(super) struct Streams<O: Ops> {
    d: Dims,
    data: Gen,
    plain: HyperConnection<O::W>,
    offset: HyperConnection<O::W>,
}

impl<O: Ops> Streams<O> {
    pub fn new(ops: &O, d: &Dims, data: Gen) -> Self {
        let data = data.of("mhc");
        let (mixes, k) = ((2 + d.streams) * d.streams, d.streams * d.hidden);
        // Mixes of unit size, whatever K is.
        let f = data.of("fn").mat(mixes, k, 1.0 / (k as f32).sqrt());
        let make = |shift: f32| {
            let mut base = data.of("base").vec(mixes, 0.5);
            base[2 * d.streams..].iter_mut().for_each(|b| *b += shift);
            HyperConnection { f: ops.weight(mixes, k, &f.data), base, scale: vec![1.0; 3] }
        };
        Streams { d: *d, data, plain: make(0.0), offset: make(OFFSET) }
    }
}

impl<O: Ops + 'static> Bench<O> for Streams<O> {
    fn case(&self, ops: &O, case: Case) -> Result<Option<Run<'_, O>>> {
        let d = self.d;
        let n = match case {
            Case::Random | Case::F32Inputs | Case::Offset | Case::Outliers => TOKENS,
            Case::Short => 1,
            _ => return Ok(None),
        };
        let data = self.data.of(case.name());
        let mut x = data.of("x").mat(n, d.streams * d.hidden, 1.0);
        if case == Case::Outliers {
            outliers(&mut x, d.hidden);
        }
        let mut y = data.of("y").mat(n, d.hidden, 1.0);
        [&mut x, &mut y].into_iter().for_each(|m| handed(m, case));
        let (x, y) = (ops.upload(x), ops.upload(y));
        let w = if case == Case::Offset { &self.offset } else { &self.plain };
        let s = HcShape { streams: d.streams, hidden: d.hidden, iters: d.iters, norm_eps: EPS, hc_eps: EPS };
        let golden = ops.mhc_mix(&x, w, &s, &MhcKnobs::default());
        Ok(Some(Box::new(move |ops, k| {
            let mix = ops.mhc_mix(&x, w, &s, &k.mhc);
            let sum = d.streams * d.hidden;
            // Collapse and expansion are operations of their own: golden's mixes go in.
            let y0 = ops.mhc_collapse(&x, &golden.pre, &s, &k.mhc);
            let x1 = ops.mhc_expand(x.clone(), &golden, &y, &s, &k.mhc);
            Ok(vec![
                Tap::tensor("mhc.pre", sum, ops.download(&mix.pre)),
                Tap::tensor("mhc.post", sum, ops.download(&mix.post)),
                Tap::tensor("mhc.comb", sum, ops.download(&mix.comb)),
                Tap::tensor("mhc.collapse", d.streams, ops.download(&y0)),
                Tap::tensor("mhc.expand", d.streams + 1, ops.download(&x1)),
            ])
        })))
    }
}
