//! Reads a prompt back: what each piece of any text is by the rules of the encoding, whoever wrote it.

use super::constants::{
    ASSISTANT, BOS, DSML, EFFORT_HIGH, EFFORT_MAX, EFFORT_START, EOS, FORMAT_START, REMINDER, SYSTEM, THINK,
    THINK_END, TOOLS_END, TOOLS_START, USER,
};
use super::message::Role;
use super::rendered::Part;
use std::ops::Range;

/// A piece of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub range: Range<usize>,
    /// The role whose turn it is in.
    pub role: Role,
    pub part: Part,
}

/// Where a turn stands.
#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Before the first role token, or behind a system token.
    System,
    User,
    Reminder,
    Reasoning,
    Answer,
    /// Behind an end token.
    Over,
}

struct Reader<'t> {
    text: &'t str,
    out: Vec<Piece>,
    state: State,
    /// Everything before this is read.
    at: usize,
}

/// The pieces of `text`, whose control tokens are at `control`.
pub(super) fn read(text: &str, control: &[Range<usize>]) -> Vec<Piece> {
    let mut r = Reader { text, out: Vec::new(), state: State::System, at: 0 };
    for (i, c) in control.iter().enumerate() {
        if c.start < r.at || r.tools(c) {
            continue;
        }
        let token = &text[c.clone()];
        if token == DSML && r.state == State::Answer {
            r.calls(
                c,
                control[i..].iter().find(|d| text[(*d).clone()] != *DSML).map_or(text.len(), |d| d.start),
            );
            continue;
        }
        r.words(c.start);
        let part = match token {
            BOS => Part::Bos,
            EOS => r.turn(State::Over, Part::Eos),
            SYSTEM => r.turn(State::System, Part::RoleToken),
            USER => r.turn(State::User, Part::RoleToken),
            REMINDER => r.turn(State::Reminder, Part::RoleToken),
            ASSISTANT => r.turn(State::Answer, Part::AssistantToken),
            THINK => r.turn(State::Reasoning, Part::Marker),
            THINK_END if r.state == State::Reasoning => r.turn(State::Answer, Part::ReasoningEnd),
            THINK_END => r.turn(State::Answer, Part::Marker),
            DSML => Part::Content,
            _ => Part::Task,
        };
        r.push(c.end, part);
    }
    // A tools block may be the last thing there is.
    r.tools(&(text.len()..text.len()));
    r.words(text.len());
    r.out
}

impl Reader<'_> {
    fn role(&self) -> Role {
        match self.state {
            State::System => Role::System,
            State::User => Role::User,
            State::Reminder => Role::LatestReminder,
            _ => Role::Assistant,
        }
    }

    fn turn(&mut self, state: State, part: Part) -> Part {
        self.state = state;
        part
    }

    fn push(&mut self, end: usize, part: Part) {
        if end > self.at {
            self.out.push(Piece { range: self.at..end, role: self.role(), part });
            self.at = end;
        }
    }

    /// Reads a tools block that begins before control token `next`; its own control tokens are text. True if it reaches
    /// beyond that token.
    fn tools(&mut self, next: &Range<usize>) -> bool {
        if !matches!(self.state, State::System | State::User) {
            return false;
        }
        let Some(found) = self.text[self.at..next.start].find(TOOLS_START) else { return false };
        let start = self.at + found;
        let Some(length) = self.text[start..].find(TOOLS_END.trim_start()) else { return false };
        let head = self.text[self.at..start].strip_suffix("\n\n").map_or(start, |h| self.at + h.len());
        self.words(head);
        self.push(start + length + TOOLS_END.trim_start().len(), Part::Tools);
        self.at > next.start
    }

    /// Reads a block of tool calls that ends at `end`.
    fn calls(&mut self, first: &Range<usize>, end: usize) {
        let open = self.text[self.at..first.start].trim_end_matches('<').trim_end_matches('\n');
        self.words(self.at + open.len());
        self.push(end, Part::ToolCalls);
    }

    /// Reads plain text up to `end`.
    fn words(&mut self, end: usize) {
        if end <= self.at {
            return;
        }
        let text = &self.text[self.at..end];
        match self.state {
            State::Reasoning => return self.push(end, Part::Reasoning),
            State::System if text.starts_with(EFFORT_START) => {
                let n = [EFFORT_HIGH, EFFORT_MAX].into_iter().find(|p| text.starts_with(p)).map(str::len);
                let n = n.or_else(|| text.find("\n\n").map(|i| i + 2)).unwrap_or(text.len());
                self.push(self.at + n, Part::Effort);
            }
            State::User => self.results(end),
            _ => {}
        }
        let text = &self.text[self.at..end];
        if let Some(i) = text.find(FORMAT_START).filter(|_| matches!(self.state, State::System | State::User))
        {
            let head = text[..i].strip_suffix("\n\n").map_or(i, str::len);
            self.push(self.at + head, Part::Content);
            return self.push(end, Part::ResponseFormat);
        }
        let blank = !text.is_empty() && text.trim().is_empty();
        self.push(end, if blank { Part::Separator } else { Part::Content });
    }

    /// Reads tool results and what stands between them.
    fn results(&mut self, end: usize) {
        const OPEN: &str = "<tool_result>";
        const CLOSE: &str = "</tool_result>";
        while let Some(i) = self.text[self.at..end].find(OPEN) {
            let start = self.at + i;
            let Some(n) = self.text[start..end].find(CLOSE) else { return };
            let before = &self.text[self.at..start];
            self.push(start - (before.len() - before.trim_end_matches('\n').len()), Part::Content);
            self.push(start, Part::Separator);
            self.push(start + n + CLOSE.len(), Part::ToolResult);
            let rest = &self.text[self.at..end];
            let blank = if rest.starts_with("\n\n") { 2 } else { 0 };
            self.push(self.at + blank, Part::Separator);
        }
    }
}
