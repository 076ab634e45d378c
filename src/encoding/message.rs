//! A conversation, as the encoder takes it.

use serde_json::Value;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions of the operator.
    System,
    /// The user.
    User,
    /// A user turn that instructs, forgotten once a later user turn exists.
    Developer,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
    /// A reminder close to the end of the prompt.
    LatestReminder,
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 6] =
        [Role::System, Role::User, Role::Developer, Role::Assistant, Role::Tool, Role::LatestReminder];
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Developer => "developer",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::LatestReminder => "latest_reminder",
        }
    }
}

/// An internal classification task: a token behind the turn that asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Task {
    Action,
    Query,
    Authority,
    Domain,
    Title,
    ReadUrl,
}

impl Task {
    /// Every task.
    pub const ALL: [Task; 6] =
        [Task::Action, Task::Query, Task::Authority, Task::Domain, Task::Title, Task::ReadUrl];
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        let t = self.token();
        &t["<｜".len()..t.len() - "｜>".len()]
    }
    /// Its control token.
    pub fn token(self) -> &'static str {
        match self {
            Task::Action => "<｜action｜>",
            Task::Query => "<｜query｜>",
            Task::Authority => "<｜authority｜>",
            Task::Domain => "<｜domain｜>",
            Task::Title => "<｜title｜>",
            Task::ReadUrl => "<｜read_url｜>",
        }
    }
}

/// One call of a tool, made by the assistant.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Id that the result names.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments: the text of a JSON object.
    pub arguments: String,
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// Text blocks; the encoder joins them with a blank line.
    pub content: Vec<String>,
    /// Assistant: the reasoning before the content.
    pub reasoning: Option<String>,
    /// Assistant: calls of tools.
    pub tool_calls: Vec<ToolCall>,
    /// Tool: the call it answers.
    pub tool_call_id: Option<String>,
    /// Tools offered by a system or developer message: one `function` object each, keys in their order.
    pub tools: Vec<Value>,
    /// Schema of the answer, asked for by a system or developer message.
    pub response_format: Option<Value>,
    /// Task asked for behind this message.
    pub task: Option<Task>,
    /// Assistant: the turn is not over; no end token follows.
    pub unfinished: bool,
}

impl Message {
    /// A message of one text block.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Message {
            role,
            content: vec![content.into()],
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            tools: Vec::new(),
            response_format: None,
            task: None,
            unfinished: false,
        }
    }
    /// A system message.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::System, content)
    }
    /// A user message.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }
    /// An assistant message without reasoning.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::Assistant, content)
    }
    /// The result of call `id`.
    pub fn tool(id: impl Into<String>, content: impl Into<String>) -> Self {
        Message { tool_call_id: Some(id.into()), ..Self::new(Role::Tool, content) }
    }
    /// The same with reasoning.
    pub fn reasoning(self, text: impl Into<String>) -> Self {
        Message { reasoning: Some(text.into()), ..self }
    }
    /// The same with one more tool call; `arguments` is JSON text.
    pub fn call(mut self, id: &str, name: &str, arguments: &str) -> Self {
        self.tool_calls.push(ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() });
        self
    }
    /// The same with tools: `function` objects.
    pub fn tools(self, tools: Vec<Value>) -> Self {
        Message { tools, ..self }
    }
    /// The same with a response format.
    pub fn format(self, schema: Value) -> Self {
        Message { response_format: Some(schema), ..self }
    }
    /// The same with a task.
    pub fn task(self, task: Task) -> Self {
        Message { task: Some(task), ..self }
    }
    /// The blocks, joined as the encoder joins them.
    pub fn text(&self) -> String {
        self.content.join("\n\n")
    }
}
