//! What differs, gathered by message and part.

use super::super::message::Role;
use super::super::reader::Piece;
use super::super::rendered::{Part, Rendered, Span};
use super::{Change, Kind};
use std::ops::Range;

/// What became of one part of one message.
struct Entry {
    change: Change,
    /// Bytes it has in the official prompt, and those of them that are missing.
    span: Option<Range<usize>>,
    length: usize,
    gone: Vec<Range<usize>>,
    /// Text that came instead, and whether any of it stands where something is missing.
    came: String,
    here: bool,
    /// Byte of the official prompt where it stands.
    came_at: usize,
}

/// Collects hunks by message and part.
pub(super) struct Tally<'r> {
    official: &'r Rendered,
    sent: &'r Rendered,
    pieces: Vec<Piece>,
    parts: Vec<Entry>,
}

impl<'r> Tally<'r> {
    /// Nothing yet. `pieces` are those of `sent`.
    pub(super) fn new(official: &'r Rendered, sent: &'r Rendered, pieces: Vec<Piece>) -> Self {
        Tally { official, sent, pieces, parts: Vec::new() }
    }

    pub(super) fn hunk(&mut self, x: Range<usize>, y: Range<usize>) {
        let official = self.official;
        let first = official.spans.partition_point(|s| s.range.end <= x.start);
        let touched: Vec<usize> =
            (first..official.spans.len()).take_while(|i| official.spans[*i].range.start < x.end).collect();
        for i in &touched {
            let s = &official.spans[*i];
            let gone = x.start.max(s.range.start)..x.end.min(s.range.end);
            if gone.is_empty() {
                continue;
            }
            let e = self.entry(s.message, s.role, s.part, (gone.start, y.start));
            e.gone.push(gone);
        }
        // Pieces of the sent prompt within the hunk.
        let first = self.pieces.partition_point(|p| p.range.end <= y.start);
        let mut at = y.start;
        for p in first..self.pieces.len() {
            if at >= y.end {
                break;
            }
            let piece = self.pieces[p].clone();
            let end = piece.range.end.min(y.end);
            self.came(&x, at..end, &piece);
            at = end;
        }
    }

    /// Text that came where official bytes `x` were.
    fn came(&mut self, x: &Range<usize>, y: Range<usize>, piece: &Piece) {
        let spans = &self.official.spans;
        let text = &self.sent.text[y.clone()];
        let at = spans.partition_point(|s| s.range.end <= x.start);
        let blank = text.trim().is_empty();
        let part = match piece.part {
            Part::Content | Part::Reasoning if blank => Part::Separator,
            p => p,
        };
        // What comes within one part, or in place of it, is that part, whatever it looks like.
        let within = |s: &&Span| match x.is_empty() {
            true => s.range.start < x.start && x.end < s.range.end,
            false => s.range.start <= x.start && x.end <= s.range.end,
        };
        let inside = spans.get(at).filter(within);
        // Else it is what is missing elsewhere, or else more of a neighbour of the same kind.
        let moved = || {
            spans
                .iter()
                .find(|s| s.part == part && has_words(part) && self.official.text[s.range.clone()] == *text)
        };
        let end = spans.partition_point(|s| s.range.start < x.end).max(at);
        let near = at.saturating_sub(1)..(end + 1).min(spans.len());
        let same = || spans[at..end].iter().chain(&spans[near]).find(|s| s.part == part);
        let home = inside.or_else(moved).or_else(same);
        let here = home.is_some_and(|s| s.range.start < x.end && x.start < s.range.end);
        let (message, role, part) = match home {
            Some(s) => (s.message, s.role, s.part),
            None if matches!(part, Part::Bos | Part::Effort) => (None, None, part),
            None => (spans.get(at).and_then(|s| s.message), Some(piece.role), part),
        };
        let e = self.entry(message, role, part, (x.start, y.start));
        e.came.push_str(text);
        e.here |= here;
        e.came_at = x.start;
    }

    fn entry(
        &mut self,
        message: Option<usize>,
        role: Option<Role>,
        part: Part,
        at: (usize, usize),
    ) -> &mut Entry {
        let i = self.parts.iter().position(|e| e.change.message == message && e.change.part == Some(part));
        let i = i.unwrap_or_else(|| {
            let of = self.official.spans.iter().filter(|s| s.message == message && s.part == part);
            let (mut span, mut length): (Option<Range<usize>>, usize) = (None, 0);
            for s in of {
                span = Some(span.map_or(s.range.clone(), |r| r.start..s.range.end));
                length += s.range.len();
            }
            let change = Change {
                message,
                role,
                part: Some(part),
                kind: Kind::Changed,
                removed: 0,
                inserted: 0,
                expected_at: at.0,
                sent_at: at.1,
            };
            self.parts.push(Entry {
                change,
                span,
                length,
                gone: Vec::new(),
                came: String::new(),
                here: false,
                came_at: at.0,
            });
            self.parts.len() - 1
        });
        &mut self.parts[i]
    }

    /// The verdict on every part, the gravest first.
    pub(super) fn changes(mut self) -> Vec<Change> {
        for e in &mut self.parts {
            let gone: usize = e.gone.iter().map(Range::len).sum();
            let text: String = e.gone.iter().map(|r| &self.official.text[r.clone()]).collect();
            e.change.removed = text.chars().count();
            e.change.inserted = e.came.chars().count();
            e.change.kind = match (&e.span, gone, e.came.is_empty()) {
                (_, 0, _) => Kind::Added,
                _ if text == e.came && e.here => Kind::Respelled,
                _ if text == e.came => Kind::Moved,
                (_, n, true) if n == e.length => Kind::Dropped,
                (Some(s), _, true) if e.gone.len() == 1 && e.gone[0].start == s.start => Kind::CutAtStart,
                (Some(s), _, true) if e.gone.len() == 1 && e.gone[0].end == s.end => Kind::CutAtEnd,
                (_, _, true) => Kind::CutInside,
                _ => Kind::Changed,
            };
        }
        let mut list: Vec<Change> = self.parts.iter().map(|e| self.mover(e)).collect();
        // A message all of whose words are gone is gone as a whole.
        let mut lost: Vec<usize> =
            list.iter().filter(|c| c.kind == Kind::Dropped).filter_map(|c| c.message).collect();
        lost.sort_unstable();
        lost.dedup();
        lost.retain(|m| {
            let mut of =
                self.official.spans.iter().filter(|s| s.message == Some(*m) && has_words(s.part)).peekable();
            let gone = |part| {
                list.iter().any(|c| c.message == Some(*m) && c.part == Some(part) && c.kind == Kind::Dropped)
            };
            of.peek().is_some() && of.all(|s| gone(s.part)) && !self.only_part_of_more(*m)
        });
        for m in lost {
            let mut of: Vec<Change> = Vec::new();
            list.retain(|c| {
                let taken = c.message == Some(m) && c.kind == Kind::Dropped;
                if taken {
                    of.push(c.clone());
                }
                !taken
            });
            let mut whole = of[0].clone();
            whole.part = None;
            whole.removed = of.iter().map(|c| c.removed).sum();
            whole.expected_at = of.iter().map(|c| c.expected_at).min().unwrap_or(0);
            list.push(whole);
        }
        // Markers around reasoning come and go with it.
        let reasons: Vec<Option<usize>> =
            list.iter().filter(|c| c.part == Some(Part::Reasoning)).map(|c| c.message).collect();
        list.retain(|c| {
            !(matches!(c.part, Some(Part::Marker | Part::ReasoningEnd)) && reasons.contains(&c.message))
        });
        list.sort_by_key(|c| (gravity(c), c.expected_at, c.message));
        list
    }

    /// The change; but where a message's text and a part of the template changed places, it is the template that moved.
    fn mover(&self, e: &Entry) -> Change {
        let mut change = e.change.clone();
        let (Kind::Moved, Some(Part::Content), Some(own)) = (change.kind, change.part, &e.span) else {
            return change;
        };
        let crossed = own.end.min(e.came_at)..own.start.max(e.came_at);
        let mut spans = self
            .official
            .spans
            .iter()
            .filter(|s| crossed.start <= s.range.start && s.range.end <= crossed.end);
        if let (Some(s), None) = (spans.next(), spans.next())
            && matches!(s.part, Part::Effort | Part::Tools | Part::ResponseFormat)
        {
            let n = self.official.text[s.range.clone()].chars().count();
            (change.message, change.role, change.part) = (s.message, s.role, Some(s.part));
            (change.removed, change.inserted, change.expected_at) = (n, n, s.range.start);
        }
        change
    }

    /// True if words of a message stand but a part of it, such as its reasoning, is all the encoder shows. Then its loss is
    /// the loss of that part.
    fn only_part_of_more(&self, message: usize) -> bool {
        let parts = |p| self.official.spans.iter().any(|s| s.message == Some(message) && s.part == p);
        parts(Part::Reasoning) && !parts(Part::Content) && !parts(Part::ToolCalls)
    }
}

/// Parts that hold what somebody said.
fn has_words(p: Part) -> bool {
    matches!(
        p,
        Part::Content | Part::ToolResult | Part::ToolCalls | Part::Reasoning | Part::Tools | Part::Effort
    )
}

/// Lost words before lost structure, and words that are only elsewhere in between.
fn gravity(c: &Change) -> u32 {
    match c.part {
        None => 0,
        Some(p) if c.kind == Kind::Moved && has_words(p) => 8,
        Some(Part::Content) => 1,
        Some(Part::ToolResult) => 2,
        Some(Part::Tools) => 3,
        Some(Part::ToolCalls) => 4,
        Some(Part::Reasoning) => 5,
        Some(Part::Effort) => 6,
        Some(Part::ResponseFormat) => 7,
        Some(Part::Task) => 8,
        Some(Part::RoleToken) => 9,
        Some(Part::AssistantToken) => 10,
        Some(Part::Marker | Part::ReasoningEnd) => 11,
        Some(Part::Eos) => 12,
        Some(Part::Bos) => 13,
        Some(Part::Separator) => 14,
    }
}
