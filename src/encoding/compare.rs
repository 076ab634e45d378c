//! What a server sent against what the official encoder makes of the same conversation: which part of which message was
//! dropped, added or changed.

mod hunks;
mod tally;

use super::lex::{Word, spelled, words};
use super::message::Role;
use super::reader::read;
use super::rendered::{Part, Rendered};
use hunks::hunks;
use std::ops::Range;
use tally::Tally;

/// What happened to a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All of it is missing.
    Dropped,
    /// Something is missing from its start.
    CutAtStart,
    /// Something is missing from its end.
    CutAtEnd,
    /// Something is missing within it.
    CutInside,
    /// It is there and should not be, or more of it than should be.
    Added,
    /// It says something else.
    Changed,
    /// It stands elsewhere.
    Moved,
    /// The same characters are other tokens: control tokens, or no longer.
    Respelled,
}

impl Kind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Dropped => "dropped",
            Kind::CutAtStart => "cut at its start",
            Kind::CutAtEnd => "cut at its end",
            Kind::CutInside => "cut",
            Kind::Added => "added",
            Kind::Changed => "changed",
            Kind::Moved => "moved",
            Kind::Respelled => "turned into other tokens",
        }
    }
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Index of the message; `None` for what belongs to none, like BOS or the start of the model's turn.
    pub message: Option<usize>,
    /// Its role, or for what was added the role whose turn it stands in.
    pub role: Option<Role>,
    /// The part; `None` for the whole message.
    pub part: Option<Part>,
    /// What happened.
    pub kind: Kind,
    /// Characters missing.
    pub removed: usize,
    /// Characters added.
    pub inserted: usize,
    /// Byte of the official prompt where it begins.
    pub expected_at: usize,
    /// Byte of the server's prompt where it begins.
    pub sent_at: usize,
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Comparison {
    /// Differences, the gravest first. Empty if the prompts are equal.
    pub changes: Vec<Change>,
    /// First byte that differs, in the official prompt and in the server's.
    pub first: Option<(usize, usize)>,
    /// What was sent is the end of the official prompt, or its beginning: so many characters are cut off in one piece.
    pub cut: Option<Cut>,
}

/// A prompt cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// At its front, by so many characters.
    Front(usize),
    /// At its end, by so many characters.
    End(usize),
}

/// Text as a server logs it: every spelled control token counts as one.
pub fn as_sent(text: &str) -> Rendered {
    Rendered { text: text.to_owned(), spans: Vec::new(), control: spelled(text).collect() }
}

/// The official prompt read as plain text, for a comparison with [`as_sent`].
pub fn as_logged(official: &Rendered) -> Rendered {
    Rendered { control: spelled(&official.text).collect(), ..official.clone() }
}

/// Compares the official prompt with what was sent.
pub fn compare(official: &Rendered, sent: &Rendered) -> Comparison {
    let (a, b) = (words(official), words(sent));
    let first = a.iter().zip(&b).position(|(x, y)| x.token(&official.text) != y.token(&sent.text));
    let first = match first {
        Some(i) => (a[i].range.start, b[i].range.start),
        None if a.len() == b.len() => return Comparison::default(),
        None => {
            let at = |w: &[Word], other: &[Word], text: &str| {
                w.get(other.len().min(w.len())).map_or(text.len(), |w| w.range.start)
            };
            (at(&a, &b, &official.text), at(&b, &a, &sent.text))
        }
    };
    let pieces = read(&sent.text, &sent.control);
    let hunks = hunks(&a, &b, official, sent, &pieces);
    let mut tally = Tally::new(official, sent, pieces);
    hunks.into_iter().for_each(|(x, y)| tally.hunk(x, y));
    let lost = |range: Range<usize>| official.text[range].chars().count();
    let (n, m) = (official.text.len(), sent.text.len());
    let cut = match (official.text.ends_with(&sent.text), official.text.starts_with(&sent.text)) {
        _ if m >= n || m == 0 => None,
        (true, _) => Some(Cut::Front(lost(0..n - m))),
        (_, true) => Some(Cut::End(lost(m..n))),
        _ => None,
    };
    Comparison { changes: tally.changes(), first: Some(first), cut }
}
