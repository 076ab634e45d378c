//! Where two prompts differ: ranges of bytes, put where a reader would put them.

use super::super::lex::Word;
use super::super::reader::Piece;
use super::super::rendered::{Part, Rendered};
use imara_diff::{Algorithm, Diff, InternedInput};
use std::ops::Range;

/// Byte ranges that differ. A hunk that only drops or only adds may lie in several places; it is put where it begins a
/// message, or else a part.
pub(super) fn hunks(
    a: &[Word],
    b: &[Word],
    official: &Rendered,
    sent: &Rendered,
    pieces: &[Piece],
) -> Vec<(Range<usize>, Range<usize>)> {
    let mut input: InternedInput<(bool, &str)> = InternedInput::default();
    input.update_before(a.iter().map(|w| w.token(&official.text)));
    input.update_after(b.iter().map(|w| w.token(&sent.text)));
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
            let rank = |w: usize| starts_sent(pieces, b.get(w).map_or(sent.text.len(), |w| w.range.start));
            slide(&input.after, &y, low.1.end, high.1, rank)
        } else {
            0
        };
        let by = |r: &Range<usize>| (r.start as isize + shift) as usize..(r.end as isize + shift) as usize;
        list[i] = (by(&x), by(&y));
    }
    list.into_iter()
        .map(|(x, y)| {
            let (mut p, mut q) = (bytes(a, &x, &official.text), bytes(b, &y, &sent.text));
            if let (Some(v), Some(w)) = (a[x.clone()].first(), b[y.clone()].first())
                && !v.control
                && !w.control
            {
                let n = common(official.text[v.range.clone()].chars(), sent.text[w.range.clone()].chars());
                (p.start, q.start) = (p.start + n, q.start + n);
            }
            if let (Some(v), Some(w)) = (a[x].last(), b[y].last())
                && !v.control
                && !w.control
            {
                let ends = |r: &Range<usize>, from: usize| r.start.max(from)..r.end;
                let (v, w) = (ends(&v.range, p.start), ends(&w.range, q.start));
                let n = common(official.text[v].chars().rev(), sent.text[w].chars().rev());
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
