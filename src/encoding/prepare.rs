//! From messages to turns: tool results move into user turns, results take the order of their calls, and what a later
//! user turn makes obsolete is dropped.

use super::knobs::{Reasoning, Results};
use super::message::{Message, Role};
use super::options::{EncodeOptions, Encoder, Mode};
use super::rewrite::Indexed;

/// Text or a tool result within a user turn.
pub(super) struct Block<'a> {
    /// The message it comes from.
    pub index: Option<usize>,
    /// That message.
    pub message: &'a Message,
    /// Its text.
    pub text: std::borrow::Cow<'a, str>,
}

impl Block<'_> {
    pub(super) fn is_result(&self) -> bool {
        self.message.role == Role::Tool
    }
}

/// A turn of the prompt.
pub(super) struct Turn<'a> {
    /// Index of its (first) message.
    pub index: Option<usize>,
    /// That message. A turn that begins with a tool result is a user turn.
    pub message: &'a Message,
    /// The role it is rendered with: never `Tool`.
    pub role: Role,
    /// User turns: their blocks.
    pub blocks: Vec<Block<'a>>,
    /// The task asked for behind it.
    pub task: Option<super::message::Task>,
}

impl Turn<'_> {
    /// Where its pieces come from.
    pub(super) fn from(&self) -> Option<(usize, Role)> {
        self.index.map(|i| (i, self.message.role))
    }
}

/// Turns, and whether earlier reasoning is dropped.
pub(super) struct Prepared<'a> {
    pub turns: Vec<Turn<'a>>,
    pub drops: bool,
    /// Index of the last turn of a user or developer.
    pub last_user: Option<usize>,
}

/// Prepares a conversation.
pub(super) fn prepare<'a>(list: &'a [Indexed<'_>], o: &EncodeOptions) -> Prepared<'a> {
    let mut turns = merged(list, o);
    if o.knobs.results != Results::Arrival {
        order_results(&mut turns);
    }
    let tools = turns.iter().any(|t| t.message.role != Role::Tool && !t.message.tools.is_empty());
    let official = o.drop_thinking && !tools;
    let drops = match o.knobs.reasoning {
        Reasoning::Flipped => !official,
        Reasoning::ToolsIgnored => o.drop_thinking,
        Reasoning::Kept => false,
        _ => official,
    };
    if drops && o.mode == Mode::Thinking {
        let last = last_user(&turns, o.encoder);
        let mut i = 0;
        turns.retain(|t| {
            i += 1;
            t.role != Role::Developer || last.is_none_or(|l| i > l)
        });
    }
    let last_user = last_user(&turns, o.encoder);
    Prepared { turns, drops, last_user }
}

/// True for a turn the model answers. In V4.1 a system message within the conversation is one.
pub(super) fn asks(turns: &[Turn], i: usize, encoder: Encoder) -> bool {
    match turns[i].role {
        Role::User | Role::Developer => true,
        Role::System => encoder == Encoder::V41 && i > 0,
        _ => false,
    }
}

fn last_user(turns: &[Turn], encoder: Encoder) -> Option<usize> {
    (0..turns.len()).rev().find(|i| asks(turns, *i, encoder))
}

/// Consecutive user messages and tool results become one turn. A turn with a task takes in no more text, but tool results
/// still. As in the official script, what is merged into an earlier turn loses its own task.
fn merged<'a>(list: &'a [Indexed<'_>], o: &EncodeOptions) -> Vec<Turn<'a>> {
    let separate = o.knobs.results == Results::Separate;
    let mut turns: Vec<Turn> = Vec::new();
    for (index, message) in list {
        let message: &Message = message;
        let (index, role) = (*index, message.role);
        let mut blocks: Vec<Block> = match role {
            Role::User if message.content.is_empty() => vec![Block { index, message, text: "".into() }],
            Role::User => {
                message.content.iter().map(|c| Block { index, message, text: c.as_str().into() }).collect()
            }
            Role::Tool => vec![Block { index, message, text: message.text().into() }],
            _ => Vec::new(),
        };
        match turns.last_mut() {
            Some(t) if t.role == Role::User && role == Role::Tool && !separate => {
                t.blocks.append(&mut blocks)
            }
            Some(t)
                if t.role == Role::User
                    && role == Role::User
                    && t.task.is_none()
                    && !(separate && t.blocks.last().is_some_and(Block::is_result)) =>
            {
                t.blocks.append(&mut blocks);
            }
            // V4.1 keeps the first of several reminders in a row.
            Some(t)
                if o.encoder == Encoder::V41
                    && t.role == Role::LatestReminder
                    && role == Role::LatestReminder => {}
            _ if role == Role::Tool => {
                turns.push(Turn { index, message, role: Role::User, blocks, task: None })
            }
            _ => {
                turns.push(Turn { index, message, role, blocks, task: message.task });
            }
        }
    }
    turns
}

/// Tool results of a turn take the order of the calls in the latest assistant turn that made any. An id nobody called
/// counts as the first.
fn order_results(turns: &mut [Turn]) {
    let mut calls: Vec<(&str, usize)> = Vec::new();
    for turn in turns {
        if turn.role == Role::Assistant && !turn.message.tool_calls.is_empty() {
            let ids = turn.message.tool_calls.iter().map(|c| c.id.as_str()).enumerate();
            calls = ids.filter(|(_, id)| !id.is_empty()).map(|(i, id)| (id, i)).collect();
            continue;
        }
        let slots: Vec<bool> = turn.blocks.iter().map(Block::is_result).collect();
        if slots.iter().filter(|s| **s).count() < 2 || calls.is_empty() {
            continue;
        }
        let order = |b: &Block| {
            let id = b.message.tool_call_id.as_deref().unwrap_or("");
            // The last of equal ids counts, as in a dictionary.
            calls.iter().rev().find(|(c, _)| *c == id).map_or(0, |(_, i)| *i)
        };
        let (mut results, rest): (Vec<Block>, Vec<Block>) = turn.blocks.drain(..).partition(Block::is_result);
        results.sort_by_key(order);
        let (mut results, mut rest) = (results.into_iter(), rest.into_iter());
        turn.blocks = slots
            .into_iter()
            .filter_map(|is_result| if is_result { results.next() } else { rest.next() })
            .collect();
    }
}
