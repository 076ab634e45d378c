//! Structure in what differs: storage, rotation, a missing factor. Asked when a layer is over.

use super::blame;
use super::observer::Comparer;
use crate::kernels::{Mat, Site};
use crate::model::{Tap, TapId};

impl Comparer<'_> {
    /// Names the structures in the differences of layer `layer`, of every measured path.
    pub fn name_structures(&mut self, layer: usize) {
        for s in 0..self.subjects.len() {
            self.stored(s, layer);
            self.rotated(s, layer);
            if self.subjects[s].unscaled {
                let note = "the weights are handed out without routed_scaling_factor";
                self.note(s, layer, Tap::RouterWeights, None, note.into(), false);
            }
        }
    }

    /// What arithmetic explains at `tap` on the whole.
    fn floor_of(&self, layer: usize, tap: Tap) -> f64 {
        let id = TapId { layer: Some(layer), tap };
        let rule = self.rule_of(id);
        let noise = self.noise.get(&id).map_or(0.0, |n| n.rel_l2(|_| true));
        (noise * rule.noise).max(rule.least)
    }

    fn note(&mut self, s: usize, layer: usize, tap: Tap, site: Option<Site>, note: String, explained: bool) {
        let acc = self.subjects[s].acc(TapId { layer: Some(layer), tap });
        acc.note = Some(note);
        acc.explained = explained;
        acc.site = site;
    }

    /// Keys and values that were stored, or found again, otherwise than golden's.
    fn stored(&mut self, s: usize, layer: usize) {
        for tap in [Tap::AttnKv, Tap::CompressorKv] {
            let Some((g, m)) = self.subjects[s].kept.remove(&tap) else { continue };
            let floor = self.floor_of(layer, tap);
            if let Some(b) = blame::stored_kv(&g, &m, self.config.qk_rope_head_dim, floor) {
                // A wrong compressed entry is the compressor's, unless only its format differs.
                let site = if tap == Tap::AttnKv || b.explained { Some(b.site) } else { None };
                self.note(s, layer, tap, site, b.note, b.explained);
            }
        }
    }

    /// Index queries and keys that were rotated, on one side or on both.
    fn rotated(&mut self, s: usize, layer: usize) {
        let rotated = |cmp: &mut Self, tap: Tap| {
            let (g, m): (Mat, Mat) = cmp.subjects[s].kept.remove(&tap)?;
            let floor = cmp.floor_of(layer, tap);
            Some(blame::is_rotated(&g, &m, cmp.config.index_head_dim, floor))
        };
        let (q, k) = (rotated(self, Tap::IndexerQ), rotated(self, Tap::IndexerK));
        match (q, k) {
            (Some(true), Some(true)) => {
                for tap in [Tap::IndexerQ, Tap::IndexerK] {
                    let note = "rotated by Hadamard like its counterpart: scores are unchanged; compare with \
                                golden qat";
                    // A candidate's rotation is undone before comparing where it changes no score; if
                    // one is left, golden is the rotated side and its formats hang on it.
                    self.note(s, layer, tap, None, note.into(), self.dump.is_some());
                }
            }
            (Some(true), _) => {
                let note = if k.is_none() {
                    "queries are rotated by Hadamard; keys are not in the dump"
                } else {
                    "queries are rotated by Hadamard, keys are not: the ranking carries no information"
                };
                self.note(s, layer, Tap::IndexerQ, None, note.into(), false);
            }
            (_, Some(true)) => {
                let note = if q.is_none() {
                    "keys are rotated by Hadamard; queries are not in the dump"
                } else {
                    "keys are rotated by Hadamard, queries are not: the ranking carries no information"
                };
                self.note(s, layer, Tap::IndexerK, None, note.into(), false);
            }
            _ => {}
        }
    }
}
