//! DeepSeek-V4's chat encoding: what a conversation becomes before the model sees it.
//!
//! The model ships no chat template; its encoder is a program. This is that program, with every choice as data
//! ([`EncodeOptions`]), so that a wrong encoder is the same encoder at another point of [`PromptKnobs`].
//! Steps: what stands before the encoder may rewrite the conversation (`rewrite`, faults only) → messages become turns
//! (`prepare`) → turns become text whose every piece is known ([`render`], [`Rendered`]).

pub mod constants;
mod dsml;
mod knobs;
mod lex;
mod message;
mod options;
mod prepare;
mod python_json;
mod render;
mod rendered;
mod request;
mod rewrite;

pub use knobs::{KNOBS, PromptKnobs};
pub use message::{Message, Role, Task, ToolCall};
pub use options::{Effort, EncodeOptions, Encoder, Mode};
pub use render::render;
pub use rendered::{Part, Rendered, Span};
pub use request::Request;

#[cfg(test)]
mod tests;
