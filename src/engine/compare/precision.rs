//! The arithmetic a run was made in, and how it is inferred from a dump.

use super::flow;
use super::rows::TapRow;
use crate::checkpoint::Config;
use crate::engine::dump::Dump;
use crate::metrics::{Limits, Status};
use crate::model::{Tap, TapId};
use crate::numeric::{bf16, f16};
use serde::Serialize;

/// The arithmetic a run was made in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE binary32 throughout.
    F32,
    /// f32 storage, TF32 products.
    Tf32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Precision {
    /// Half the distance of neighbouring values, relative: `2^-p` for a significand of `p` bits.
    pub fn unit_roundoff(self) -> f64 {
        match self {
            Precision::F32 => 2f64.powi(-24),
            Precision::Tf32 | Precision::F16 => 2f64.powi(-11),
            Precision::Bf16 => 2f64.powi(-8),
        }
    }
    /// The precision of that name.
    pub fn parse(s: &str) -> Option<Precision> {
        [Precision::F32, Precision::Tf32, Precision::F16, Precision::Bf16].into_iter().find(|p| p.name() == s)
    }
    /// The word used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::F16 => "f16",
            Precision::Bf16 => "bf16",
        }
    }
}

/// bf16 or f16 if every value of the activations is representable in it (the embedding is left
/// out: a bf16 checkpoint embeds to bf16 values in any run).
pub(super) fn from_values(dump: &Dump) -> (Precision, String) {
    let streams = |id: &TapId| matches!(id.tap, Tap::Mid | Tap::LayerOut);
    let others =
        |id: &TapId| !id.tap.is_index() && !matches!(id.tap, Tap::EmbedOut | Tap::Mid | Tap::LayerOut);
    let mut ids: Vec<TapId> = dump.ids().into_iter().filter(streams).collect();
    let mut what = "residual streams";
    if ids.is_empty() {
        ids = dump.ids().into_iter().filter(others).collect();
        what = "taps";
    }
    let (mut n, mut b, mut h) = (0u64, 0u64, 0u64);
    for id in ids.iter().take(16) {
        if let Some((_, m)) = dump.rows(*id, 0, dump.first_position + 512) {
            for v in m.data.iter().filter(|v| v.is_finite() && **v != 0.0) {
                n += 1;
                b += bf16::is_representable(*v) as u64;
                h += f16::is_representable(*v) as u64;
            }
        }
    }
    if n == 0 {
        return (Precision::F32, "assumed: no values to infer it from".into());
    }
    // A random f32 is representable in bf16 with probability 2^-16.
    if b * 1000 >= n * 999 {
        (Precision::Bf16, format!("its {what} hold bf16 values only"))
    } else if h * 1000 >= n * 999 {
        (Precision::F16, format!("its {what} hold f16 values only"))
    } else {
        (Precision::F32, format!("its {what} hold full f32 values"))
    }
}

/// Fewer products than this and a fault can pass for a precision.
const SURE: usize = 6;

/// Share of the products that must be coarse. A fault is born at one or two taps of a layer, a
/// precision at every product: of the seven in the smallest layer a fault in rotation or norm
/// reaches at most two.
const SHARE: f64 = 0.6;

/// Share of the products that the right precision explains even when something is wrong: a fault
/// at every layer of a dump of a few taps a layer may reach half of them.
const EXPLAINED: f64 = 0.4;

/// What the errors of the products say about the precision of a run.
pub(super) struct Products {
    /// Excess of every product that no quantiser follows, as a whole and of its calmer rows.
    excess: Vec<(f64, f64)>,
    /// A selection flips beyond near ties, or a quantised product is beyond its floor.
    others: bool,
}

impl Products {
    /// A run stored in f32 may have been computed more coarsely (TF32 products, bf16 GEMMs between
    /// f32 streams). Then every product is off by about what that precision explains. Whatever is
    /// often kept in f32 in such runs (mHC mixing, router, softmax) is not asked, unless its
    /// inputs are missing from the dump, so that a product lies in between.
    pub fn of(rows: &[TapRow], dump: &Dump, c: &Config) -> Products {
        let product = |r: &&TapRow| {
            TapId::parse(&r.tap).is_some_and(|id| match id.tap {
                _ if r.index.is_some() || r.excess.is_nan() => false,
                Tap::EmbedOut | Tap::AttnPre | Tap::AttnPost | Tap::AttnComb => false,
                Tap::FfnPre | Tap::FfnPost | Tap::FfnComb | Tap::RouterLogits => false,
                Tap::AttnQ
                | Tap::AttnKv
                | Tap::CompressorKv
                | Tap::IndexerQ
                | Tap::IndexerK
                | Tap::IndexerWeights
                | Tap::AttnProj
                | Tap::ExpertsOut
                | Tap::SharedOut
                | Tap::Logits => true,
                _ => flow::inputs(id, c).iter().any(|i| !dump.has(*i) && i.tap != Tap::EmbedOut),
            })
        };
        let (stepped, smooth): (Vec<&TapRow>, Vec<&TapRow>) =
            rows.iter().filter(product).partition(|r| r.stepped);
        let beyond = |r: &&TapRow| r.excess > Limits::default().elevated();
        Products {
            excess: smooth.iter().map(|r| (r.excess, r.calm_excess)).collect(),
            others: stepped.iter().any(beyond)
                || rows.iter().any(|r| r.index.as_ref().is_some_and(|i| i.real_flips > 0)),
        }
    }

    /// True if the run must have been coarser than it was judged by, or something is wrong with
    /// most of it. A precision shows in every product, so the first must show it too: what is wrong
    /// from some layer on leaves it alone. Without smooth products only selections and quantised
    /// ones can tell.
    pub fn coarse(&self) -> bool {
        let beyond = |e: &(f64, f64)| e.1 > Limits::default().elevated();
        let Some(first) = self.excess.first() else { return self.others };
        let off = self.excess.iter().filter(|e| beyond(e)).count();
        beyond(first) && off as f64 >= SHARE * self.excess.len() as f64
    }

    /// True if the precision the products were judged by is that of the run: it explains the first
    /// of few, or a good part of many, whatever is wrong with the others.
    pub fn explained(&self) -> bool {
        let fine = |e: &(f64, f64)| e.0 <= Limits::default().ok();
        let Some(first) = self.excess.first() else { return !self.others };
        let n = self.excess.iter().filter(|e| fine(e)).count();
        n as f64 >= EXPLAINED * self.excess.len() as f64 || (!self.sure() && fine(first))
    }

    /// True if there are so many of them that no fault could pass for a precision.
    pub fn sure(&self) -> bool {
        self.excess.len() >= SURE
    }
}

/// The precisions coarser than `p`, finest first.
pub(super) fn coarser(p: Precision) -> impl Iterator<Item = Precision> {
    [Precision::Tf32, Precision::Bf16].into_iter().filter(move |q| q.unit_roundoff() > p.unit_roundoff())
}

/// After judging by a coarser precision that the dump cannot prove: what the finer one would have
/// called suspect stays visible.
pub(super) fn hedge(rows: &mut [TapRow], finer: &[TapRow], p: Precision) {
    for (r, f) in rows.iter_mut().zip(finer) {
        if f.status == Status::Suspect && r.status < Status::Suspect {
            r.status = Status::Elevated;
            r.inherited = false;
            r.note = Some(format!(
                "explained only if the run was made in {} arithmetic, which so few taps cannot show; \
                 --dump-precision f32 judges it as f32",
                p.name()
            ));
        }
    }
}
