//! Texts of the encoding that are the same in every prompt.
//!
//! The tools preamble, its closing and the effort paragraphs are taken from DeepSeek's
//! `deepseek-recipe-encoding` 0.2.0, Copyright (c) 2026 DeepSeek, MIT license (see NOTICE). Their SHA-256 sums are those of
//! the encoder files shipped with the checkpoints; a test holds them.

/// Starts a prompt.
pub const BOS: &str = "<｜begin▁of▁sentence｜>";
/// Ends an assistant turn.
pub const EOS: &str = "<｜end▁of▁sentence｜>";
/// Starts a system turn; V4.1 only.
pub const SYSTEM: &str = "<｜System｜>";
/// Starts a user turn.
pub const USER: &str = "<｜User｜>";
/// Starts an assistant turn.
pub const ASSISTANT: &str = "<｜Assistant｜>";
/// Starts a reminder.
pub const REMINDER: &str = "<｜latest_reminder｜>";
/// Opens reasoning.
pub const THINK: &str = "<think>";
/// Closes reasoning, or says that there is none.
pub const THINK_END: &str = "</think>";
/// Starts every tag of a tool call, behind `<` or `</`.
pub const DSML: &str = "｜DSML｜";

/// Every control token the encoder writes, with its id in the released tokenizers where that is known.
pub const CONTROL: [(&str, Option<u32>); 15] = [
    (BOS, Some(0)),
    (EOS, Some(1)),
    (SYSTEM, None),
    (USER, Some(128_803)),
    (ASSISTANT, Some(128_804)),
    (REMINDER, Some(128_828)),
    (THINK, Some(128_821)),
    (THINK_END, Some(128_822)),
    (DSML, Some(128_825)),
    ("<｜action｜>", Some(128_829)),
    ("<｜query｜>", None),
    ("<｜authority｜>", None),
    ("<｜domain｜>", None),
    ("<｜title｜>", Some(128_836)),
    ("<｜read_url｜>", None),
];

/// The paragraph of effort "max" of the preview encoder and "high" since 0731.
pub const EFFORT_HIGH: &str = "\
Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.

";

/// The paragraph of effort "max" since 0731.
pub const EFFORT_MAX: &str = "\
Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.

";

/// How every effort paragraph begins.
pub const EFFORT_START: &str = "Reasoning Effort: ";

/// V4.1: the text behind the score.
pub const EFFORT_SCORE_END: &str =
    " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";

/// How every tools block begins.
pub const TOOLS_START: &str = "## Tools\n\nYou have access to a set of tools";

/// What stands before the tool schemas. `space` is what V4.1 puts between a tag's DSML token and its name.
pub fn tools_preamble(v41: bool) -> String {
    let (calls, invoke, parameter) =
        if v41 { (" calls", " invoke", " parameter") } else { ("tool_calls", "invoke", "parameter") };
    format!(
        r#"{TOOLS_START} to help answer the user's question. You can invoke tools by writing a "<{DSML}{calls}>" block like the following:

<{DSML}{calls}>
<{DSML}{invoke} name="$TOOL_NAME">
<{DSML}{parameter} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}{parameter}>
...
</{DSML}{invoke}>
<{DSML}{invoke} name="$TOOL_NAME2">
...
</{DSML}{invoke}>
</{DSML}{calls}>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside {THINK}...{THINK_END} BEFORE any tool calls or final response.

Otherwise, output directly after {THINK_END} with tool calls or final response.

### Available Tool Schemas

"#
    )
}

/// What stands behind the tool schemas.
pub const TOOLS_END: &str =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

/// What stands before the schema of a response format.
pub const FORMAT_START: &str =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";
