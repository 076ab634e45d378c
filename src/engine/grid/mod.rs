//! Many prompts, many knob choices, one pass over the weights: grading by teacher forcing.
//!
//! Prompts that begin with the same tokens share the work: they form a tree whose nodes are runs of
//! tokens, and every node is computed once. In the last layer only what is graded is computed, the
//! rest of the tokens only write their keys and values there.

mod grade;
mod rank;
mod run;
mod tree;
mod walk;

use crate::kernels::KnobPlan;
use std::ops::Range;

pub use run::{cost, grade};

/// One choice of kernels that every prompt goes through.
#[derive(Debug, Clone, PartialEq)]
pub struct GridPath {
    /// What reports call it.
    pub name: String,
    /// Its knobs; another `index_topk` is the knob `topk.width`.
    pub plan: KnobPlan,
}

/// A prompt with its answer, to be graded by teacher forcing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Job {
    /// Prompts of one document share the work of common prefixes; prompts of different documents never do, so that
    /// what a document gives does not depend on which others run beside it.
    pub document: usize,
    /// Prompt and answer, token by token. The last token is the answer's last.
    pub tokens: Vec<u32>,
    /// Index of the answer's first token in `tokens`; at least 1.
    pub answer_from: usize,
    /// For every answer token, the positions in the prompt that hold the fact it repeats (the needle's own token or
    /// tokens): what the index has to find to produce it. Empty where there is no such place.
    pub sources: Vec<Range<usize>>,
}

/// How one answer token came out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenGrade {
    /// Position that predicts it (one before its own).
    pub position: usize,
    /// The token the answer has there.
    pub expected: u32,
    /// The token the model would have chosen: the largest logit, the lower id on equal ones.
    pub top: u32,
    /// Tokens with a larger logit, plus those of a lower id with an equal one; 0 = would have been chosen.
    pub rank: u32,
    /// Natural logarithm of the probability of `expected`.
    pub logprob: f64,
    /// Logit of `expected` minus the largest other logit; negative when lost.
    pub margin: f64,
}

/// Where the index had the fact that one answer token repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FactRank {
    /// The CSA layer.
    pub layer: usize,
    /// Which answer token.
    pub answer: usize,
    /// Rank of the best entry that holds the fact, among the entries visible to the predicting position; 1 = best.
    pub rank: u32,
    /// Entries visible to that position.
    pub visible: u32,
    /// Entries this path keeps there (`index_topk`, or its knob's).
    pub width: u32,
    /// True if an entry that holds the fact is among those really selected.
    pub selected: bool,
    /// Attention mass (mean over heads) of the selected entries that hold the fact.
    pub mass: f64,
    /// Attention mass that all entries that hold the fact would have if they were selected too.
    pub potential: f64,
}

/// One job through one path.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graded {
    /// One an answer token.
    pub tokens: Vec<TokenGrade>,
    /// One a CSA layer and answer token with a source; layer-major.
    pub ranks: Vec<FactRank>,
}

impl Graded {
    /// Exact match: every answer token would have been chosen.
    pub fn exact(&self) -> bool {
        !self.tokens.is_empty() && self.tokens.iter().all(|t| t.rank == 0)
    }
    /// The first answer token that would not have been chosen.
    pub fn first_lost(&self) -> Option<usize> {
        self.tokens.iter().position(|t| t.rank != 0)
    }
}

/// What a grid costs, known before it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GridCost {
    /// Tokens of all prompts.
    pub tokens: u64,
    /// Tokens really computed, a path: prefixes shared by several prompts count once.
    pub computed: u64,
    /// Bytes of residual streams and caches that the paths hold at once.
    pub bytes: u64,
}
