//! What a server sent against the official prompt: the facts of the report.

use super::{EncodeArgs, Plan, head, text};
use crate::cli::{Globals, write_json, write_text};
use crate::encoding::{Attribution, Change, Comparison, Cut, Part, Rendered, Tokens, attribute, compare};
use crate::error::{Result, exit};
use serde_json::{Value, json};
use std::io::Write;

/// Both prompts; token ids if the server's are known.
pub(super) struct Sides {
    pub official: Rendered,
    pub sent: Rendered,
    pub ids: Option<(Tokens, Vec<u32>)>,
}

/// The first place where they differ.
pub(super) struct First {
    /// Bytes of the official and of the sent text.
    pub bytes: (usize, usize),
    /// Index of the first token that differs, and both ids there; an id is missing past the end.
    pub token: Option<(usize, Option<u32>, Option<u32>)>,
}

/// Everything both writers say.
pub(super) struct Report<'a> {
    pub plan: &'a Plan,
    pub sides: Sides,
    pub found: Comparison,
    pub first: Option<First>,
    pub explained: Attribution,
    pub hints: Vec<&'static str>,
}

/// Compares, writes, and gives the exit code.
pub(super) fn report(
    args: &EncodeArgs,
    plan: &Plan,
    sides: Sides,
    global: &Globals,
    out: &mut dyn Write,
) -> Result<i32> {
    let found = compare(&sides.official, &sides.sent);
    let first = first(&sides, &found);
    let explained = match &first {
        Some(_) if !found.changes.is_empty() => {
            attribute(&plan.request.messages, &plan.options, &sides.sent.text)
        }
        _ => Attribution::default(),
    };
    let hints = hints(&sides, &found);
    let r = Report { plan, sides, found, first, explained, hints };
    if args.json {
        write_json(out, &r.json())?;
    } else {
        plan.notes.iter().for_each(|n| global.note(n));
        write_text(out, &text::text(&r))?;
    }
    Ok(if r.first.is_some() { exit::DIFFERENCE } else { exit::OK })
}

fn first(sides: &Sides, found: &Comparison) -> Option<First> {
    let token = sides.ids.as_ref().and_then(|(t, sent)| {
        let same = t.ids.iter().zip(sent).take_while(|(a, b)| a == b).count();
        let differs = t.ids.len() != sent.len() || same < sent.len();
        differs.then(|| (same, t.ids.get(same).copied(), sent.get(same).copied()))
    });
    match (&sides.ids, token, found.first) {
        // Equal ids are equal, whatever decoding them loses.
        (Some(_), None, _) | (None, _, None) => None,
        (_, token, Some(bytes)) => Some(First { bytes, token }),
        (Some((t, _)), Some((i, _, _)), None) => {
            let at = t.ranges.get(i).map_or(sides.official.text.len(), |r| r.start);
            Some(First { bytes: (at, at), token })
        }
    }
}

fn hints(sides: &Sides, found: &Comparison) -> Vec<&'static str> {
    let mut out = Vec::new();
    let only = |part| found.changes.iter().all(|c| c.part == Some(part)) && !found.changes.is_empty();
    if sides.ids.is_none() && only(Part::Bos) && found.changes[0].inserted == 0 {
        out.push("a server whose tokenizer adds BOS logs the prompt without it; --against-ids decides");
    }
    if sides.sent.text.strip_suffix('\n') == Some(&sides.official.text) {
        out.push("the newline at the end may come from the file and not from the server");
    }
    out
}

impl Report<'_> {
    /// Where a change is, in words.
    pub(super) fn place(&self, c: &Change) -> String {
        let part = c.part.map(|p| p.name());
        let role = c.role.map(|r| format!(" ({})", r.name())).unwrap_or_default();
        match (c.message, part) {
            (Some(m), Some(p)) => format!("{p} of {}{role}", self.plan.request.label(m)),
            (Some(m), None) => format!("{}{role}", self.plan.request.label(m)),
            (None, Some("assistant token" | "thinking marker")) => {
                format!("{} at the end", part.unwrap_or_default())
            }
            (None, p) => p.unwrap_or("text").to_owned(),
        }
    }

    /// The verdict, in one sentence.
    pub(super) fn why(&self) -> String {
        if self.first.is_none() {
            return match &self.sides.ids {
                Some((t, _)) => format!("the same {} tokens", t.ids.len()),
                None => format!("the same {} characters", self.sides.official.text.chars().count()),
            };
        }
        match self.found.cut {
            Some(Cut::Front(n)) if self.found.changes.len() > 2 => {
                return format!("{n} characters are cut off at the front");
            }
            Some(Cut::End(n)) if self.found.changes.len() > 2 => {
                return format!("{n} characters are cut off at the end");
            }
            _ => {}
        }
        let Some(c) = self.found.changes.first() else {
            return "the same text, other tokens".into();
        };
        // Neighbours that share a fate are one clause.
        let mut run = self.found.changes.iter().take_while(|d| d.part.is_none() && d.kind == c.kind);
        let last = run.by_ref().last().filter(|d| d.message != c.message);
        let rest = match last {
            Some(_) => self.found.changes.iter().filter(|d| !(d.part.is_none() && d.kind == c.kind)).count(),
            None => self.found.changes.len() - 1,
        };
        let mut s = self.place(c);
        if let Some(last) = last {
            let n = self.found.changes.len() - rest;
            s = format!("{n} messages, {s} to {},", self.place(last));
        }
        s += &format!(" {}", c.kind.name());
        if rest > 0 {
            s += &format!(", and {rest} more");
        }
        s
    }

    fn json(&self) -> Value {
        let chars = |text: &str, at: usize| text[..at].chars().count();
        let (a, b) = (&self.sides.official.text, &self.sides.sent.text);
        let change = |c: &Change| {
            json!({
                "message": c.message,
                "label": c.message.map(|m| self.plan.request.label(m)),
                "role": c.role.map(|r| r.name()),
                "part": c.part.map(|p| p.name()),
                "kind": c.kind.name(),
                "removed": c.removed,
                "inserted": c.inserted,
                "official_char": chars(a, c.expected_at),
                "sent_char": chars(b, c.sent_at),
            })
        };
        let mut v = head(self.plan, "dsv4.encode-diff/1");
        v["verdict"] = json!({
            "status": if self.first.is_some() { "differs" } else { "same" },
            "why": self.why(),
        });
        v["changes"] = self.found.changes.iter().map(change).collect();
        v["first"] = json!(self.first.as_ref().map(|f| {
            let (official, sent) = text::excerpts(self, f);
            json!({
                "official_char": chars(a, f.bytes.0),
                "sent_char": chars(b, f.bytes.1),
                "token": f.token.map(|t| t.0),
                "official_id": f.token.and_then(|t| t.1),
                "sent_id": f.token.and_then(|t| t.2),
                "official": official,
                "sent": sent,
            })
        }));
        v["explained_by"] = self
            .explained
            .matches
            .iter()
            .map(|m| json!({"faults": m.faults.iter().map(|f| f.name).collect::<Vec<_>>(), "settings": m.settings}))
            .collect();
        v["gave_up"] = json!(self.explained.gave_up);
        v["hints"] = json!(self.hints);
        v["notes"] = json!(self.plan.notes);
        v
    }
}
