//! From turns to text. There are no newlines between turns.

use super::constants::{
    ASSISTANT, BOS, EFFORT_HIGH, EFFORT_MAX, EFFORT_SCORE_END, EFFORT_START, EOS, FORMAT_START, REMINDER,
    SYSTEM, THINK, THINK_END, TOOLS_END, USER, tools_preamble,
};
use super::dsml;
use super::knobs::{
    Between, Bos, Content, EffortRule, Eos, Format, Generation, History, Marker, Results, System, Tools,
};
use super::message::{Message, Role};
use super::options::{Effort, EncodeOptions, Encoder, Mode};
use super::prepare::{Prepared, Turn, asks, prepare};
use super::python_json::{PYTHON, Style, dumps};
use super::rendered::{Part, Rendered, Writer};
use super::rewrite::rewritten;
use crate::error::{Error, Result};
use serde_json::{Value, json};
use std::borrow::Cow;

/// The prompt that `messages` become.
///
/// ```
/// use dsv4::encoding::{EncodeOptions, Message, Mode, render};
/// let prompt = render(&[Message::user("Hi")], &EncodeOptions::of(Mode::Chat)).unwrap();
/// assert_eq!(prompt.text, "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>");
/// ```
pub fn render(messages: &[Message], options: &EncodeOptions) -> Result<Rendered> {
    options.check()?;
    if messages.is_empty() {
        return Err(Error::input("the conversation has no messages").hint("give at least one message"));
    }
    if let Some(i) = messages.iter().position(|m| m.role == Role::Developer && m.text().is_empty()) {
        return Err(Error::input(format!("messages[{i}]: a developer message needs content")));
    }
    let list = rewritten(messages, &options.knobs);
    let prepared = prepare(&list, options);
    let mut r = Renderer { o: options, p: &prepared, w: Writer::default() };
    r.prompt();
    let mut out = r.w.finish();
    if options.knobs.history == History::FrontCut {
        out.cut_front(out.text.len() / 3);
    }
    Ok(out)
}

struct Renderer<'a> {
    o: &'a EncodeOptions,
    p: &'a Prepared<'a>,
    w: Writer,
}

type From = Option<(usize, Role)>;

impl Renderer<'_> {
    fn prompt(&mut self) {
        let times = match self.o.knobs.bos {
            Bos::Once => 1,
            Bos::Missing => 0,
            Bos::Twice => 2,
        };
        (0..times).for_each(|_| self.w.token(None, Part::Bos, BOS));
        self.start();
        for i in 0..self.p.turns.len() {
            self.turn(i);
            self.transition(i);
        }
    }

    fn thinking(&self) -> bool {
        self.o.mode == Mode::Thinking
    }

    /// What stands before the first turn's own text.
    fn start(&mut self) {
        let k = &self.o.knobs;
        let effort =
            if self.thinking() || k.effort == EffortRule::Always { self.effort() } else { Cow::Borrowed("") };
        let Some(first) = self.p.turns.first() else { return };
        let system = first.role == Role::System;
        let token = match self.o.encoder {
            Encoder::V41 => (system || !effort.is_empty()) && k.system != System::Token,
            _ => system && k.system == System::Token,
        };
        if token {
            let from = if system { first.from() } else { None };
            self.w.token(from, Part::RoleToken, SYSTEM);
        }
        if !(system && k.effort == EffortRule::AfterSystem) {
            self.w.plain(None, Part::Effort, &effort);
        }
    }

    fn effort(&self) -> Cow<'static, str> {
        let rule = self.o.knobs.effort;
        let asked = match (rule, self.o.effort) {
            (EffortRule::Missing, _) => return "".into(),
            (EffortRule::DefaultHigh, None) => Some(Effort::High),
            (_, effort) => effort,
        };
        let encoder = match (self.o.encoder, rule) {
            (Encoder::Preview, EffortRule::Shifted) => Encoder::V0731,
            (Encoder::V0731, EffortRule::Shifted) => Encoder::Preview,
            (e, _) => e,
        };
        match (encoder, asked) {
            (Encoder::Preview, Some(Effort::Max)) | (Encoder::V0731, Some(Effort::High)) => {
                EFFORT_HIGH.into()
            }
            (Encoder::V0731, Some(Effort::Max)) => EFFORT_MAX.into(),
            (Encoder::Preview | Encoder::V0731, _) => "".into(),
            (Encoder::V41, asked) => {
                let tier = |e| match e {
                    Effort::Low => 50,
                    Effort::High => 75,
                    Effort::Max => 100,
                    Effort::Score(n) => n,
                };
                let mut score = tier(asked.unwrap_or(Effort::High));
                if rule == EffortRule::Shifted {
                    score = if score > 75 { 75 } else { 100 };
                }
                format!("{EFFORT_START}{score}{EFFORT_SCORE_END}").into()
            }
        }
    }

    fn turn(&mut self, i: usize) {
        let p = self.p;
        let turn = &p.turns[i];
        let from = turn.from();
        match turn.role {
            Role::System => {
                if i > 0 {
                    self.between();
                    if self.o.encoder == Encoder::V41 {
                        self.w.token(from, Part::RoleToken, SYSTEM);
                    }
                }
                self.w.plain(from, Part::Content, &turn.message.text());
                self.offers(turn);
                if i == 0 && self.thinking() && self.o.knobs.effort == EffortRule::AfterSystem {
                    let effort = self.effort();
                    self.w.plain(None, Part::Effort, &effort);
                }
            }
            Role::Developer => {
                self.role_token(i, from, USER);
                self.w.plain(from, Part::Content, &turn.message.text());
                self.offers(turn);
            }
            Role::User | Role::Tool => {
                self.role_token(i, from, USER);
                self.blocks(turn);
            }
            Role::LatestReminder => {
                self.role_token(i, from, REMINDER);
                self.w.plain(from, Part::Content, &turn.message.text());
            }
            Role::Assistant => self.assistant(i),
        }
    }

    fn role_token(&mut self, i: usize, from: From, token: &str) {
        if i > 0 {
            self.between();
        }
        self.w.token(from, Part::RoleToken, token);
    }

    fn between(&mut self) {
        let s = match self.o.knobs.between {
            Between::Nothing => return,
            Between::Newline => "\n",
            Between::BlankLine => "\n\n",
        };
        self.w.plain(None, Part::Separator, s);
    }

    fn blocks(&mut self, turn: &Turn) {
        for (i, b) in turn.blocks.iter().enumerate() {
            let from = b.index.map(|n| (n, b.message.role));
            if i > 0 {
                self.w.plain(from, Part::Separator, "\n\n");
            }
            if !b.is_result() {
                self.w.plain(from, Part::Content, &b.text);
                continue;
            }
            let tagged = self.o.knobs.results != Results::Untagged;
            self.w.span(from, Part::ToolResult, |w| {
                w.text(if tagged { "<tool_result>" } else { "" });
                w.text(&b.text);
                w.text(if tagged { "</tool_result>" } else { "" });
            });
        }
    }

    /// Tools and response format of a system or developer turn.
    fn offers(&mut self, turn: &Turn) {
        let (m, from) = (turn.message, turn.from());
        if !m.tools.is_empty() {
            let rule = self.o.knobs.tools;
            let style = match rule {
                Tools::SortedKeys => Style { sorted: true, ..PYTHON },
                Tools::Compact => Style { comma: ",", colon: ":", ..PYTHON },
                Tools::Ascii => Style { ascii: true, ..PYTHON },
                _ => PYTHON,
            };
            let lines: Vec<String> = m.tools.iter().map(|t| dumps(&schema(t, rule), style)).collect();
            let v41 = self.o.encoder == Encoder::V41;
            self.w.span(from, Part::Tools, |w| {
                w.text("\n\n");
                w.template(&tools_preamble(v41));
                w.text(&lines.join("\n"));
                w.text(TOOLS_END);
            });
        }
        if let Some(format) = m.response_format.as_ref().filter(|f| !is_empty(f)) {
            let style = match self.o.knobs.format {
                Format::Compact => Style { comma: ",", colon: ":", ..PYTHON },
                _ => PYTHON,
            };
            let text = format!("\n\n{FORMAT_START}{}", dumps(format, style));
            self.w.plain(from, Part::ResponseFormat, &text);
        }
    }

    fn assistant(&mut self, i: usize) {
        let p = self.p;
        let turn = &p.turns[i];
        let (m, from) = (turn.message, turn.from());
        let of_task = i > 0 && p.turns[i - 1].task.is_some();
        if self.thinking() && !of_task && (!p.drops || p.last_user.is_none_or(|l| i > l)) {
            let reasoning = m.reasoning.as_deref().unwrap_or("");
            let reasoning = match self.o.knobs.content {
                Content::Trimmed => reasoning.trim(),
                _ => reasoning,
            };
            self.w.plain(from, Part::Reasoning, reasoning);
            self.w.token(from, Part::ReasoningEnd, THINK_END);
        }
        self.w.plain(from, Part::Content, &m.text());
        if !m.tool_calls.is_empty() {
            dsml::write(&mut self.w, from, &m.tool_calls, self.o);
        }
        if !m.unfinished && self.o.knobs.eos != Eos::Missing {
            self.w.token(from, Part::Eos, EOS);
        }
    }

    /// The start of the model's turn, where one follows.
    fn transition(&mut self, i: usize) {
        let p = self.p;
        let turn = &p.turns[i];
        let next = p.turns.get(i + 1);
        if next.is_some_and(|n| !matches!(n.role, Role::Assistant | Role::LatestReminder)) {
            if self.o.knobs.eos == Eos::AfterUser && asks(&p.turns, i, self.o.encoder) {
                self.w.token(turn.from(), Part::Eos, EOS);
            }
            return;
        }
        let from = next.and_then(Turn::from);
        if let Some(task) = turn.task {
            if task == super::message::Task::Action {
                self.w.token(from, Part::AssistantToken, ASSISTANT);
                self.w.token(from, Part::Marker, if self.thinking() { THINK } else { THINK_END });
            }
            self.w.token(turn.from(), Part::Task, task.token());
            return;
        }
        if !asks(&p.turns, i, self.o.encoder) {
            return;
        }
        if self.o.knobs.eos == Eos::AfterUser {
            self.w.token(turn.from(), Part::Eos, EOS);
        }
        let times = match self.o.knobs.generation {
            Generation::Missing if next.is_none() => 0,
            Generation::Twice if next.is_none() => 2,
            _ => 1,
        };
        for _ in 0..times {
            self.between();
            self.w.token(from, Part::AssistantToken, ASSISTANT);
            let thinks = self.thinking() && (!p.drops || p.last_user.is_none_or(|l| i >= l));
            self.marker(from, thinks, next.is_some());
        }
    }

    fn marker(&mut self, from: From, thinks: bool, history: bool) {
        let rule = self.o.knobs.marker;
        if rule == Marker::Missing || (rule == Marker::MissingInHistory && history) {
            return;
        }
        let token = if thinks != (rule == Marker::Flipped) { THINK } else { THINK_END };
        self.w.span(from, Part::Marker, |w| {
            w.control(token);
            w.text(if rule == Marker::Newline { "\n" } else { "" });
        });
    }
}

/// What the official script treats as no response format.
fn is_empty(v: &Value) -> bool {
    match v {
        Value::Null | Value::Bool(false) => true,
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::Bool(true) => false,
    }
}

/// A tool's schema as it is offered.
fn schema(tool: &Value, rule: Tools) -> Cow<'_, Value> {
    match rule {
        Tools::Normalised => Cow::Owned(json!({
            "name": tool["name"],
            "description": tool.get("description").cloned().unwrap_or_else(|| "".into()),
            "parameters": tool["parameters"],
        })),
        Tools::Wrapped => Cow::Owned(json!({"type": "function", "function": tool})),
        _ => Cow::Borrowed(tool),
    }
}
