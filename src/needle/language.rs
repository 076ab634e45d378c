//! Sentences, facts and questions as text and tokens of a checkpoint's own tokenizer.

use super::rng::Rng;
use super::words::{FACTS, QUESTIONS, SENTENCES, Words};
use crate::checkpoint::Checkpoint;
use crate::encoding::constants::{ASSISTANT, BOS, EOS, THINK_END, USER};
use crate::encoding::{EncodeOptions, Message, Mode, render};
use crate::error::{Error, Result};
use serde_json::json;
use std::collections::BTreeMap;
use std::ops::Range;
use tokenizers::Tokenizer;

/// Sentences kept for filling a prompt up to an exact length.
const BANK: usize = 480;

/// Stands in for text when the encoder is asked what it writes around it.
const MARK: &str = "\u{1}";

/// What the chat encoder writes between the texts of a conversation, in chat mode.
#[derive(Debug, Clone, Default)]
struct Roles {
    /// Before the first user's text.
    open: String,
    /// The same behind a system prompt with tools.
    open_with_tools: String,
    /// Between a question and its answer.
    answer: String,
    /// Between an answer and the next user's text.
    next: String,
}

impl Roles {
    fn of() -> Result<Roles> {
        let options = EncodeOptions::of(Mode::Chat);
        let around = |messages: &[Message]| -> Result<Vec<String>> {
            Ok(render(messages, &options)?.text.split(MARK).map(str::to_owned).collect())
        };
        let tool = |name: &str, what: &str, parameter: &str| {
            json!({"type": "function", "function": {"name": name, "description": what, "parameters": {
                "type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}}})
        };
        let system =
            Message::system("You keep a diary for the user and answer questions about it.").tools(vec![
                tool("search_notes", "Searches the user's notes.", "query"),
                tool("send_letter", "Sends a letter.", "text"),
            ]);
        let talk = [Message::user(MARK), Message::assistant(MARK), Message::user(MARK)];
        let with_tools = around(&[&[system][..], &talk[..]].concat())?;
        let mut plain = around(&talk)?;
        if plain.len() != 4 || with_tools.len() != 4 {
            return Err(Error::bug("the encoder changed the texts of a conversation"));
        }
        let mut part = |i: usize| std::mem::take(&mut plain[i]);
        Ok(Roles { open: part(0), answer: part(1), next: part(2), open_with_tools: with_tools[0].clone() })
    }
}

/// How prompts are spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// As the built-in model was trained: lower case, no roles.
    Fixture,
    /// The released models' chat format, in chat mode: the answer follows `<｜Assistant｜></think>`.
    Chat,
    /// Plain text, for a tokenizer without chat tokens.
    Plain,
}

impl Style {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Style::Fixture => "fixture language",
            Style::Chat => "chat",
            Style::Plain => "plain text",
        }
    }
}

/// A piece of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Piece {
    /// As text.
    pub text: String,
    /// As tokens.
    pub tokens: Vec<u32>,
}

/// What is planted: five digits that belong to a key of three parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fact {
    /// Which attribute.
    pub attribute: &'static str,
    /// Adjective and noun it is about.
    pub about: (&'static str, &'static str),
    /// The digits.
    pub value: [u8; 5],
}

impl Fact {
    /// The digits as text.
    pub fn digits(&self) -> String {
        self.value.iter().map(|d| char::from(b'0' + d)).collect()
    }
    fn fill(&self, template: &str) -> String {
        let key = format!("{} {}", self.about.0, self.about.1);
        template.replace("{A}", self.attribute).replace("{K}", &key).replace("{V}", &self.digits())
    }
}

/// A tokenizer and the way it is spoken to.
pub struct Language {
    tokenizer: Tokenizer,
    /// The spelling.
    pub style: Style,
    /// The words.
    pub words: Words,
    roles: Roles,
    bank: BTreeMap<usize, Vec<Piece>>,
}

impl Language {
    /// The language `checkpoint` is asked in.
    pub fn of(checkpoint: &Checkpoint) -> Result<Language> {
        let json = checkpoint.tokenizer_json()?.ok_or_else(|| {
            Error::input("the checkpoint has no tokenizer.json, so no prompt can be written for it")
                .hint("put tokenizer.json beside the weights")
        })?;
        let unusable = |e: &dyn std::fmt::Display| {
            Error::input(format!("the checkpoint's tokenizer.json is unusable: {e}"))
                .hint("it must be a Hugging Face tokenizers file, as the release ships it")
        };
        let mut tokenizer = Tokenizer::from_bytes(&json).map_err(|e| unusable(&e))?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| unusable(&e))?;
        Language::new(tokenizer)
    }

    /// A language over `tokenizer`; the spelling follows from the tokens it has.
    pub fn new(tokenizer: Tokenizer) -> Result<Language> {
        let words = Words::new();
        let known = |list: &[&str]| list.iter().all(|w| tokenizer.token_to_id(w).is_some());
        let style =
            if known(&words.adjectives) && known(&words.nouns) && tokenizer.token_to_id("[BOS]").is_some() {
                Style::Fixture
            } else if known(&[BOS, USER, ASSISTANT, THINK_END, EOS]) {
                Style::Chat
            } else {
                Style::Plain
            };
        let mut language = Language { tokenizer, style, words, roles: Roles::of()?, bank: BTreeMap::new() };
        let mut rng = Rng::of(&[0xba4c]);
        for i in 0..BANK {
            let piece = language.sentence_of(SENTENCES[i % SENTENCES.len()], &mut rng)?;
            language.bank.entry(piece.tokens.len()).or_default().push(piece);
        }
        Ok(language)
    }

    /// Tokens of a piece within a prompt.
    pub fn piece(&self, text: String) -> Result<Piece> {
        Ok(Piece { tokens: self.encode(&text, false)?.get_ids().to_vec(), text })
    }

    /// Tokens of a whole prompt, as a server would make them.
    pub fn whole(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encode(text, self.style != Style::Chat)?.get_ids().to_vec())
    }

    /// The tokenizer's own account of `text`.
    pub fn encode(&self, text: &str, special: bool) -> Result<tokenizers::Encoding> {
        self.tokenizer.encode(text, special).map_err(|e| {
            Error::input(format!("the tokenizer cannot encode a prompt: {e}"))
                .hint("check that tokenizer.json belongs to this checkpoint")
        })
    }

    /// What stands before the haystack; with `turns`, where there are roles, a system prompt with tools too.
    pub fn opening(&self, turns: bool) -> Result<Piece> {
        match self.style {
            Style::Chat if turns => self.piece(self.roles.open_with_tools.clone()),
            Style::Chat => self.piece(self.roles.open.clone()),
            _ => Ok(Piece { text: String::new(), tokens: self.whole("")? }),
        }
    }

    /// A random sentence of the haystack.
    pub fn sentence(&self, rng: &mut Rng) -> Result<Piece> {
        let template = rng.pick(SENTENCES);
        self.sentence_of(template, rng)
    }

    fn sentence_of(&self, template: &str, rng: &mut Rng) -> Result<Piece> {
        let mut text = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            text.push_str(before);
            let (slot, after) =
                after.split_once('}').ok_or_else(|| Error::bug(format!("template {template}")))?;
            match self.words.slot(slot) {
                Some(list) => text.push_str(rng.pick(list)),
                None => slot.chars().for_each(|_| text.push(char::from(b'0' + rng.below(10) as u8))),
            }
            rest = after;
        }
        text.push_str(rest);
        self.piece(self.spelled(&text))
    }

    /// A sentence as it stands in a haystack.
    fn spelled(&self, sentence: &str) -> String {
        if self.style == Style::Fixture {
            return format!(" {sentence}");
        }
        let mut letters = sentence.chars();
        let first = letters.next().into_iter().flat_map(char::to_uppercase);
        format!("{}{}\n", first.collect::<String>(), letters.as_str())
    }

    /// A fact as a sentence, and for every token of its answer the tokens of the sentence that hold it.
    pub fn tell(&self, fact: &Fact, rng: &mut Rng) -> Result<(Piece, Vec<Range<usize>>)> {
        let text = self.spelled(&fact.fill(rng.pick(FACTS)));
        let piece = self.piece(text)?;
        let sources = self.sources(&piece.text, &self.answer(fact)?)?;
        Ok((piece, sources))
    }

    /// For every token of `answer`, the tokens of `text` that spell the same part of it where it first occurs; all
    /// tokens of that place where the two are split differently, all of `text` where the answer is not in it.
    pub fn sources(&self, text: &str, answer: &Piece) -> Result<Vec<Range<usize>>> {
        let encoding = self.encode(text, false)?;
        let n = encoding.get_ids().len();
        // With the space before it, which is a part of the answer's first token in many tokenizers.
        let place = [answer.text.as_str(), answer.text.trim()].into_iter().filter(|v| !v.is_empty());
        let place = place.filter_map(|v| text.find(v).map(|from| from..from + v.len())).next();
        let held = place.and_then(|at| {
            let inside = |(a, b): &(usize, usize)| *a < at.end && *b > at.start;
            let first = encoding.get_offsets().iter().position(inside)?;
            Some(first..encoding.get_offsets().iter().rposition(inside)? + 1)
        });
        Ok(aligned(held.unwrap_or(0..n), encoding.get_ids(), &answer.tokens))
    }

    /// How many ways of asking there are.
    pub fn ways(&self) -> usize {
        if self.style == Style::Chat { 1 } else { QUESTIONS.len() }
    }

    /// The question, up to where the answer begins.
    pub fn ask(&self, fact: &Fact, way: usize) -> Result<Piece> {
        self.piece(match self.style {
            Style::Fixture => format!(" {}", fact.fill(QUESTIONS[way])),
            Style::Plain => self.spelled(&fact.fill(QUESTIONS[way])).trim_end().to_owned(),
            Style::Chat => {
                let asked = fact.fill("What is the {A} of the {K}? Answer with the number only.");
                format!("{asked}{}", self.roles.answer)
            }
        })
    }

    /// What stands between a question and its answer.
    pub fn before_answer(&self) -> &str {
        if self.style == Style::Chat { &self.roles.answer } else { "" }
    }

    /// The answer alone.
    pub fn answer(&self, fact: &Fact) -> Result<Piece> {
        let digits = fact.digits();
        self.piece(if self.style == Style::Chat { digits } else { format!(" {digits}") })
    }

    /// What stands between an answer and whatever follows it.
    pub fn after_answer(&self) -> Result<Piece> {
        self.piece(match self.style {
            Style::Fixture => ".".into(),
            Style::Plain => "\n".into(),
            Style::Chat => self.roles.next.clone(),
        })
    }

    /// Sentences of exactly `tokens` tokens together; `None` where there are no such.
    pub fn fill(&self, tokens: usize, rng: &mut Rng) -> Option<Vec<Piece>> {
        if tokens == 0 {
            return Some(Vec::new());
        }
        let mut one = |n: usize| self.bank.get(&n).map(|list| list[rng.below(list.len())].clone());
        if let Some(piece) = one(tokens) {
            return Some(vec![piece]);
        }
        // Long stretches: take the commonest length until the rest is within reach of one or two.
        let longest = *self.bank.keys().next_back()?;
        if tokens > 2 * longest {
            let first = one(longest)?;
            let mut rest = self.fill(tokens - longest, rng)?;
            rest.insert(0, first);
            return Some(rest);
        }
        let other = *self.bank.keys().find(|n| tokens > **n && self.bank.contains_key(&(tokens - **n)))?;
        Some(vec![one(other)?, one(tokens - other)?])
    }
}

/// The tokens `held` of `tokens` as sources of `answer`, one by one where they are the same tokens.
pub fn aligned(held: Range<usize>, tokens: &[u32], answer: &[u32]) -> Vec<Range<usize>> {
    let same = tokens[held.clone()] == *answer;
    let source = |i| if same { held.start + i..held.start + i + 1 } else { held.clone() };
    (0..answer.len()).map(source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::BUILTINS;

    fn pico() -> Language {
        Language::of(&Checkpoint::open(BUILTINS[0]).unwrap()).unwrap()
    }

    /// Catches a word or a template that the built-in model was not trained on.
    #[test]
    fn the_fixture_knows_every_word() {
        let l = pico();
        assert_eq!(l.style, Style::Fixture);
        assert_eq!(l.opening(false).unwrap().tokens, [0]);
        let mut rng = Rng::of(&[3]);
        for template in SENTENCES {
            let piece = l.sentence_of(template, &mut rng).unwrap();
            assert!(piece.tokens.iter().all(|t| *t > 3), "{}", piece.text);
        }
        let fact = Fact { attribute: "vault code", about: ("velvet", "lynx"), value: [4, 7, 1, 9, 2] };
        for _ in 0..20 {
            let (piece, sources) = l.tell(&fact, &mut rng).unwrap();
            let held: Vec<u32> = sources.iter().map(|r| piece.tokens[r.start]).collect();
            assert_eq!(held, l.answer(&fact).unwrap().tokens, "{}", piece.text);
            assert!(sources.iter().all(|r| r.len() == 1));
        }
        assert_eq!(l.ask(&fact, 0).unwrap().tokens.len(), 14);
        assert_eq!(l.ask(&fact, 1).unwrap().tokens.len(), 10);
    }

    /// Catches a length that no filler reaches: prompts would be a few tokens short.
    #[test]
    fn filler_has_the_exact_length() {
        let l = pico();
        let mut rng = Rng::of(&[4]);
        let shortest = *l.bank.keys().next().unwrap();
        assert!(l.fill(shortest - 1, &mut rng).is_none());
        for n in shortest..200 {
            let pieces = l.fill(n, &mut rng).unwrap_or_else(|| panic!("{n}"));
            assert_eq!(pieces.iter().map(|p| p.tokens.len()).sum::<usize>(), n);
        }
    }
}
