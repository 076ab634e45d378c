//! Control tokens where text spells them.

use super::constants::CONTROL;
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
