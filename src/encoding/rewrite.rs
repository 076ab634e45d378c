//! What happens to a conversation before an encoder sees it: nothing, or one of the things that clients, gateways and
//! context managers do to it.

use super::knobs::{
    Blocks, Calls, Content, Developer, Format, History, PromptKnobs, Reasoning, Reminder, Results, System,
    TaskRule, Tools,
};
use super::message::{Message, Role};
use std::borrow::Cow;

/// A message with its index; `None` for one that nobody sent.
pub(super) type Indexed<'m> = (Option<usize>, Cow<'m, Message>);

/// The conversation that reaches the encoder.
pub(super) fn rewritten<'m>(messages: &'m [Message], k: &PromptKnobs) -> Vec<Indexed<'m>> {
    let mut list: Vec<Indexed> =
        messages.iter().enumerate().map(|(i, m)| (Some(i), Cow::Borrowed(m))).collect();
    if *k == PromptKnobs::default() {
        return list;
    }
    history(&mut list, k.history);
    list.retain(|(_, m)| match m.role {
        Role::System => k.system != System::Missing,
        Role::Developer => k.developer != Developer::Missing,
        Role::LatestReminder => k.reminder != Reminder::Missing,
        Role::Tool => k.results != Results::Missing,
        _ => true,
    });
    if k.results == Results::LastOnly {
        let tool = |i: usize| list.get(i).is_some_and(|(_, m)| m.role == Role::Tool);
        let keep: Vec<bool> = (0..list.len()).map(|i| !(tool(i) && tool(i + 1))).collect();
        let mut keep = keep.into_iter();
        list.retain(|_| keep.next() != Some(false));
    }
    for (_, m) in &mut list {
        change(m, k);
    }
    let speaks = list.first().is_some_and(|(_, m)| m.role == Role::System);
    if k.system == System::Default && !speaks {
        list.insert(0, (None, Cow::Owned(Message::system("You are a helpful assistant."))));
    }
    if k.tools == Tools::BeforeSystem
        && let Some((_, first)) = list.first_mut()
        && !first.tools.is_empty()
    {
        let tools = std::mem::take(&mut first.to_mut().tools);
        list.insert(0, (None, Cow::Owned(Message::system("").tools(tools))));
    }
    list
}

/// Drops whole messages. Leading system messages always stay: that is what context managers do.
fn history(list: &mut Vec<Indexed>, rule: History) {
    let lead = list.iter().take_while(|(_, m)| m.role == Role::System).count();
    let users: Vec<usize> = (lead..list.len()).filter(|i| list[*i].1.role == Role::User).collect();
    match (rule, users.as_slice()) {
        (History::LastTurn, [_, .., last]) => drop(list.drain(lead..*last)),
        (History::OldestDropped, [_, second, ..]) => drop(list.drain(lead..*second)),
        (History::MiddleDropped, [_, second, .., last]) => drop(list.drain(*second..*last)),
        (History::AnswersDropped, [.., last]) => {
            let mut i = 0;
            list.retain(|(_, m)| {
                i += 1;
                i > *last || m.role != Role::Assistant
            });
        }
        _ => {}
    }
}

/// Changes one message.
fn change(message: &mut Cow<Message>, k: &PromptKnobs) {
    let role = message.role;
    match (k.blocks, message.content.as_slice()) {
        (Blocks::BlankLine, _) | (_, [] | [_]) => {}
        (Blocks::FirstOnly, _) => message.to_mut().content.truncate(1),
        (rule, blocks) => {
            let joined = blocks.join(if rule == Blocks::Newline { "\n" } else { "" });
            message.to_mut().content = vec![joined];
        }
    }
    if k.content != Content::Verbatim {
        for block in &mut message.to_mut().content {
            let s = if k.content == Content::Trimmed { block.trim() } else { block.trim_end() };
            *block = s.to_owned();
        }
    }
    match (role, k.system) {
        (Role::System, System::AsUser) => message.to_mut().role = Role::User,
        (Role::System, System::Trimmed) => {
            let text = message.text();
            let half = text.chars().count() / 2;
            message.to_mut().content = vec![text.chars().take(half).collect()];
        }
        _ => {}
    }
    match (role, k.reasoning, &message.reasoning) {
        (Role::Assistant, Reasoning::Stripped, Some(_)) => message.to_mut().reasoning = None,
        (Role::Assistant, Reasoning::InContent, Some(r)) => {
            let text = format!("<think>{r}</think>{}", message.text());
            let m = message.to_mut();
            (m.content, m.reasoning) = (vec![text], None);
        }
        _ => {}
    }
    if role == Role::Developer && k.developer == Developer::AsSystem {
        message.to_mut().role = Role::System;
    }
    if role == Role::LatestReminder && k.reminder == Reminder::AsUser {
        message.to_mut().role = Role::User;
    }
    if k.tools == Tools::Missing && !message.tools.is_empty() {
        message.to_mut().tools.clear();
    }
    if k.calls == Calls::Missing && !message.tool_calls.is_empty() {
        message.to_mut().tool_calls.clear();
    }
    if k.task == TaskRule::Missing && message.task.is_some() {
        message.to_mut().task = None;
    }
    if k.format == Format::Missing && message.response_format.is_some() {
        message.to_mut().response_format = None;
    }
}
