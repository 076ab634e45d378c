//! The report of a comparison for people.

use super::diff::{First, Report};
use crate::cli::table::{Column, grouped, table, wrapped};
use crate::encoding::{Attribution, PromptFault};

/// Characters shown on each side of the first difference.
const BEFORE: usize = 24;
const AFTER: usize = 38;
/// Rows shown.
const ROWS: usize = 12;

/// The report.
pub(super) fn text(r: &Report) -> String {
    let o = &r.plan.options;
    let how = format!(
        "{} encoder, {} mode{}{}; {} messages",
        o.encoder.name(),
        o.mode.name(),
        o.effort.map(|e| format!(", effort {}", e.name())).unwrap_or_default(),
        if o.drop_thinking { "" } else { ", thinking kept" },
        r.plan.request.messages.len() - r.plan.request.inserted as usize,
    );
    let Some(first) = &r.first else {
        return wrapped(&format!("SAME: {}", r.why()), 0) + &wrapped(&how, 2);
    };
    let mut t = wrapped(&format!("DIFFERS: {}", r.why()), 0);
    t += &wrapped(&how, 2);
    if !r.found.changes.is_empty() {
        t.push('\n');
        t += &changes(r);
    }
    t.push('\n');
    let (official, sent) = excerpts(r, first);
    let place = r.sides.official.text[..first.bytes.0].chars().count();
    let mut line = format!("first difference at character {}", grouped(place as u64));
    if let Some((i, a, b)) = first.token {
        let id = |x: Option<u32>| x.map_or("the end".into(), |x| x.to_string());
        line += &format!(", token {}: {} official, {} sent", grouped(i as u64), id(a), id(b));
    }
    t += &format!("{line}\n  official  {official}\n  sent      {sent}\n\n");
    if r.found.cut.is_none() || !r.explained.matches.is_empty() {
        t += &explained(&r.explained);
    }
    for h in &r.hints {
        t += &wrapped(&format!("hint: {h}"), 0);
    }
    t
}

fn changes(r: &Report) -> String {
    let rows = r.found.changes.iter().take(ROWS).map(|c| {
        vec![
            r.place(c),
            c.kind.name().into(),
            grouped(c.removed as u64),
            grouped(c.inserted as u64),
            grouped(r.sides.official.text[..c.expected_at].chars().count() as u64),
        ]
    });
    let mut t = table(
        &[
            ("part", Column::Word),
            ("what", Column::Word),
            ("missing", Column::Number),
            ("added", Column::Number),
            ("at", Column::Number),
        ],
        rows,
    );
    let more = r.found.changes.len().saturating_sub(ROWS);
    if more > 0 {
        t += &format!("\nand {more} more; --json has all");
    }
    t + "\nmissing, added: characters. at: character of the official prompt.\n"
}

/// Both prompts around the first difference, on one line each.
pub(super) fn excerpts(r: &Report, first: &First) -> (String, String) {
    let cut = |text: &str, at: usize| {
        let head: Vec<char> = text[..at].chars().rev().take(BEFORE + 1).collect();
        let tail: Vec<char> = text[at..].chars().take(AFTER + 1).collect();
        let mut s = String::new();
        if head.len() > BEFORE {
            s.push('…');
        }
        head.iter().take(BEFORE).rev().chain(tail.iter().take(AFTER)).for_each(|c| match c {
            c if c.is_control() => s.extend(c.escape_default()),
            c => s.push(*c),
        });
        if tail.len() > AFTER {
            s.push('…');
        } else {
            s.push_str(" [end]");
        }
        s
    };
    (cut(&r.sides.official.text, first.bytes.0), cut(&r.sides.sent.text, first.bytes.1))
}

/// What makes exactly this prompt.
fn explained(found: &Attribution) -> String {
    let matches = &found.matches;
    if matches.is_empty() {
        let t = wrapped("no known fault and no other setting makes exactly this prompt", 0);
        let gave_up = "(the prompt is long: not every pair of them was tried)";
        return if found.gave_up { t + &wrapped(gave_up, 0) } else { t };
    }
    let mut t = String::from("makes exactly this prompt:\n");
    for m in matches.iter().take(4) {
        let mut line = m.settings.join(" ");
        for (i, f) in m.faults.iter().enumerate() {
            line += if line.is_empty() {
                ""
            } else if i > 0 {
                " and "
            } else {
                " with "
            };
            line += &format!("fault {} (class {}): {}", f.name, PromptFault::CLASS, f.looks);
        }
        t += &wrapped(&line, 2);
    }
    if matches.len() > 4 {
        t += &format!("  and {} more; --json has all\n", matches.len() - 4);
    }
    if matches.len() > 1 {
        t += &wrapped("this conversation cannot tell them apart", 0);
    }
    t
}
