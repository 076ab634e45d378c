//! Prompts of exact length: the beginning of a haystack, filler, and a question.

use super::document::Document;
use super::language::{Language, Piece};
use super::rng::Rng;
use crate::engine::grid::Job;
use crate::error::{Error, Result};
use std::ops::Range;

/// A question that can be graded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Prompt, answer, and where the fact stands.
    pub job: Job,
    /// Tokens of the needle's sentence.
    pub needle: Range<usize>,
}

/// A prompt under construction: text and tokens side by side, with the names of its parts.
#[derive(Default)]
struct Draft {
    text: String,
    tokens: Vec<u32>,
    seams: Vec<(usize, &'static str)>,
}

impl Draft {
    fn add(&mut self, part: &'static str, piece: &Piece) {
        if self.seams.last().is_none_or(|(_, p)| *p != part) {
            self.seams.push((self.tokens.len(), part));
        }
        self.text.push_str(&piece.text);
        self.tokens.extend(&piece.tokens);
    }

    /// Fails unless the tokenizer makes exactly these tokens of the text.
    fn verify(&self, language: &Language) -> Result<()> {
        let whole = language.whole(&self.text)?;
        if whole == self.tokens {
            return Ok(());
        }
        let at = whole.iter().zip(&self.tokens).take_while(|(a, b)| a == b).count();
        // A seam shows where the pieces meet, or one token to either side of it.
        let near = [0, 1, -1]
            .iter()
            .find_map(|d| (1..self.seams.len()).find(|i| self.seams[*i].0 as i64 == at as i64 + d));
        let between = match near {
            Some(i) => format!("at the seam of {} and {}", self.seams[i - 1].1, self.seams[i].1),
            None => {
                let last = self.seams.partition_point(|(from, _)| *from <= at).max(1) - 1;
                format!("within the {}", self.seams.get(last).map_or("prompt", |(_, p)| p))
            }
        };
        Err(Error::input(format!(
            "the tokenizer splits the prompt differently {between}: position {at} is token {} of the whole text and \
             {} of its pieces",
            whole.get(at).map_or("none".into(), u32::to_string),
            self.tokens.get(at).map_or("none".into(), u32::to_string),
        ))
        .hint("positions of such a prompt would not be what the report says; give your own text with --haystack"))
    }
}

/// One prompt of exactly `length` tokens over the beginning of `document`, which asks for the facts one after the
/// other, each answer being in the prompt of the next. `None` where the facts and the questions do not fit.
pub fn ask(
    language: &Language,
    document: &Document,
    seed: &[u64],
    length: usize,
    facts: &[usize],
    verify: bool,
) -> Result<Option<Vec<Asked>>> {
    let mut parts = Vec::new();
    for f in facts {
        let fact = &document.facts[*f].fact;
        // The way of asking belongs to the fact, whatever the length.
        let way = Rng::of(&[seed, &[*f as u64, 0xa5]].concat()).below(language.ways());
        parts.push((language.ask(fact, way)?, language.answer(fact)?));
    }
    let after = language.after_answer()?;
    let last = parts.len() - 1;
    let tail: usize = parts
        .iter()
        .enumerate()
        .map(|(i, (q, a))| q.tokens.len() + if i < last { a.tokens.len() + after.tokens.len() } else { 0 })
        .sum();
    let Some(body) = length.checked_sub(tail) else { return Ok(None) };
    let mut rng = Rng::of(&[seed, &[length as u64, body as u64]].concat());
    let Some((cut, filler)) = document.cut(language, body, &mut rng) else { return Ok(None) };
    let end = document.pieces.get(cut).map_or(document.tokens, |(from, _)| *from);
    if facts.iter().any(|f| document.facts[*f].at.end > end) {
        return Ok(None);
    }
    let mut draft = Draft::default();
    draft.add("opening", &document.pieces[0].1);
    document.pieces[1..cut].iter().for_each(|(_, p)| draft.add("haystack", p));
    filler.iter().for_each(|p| draft.add("filler", p));
    let mut asked = Vec::new();
    for (i, (question, answer)) in parts.iter().enumerate() {
        draft.add("question", question);
        let answer_from = draft.tokens.len();
        draft.add("answer", answer);
        let told = &document.facts[facts[i]];
        asked.push(Asked {
            job: Job {
                document: 0,
                tokens: draft.tokens.clone(),
                answer_from,
                sources: told.sources.clone(),
            },
            needle: told.at.clone(),
        });
        if i < last {
            draft.add("answer", &after);
        } else if answer_from != length {
            return Err(Error::bug(format!("a prompt of {length} tokens has {answer_from}")));
        }
    }
    if verify {
        draft.verify(language)?;
    }
    Ok(Some(asked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{BUILTINS, Checkpoint};

    fn pico() -> Language {
        Language::of(&Checkpoint::open(BUILTINS[0]).unwrap()).unwrap()
    }

    /// Catches a prompt one token too long, a fact that is not in it, and prompts that do not share their beginning.
    #[test]
    fn prompts_have_exactly_the_length_asked_for() {
        let l = pico();
        let d = Document::write(&l, 1, 0, 3000, false).unwrap();
        let mut longest: Vec<u32> = Vec::new();
        for length in (400..460).chain(2000..2010) {
            let asked = ask(&l, &d, &[1, 0], length, &[3], true).unwrap().unwrap().remove(0);
            assert_eq!(asked.job.answer_from, length);
            assert_eq!(asked.job.tokens.len(), length + 5);
            for (i, s) in asked.job.sources.iter().enumerate() {
                assert_eq!(asked.job.tokens[s.start], asked.job.tokens[length + i]);
            }
            let shared = longest.iter().zip(&asked.job.tokens).take_while(|(a, b)| a == b).count();
            assert!(longest.is_empty() || shared + 60 > longest.len(), "{shared} of {}", longest.len());
            longest = asked.job.tokens;
        }
        assert!(ask(&l, &d, &[1, 0], 30, &[3], true).unwrap().is_none());
    }

    #[test]
    fn several_questions_end_at_the_length() {
        let l = pico();
        let d = Document::write(&l, 1, 0, 3000, false).unwrap();
        let asked = ask(&l, &d, &[1, 0], 1000, &[5, 2, 7], true).unwrap().unwrap();
        assert_eq!(asked.len(), 3);
        assert_eq!(asked[2].job.answer_from, 1000);
        assert!(asked[2].job.tokens.starts_with(&asked[0].job.tokens), "the answer is in the next prompt");
    }

    /// A byte-level tokenizer with the released models' role tokens.
    fn chat(roles: bool) -> Language {
        use tokenizers::models::bpe::BPE;
        use tokenizers::pre_tokenizers::byte_level::ByteLevel;
        let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        alphabet.sort_unstable();
        let vocab: Vec<(String, u32)> =
            alphabet.iter().enumerate().map(|(i, c)| (c.to_string(), i as u32)).collect();
        let bpe = BPE::builder()
            .vocab_and_merges(vocab.into_iter().collect::<tokenizers::models::bpe::Vocab>(), vec![]);
        let mut t = tokenizers::Tokenizer::new(bpe.build().unwrap());
        t.with_pre_tokenizer(Some(ByteLevel::new(false, false, false)));
        if roles {
            let names = [
                "<｜begin▁of▁sentence｜>",
                "<｜User｜>",
                "<｜Assistant｜>",
                "</think>",
                "<｜end▁of▁sentence｜>",
            ];
            let tokens: Vec<_> = names.iter().map(|n| tokenizers::AddedToken::from(*n, true)).collect();
            t.add_special_tokens(&tokens);
        }
        Language::new(t).unwrap()
    }

    /// Catches a chat prompt whose roles are spelled as text, or whose answer does not follow `</think>`.
    #[test]
    fn other_tokenizers_are_asked_in_chat_or_in_plain_text() {
        for roles in [true, false] {
            let l = chat(roles);
            assert_eq!(l.style.name(), if roles { "chat" } else { "plain text" });
            let d = Document::write(&l, 1, 0, 6000, true).unwrap();
            let open = d.facts.iter().position(|f| !f.spent).unwrap();
            for length in 4000..4010 {
                let asked = ask(&l, &d, &[1, 0], length, &[open], true).unwrap().unwrap().remove(0);
                assert_eq!(asked.job.answer_from, length);
                let role = |name: &str| l.piece(name.into()).unwrap().tokens;
                if roles {
                    let text = &d.pieces[0].1.text;
                    assert!(text.contains("search_notes") && text.ends_with("<｜User｜>"), "{text}");
                    assert_eq!(asked.job.tokens[..1], role("<｜begin▁of▁sentence｜>"));
                    assert_eq!(asked.job.tokens[length - 1..length], role("</think>"));
                }
                for (i, s) in asked.job.sources.iter().enumerate() {
                    assert_eq!(asked.job.tokens[s.end - 1], asked.job.tokens[length + i]);
                }
            }
        }
    }

    /// Catches a check of the seams that cannot fail.
    #[test]
    fn a_seam_that_merges_is_named() {
        let l = pico();
        let mut draft = Draft::default();
        draft.add("opening", &l.opening(false).unwrap());
        draft.add("haystack", &l.piece(" the velvet".into()).unwrap());
        draft.add("question", &l.piece("lynx".into()).unwrap());
        let e = draft.verify(&l).unwrap_err();
        assert!(e.message().contains("at the seam of haystack and question"), "{e}");
    }
}
