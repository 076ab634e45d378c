//! Control tokens where text spells them, and the words of a prompt.

use super::constants::CONTROL;
use super::rendered::Rendered;
use std::ops::Range;

/// Byte ranges of `text` that spell a control token, in order.
pub(super) fn spelled(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            // Every control token starts with `<` or, for DSML, with the bar.
            let i = at + text[at..].find(['<', '｜'])?;
            let found = CONTROL.iter().find(|(t, _)| text[i..].starts_with(t));
            at = i + found
                .map_or_else(|| text[i..].chars().next().map_or(1, char::len_utf8), |(t, _)| t.len());
            if found.is_some() {
                return Some(i..at);
            }
        }
    })
}

/// Control tokens that messages spell: index of the message, token.
pub fn spelled_in_messages(prompt: &Rendered) -> Vec<(usize, &str)> {
    let mut control = prompt.control.iter().peekable();
    let mut out = Vec::new();
    for r in spelled(&prompt.text) {
        while control.next_if(|c| c.end <= r.start).is_some() {}
        if control.peek().is_some_and(|c| **c == r) {
            continue;
        }
        if let Some(i) = prompt.at(r.start).and_then(|s| s.message) {
            out.push((i, &prompt.text[r]));
        }
    }
    out
}

/// A word, a run of one kind of white space, any other character, or a control token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub range: Range<usize>,
    pub control: bool,
}

impl Word {
    /// What makes two words equal.
    pub(super) fn token<'t>(&self, text: &'t str) -> (bool, &'t str) {
        (self.control, &text[self.range.clone()])
    }
}

/// The words of a prompt, without gaps.
pub(super) fn words(prompt: &Rendered) -> Vec<Word> {
    let mut out = Vec::new();
    let mut at = 0;
    for c in prompt.control.iter().chain(std::iter::once(&(prompt.text.len()..prompt.text.len()))) {
        let mut last: Option<char> = None;
        for (i, ch) in prompt.text[at..c.start].char_indices() {
            let start = at + i;
            let joins = last.is_some_and(|l: char| {
                (l.is_alphanumeric() && ch.is_alphanumeric()) || (l == ch && ch.is_whitespace())
            });
            match out.last_mut() {
                Some(Word { range, control: false }) if joins => range.end = start + ch.len_utf8(),
                _ => out.push(Word { range: start..start + ch.len_utf8(), control: false }),
            }
            last = Some(ch);
        }
        if !c.is_empty() {
            out.push(Word { range: c.clone(), control: true });
        }
        at = c.end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelled_tokens_are_found_where_they_are() {
        let text = "a<｜User｜><think<think></｜DSML｜x></think>｜<";
        let found: Vec<&str> = spelled(text).map(|r| &text[r]).collect();
        assert_eq!(found, ["<｜User｜>", "<think>", "｜DSML｜", "</think>"]);
        assert_eq!(spelled("").count() + spelled("<｜｜<").count(), 0);
    }
}
