//! A haystack, a needle and a question of the user's own.

use super::language::{Language, Style};
use super::prompt::Asked;
use super::rng::Rng;
use crate::engine::grid::Job;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Places in the haystack that are tried as the beginning of a prompt before giving up on an exact length.
const BEGINNINGS: usize = 24;
/// Corrections of the end of a prompt for each of them.
const CORRECTIONS: usize = 6;

/// What the user gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Custom {
    /// Text of the haystack.
    pub haystack: String,
    /// Sentence that is planted.
    pub needle: String,
    /// Question behind the haystack.
    pub question: String,
    /// The right answer.
    pub answer: String,
}

/// The user's texts, taken apart.
pub struct OwnText<'a> {
    text: &'a Custom,
    language: &'a Language,
    /// Byte offset behind each token of the haystack.
    ends: Vec<usize>,
    /// Byte offsets at which a sentence begins (or white space before it).
    breaks: Vec<usize>,
}

impl<'a> OwnText<'a> {
    /// Tokenises the haystack and finds its sentences.
    pub fn new(language: &'a Language, text: &'a Custom) -> Result<OwnText<'a>> {
        for (what, part) in
            [("--needle", &text.needle), ("--question", &text.question), ("--answer", &text.answer)]
        {
            if part.trim().is_empty() {
                return Err(Error::usage(format!("{what} is empty")).hint("give the text in quotes"));
            }
        }
        let encoding = language.encode(&text.haystack, false)?;
        let ends = encoding.get_offsets().iter().map(|(_, to)| *to).collect();
        let bytes = text.haystack.as_bytes();
        let inner = (1..bytes.len()).filter(|i| {
            bytes[*i].is_ascii_whitespace() && matches!(bytes[i - 1], b'.' | b'!' | b'?' | b'\n')
        });
        let breaks = std::iter::once(0).chain(inner).collect();
        Ok(OwnText { text, language, ends, breaks })
    }

    /// Tokens of the haystack.
    pub fn tokens(&self) -> usize {
        self.ends.len()
    }

    /// A prompt of exactly `length` tokens with the needle near `depth`; each `trial` begins at another sentence.
    pub fn ask(&self, seed: u64, trial: usize, length: usize, depth: f64) -> Result<Asked> {
        let fixed = self.draft(0, 0, 0)?;
        let room = length.checked_sub(fixed.tokens).filter(|r| *r > 0).ok_or_else(|| {
            Error::usage(format!(
                "a prompt of {length} tokens has no room: needle and question alone take {}",
                fixed.tokens
            ))
            .hint("use a longer --ctx")
        })?;
        if room > self.ends.len() {
            return Err(Error::input(format!(
                "the haystack is too short: it has {} tokens, a prompt of {length} needs {room}",
                self.ends.len()
            ))
            .hint("give a longer --haystack, or a shorter --ctx"));
        }
        let mut rng = Rng::of(&[seed, trial as u64, length as u64]);
        // Sentences from which on there is enough text.
        let latest = self.ends[self.ends.len() - room];
        let starts = self.breaks.partition_point(|b| *b < latest).max(1);
        let mut start = if trial == 0 { 0 } else { rng.below(starts) };
        for _ in 0..BEGINNINGS.min(starts) {
            let from = self.breaks[start];
            if let Some(asked) = self.exact(from, length, room, depth)? {
                return Ok(asked);
            }
            start = (start + 1) % starts;
        }
        Err(Error::input(format!(
            "no cut of the haystack gives exactly {length} tokens: the tokenizer joins its end with the question"
        ))
        .hint("begin --question with a new line or a word of its own, or change --ctx by a token"))
    }

    /// The prompt that begins at byte `from`, if its end can be cut to the exact length.
    fn exact(&self, from: usize, length: usize, room: usize, depth: f64) -> Result<Option<Asked>> {
        let first = self.ends.partition_point(|e| *e <= from);
        let Some(mut last) = (first + room).checked_sub(1) else { return Ok(None) };
        let target = first + (depth * room as f64) as usize;
        let wanted = self.ends[target.min(self.ends.len() - 1)];
        for _ in 0..CORRECTIONS {
            let Some(to) = self.ends.get(last).copied() else { return Ok(None) };
            let near = self.breaks.iter().filter(|b| (from..=to).contains(*b));
            let Some(split) = near.min_by_key(|b| b.abs_diff(wanted)) else { return Ok(None) };
            let draft = self.draft(from, *split, to)?;
            if draft.tokens == length {
                return self.finish(draft).map(Some);
            }
            let next = (last + length).checked_sub(draft.tokens).filter(|n| *n >= first);
            let Some(next) = next else { return Ok(None) };
            last = next;
        }
        Ok(None)
    }

    fn draft(&self, from: usize, split: usize, to: usize) -> Result<Draft> {
        let hay = |r: Range<usize>| self.text.haystack.get(r).unwrap_or_default();
        let mut text = self.language.opening(false)?.text;
        text.push_str(hay(from..split));
        let needle = self.text.needle.trim();
        if !text.is_empty() && !text.ends_with(char::is_whitespace) && split > from {
            text.push(' ');
        }
        let needle = text.len()..text.len() + needle.len();
        text.push_str(self.text.needle.trim());
        let rest = hay(split..to);
        if !rest.starts_with(char::is_whitespace) {
            text.push(' ');
        }
        text.push_str(rest);
        text.push_str(if self.language.style == Style::Fixture { " " } else { "\n" });
        text.push_str(self.text.question.trim_end());
        text.push_str(self.language.before_answer());
        Ok(Draft { tokens: self.language.whole(&text)?.len(), text, needle })
    }

    /// Appends the answer and finds everything in tokens.
    fn finish(&self, draft: Draft) -> Result<Asked> {
        let answer = self.text.answer.trim();
        let space = if self.language.style == Style::Chat { "" } else { " " };
        let whole = format!("{}{space}{answer}", draft.text);
        let encoding = self.language.encode(&whole, self.language.style != Style::Chat)?;
        let tokens = encoding.get_ids().to_vec();
        let prompt = self.language.whole(&draft.text)?;
        if !tokens.starts_with(&prompt) || tokens.len() == prompt.len() {
            return Err(Error::input(
                "the tokenizer splits the prompt differently at the seam of question and answer",
            )
            .hint("end --question so that the answer begins a new word, for example with 'Answer:'"));
        }
        let cover = |r: &Range<usize>| {
            let offsets = encoding.get_offsets();
            let inside = |(a, b): &(usize, usize)| *a < r.end && *b > r.start;
            let first = offsets.iter().position(inside).unwrap_or(0);
            first..offsets.iter().rposition(inside).map_or(first, |l| l + 1)
        };
        let needle = cover(&draft.needle);
        // With the space before it, as in the answer, where the needle has one.
        let spaced = format!("{space}{answer}");
        let value = [spaced.as_str(), answer].into_iter().find_map(|v| {
            let at = draft.needle.start + self.text.needle.trim().find(v)?;
            Some(cover(&(at..at + v.len())))
        });
        let sources =
            super::language::aligned(value.unwrap_or(needle.clone()), &tokens, &tokens[prompt.len()..]);
        Ok(Asked { job: Job { document: 0, answer_from: prompt.len(), tokens, sources }, needle })
    }
}

struct Draft {
    text: String,
    needle: Range<usize>,
    tokens: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{BUILTINS, Checkpoint};

    fn setup(sentences: usize) -> (Language, Custom) {
        let l = Language::of(&Checkpoint::open(BUILTINS[0]).unwrap()).unwrap();
        let mut rng = Rng::of(&[1]);
        let haystack: String = (0..sentences).map(|_| l.sentence(&mut rng).unwrap().text).collect();
        let c = Custom {
            haystack: haystack.trim().into(),
            needle: "the vault code of the velvet lynx is 47192.".into(),
            question: "question: what is the vault code of the velvet lynx? answer:".into(),
            answer: "47192".into(),
        };
        (l, c)
    }

    /// Catches an inexact length, a needle elsewhere than reported, and an answer whose source is wrong.
    #[test]
    fn own_text_gives_exact_lengths_and_places() {
        let (l, c) = setup(200);
        let own = OwnText::new(&l, &c).unwrap();
        let needle = l.piece(format!(" {}", c.needle)).unwrap().tokens;
        for (trial, length) in [(0, 300), (1, 301), (2, 1000)] {
            for depth in [0.0, 0.1, 0.5, 0.9] {
                let a = own.ask(7, trial, length, depth).unwrap();
                assert_eq!(a.job.answer_from, length);
                assert_eq!(a.job.tokens[a.needle.clone()], needle);
                let at = a.needle.start as f64 / length as f64;
                assert!((at - depth).abs() < 0.1, "{at} for {depth} in {length}");
                for (i, s) in a.job.sources.iter().enumerate() {
                    assert_eq!((s.len(), a.job.tokens[s.start]), (1, a.job.tokens[length + i]));
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error_with_a_hint() {
        let (l, c) = setup(20);
        let own = OwnText::new(&l, &c).unwrap();
        let e = own.ask(7, 0, 2000, 0.5).unwrap_err();
        assert!(e.message().starts_with("the haystack is too short"), "{e}");
        assert_eq!(e.kind().exit_code(), 3);
        let e = own.ask(7, 0, 20, 0.5).unwrap_err();
        assert_eq!(e.kind().exit_code(), 2);
        assert!(e.to_string().contains("hint:"));
    }
}
