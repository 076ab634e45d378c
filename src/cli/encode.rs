//! `dsv4 encode`: the prompt a conversation becomes, and what a server made of it instead.
//!
//! Exit 0 if the prompt was printed or is equal, 1 if what was sent differs, 3 for an unusable conversation or tokenizer,
//! 5 if nothing was sent.

mod diff;
mod text;

use super::prompt::{ids, read};
use super::{Globals, write_json, write_text};
use crate::checkpoint::{BUILTINS, Checkpoint};
use crate::encoding::{
    ChatTokenizer, Effort, EncodeOptions, Encoder, Mode, Rendered, Request, Spelled, as_logged, as_sent,
    render, spelled_in_messages,
};
use crate::error::{Error, ErrorKind, Result, exit};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Render a conversation as DeepSeek-V4's chat encoder does, or compare with what a server sent
#[derive(Debug, Clone, clap::Args)]
pub struct EncodeArgs {
    /// Conversation as chat servers take it: {"messages": […], "tools": […]} or an array of messages; - reads stdin
    #[arg(long, value_name = "FILE")]
    pub messages: PathBuf,
    /// chat or thinking [default: what the request says, else chat]
    #[arg(long, value_name = "MODE", value_parser = ["chat", "thinking"])]
    pub mode: Option<String>,
    /// Reasoning effort in thinking mode: low, high, max; v4.1 also takes 1 to 100 [default: what the request says]
    #[arg(long, value_name = "EFFORT")]
    pub effort: Option<String>,
    /// preview (Flash, Pro), 0731 (its "high" is preview's "max") or v4.1
    #[arg(long, value_name = "NAME", default_value = "0731", value_parser = ["preview", "0731", "v4.1"])]
    pub encoder: String,
    /// Keep the reasoning of every earlier turn, as beside tools (drop_thinking = false)
    #[arg(long)]
    pub keep_thinking: bool,
    /// Print token ids, with the tokenizer of --model
    #[arg(long)]
    pub ids: bool,
    /// A directory with tokenizer.json, or that file; weights are not needed
    #[arg(long, value_name = "MODEL", default_value = BUILTINS[0])]
    pub model: String,
    /// What a control token that a message spells becomes: text (as DeepSeek's own library has it) or control (as a server
    /// that tokenises the rendered text has it)
    #[arg(long, value_name = "AS", default_value = "text", value_parser = ["text", "control"])]
    pub spelled: String,
    /// The prompt a server really sent, byte for byte; - reads stdin
    #[arg(long, value_name = "RENDERED", help_heading = "Compare", conflicts_with_all = ["ids", "against_ids"])]
    pub against: Option<PathBuf>,
    /// The token ids it really sent: a JSON array, or an object with tokens, token_ids, input_ids or prompt_token_ids
    #[arg(long, value_name = "FILE", help_heading = "Compare", conflicts_with = "ids")]
    pub against_ids: Option<PathBuf>,
    /// Print one JSON object (schema dsv4.encode/1, or dsv4.encode-diff/1 when comparing)
    #[arg(long)]
    pub json: bool,
}

/// A conversation with everything that decides how it is encoded.
struct Plan {
    request: Request,
    options: EncodeOptions,
    official: Rendered,
    notes: Vec<String>,
}

impl EncodeArgs {
    fn plan(&self) -> Result<Plan> {
        let request = Request::parse(&read(&self.messages)?).map_err(|e| e.file(&self.messages))?;
        let encoder = Encoder::ALL.into_iter().find(|e| e.name() == self.encoder).unwrap_or_default();
        let mode = match self.mode.as_deref() {
            Some("thinking") => Mode::Thinking,
            Some(_) => Mode::Chat,
            None => request.mode.unwrap_or_default(),
        };
        let effort = match &self.effort {
            Some(text) => Some(Effort::parse(text)?),
            None => request.effort,
        };
        let options = EncodeOptions {
            encoder,
            mode,
            effort,
            drop_thinking: !self.keep_thinking,
            ..EncodeOptions::default()
        };
        let official = render(&request.messages, &options).map_err(|e| match e.kind() {
            ErrorKind::Usage => e,
            _ => e.file(&self.messages),
        })?;
        let mut notes = request.notes.clone();
        if effort.is_some() && mode == Mode::Chat {
            notes.push("an effort means nothing in chat mode".into());
        }
        for (i, token) in spelled_in_messages(&official).into_iter().take(3) {
            notes.push(format!(
                "{} spells {token}: {}",
                request.label(i),
                match self.spelled() {
                    Spelled::Text => "a server that tokenises the rendered text makes it a control token",
                    Spelled::Control => "taken as the control token",
                }
            ));
        }
        Ok(Plan { request, options, official, notes })
    }

    fn spelled(&self) -> Spelled {
        if self.spelled == "control" { Spelled::Control } else { Spelled::Text }
    }

    fn tokenizer(&self, notes: &mut Vec<String>) -> Result<ChatTokenizer> {
        // Tokens need no weights: a client has none, and a V4.1 checkpoint cannot be opened as a model here.
        let path = Path::new(&self.model);
        let inside = path.join("tokenizer.json");
        let json = if path.is_file() {
            read(path)?
        } else if inside.is_file() {
            read(&inside)?
        } else {
            Checkpoint::open(&self.model)?.tokenizer_json()?.ok_or_else(|| {
                Error::input("the checkpoint has no tokenizer.json")
                    .hint("--model takes a directory with a tokenizer.json, or that file")
            })?
        };
        let tokenizer = ChatTokenizer::new(&json)?;
        for (token, here, there) in tokenizer.unusual().into_iter().take(3) {
            notes.push(format!("{token} is id {here} here and {there} in the released tokenizers"));
        }
        Ok(tokenizer)
    }
}

/// Runs the command; the result is the exit code.
pub fn run(args: &EncodeArgs, global: &Globals, out: &mut dyn Write) -> Result<i32> {
    let stdin = Path::new("-");
    let sent = args.against.as_deref().or(args.against_ids.as_deref());
    if args.messages == stdin && sent == Some(stdin) {
        return Err(Error::usage("only one of the files can be standard input"));
    }
    let mut plan = args.plan()?;
    let code = match (&args.against, &args.against_ids) {
        (Some(path), _) => {
            let text = String::from_utf8(read(path)?).map_err(|e| {
                Error::input("what was sent is not UTF-8 text")
                    .file(path)
                    .offset(e.utf8_error().valid_up_to() as u64)
            })?;
            if text.is_empty() {
                return Err(nothing(path));
            }
            let sides = diff::Sides { official: as_logged(&plan.official), sent: as_sent(&text), ids: None };
            diff::report(args, &plan, sides, global, out)?
        }
        (None, Some(path)) => {
            let sent_ids = sent_ids(path)?;
            let tokenizer = args.tokenizer(&mut plan.notes)?;
            let official = match args.spelled() {
                Spelled::Text => plan.official.clone(),
                Spelled::Control => as_logged(&plan.official),
            };
            let tokens = tokenizer.encode(&official, Spelled::Text)?;
            let sent = tokenizer.decode(&sent_ids).map_err(|e| e.file(path))?;
            let sides = diff::Sides { official, sent, ids: Some((tokens, sent_ids)) };
            diff::report(args, &plan, sides, global, out)?
        }
        (None, None) => print(args, plan, global, out)?,
    };
    Ok(code)
}

fn nothing(path: &Path) -> Error {
    Error::new(ErrorKind::NothingCompared, "nothing was sent: there is nothing to compare").file(path)
}

/// Token ids in any of the forms servers give them.
fn sent_ids(path: &Path) -> Result<Vec<u32>> {
    let bytes = read(path)?;
    let value: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let list = ["tokens", "token_ids", "input_ids", "prompt_token_ids"].iter().find_map(|k| value.get(k));
    let list = list.unwrap_or(&value);
    if list.as_array().is_some_and(Vec::is_empty) {
        return Err(nothing(path));
    }
    let inner = if list.is_array() { list.to_string().into_bytes() } else { bytes };
    ids(&inner).map_err(|e| e.file(path))
}

fn print(args: &EncodeArgs, mut plan: Plan, global: &Globals, out: &mut dyn Write) -> Result<i32> {
    let tokens = match args.ids {
        true => {
            let tokenizer = args.tokenizer(&mut plan.notes)?;
            let prompt = match args.spelled() {
                Spelled::Text => plan.official.clone(),
                Spelled::Control => as_logged(&plan.official),
            };
            Some(tokenizer.encode(&prompt, Spelled::Text)?)
        }
        false => None,
    };
    if args.json {
        let spans = plan.official.spans.iter().map(|s| {
            json!({
                "start": s.range.start,
                "end": s.range.end,
                "message": s.message,
                "role": s.role.map(|r| r.name()),
                "part": s.part.name(),
            })
        });
        let mut object = head(&plan, "dsv4.encode/1");
        object["text"] = json!(plan.official.text);
        object["spans"] = spans.collect();
        object["ids"] = json!(tokens.map(|t| t.ids));
        object["notes"] = json!(plan.notes);
        write_json(out, &object)?;
        return Ok(exit::OK);
    }
    plan.notes.iter().for_each(|n| global.note(n));
    match tokens {
        Some(t) => write_text(out, &format!("{}\n", serde_json::to_string(&t.ids).unwrap_or_default()))?,
        // Byte for byte: what follows may compare or tokenise it.
        None => write_text(out, &plan.official.text)?,
    }
    Ok(exit::OK)
}

/// How the conversation was encoded.
fn head(plan: &Plan, schema: &str) -> Value {
    let o = &plan.options;
    json!({
        "schema": schema,
        "encoder": o.encoder.name(),
        "mode": o.mode.name(),
        "effort": o.effort.map(Effort::name),
        "keep_thinking": !o.drop_thinking,
    })
}
