//! What a server sent against what the official encoder makes of the same conversation: which part of which message was
//! dropped, added or changed.

use super::lex::{Word, spelled, words};
use super::message::Role;
use super::reader::{Piece, read};
use super::rendered::{Part, Rendered, Span};
use imara_diff::{Algorithm, Diff, InternedInput};
use std::ops::Range;

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
    let mut tally = Tally { official, sent, pieces: read(&sent.text, &sent.control), parts: Vec::new() };
    for (x, y) in hunks(&a, &b, official, &tally) {
        tally.hunk(x, y);
    }
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

/// Byte ranges that differ. A hunk that only drops or only adds may lie in several places; it is put where it begins a
/// message, or else a part.
fn hunks(a: &[Word], b: &[Word], official: &Rendered, tally: &Tally) -> Vec<(Range<usize>, Range<usize>)> {
    let mut input: InternedInput<(bool, &str)> = InternedInput::default();
    input.update_before(a.iter().map(|w| w.token(&official.text)));
    input.update_after(b.iter().map(|w| w.token(&tally.sent.text)));
    let diff = Diff::compute(Algorithm::Histogram, &input);
    let bytes = |w: &[Word], r: &Range<usize>, text: &str| {
        let at = |i: usize| w.get(i).map_or(text.len(), |w| w.range.start);
        at(r.start)..at(r.end)
    };
    let mut list: Vec<(Range<usize>, Range<usize>)> = diff
        .hunks()
        .map(|h| {
            (h.before.start as usize..h.before.end as usize, h.after.start as usize..h.after.end as usize)
        })
        .collect();
    for i in 0..list.len() {
        let low = if i > 0 { list[i - 1].clone() } else { (0..0, 0..0) };
        let high = list.get(i + 1).map_or((a.len(), b.len()), |n| (n.0.start, n.1.start));
        let (x, y) = list[i].clone();
        let shift = if y.is_empty() {
            let rank =
                |w: usize| starts_official(official, a.get(w).map_or(official.text.len(), |w| w.range.start));
            slide(&input.before, &x, low.0.end, high.0, rank)
        } else if x.is_empty() {
            let rank = |w: usize| {
                starts_sent(&tally.pieces, b.get(w).map_or(tally.sent.text.len(), |w| w.range.start))
            };
            slide(&input.after, &y, low.1.end, high.1, rank)
        } else {
            0
        };
        let by = |r: &Range<usize>| (r.start as isize + shift) as usize..(r.end as isize + shift) as usize;
        list[i] = (by(&x), by(&y));
    }
    list.into_iter()
        .map(|(x, y)| {
            let (mut p, mut q) = (bytes(a, &x, &official.text), bytes(b, &y, &tally.sent.text));
            if let (Some(v), Some(w)) = (a[x.clone()].first(), b[y.clone()].first())
                && !v.control
                && !w.control
            {
                let n =
                    common(official.text[v.range.clone()].chars(), tally.sent.text[w.range.clone()].chars());
                (p.start, q.start) = (p.start + n, q.start + n);
            }
            if let (Some(v), Some(w)) = (a[x].last(), b[y].last())
                && !v.control
                && !w.control
            {
                let ends = |r: &Range<usize>, from: usize| r.start.max(from)..r.end;
                let (v, w) = (ends(&v.range, p.start), ends(&w.range, q.start));
                let n = common(official.text[v].chars().rev(), tally.sent.text[w].chars().rev());
                (p.end, q.end) = (p.end - n, q.end - n);
            }
            (p, q)
        })
        .collect()
}

/// Bytes that both begin with.
fn common(a: impl Iterator<Item = char>, b: impl Iterator<Item = char>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

/// How good a place to begin a hunk byte `at` is.
fn starts_official(official: &Rendered, at: usize) -> u32 {
    let i = official.spans.partition_point(|s| s.range.start < at);
    match official.spans.get(i) {
        Some(s) if s.range.start == at => {
            let before = i.checked_sub(1).and_then(|i| official.spans.get(i));
            1 + (before.is_none_or(|b| b.message != s.message)) as u32
        }
        _ => 0,
    }
}

fn starts_sent(pieces: &[Piece], at: usize) -> u32 {
    let i = pieces.partition_point(|p| p.range.start < at);
    match pieces.get(i) {
        Some(p) if p.range.start == at => {
            1 + matches!(p.part, Part::RoleToken | Part::AssistantToken | Part::Bos) as u32
        }
        _ => 0,
    }
}

/// How far a hunk of one sequence can move, by its best start within `low..=high`; the least move among equals.
fn slide<T: PartialEq>(
    seq: &[T],
    r: &Range<usize>,
    low: usize,
    high: usize,
    rank: impl Fn(usize) -> u32,
) -> isize {
    let mut best = (rank(r.start), 0isize);
    let mut try_at = |shift: isize| {
        let rank = rank((r.start as isize + shift) as usize);
        if rank > best.0 {
            best = (rank, shift);
        }
        best.0 < 2
    };
    let mut n = 0;
    while r.start - n > low && seq[r.start - n - 1] == seq[r.end - n - 1] {
        n += 1;
        if !try_at(-(n as isize)) {
            break;
        }
    }
    let mut n = 0;
    while r.end + n < high && seq[r.start + n] == seq[r.end + n] {
        n += 1;
        if !try_at(n as isize) {
            break;
        }
    }
    best.1
}

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
}

/// Collects hunks by message and part.
struct Tally<'r> {
    official: &'r Rendered,
    sent: &'r Rendered,
    pieces: Vec<Piece>,
    parts: Vec<Entry>,
}

impl Tally<'_> {
    fn hunk(&mut self, x: Range<usize>, y: Range<usize>) {
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
            });
            self.parts.len() - 1
        });
        &mut self.parts[i]
    }

    /// The verdict on every part, the gravest first.
    fn changes(mut self) -> Vec<Change> {
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
        let mut list: Vec<Change> = self.parts.iter().map(|e| e.change.clone()).collect();
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
