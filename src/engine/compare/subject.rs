//! What is gathered about one measured path.

use super::Role;
use super::rows::TapAcc;
use super::select::Waiting;
use crate::kernels::{Index, Mat};
use crate::metrics::logits::LogitAccum;
use crate::model::{Tap, TapId};
use std::collections::{BTreeMap, HashMap};

/// A lane's part in a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seat {
    pub role: Role,
    /// The path it belongs to; golden and noise belong to all of them.
    pub subject: usize,
}

impl Seat {
    /// True if golden's values do not take the place of its own.
    pub fn free(self) -> bool {
        matches!(self.role, Role::Total | Role::Layer)
    }
}

/// One measured path: a candidate, or a dump.
#[derive(Default)]
pub(super) struct Subject {
    /// The sums of every tap it showed, in execution order.
    pub taps: BTreeMap<(usize, Tap), (TapId, TapAcc)>,
    /// Logits of the free lane against golden's.
    pub logits: LogitAccum,
    /// Index rows that wait for the noise of their block.
    pub waiting: HashMap<TapId, Waiting>,
    /// Index rows, and golden's, that wait for golden's attention of their block.
    pub owed: Option<(TapId, Waiting, Index)>,
    /// Golden and measured values of taps whose difference may have a structure, current layer.
    pub kept: HashMap<Tap, (Mat, Mat)>,
    /// Router weights of this layer come unscaled; the factor is expected downstream.
    pub unscaled: bool,
    /// The candidate rotates index queries and keys by Hadamard and golden does not: its values
    /// are compared after rotating them back, which changes no score.
    pub unrotate: bool,
}

impl Subject {
    /// The sums of `id`.
    pub fn acc(&mut self, id: TapId) -> &mut TapAcc {
        &mut self.taps.entry(id.order()).or_insert_with(|| (id, TapAcc::default())).1
    }

    /// Forgets what belongs to one layer.
    pub fn end_layer(&mut self) {
        self.waiting.clear();
        self.owed = None;
        self.kept.clear();
        self.unscaled = false;
    }
}
