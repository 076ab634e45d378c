//! The knobs of site `prompt`: every choice an encoder, or what stands before it, can make. The first value of each is
//! the official one; every other is a way in which prompts have gone wrong.

use crate::error::{Error, Result};

macro_rules! knobs {
    ($($(#[$doc:meta])* $field:ident: $name:ident { $first:ident = $official:literal $(, $variant:ident = $text:literal)+ $(,)? })+) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
            #[allow(missing_docs)]
            pub enum $name { #[default] $first, $($variant),+ }
        )+

        /// All of them. The default is the official encoder.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct PromptKnobs { $($(#[$doc])* pub $field: $name),+ }

        /// Name and values of every knob, the official one first.
        pub const KNOBS: &[(&str, &[&str])] = &[$((stringify!($field), &[$official, $($text),+])),+];

        impl PromptKnobs {
            /// Turns knob `name`.
            pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
                match (name, value) {
                    $(
                        (stringify!($field), $official) => self.$field = $name::$first,
                        $((stringify!($field), $text) => self.$field = $name::$variant,)+
                    )+
                    _ => return Err(unknown(name, value)),
                }
                Ok(())
            }
        }
    };
}

fn unknown(name: &str, value: &str) -> Error {
    let hint = match KNOBS.iter().find(|(n, _)| *n == name) {
        Some((_, values)) => format!("it takes {}", values.join(", ")),
        None => {
            format!("knobs of the prompt: {}", KNOBS.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", "))
        }
    };
    Error::usage(format!("the prompt has no knob {name}={value}")).hint(hint)
}

knobs! {
    /// The token that starts the prompt.
    bos: Bos { Once = "once", Missing = "missing", Twice = "twice" }
    /// Which messages reach the encoder.
    history: History { All = "all", LastTurn = "last_turn", OldestDropped = "oldest_dropped", FrontCut = "front_cut", MiddleDropped = "middle_dropped", AnswersDropped = "answers_dropped" }
    /// The system prompt.
    system: System { Bare = "bare", Missing = "missing", Trimmed = "trimmed", AsUser = "as_user", Token = "token", Default = "default" }
    /// Reasoning of earlier turns.
    reasoning: Reasoning { Official = "official", Flipped = "flipped", Stripped = "stripped", ToolsIgnored = "tools_ignored", Kept = "kept", InContent = "in_content" }
    /// The paragraph on reasoning effort.
    effort: EffortRule { Official = "official", Shifted = "shifted", Missing = "missing", Always = "always", AfterSystem = "after_system", DefaultHigh = "default_high" }
    /// `<think>` or `</think>` behind `<｜Assistant｜>`.
    marker: Marker { Official = "official", Missing = "missing", MissingInHistory = "missing_in_history", Flipped = "flipped", Newline = "newline" }
    /// What stands between turns.
    between: Between { Nothing = "nothing", Newline = "newline", BlankLine = "blank_line" }
    /// The tools block.
    tools: Tools { Official = "official", Missing = "missing", BeforeSystem = "before_system", SortedKeys = "sorted_keys", Compact = "compact", Ascii = "ascii", Normalised = "normalised", Wrapped = "wrapped" }
    /// Tool calls of earlier turns.
    calls: Calls { Official = "official", Missing = "missing", Compact = "compact", Strings = "strings", Wrapped = "wrapped", OtherTags = "other_tags", Json = "json" }
    /// Results of tools.
    results: Results { Merged = "merged", Separate = "separate", Arrival = "arrival", Untagged = "untagged", Missing = "missing", LastOnly = "last_only" }
    /// The token that ends an assistant turn.
    eos: Eos { Official = "official", Missing = "missing", AfterUser = "after_user" }
    /// The start of the model's turn at the end.
    generation: Generation { Official = "official", Missing = "missing", Twice = "twice" }
    /// White space around the content of a message.
    content: Content { Verbatim = "verbatim", Trimmed = "trimmed", EndTrimmed = "end_trimmed" }
    /// How text blocks of one message are joined.
    blocks: Blocks { BlankLine = "blank_line", Newline = "newline", Nothing = "nothing", FirstOnly = "first_only" }
    /// Developer messages.
    developer: Developer { Official = "official", AsSystem = "as_system", Missing = "missing" }
    /// Reminders.
    reminder: Reminder { Official = "official", Missing = "missing", AsUser = "as_user" }
    /// Task tokens.
    task: TaskRule { Official = "official", Missing = "missing" }
    /// The response format.
    format: Format { Official = "official", Missing = "missing", Compact = "compact" }
    /// What user text that spells a control token becomes: characters, or that token. Seen in token ids only.
    spelled: Spelled { Text = "text", Control = "control" }
}
