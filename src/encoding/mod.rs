//! DeepSeek-V4's chat encoding: what a conversation becomes before the model sees it.
//!
//! The model ships no chat template; its encoder is a program. This is that program, with every choice as data
//! ([`EncodeOptions`]), so that a wrong encoder is the same encoder at another point of [`PromptKnobs`].
//! Steps: what stands before the encoder may rewrite the conversation (`rewrite`, faults only) → messages become turns
//! (`prepare`) → turns become text whose every piece is known ([`render()`], [`Rendered`]).

mod attribute;
mod compare;
pub mod constants;
mod dsml;
mod faults;
mod knobs;
mod lex;
mod message;
mod options;
mod prepare;
mod python_json;
mod reader;
mod render;
mod rendered;
mod request;
mod rewrite;
mod tokens;

pub use attribute::{Attribution, Match, attribute};
pub use compare::{Change, Comparison, Cut, Kind, as_logged, as_sent, compare};
pub use faults::{Case, PROMPT_FAULTS, PromptFault};
pub use knobs::{KNOBS, PromptKnobs, Spelled};
pub use lex::spelled_in_messages;
pub use message::{Message, Role, Task, ToolCall};
pub use options::{Effort, EncodeOptions, Encoder, Mode};
pub use render::render;
pub use rendered::{Part, Rendered, Span};
pub use request::Request;
pub use tokens::{ChatTokenizer, Tokens};

#[cfg(test)]
mod tests;
