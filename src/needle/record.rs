//! What is known of one trial on one path: a row of `needle.csv` with its rows of `rank.csv`.

use super::grid::Place;
use crate::engine::grid::{FactRank, TokenGrade};
use std::ops::Range;

/// One trial on one path.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Place in the grid.
    pub place: Place,
    /// Path: `golden`, or the canonical spec of a candidate.
    pub path: String,
    /// Selection width of the path.
    pub width: Width,
    /// What came out, or why nothing was run.
    pub outcome: Result<Outcome, String>,
}

/// How a trial that was run came out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// Tokens of the prompt: the answer begins at this position.
    pub prompt_tokens: usize,
    /// Tokens of the needle's sentence.
    pub needle: Range<usize>,
    /// For every answer token, the first position of the prompt that holds the part of the fact it repeats.
    pub sources: Vec<usize>,
    /// Grades of the answer's tokens.
    pub tokens: Vec<TokenGrade>,
    /// Ranks of the fact in the index.
    pub ranks: Vec<FactRank>,
}

impl Outcome {
    /// Every answer token would have been chosen.
    pub fn exact(&self) -> bool {
        !self.tokens.is_empty() && self.tokens.iter().all(|t| t.rank == 0)
    }
    /// The first answer token that would not have been chosen.
    pub fn first_lost(&self) -> Option<usize> {
        self.tokens.iter().position(|t| t.rank != 0)
    }
}

/// How many entries a path selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Width {
    /// As many as the checkpoint (or the path's own knobs) say.
    Native,
    /// So many.
    Fixed(u32),
    /// Every visible one.
    All,
}

impl Width {
    /// As files and the command line write it.
    pub fn label(self) -> String {
        match self {
            Width::Native => "native".into(),
            Width::Fixed(k) => k.to_string(),
            Width::All => "all".into(),
        }
    }
    /// Reads [`Width::label`].
    pub fn parse(text: &str) -> Option<Width> {
        match text {
            "native" => Some(Width::Native),
            "all" => Some(Width::All),
            t => t.parse().ok().filter(|k| *k > 0).map(Width::Fixed),
        }
    }
    /// Entries, for ordering: `native` of them where the checkpoint decides.
    pub fn entries(self, native: usize) -> usize {
        match self {
            Width::Native => native,
            Width::Fixed(k) => k as usize,
            Width::All => usize::MAX,
        }
    }
}
