//! A rendered prompt, which knows where every message and part of it lies.

use super::message::Role;
use std::ops::Range;

/// What a piece of the prompt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The token that starts the prompt.
    Bos,
    /// The paragraph on reasoning effort.
    Effort,
    /// The token that starts a user, system or reminder turn.
    RoleToken,
    /// Text of the message.
    Content,
    /// The blank line between blocks of one turn.
    Separator,
    /// `<tool_result>` … `</tool_result>`.
    ToolResult,
    /// The tools block.
    Tools,
    /// The response format.
    ResponseFormat,
    /// `<｜Assistant｜>`.
    AssistantToken,
    /// `<think>` or `</think>` right behind it.
    Marker,
    /// Reasoning.
    Reasoning,
    /// `</think>` behind reasoning.
    ReasoningEnd,
    /// Tool calls.
    ToolCalls,
    /// The token that ends an assistant turn.
    Eos,
    /// A task token.
    Task,
}

impl Part {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Part::Bos => "BOS",
            Part::Effort => "effort paragraph",
            Part::RoleToken => "role token",
            Part::Content => "content",
            Part::Separator => "white space",
            Part::ToolResult => "tool result",
            Part::Tools => "tools block",
            Part::ResponseFormat => "response format",
            Part::AssistantToken => "assistant token",
            Part::Marker => "thinking marker",
            Part::Reasoning => "reasoning",
            Part::ReasoningEnd => "end of reasoning",
            Part::ToolCalls => "tool calls",
            Part::Eos => "end token",
            Part::Task => "task token",
        }
    }
}

/// A piece of the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Bytes of the text.
    pub range: Range<usize>,
    /// Index of the message it comes from; `None` for what belongs to no message: BOS, the effort paragraph, and the start
    /// of the model's turn at the end.
    pub message: Option<usize>,
    /// Role of that message.
    pub role: Option<Role>,
    /// What it is.
    pub part: Part,
}

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rendered {
    /// What the model reads.
    pub text: String,
    /// Its pieces, in order, without gaps.
    pub spans: Vec<Span>,
    /// Byte ranges the encoder wrote as control tokens. The same characters anywhere else came from a message.
    pub control: Vec<Range<usize>>,
}

impl Rendered {
    /// Bytes of one part of a message, from its first piece to its last.
    pub fn range(&self, message: usize, part: Part) -> Option<Range<usize>> {
        let mut of = self.spans.iter().filter(|s| s.message == Some(message) && s.part == part);
        let first = of.next()?;
        Some(first.range.start..of.next_back().unwrap_or(first).range.end)
    }
    /// Drops about `n` bytes from the front, as a context that is cut from the left does.
    pub(super) fn cut_front(&mut self, n: usize) {
        let n = self.text.ceil_char_boundary(n);
        self.text.drain(..n);
        let cut = |r: &Range<usize>| r.start.saturating_sub(n)..r.end.saturating_sub(n);
        self.spans.iter_mut().for_each(|s| s.range = cut(&s.range));
        self.spans.retain(|s| !s.range.is_empty());
        self.control.retain(|r| r.start >= n);
        self.control.iter_mut().for_each(|r| *r = cut(r));
    }
    /// The piece at byte `at`.
    pub fn at(&self, at: usize) -> Option<&Span> {
        let i = self.spans.partition_point(|s| s.range.end <= at);
        self.spans.get(i).filter(|s| s.range.contains(&at))
    }
}

/// Writes a prompt piece by piece.
#[derive(Default)]
pub(super) struct Writer {
    out: Rendered,
}

impl Writer {
    /// Appends a piece. `write` may call [`Writer::text`] and [`Writer::control`]; what it writes becomes one span.
    pub(super) fn span(&mut self, from: Option<(usize, Role)>, part: Part, write: impl FnOnce(&mut Writer)) {
        let start = self.out.text.len();
        write(self);
        let range = start..self.out.text.len();
        if range.is_empty() {
            return;
        }
        let (message, role) = from.unzip();
        self.out.spans.push(Span { range, message, role, part });
    }
    /// Plain text.
    pub(super) fn text(&mut self, s: &str) {
        self.out.text.push_str(s);
    }
    /// A control token.
    pub(super) fn control(&mut self, token: &str) {
        let start = self.out.text.len();
        self.out.text.push_str(token);
        self.out.control.push(start..self.out.text.len());
    }
    /// Template text in which spelled control tokens are control tokens.
    pub(super) fn template(&mut self, s: &str) {
        let base = self.out.text.len();
        self.out.control.extend(super::lex::spelled(s).map(|r| base + r.start..base + r.end));
        self.out.text.push_str(s);
    }
    /// A span that is one control token.
    pub(super) fn token(&mut self, from: Option<(usize, Role)>, part: Part, token: &str) {
        self.span(from, part, |w| w.control(token));
    }
    /// A span that is text.
    pub(super) fn plain(&mut self, from: Option<(usize, Role)>, part: Part, s: &str) {
        self.span(from, part, |w| w.text(s));
    }
    pub(super) fn finish(self) -> Rendered {
        self.out
    }
}
