//! The grid: context lengths × depths × haystacks × questions, and the prompt of each.

use super::custom::{Custom, OwnText};
use super::document::Document;
use super::language::Language;
use super::prompt::{Asked, ask};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// A fact further from the wanted depth than this share of the context is not taken for it.
const NEAR: f64 = 0.1;

/// What kind of haystack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One question about one fact.
    Passkey,
    /// Several questions in one prompt, one after the other, each graded.
    Multi,
    /// Earlier turns ask and answer; the last one asks for a fact no turn repeated.
    Turns,
    /// The user's own text.
    Custom,
}

impl Kind {
    /// Name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Passkey => "passkey",
            Kind::Multi => "multi",
            Kind::Turns => "turns",
            Kind::Custom => "custom",
        }
    }
}

/// Which prompts there are. Everything that decides over them stands here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    /// Kind of haystack.
    pub kind: Kind,
    /// Context lengths in tokens, ascending.
    pub ctx: Vec<usize>,
    /// Depths wanted, ascending.
    pub depths: Vec<f64>,
    /// Trials a cell.
    pub trials: usize,
    /// Questions a cell asks of one haystack.
    pub questions: usize,
    /// Seed.
    pub seed: u64,
    /// The user's own texts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub custom: Option<Custom>,
}

/// A place in the grid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// Context length.
    pub ctx: usize,
    /// Depth wanted.
    pub depth: f64,
    /// Haystack.
    pub document: usize,
    /// Question.
    pub question: usize,
}

/// One trial: a question that can be graded, or why there is none.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// Its place.
    pub place: Place,
    /// The question.
    pub asked: std::result::Result<Asked, String>,
}

impl Grid {
    /// Haystacks.
    pub fn documents(&self) -> usize {
        self.trials.div_ceil(self.questions)
    }

    /// Questions that document `index` is asked in a cell: the last one may have fewer.
    fn questions_of(&self, index: usize) -> usize {
        self.questions.min(self.trials - index * self.questions)
    }

    /// The places of document `index`, in the order of every file.
    pub fn places(&self, document: usize) -> Vec<Place> {
        let questions = self.questions_of(document);
        let cells = self.ctx.iter().flat_map(|c| self.depths.iter().map(move |d| (*c, *d)));
        cells
            .flat_map(|(ctx, depth)| {
                (0..questions).map(move |question| Place { ctx, depth, document, question })
            })
            .collect()
    }

    /// The trials of document `index`, in the order of [`Grid::places`]. With `verify` the tokenizer must make the same
    /// tokens of the whole text of each.
    pub fn trials_of(&self, language: &Language, index: usize, verify: bool) -> Result<Vec<Trial>> {
        if let Some(custom) = &self.custom {
            let own = OwnText::new(language, custom)?;
            return self
                .places(index)
                .into_iter()
                .map(|p| Ok(Trial { place: p, asked: Ok(own.ask(self.seed, index, p.ctx, p.depth)?) }))
                .collect();
        }
        let longest = self.ctx.last().copied().unwrap_or(0);
        let turns = self.kind == Kind::Turns;
        let document = Document::write(language, self.seed, index, longest, turns)?;
        let mut trials = Vec::new();
        for ctx in &self.ctx {
            trials.extend(self.cells(language, &document, index, *ctx, verify)?);
        }
        Ok(trials)
    }

    /// The trials of one context length: every fact is asked for at most once in it.
    fn cells(
        &self,
        language: &Language,
        document: &Document,
        index: usize,
        ctx: usize,
        verify: bool,
    ) -> Result<Vec<Trial>> {
        let seed = [self.seed, index as u64];
        let questions = self.questions_of(index);
        let chosen = self.choose(document, ctx, questions);
        let mut trials = Vec::new();
        for (d, depth) in self.depths.iter().enumerate() {
            let place = |question| Place { ctx, depth: *depth, document: index, question };
            let no_fact = || Err("no other fact near this depth".to_string());
            let too_short = || Err("the context is too short for this fact and its question".to_string());
            if self.kind == Kind::Multi {
                let facts: Vec<usize> = chosen[d].iter().flatten().copied().collect();
                let asked = if facts.is_empty() {
                    Some(Vec::new())
                } else {
                    ask(language, document, &seed, ctx, &facts, verify)?
                };
                let mut asked = asked.map(Vec::into_iter);
                for (q, fact) in chosen[d].iter().enumerate() {
                    let asked = match (fact, &mut asked) {
                        (None, _) => no_fact(),
                        (_, None) => too_short(),
                        (_, Some(list)) => list.next().map_or_else(no_fact, Ok),
                    };
                    trials.push(Trial { place: place(q), asked });
                }
                continue;
            }
            for (q, fact) in chosen[d].iter().enumerate() {
                let asked = match fact {
                    None => no_fact(),
                    Some(f) => match ask(language, document, &seed, ctx, &[*f], verify)? {
                        Some(mut list) => Ok(list.remove(0)),
                        None => too_short(),
                    },
                };
                trials.push(Trial { place: place(q), asked });
            }
        }
        Ok(trials)
    }

    /// For every depth the facts to ask for: the nearest ones, one question after the other, so that no depth takes
    /// the nearest fact of another for its second question.
    fn choose(&self, document: &Document, ctx: usize, questions: usize) -> Vec<Vec<Option<usize>>> {
        let fits = |f: &super::document::Told| !f.spent && f.at.end + 2 * TAIL <= ctx;
        let mut free: Vec<usize> = (0..document.facts.len()).filter(|i| fits(&document.facts[*i])).collect();
        let mut chosen = vec![Vec::new(); self.depths.len()];
        for _ in 0..questions {
            for (d, depth) in self.depths.iter().enumerate() {
                let off = |i: &usize| (document.facts[*i].at.start as f64 / ctx as f64 - depth).abs();
                let best = (0..free.len()).min_by(|a, b| off(&free[*a]).total_cmp(&off(&free[*b])));
                let best = best.filter(|b| off(&free[*b]) <= NEAR);
                chosen[d].push(best.map(|b| free.remove(b)));
            }
        }
        chosen
    }

    /// Fails where no prompt of some length can be made at all, before anything is computed.
    pub fn check(&self, max_positions: usize) -> Result<()> {
        let Some(longest) = self.ctx.last() else { return Ok(()) };
        // The answer stands behind the prompt.
        if longest.saturating_add(ANSWER_ROOM) > max_positions {
            return Err(Error::usage(format!(
                "--ctx {longest} and the answer do not fit into the model's {max_positions} positions"
            ))
            .hint(format!("the longest context is {}", max_positions.saturating_sub(ANSWER_ROOM))));
        }
        Ok(())
    }
}

/// Positions kept for the answer.
const ANSWER_ROOM: usize = 16;
/// About half of what question and filler take: a fact nearer to the end is not asked for.
const TAIL: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{BUILTINS, Checkpoint};

    fn grid(kind: Kind) -> Grid {
        Grid {
            kind,
            ctx: vec![512, 1024, 4096],
            depths: vec![0.1, 0.3, 0.5, 0.7, 0.9],
            trials: 5,
            questions: 3,
            seed: 1,
            custom: None,
        }
    }

    /// Catches files whose rows are not where a resumed run looks for them, and a fact that counts twice.
    #[test]
    fn trials_stand_in_the_order_of_the_places() {
        let l = Language::of(&Checkpoint::open(BUILTINS[0]).unwrap()).unwrap();
        for kind in [Kind::Passkey, Kind::Multi, Kind::Turns] {
            let g = grid(kind);
            assert_eq!(g.documents(), 2);
            for d in 0..2 {
                let trials = g.trials_of(&l, d, true).unwrap();
                assert!(trials.iter().map(|t| t.place).eq(g.places(d)), "{kind:?}");
                assert_eq!(trials.len(), 3 * 5 * [3, 2][d]);
                for ctx in &g.ctx {
                    let asked: Vec<&Asked> = trials
                        .iter()
                        .filter(|t| t.place.ctx == *ctx)
                        .filter_map(|t| t.asked.as_ref().ok())
                        .collect();
                    let mut needles: Vec<usize> = asked.iter().map(|a| a.needle.start).collect();
                    needles.sort_unstable();
                    needles.dedup();
                    assert_eq!(needles.len(), asked.len(), "{kind:?} {ctx}");
                }
                let run = trials.iter().filter(|t| t.asked.is_ok()).count();
                assert!(run * 10 >= trials.len() * if kind == Kind::Turns { 6 } else { 9 }, "{kind:?} {run}");
                for t in trials.iter().filter(|t| kind != Kind::Multi || t.place.question == 9) {
                    if let Ok(a) = &t.asked {
                        assert_eq!(a.job.answer_from, t.place.ctx);
                        let depth = a.needle.start as f64 / t.place.ctx as f64;
                        assert!((depth - t.place.depth).abs() <= NEAR);
                    }
                }
            }
        }
    }
}
