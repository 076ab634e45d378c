//! One haystack: a long text dense with facts, of which every prompt of a trial takes the beginning.
//!
//! Prompts of all lengths, depths and questions of a haystack begin with the same tokens, so the engine computes the
//! longest of them once. About one fact stands in every 96 tokens (denser in the first thousand, or short prompts
//! would hold none), between sentences that use the same words. Keys come from a pool that grows with the number of
//! facts, so that every prefix is as confusing as a haystack of its own: most facts share a part of their key.

use super::language::{Fact, Language, Piece};
use super::rng::Rng;
use super::words::ATTRIBUTES;
use crate::error::{Error, Result};
use std::collections::HashSet;
use std::ops::Range;

/// A fact stands in every so many tokens,
const EVERY: usize = 96;
/// and in every so many of the first tokens.
const EVERY_EARLY: (usize, usize) = (36, 1024);
/// An earlier turn asks for one of so many facts before it.
const RECENT: usize = 8;

/// Keys drawn before a pool counts as exhausted.
const DRAWS: usize = 1000;

/// A haystack.
pub struct Document {
    /// Sentences in order, each with the position of its first token.
    pub pieces: Vec<(usize, Piece)>,
    /// Facts in order.
    pub facts: Vec<Told>,
    /// Tokens of all pieces.
    pub tokens: usize,
}

/// A fact in its place.
#[derive(Debug, Clone)]
pub struct Told {
    /// The fact.
    pub fact: Fact,
    /// Tokens of its sentence.
    pub at: Range<usize>,
    /// For every answer token, the tokens that hold it.
    pub sources: Vec<Range<usize>>,
    /// An earlier turn already asked for it.
    pub spent: bool,
}

/// Draws keys that no other fact of the document has.
struct Keys {
    adjectives: Vec<&'static str>,
    nouns: Vec<&'static str>,
    used: HashSet<(usize, &'static str, &'static str)>,
}

impl Keys {
    fn new(language: &Language, rng: &mut Rng) -> Keys {
        let (mut adjectives, mut nouns) = (language.words.adjectives.clone(), language.words.nouns.clone());
        rng.shuffle(&mut adjectives);
        rng.shuffle(&mut nouns);
        Keys { adjectives, nouns, used: HashSet::new() }
    }
    /// The pool is a square of adjectives and nouns, times the attributes; it holds twice as many combinations as there
    /// are facts, and 4 × 4 × 6 at least. A new row and column is used until it is as full as the square before it, so
    /// that the facts of every prefix lie evenly in its own pool.
    fn draw(&mut self, rng: &mut Rng) -> Option<Fact> {
        let most = self.adjectives.len().min(self.nouns.len());
        let side =
            ((2.0 * self.used.len() as f64 / ATTRIBUTES.len() as f64).sqrt() as usize + 1).clamp(4, most);
        for _ in 0..DRAWS {
            let (a, n) = if side == 4 {
                (rng.below(4), rng.below(4))
            } else {
                let j = rng.below(2 * side - 1);
                if j < side { (side - 1, j) } else { (j - side, side - 1) }
            };
            let key = (rng.below(ATTRIBUTES.len()), self.adjectives[a], self.nouns[n]);
            if self.used.insert(key) {
                let mut value = [0; 5];
                value.iter_mut().for_each(|d| *d = rng.below(10) as u8);
                return Some(Fact { attribute: ATTRIBUTES[key.0], about: (key.1, key.2), value });
            }
        }
        None
    }
}

impl Document {
    /// Haystack `index` of `seed`, at least `longest` tokens long. With `turns`, earlier turns ask for some facts and
    /// hold the answers.
    pub fn write(
        language: &Language,
        seed: u64,
        index: usize,
        longest: usize,
        turns: bool,
    ) -> Result<Document> {
        let mut rng = Rng::of(&[seed, index as u64, u64::from(turns)]);
        let mut keys = Keys::new(language, &mut rng);
        let opening = language.opening(turns)?;
        let mut d = Document { tokens: opening.tokens.len(), pieces: vec![(0, opening)], facts: Vec::new() };
        let mut stretch = d.tokens;
        let mut next = stretch + rng.below(EVERY_EARLY.0);
        while d.tokens < longest {
            if d.tokens >= next {
                if let Some(fact) = keys.draw(&mut rng) {
                    d.tell(language, fact, &mut rng)?;
                }
                if turns && d.facts.len().is_multiple_of(2) {
                    d.turn(language, &mut rng)?;
                }
                // One fact a stretch, anywhere in it.
                let every = if stretch < EVERY_EARLY.1 { EVERY_EARLY.0 } else { EVERY };
                stretch += every;
                let every = if stretch < EVERY_EARLY.1 { EVERY_EARLY.0 } else { EVERY };
                next = stretch + rng.below(every);
                continue;
            }
            let sentence = language.sentence(&mut rng)?;
            d.push(sentence)?;
        }
        Ok(d)
    }

    fn push(&mut self, piece: Piece) -> Result<Range<usize>> {
        if piece.tokens.is_empty() {
            return Err(Error::input(format!("the tokenizer makes no token of '{}'", piece.text.trim()))
                .hint("check that tokenizer.json belongs to this checkpoint"));
        }
        let at = self.tokens..self.tokens + piece.tokens.len();
        self.tokens = at.end;
        self.pieces.push((at.start, piece));
        Ok(at)
    }

    fn tell(&mut self, language: &Language, fact: Fact, rng: &mut Rng) -> Result<()> {
        let (piece, sources) = language.tell(&fact, rng)?;
        let at = self.push(piece)?;
        let sources = sources.into_iter().map(|r| at.start + r.start..at.start + r.end).collect();
        self.facts.push(Told { fact, at, sources, spent: false });
        Ok(())
    }

    /// An earlier question with its answer.
    fn turn(&mut self, language: &Language, rng: &mut Rng) -> Result<()> {
        let recent = self.facts.len().saturating_sub(RECENT)..self.facts.len();
        let open: Vec<usize> = recent.filter(|i| !self.facts[*i].spent).collect();
        if open.len() < 2 {
            return Ok(());
        }
        let asked = open[rng.below(open.len())];
        self.facts[asked].spent = true;
        let fact = self.facts[asked].fact;
        let parts = [
            language.ask(&fact, rng.below(language.ways()))?,
            language.answer(&fact)?,
            language.after_answer()?,
        ];
        self.push(Piece {
            text: parts.iter().map(|p| p.text.as_str()).collect(),
            tokens: parts.iter().flat_map(|p| p.tokens.iter().copied()).collect(),
        })?;
        Ok(())
    }

    /// The last piece that begins at or before position `at` and leaves a rest that sentences can fill: its index,
    /// and the filler.
    pub fn cut(&self, language: &Language, at: usize, rng: &mut Rng) -> Option<(usize, Vec<Piece>)> {
        let last = self.pieces.partition_point(|(from, _)| *from <= at);
        // The piece after the last may begin exactly here.
        let ends = (self.tokens <= at).then_some((self.pieces.len(), self.tokens));
        let starts = (1..last).rev().map(|i| (i, self.pieces[i].0));
        ends.into_iter().chain(starts).find_map(|(i, from)| Some((i, language.fill(at - from, rng)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{BUILTINS, Checkpoint};

    fn pico() -> Language {
        Language::of(&Checkpoint::open(BUILTINS[0]).unwrap()).unwrap()
    }

    /// Catches facts told twice, values that are not where they are said to be, and a density the model never saw.
    #[test]
    fn facts_are_unique_and_stand_where_they_are_said_to() {
        let l = pico();
        let d = Document::write(&l, 1, 0, 20_000, false).unwrap();
        let tokens: Vec<u32> = d.pieces.iter().flat_map(|(_, p)| p.tokens.iter().copied()).collect();
        assert_eq!(tokens.len(), d.tokens);
        let mut keys = HashSet::new();
        for f in &d.facts {
            assert!(keys.insert((f.fact.attribute, f.fact.about)));
            let held: Vec<u32> = f.sources.iter().map(|r| tokens[r.start]).collect();
            assert_eq!(held, l.answer(&f.fact).unwrap().tokens);
            assert!(f.sources.iter().all(|r| f.at.contains(&r.start)));
        }
        let late = d.facts.iter().filter(|f| f.at.start >= 2048).count();
        let every = (20_000 - 2048) as f64 / late as f64;
        assert!((90.0..102.0).contains(&every), "{every}");
        // As in a haystack of its own: facts lie evenly in a pool twice their number, so that a prefix of n facts uses
        // about √(n/3) adjectives, each about equally often.
        for n in [48, 108, d.facts.len()] {
            let mut uses: std::collections::HashMap<&str, usize> = Default::default();
            d.facts[..n].iter().for_each(|f| *uses.entry(f.fact.about.0).or_default() += 1);
            let side = (n as f64 / 3.0).sqrt();
            assert!((uses.len() as f64 - side).abs() <= 1.0, "{n}: {} adjectives", uses.len());
            let most = *uses.values().max().unwrap();
            assert!(most as f64 <= 2.0 * n as f64 / side, "{n}: one adjective {most} times");
        }
        let first: Vec<_> = d.facts.iter().filter(|f| f.at.end < 2048).collect();
        let alike = |a: &Told, b: &Told| a.fact.about.0 == b.fact.about.0 || a.fact.about.1 == b.fact.about.1;
        let shared = first.iter().filter(|a| first.iter().any(|b| a.at != b.at && alike(a, b))).count();
        assert!(shared * 10 > first.len() * 8, "{shared} of {}", first.len());
    }

    /// Catches a haystack that depends on how much of it is used: prefixes would not be shared.
    #[test]
    fn a_longer_haystack_begins_like_a_shorter_one() {
        let l = pico();
        let long = Document::write(&l, 9, 3, 4000, true).unwrap();
        let short = Document::write(&l, 9, 3, 1000, true).unwrap();
        assert!(long.pieces.starts_with(&short.pieces[..short.pieces.len() - 1]));
        assert!(long.facts.iter().any(|f| f.spent));
        let other = Document::write(&l, 9, 4, 1000, true).unwrap();
        assert_ne!(other.pieces[1], short.pieces[1]);
    }
}
