//! Which encoder, and how it is asked.

use super::knobs::PromptKnobs;
use crate::error::{Error, Result};

/// Which published encoder. Their difference within V4 is what an effort means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Encoder {
    /// The one published with the Flash and Pro previews.
    Preview,
    /// The one published with Flash-0731.
    #[default]
    V0731,
    /// DeepSeek-V4.1.
    V41,
}

impl Encoder {
    /// Every encoder.
    pub const ALL: [Encoder; 3] = [Encoder::Preview, Encoder::V0731, Encoder::V41];
    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Encoder::Preview => "preview",
            Encoder::V0731 => "0731",
            Encoder::V41 => "v4.1",
        }
    }
    /// The efforts it knows, in words.
    pub fn efforts(self) -> &'static str {
        match self {
            Encoder::Preview => "high, max",
            Encoder::V0731 => "low, high, max",
            Encoder::V41 => "low, high, max, or a number from 1 to 100",
        }
    }
}

/// Whether the model reasons before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Mode {
    /// It answers at once: `</think>` stands right behind `<｜Assistant｜>`.
    #[default]
    Chat,
    /// It reasons first.
    Thinking,
}

impl Mode {
    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Chat => "chat",
            Mode::Thinking => "thinking",
        }
    }
}

/// How hard the model is asked to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Effort {
    Low,
    High,
    Max,
    /// V4.1: 1 to 100.
    Score(u8),
}

impl Effort {
    /// The word on the command line.
    pub fn name(self) -> String {
        match self {
            Effort::Low => "low".into(),
            Effort::High => "high".into(),
            Effort::Max => "max".into(),
            Effort::Score(n) => n.to_string(),
        }
    }
    /// The effort of that name.
    pub fn parse(text: &str) -> Result<Effort> {
        Ok(match text {
            "low" => Effort::Low,
            "high" => Effort::High,
            "max" => Effort::Max,
            _ => match text.parse() {
                Ok(n @ 1..=100) => Effort::Score(n),
                _ => {
                    return Err(Error::usage(format!("there is no reasoning effort `{}`", short(text)))
                        .hint("low, high, max, or for V4.1 a number from 1 to 100"));
                }
            },
        })
    }
}

/// A hostile word, short enough for a message.
pub(super) fn short(text: &str) -> String {
    let mut s: String = text.chars().take(40).flat_map(char::escape_debug).collect();
    if text.chars().nth(40).is_some() {
        s.push('…');
    }
    s
}

/// Everything that decides what a conversation becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Which encoder.
    pub encoder: Encoder,
    /// Chat or thinking.
    pub mode: Mode,
    /// Reasoning effort; `None` is what the encoder takes when nobody asks.
    pub effort: Option<Effort>,
    /// In thinking mode, forget the reasoning of turns before the last user turn; tools overrule it.
    pub drop_thinking: bool,
    /// Deviations; the default has none.
    pub knobs: PromptKnobs,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        EncodeOptions {
            encoder: Encoder::default(),
            mode: Mode::default(),
            effort: None,
            drop_thinking: true,
            knobs: PromptKnobs::default(),
        }
    }
}

impl EncodeOptions {
    /// The official encoder in `mode`.
    pub fn of(mode: Mode) -> Self {
        EncodeOptions { mode, ..Self::default() }
    }
    /// Fails if the encoder does not know the effort.
    pub fn check(&self) -> Result<()> {
        let known = match self.effort {
            None | Some(Effort::High | Effort::Max) => true,
            Some(Effort::Low) => self.encoder != Encoder::Preview,
            Some(Effort::Score(n)) => self.encoder == Encoder::V41 && (1..=100).contains(&n),
        };
        match self.effort {
            Some(e) if !known => Err(Error::usage(format!(
                "the {} encoder knows no reasoning effort {}",
                self.encoder.name(),
                e.name()
            ))
            .hint(format!("it takes {}", self.encoder.efforts()))),
            _ => Ok(()),
        }
    }
}
