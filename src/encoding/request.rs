//! Reads a conversation from JSON as chat servers take it: `{"messages": […], "tools": […]}` or the messages alone.

use super::message::{Message, Role, Task, ToolCall};
use super::options::{Effort, Mode, short};
use super::python_json::{PYTHON, dumps};
use crate::error::{Error, Result};
use serde_json::{Map, Value};

/// Keys of a message that the encoding knows.
const KNOWN: [&str; 10] = [
    "role",
    "content",
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "tool_call_id",
    "tools",
    "response_format",
    "task",
    "wo_eos",
];

/// A conversation, and what its request says about how to encode it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    /// The messages. Tools of the request are on the first one, a system message.
    pub messages: Vec<Message>,
    /// An empty system message was put in front, to carry the tools of the request.
    pub inserted: bool,
    /// `chat_template_kwargs.thinking`, `.enable_thinking` or `thinking.type`.
    pub mode: Option<Mode>,
    /// `reasoning_effort`.
    pub effort: Option<Effort>,
    /// What the request holds that does not reach the prompt.
    pub notes: Vec<String>,
}

impl Request {
    /// How the message of that index is called in the user's file.
    pub fn label(&self, index: usize) -> String {
        match (index, self.inserted) {
            (0, true) => "the system message made for the tools".into(),
            (i, inserted) => format!("messages[{}]", i - inserted as usize),
        }
    }

    /// Reads a request.
    pub fn parse(bytes: &[u8]) -> Result<Request> {
        let value: Value = serde_json::from_slice(bytes).map_err(|e| not_json(&e))?;
        let mut out = Request::default();
        let (list, tools) = match value {
            Value::Array(list) => (list, Vec::new()),
            Value::Object(mut request) => {
                let list = match request.remove("messages") {
                    Some(Value::Array(list)) => list,
                    Some(other) => return Err(kind("messages", "an array", &other)),
                    None => return Err(shape("the request has no `messages`")),
                };
                out.settings(&request)?;
                let tools = tools("tools", request.get("tools").unwrap_or(&Value::Null))?;
                (list, tools)
            }
            other => return Err(shape(&format!("the conversation is {}", name(&other)))),
        };
        if list.is_empty() {
            return Err(shape("the conversation has no messages"));
        }
        for (i, value) in list.iter().enumerate() {
            let message = message(&format!("messages[{i}]"), value, &mut out.notes)?;
            out.messages.push(message);
        }
        if !tools.is_empty() {
            if out.messages[0].role != Role::System {
                out.messages.insert(0, Message::system(""));
                out.inserted = true;
            } else if !out.messages[0].tools.is_empty() {
                return Err(Error::input("both the request and messages[0] hold tools")
                    .hint("keep them in one place: it is not clear which come first"));
            }
            out.messages[0].tools = tools;
        }
        Ok(out)
    }

    /// What a request says besides messages and tools.
    fn settings(&mut self, request: &Map<String, Value>) -> Result<()> {
        let thinks = |v: &Value| v.as_bool().map(|b| if b { Mode::Thinking } else { Mode::Chat });
        let kwargs = request.get("chat_template_kwargs");
        self.mode =
            ["thinking", "enable_thinking"].iter().find_map(|k| thinks(kwargs?.get(k)?)).or_else(|| {
                match request.get("thinking")?.get("type")?.as_str()? {
                    "enabled" => Some(Mode::Thinking),
                    "disabled" => Some(Mode::Chat),
                    _ => None,
                }
            });
        let effort = request.get("reasoning_effort").or_else(|| kwargs?.get("reasoning_effort"));
        self.effort = match effort {
            None | Some(Value::Null) => None,
            Some(Value::String(s)) => Some(Effort::parse(s).map_err(|e| {
                Error::input(format!("reasoning_effort: {}", e.message()))
                    .hint("low, high, max; --effort overrules the request")
            })?),
            Some(other) => return Err(kind("reasoning_effort", "a string", other)),
        };
        if request.get("response_format").is_some_and(|f| !f.is_null()) {
            self.notes.push(
                "response_format of the request is no part of the official prompt; put it on a system or \
                 developer message to render it"
                    .into(),
            );
        }
        if request.get("tool_choice").and_then(Value::as_str) == Some("none") {
            self.notes.push(
                "the official encoder knows no tool_choice and renders the tools; leave them out if the server does"
                    .into(),
            );
        }
        Ok(())
    }
}

const EXAMPLE: &str =
    r#"a conversation is {"messages": [{"role": "user", "content": "Hi"}]} or the array alone"#;

fn not_json(e: &serde_json::Error) -> Error {
    let text = e.to_string();
    let hint = if text.contains("recursion limit") {
        "arrays and objects are nested more than 120 deep; no chat server takes that"
    } else {
        EXAMPLE
    };
    Error::input(format!("not JSON: {text}")).hint(hint)
}

fn shape(what: &str) -> Error {
    Error::input(what).hint(EXAMPLE)
}

fn name(v: &Value) -> &'static str {
    match v {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn kind(path: &str, wanted: &str, got: &Value) -> Error {
    Error::input(format!("{path} is {}, not {wanted}", name(got))).hint(EXAMPLE)
}

fn string(path: &str, v: Option<&Value>) -> Result<Option<String>> {
    match v {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(s)) => Ok(Some(s.clone())),
        Some(other) => Err(kind(path, "a string", other)),
    }
}

fn message(path: &str, v: &Value, notes: &mut Vec<String>) -> Result<Message> {
    let Value::Object(m) = v else { return Err(kind(path, "an object", v)) };
    let roles = || format!("roles: {}", Role::ALL.map(Role::name).join(", "));
    let role = match string(&format!("{path}.role"), m.get("role"))? {
        None => return Err(Error::input(format!("{path} has no role")).hint(roles())),
        Some(r) => *Role::ALL
            .iter()
            .find(|x| x.name() == r)
            .ok_or_else(|| Error::input(format!("{path}: there is no role `{}`", short(&r))).hint(roles()))?,
    };
    let content = match m.get("content") {
        None | Some(Value::Null) if matches!(role, Role::Assistant | Role::System) => Vec::new(),
        None | Some(Value::Null) => {
            return Err(Error::input(format!("{path} ({}) has no content", role.name()))
                .hint("only assistant and system messages may go without"));
        }
        Some(v) => blocks(&format!("{path}.content"), v)?,
    };
    if role == Role::Developer && content.iter().all(String::is_empty) {
        return Err(Error::input(format!("{path} (developer) has no content"))
            .hint("the official encoder refuses it"));
    }
    let task = match string(&format!("{path}.task"), m.get("task"))? {
        None => None,
        Some(t) => Some(*Task::ALL.iter().find(|x| x.name() == t).ok_or_else(|| {
            Error::input(format!("{path}: there is no task `{}`", short(&t)))
                .hint(format!("tasks: {}", Task::ALL.map(Task::name).join(", ")))
        })?),
    };
    let reasoning = match string(&format!("{path}.reasoning_content"), m.get("reasoning_content"))? {
        None => string(&format!("{path}.reasoning"), m.get("reasoning"))?,
        some => some,
    };
    for key in m.keys().filter(|k| !KNOWN.contains(&k.as_str())).take(3) {
        if notes.len() < 8 {
            notes.push(format!("{path}.{} does not reach the prompt", short(key)));
        }
    }
    Ok(Message {
        role,
        content,
        reasoning,
        tool_calls: calls(&format!("{path}.tool_calls"), m.get("tool_calls").unwrap_or(&Value::Null))?,
        tool_call_id: string(&format!("{path}.tool_call_id"), m.get("tool_call_id"))?,
        tools: tools(&format!("{path}.tools"), m.get("tools").unwrap_or(&Value::Null))?,
        response_format: m.get("response_format").filter(|f| !f.is_null()).cloned(),
        task,
        unfinished: m.get("wo_eos").and_then(Value::as_bool).unwrap_or(false),
    })
}

/// Content: a string, or text blocks.
fn blocks(path: &str, v: &Value) -> Result<Vec<String>> {
    let list = match v {
        Value::String(s) => return Ok(vec![s.clone()]),
        Value::Array(list) => list,
        other => return Err(kind(path, "a string or an array of text blocks", other)),
    };
    list.iter()
        .enumerate()
        .map(|(i, b)| {
            let path = format!("{path}[{i}]");
            match (b.get("type").and_then(Value::as_str), b.get("text")) {
                (Some("text"), Some(Value::String(s))) => Ok(s.clone()),
                (Some("text"), _) => Err(Error::input(format!("{path} holds no text"))
                    .hint(r#"a block is {"type": "text", "text": "…"}"#)),
                (Some(other), _) => {
                    Err(Error::input(format!("{path} is a block of type `{}`", short(other))).hint(
                        "only text is encoded here; images take their positions from the vision encoder",
                    ))
                }
                (None, _) => Err(Error::input(format!("{path} is no content block"))
                    .hint(r#"a block is {"type": "text", "text": "…"}"#)),
            }
        })
        .collect()
}

fn array<'v>(path: &str, v: &'v Value) -> Result<&'v [Value]> {
    match v {
        Value::Null => Ok(&[]),
        Value::Array(list) => Ok(list),
        other => Err(kind(path, "an array", other)),
    }
}

/// Tools: the `function` objects.
fn tools(path: &str, v: &Value) -> Result<Vec<Value>> {
    array(path, v)?
        .iter()
        .enumerate()
        .map(|(i, t)| match t.get("function") {
            Some(f) if f.get("name").is_some_and(Value::is_string) => Ok(f.clone()),
            _ => Err(Error::input(format!("{path}[{i}] is no function tool"))
                .hint(r#"a tool is {"type": "function", "function": {"name": "…", "parameters": {…}}}"#)),
        })
        .collect()
}

fn calls(path: &str, v: &Value) -> Result<Vec<ToolCall>> {
    const HINT: &str =
        r#"a call is {"id": "1", "type": "function", "function": {"name": "…", "arguments": "{…}"}}"#;
    array(path, v)?
        .iter()
        .enumerate()
        .map(|(i, c)| {
            let path = format!("{path}[{i}]");
            let f = c.get("function").and_then(Value::as_object);
            let f = f.ok_or_else(|| Error::input(format!("{path} has no function")).hint(HINT))?;
            let arguments = match f.get("arguments") {
                Some(Value::String(s)) => s.clone(),
                // Some clients send the object itself; its text means the same.
                Some(object @ Value::Object(_)) => dumps(object, PYTHON),
                Some(other) => return Err(kind(&format!("{path}.function.arguments"), "a string", other)),
                None => return Err(Error::input(format!("{path} has no arguments")).hint(HINT)),
            };
            let name = string(&format!("{path}.function.name"), f.get("name"))?;
            Ok(ToolCall {
                id: string(&format!("{path}.id"), c.get("id"))?.unwrap_or_default(),
                name: name.ok_or_else(|| Error::input(format!("{path} has no name")).hint(HINT))?,
                arguments,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::exit;

    #[test]
    fn requests_are_read() {
        let r = Request::parse(
            br#"{"model": "x", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "reasoning": "r", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"b": 1, "a": "x"}}}]},
            {"role": "tool", "tool_call_id": "1", "content": "o", "name": "f"}],
            "tools": [{"type": "function", "function": {"name": "f"}}], "chat_template_kwargs": {"thinking": true}, "reasoning_effort": "max"}"#,
        )
        .unwrap();
        assert!(r.inserted);
        assert_eq!((r.mode, r.effort), (Some(Mode::Thinking), Some(Effort::Max)));
        assert_eq!(r.messages[0], Message::system("").tools(vec![serde_json::json!({"name": "f"})]));
        assert_eq!(r.messages[1].content, ["a", "b"]);
        assert_eq!(r.messages[2].tool_calls[0].arguments, r#"{"b": 1, "a": "x"}"#);
        assert_eq!(r.messages[2].reasoning.as_deref(), Some("r"));
        assert_eq!(r.label(1), "messages[0]");
        assert_eq!(r.notes, ["messages[2].name does not reach the prompt"]);
    }

    /// Catches a panic, an error of the wrong kind, or one that does not help.
    #[test]
    fn hostile_json_is_refused_with_a_hint() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let deep_tools = format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"tools":{deep}}}"#);
        let m = |inner: &str| format!(r#"{{"messages":[{inner}]}}"#);
        for (text, what) in [
            (String::new(), "not JSON"),
            ("{".into(), "not JSON"),
            ("\u{feff}[]".into(), "not JSON"),
            (deep, "recursion limit"),
            (deep_tools, "recursion limit"),
            ("\"x\"".into(), "is a string"),
            ("{}".into(), "no `messages`"),
            ("[]".into(), "no messages"),
            (m(""), "no messages"),
            (r#"{"messages":{"role":"user"}}"#.into(), "messages is an object, not an array"),
            (m("null"), "messages[0] is null"),
            (m(r#"{"content":"x"}"#), "messages[0] has no role"),
            (m(r#"{"role":7,"content":"x"}"#), "messages[0].role is a number"),
            (m(r#"{"role":"wizard","content":"x"}"#), "no role `wizard`"),
            (m(r#"{"role":"user"}"#), "messages[0] (user) has no content"),
            (m(r#"{"role":"tool","content":null}"#), "has no content"),
            (m(r#"{"role":"developer","content":""}"#), "has no content"),
            (m(r#"{"role":"user","content":7}"#), "content is a number"),
            (m(r#"{"role":"user","content":{"a":1}}"#), "content is an object"),
            (m(r#"{"role":"user","content":["x"]}"#), "no content block"),
            (m(r#"{"role":"user","content":[{"type":"text","text":1}]}"#), "holds no text"),
            (m(r#"{"role":"user","content":[{"type":"image_url","image_url":{}}]}"#), "type `image_url`"),
            (m(r#"{"role":"user","content":"x","task":"dance"}"#), "no task `dance`"),
            (m(r#"{"role":"assistant","reasoning_content":[]}"#), "reasoning_content is an array"),
            (m(r#"{"role":"assistant","tool_calls":{}}"#), "tool_calls is an object"),
            (m(r#"{"role":"assistant","tool_calls":[7]}"#), "tool_calls[0] has no function"),
            (m(r#"{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}"#), "no arguments"),
            (m(r#"{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}"#), "no name"),
            (m(r#"{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":[]}}]}"#), "arguments is an array"),
            (r#"{"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f"}]}"#.into(), "tools[0] is no function tool"),
            (r#"{"messages":[{"role":"user","content":"x"}],"reasoning_effort":"huge"}"#.into(), "no reasoning effort `huge`"),
            (r#"{"messages":[{"role":"system","tools":[{"function":{"name":"a"}}]}],"tools":[{"function":{"name":"f"}}]}"#.into(), "both"),
        ] {
            let e = Request::parse(text.as_bytes()).unwrap_err();
            assert!(e.to_string().contains(what), "{e}");
            assert!(e.to_string().contains("hint:"), "{e}");
            assert_eq!(e.kind().exit_code(), exit::BAD_INPUT, "{e}");
            assert!(e.to_string().len() < 600, "{e}");
        }
        assert!(Request::parse(b"\xff\xfe[").is_err());
        let long = m(&format!(r#"{{"role":"{}"}}"#, "x".repeat(1 << 20)));
        assert!(Request::parse(long.as_bytes()).unwrap_err().to_string().len() < 600);
    }
}
