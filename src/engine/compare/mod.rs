//! Comparing paths tap by tap: what the formats explain, what they do not, and where an error is
//! born.
//!
//! Lanes run in lockstep ([`crate::engine::session::Lane`]); a `Comparer` watches them.
//!
//! * Against a **dump**: lane `Golden` runs free and gives the total error. Lane `Local` is golden
//!   again, but after every tap the dump's own values replace golden's, so each tap is golden
//!   recomputed from the dump's upstream taps: its disagreement is the error *born* there. Where
//!   the dump lacks a tap the recomputation simply runs on from the last one it has.
//! * Against a **candidate** (knobs): lane `Total` runs free (propagated); lane `Layer` is fed
//!   golden's streams at every layer (isolated); lane `Local` is the candidate with golden's
//!   values put back after every tap, which shows where an error is born; lane `Format` is the
//!   same with only the declared formats kept, which is the floor of an ideal kernel. Many candidates
//!   may share one golden and one noise.
//! * Lane `Noise` is golden with every operation rounded to bf16, fed the same inputs. It says
//!   how much each tap moves when arithmetic is that coarse, on this data: the floor of a bf16
//!   run, and by scaling with the unit roundoff that of any other precision.

mod against;
mod batch;
mod blame;
mod candidate;
mod floor;
mod flow;
mod inert;
mod judge;
mod mass;
mod observer;
mod precision;
mod rows;
mod select;
mod structure;
mod subject;

pub use against::{Against, AgainstOptions, against_dump};
pub use batch::{Group, Path, Scope, Setting, against_candidates};
pub use candidate::{Candidate, CandidateOptions, against_candidate};
pub(crate) use floor::least as least_floor;
pub use inert::inert_settings;
pub use judge::{Verdict, short};
pub use precision::Precision;
pub use rows::{IndexCounts, TapRow};

/// What a lane is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Golden, running free.
    Golden,
    /// The candidate, running free (propagated).
    Total,
    /// The candidate, every layer fed golden's streams (isolated).
    Layer,
    /// Recomputed from given inputs: the error born at each tap.
    Local,
    /// The declared formats around exact arithmetic.
    Format,
    /// Everything rounded to bf16.
    Noise,
}

/// Settings of the `Noise` lane: every site in bf16, on top of golden's own settings.
pub const NOISE: &[(&str, &str)] = &[
    ("embed.dtype", "bf16"),
    ("mhc.x_dtype", "bf16"),
    ("mhc.w_dtype", "bf16"),
    ("mhc.mix_dtype", "bf16"),
    ("mhc.stream_dtype", "bf16"),
    ("attn.qk_dtype", "bf16"),
    ("attn.logits_dtype", "bf16"),
    ("attn.p_dtype", "bf16"),
    ("attn.out_dtype", "bf16"),
    ("compressor.in_dtype", "bf16"),
    ("compressor.state_dtype", "bf16"),
    ("compressor.out_dtype", "bf16"),
    ("indexer.in_dtype", "bf16"),
    ("indexer.dot_dtype", "bf16"),
    ("indexer.score_dtype", "bf16"),
    ("router.in_dtype", "bf16"),
    ("router.logits_dtype", "bf16"),
    ("experts.in_dtype", "bf16"),
    ("experts.w_dtype", "bf16"),
    ("experts.out_dtype", "bf16"),
    ("linear.in_dtype", "bf16"),
    ("linear.w_dtype", "bf16"),
    ("linear.out_dtype", "bf16"),
    ("head.in_dtype", "bf16"),
    ("head.out_dtype", "bf16"),
];
