//! The faults themselves: name, conversations that show it, setting, what must be named first (part, message, what
//! happened), where it was seen, what it looks like.

use super::super::compare::Kind::{self, *};
use super::super::rendered::Part;
use super::Case::{self, *};
use super::PromptFault;

const fn f(
    name: &'static str,
    cases: &'static [Case],
    setting: &'static str,
    part: Option<Part>,
    message: Option<usize>,
    kind: Kind,
    source: &'static str,
    looks: &'static str,
) -> PromptFault {
    PromptFault { name, cases, setting, part, message, kind, source, looks }
}

const WHOLE: Option<Part> = None;
const CONTENT: Option<Part> = Some(Part::Content);
const REASONING: Option<Part> = Some(Part::Reasoning);
const TOOLS: Option<Part> = Some(Part::Tools);
const CALLS: Option<Part> = Some(Part::ToolCalls);
const RESULT: Option<Part> = Some(Part::ToolResult);
const EFFORT: Option<Part> = Some(Part::Effort);
const MARKER: Option<Part> = Some(Part::Marker);
const ROLE: Option<Part> = Some(Part::RoleToken);
const SPACE: Option<Part> = Some(Part::Separator);
const START: Option<Part> = Some(Part::AssistantToken);

const REPORTS: &str = "public reports";
const RULES: &str = "rule of the official script left out";
const CLIENT: &str = "clients and gateways";
const TEMPLATE: &str = "chat templates written by hand";

/// Every fault of the prompt.
#[rustfmt::skip]
pub const PROMPT_FAULTS: &[PromptFault] = &[
    f("drop_thinking_flip", &[Tools], "reasoning=flipped", REASONING, Some(2), Dropped, REPORTS, "beside tools earlier reasoning is gone, without tools it stays"),
    f("drop_thinking_flip_without_tools", &[Thinking], "reasoning=flipped", REASONING, Some(2), Added, REPORTS, "the same seen without tools: reasoning that should be forgotten"),
    f("effort_tier_shift", &[Effort], "effort=shifted", EFFORT, None, Dropped, REPORTS, "the tiers of the other encoder: high asks for nothing"),
    f("effort_tier_shift_max", &[EffortMax], "effort=shifted", EFFORT, None, Changed, REPORTS, "the tiers of the other encoder: max is what high should be"),
    f("strip_reasoning_history", &[Tools], "reasoning=stripped", REASONING, Some(2), Dropped, CLIENT, "reasoning_content is not sent back: empty <think></think> in every earlier turn"),
    f("tools_do_not_keep_reasoning", &[Tools], "reasoning=tools_ignored", REASONING, Some(2), Dropped, RULES, "reasoning between tool calls is lost"),
    f("reasoning_never_dropped", &[Thinking], "reasoning=kept", REASONING, Some(2), Added, RULES, "every earlier turn keeps its reasoning; the context fills up"),
    f("reasoning_in_content", &[Chat], "reasoning=in_content", CONTENT, Some(2), Added, CLIENT, "the client sends <think>…</think> back as content"),
    f("history_trim", &[Chat, Thinking], "history=oldest_dropped", WHOLE, Some(1), Dropped, REPORTS, "the first turn is gone: facts told there are forgotten"),
    f("prior_turns_dropped", &[Chat, Thinking], "history=last_turn", WHOLE, Some(1), Dropped, REPORTS, "only the system prompt and the last turn are left"),
    f("middle_turns_dropped", &[Chat], "history=middle_dropped", WHOLE, Some(3), Dropped, CLIENT, "first and last turn are there, nothing between them"),
    f("answers_dropped", &[Chat], "history=answers_dropped", WHOLE, Some(2), Dropped, CLIENT, "user turns run together"),
    f("context_cut_from_left", &[Chat], "history=front_cut", WHOLE, Some(1), Dropped, CLIENT, "the prompt begins in the middle, without BOS"),
    f("system_dropped", &[Chat], "system=missing", WHOLE, Some(0), Dropped, REPORTS, "no instructions, and no tools"),
    f("system_cut", &[Chat], "system=trimmed", CONTENT, Some(0), CutAtEnd, CLIENT, "a limit cuts the system prompt"),
    f("system_as_user", &[Chat], "system=as_user", ROLE, Some(0), Added, TEMPLATE, "instructions stand in the user's turn"),
    f("system_token", &[Chat], "system=token", ROLE, Some(0), Added, TEMPLATE, "a role token V4 does not have"),
    f("default_system", &[NoSystem], "system=default", CONTENT, Some(0), Added, TEMPLATE, "a system prompt nobody wrote"),
    f("effort_missing", &[Effort], "effort=missing", EFFORT, None, Dropped, REPORTS, "the effort asked for never arrives"),
    f("effort_in_chat_mode", &[EffortInChat], "effort=always", EFFORT, None, Added, RULES, "asked to reason where it cannot"),
    f("effort_after_system", &[Effort], "effort=after_system", EFFORT, None, Moved, TEMPLATE, "the paragraph stands behind the system prompt"),
    f("effort_default_high", &[Thinking], "effort=default_high", EFFORT, None, Added, "deepseek-recipe 0.2.0, on purpose", "an effort nobody asked for"),
    f("thinking_marker_missing", &[Chat, Thinking], "marker=missing", MARKER, Some(2), Dropped, REPORTS, "no </think> behind <｜Assistant｜>: an untrained state"),
    f("thinking_marker_missing_in_history", &[Chat], "marker=missing_in_history", MARKER, Some(2), Dropped, TEMPLATE, "only the last turn has its marker"),
    f("thinking_marker_flipped", &[Chat, Thinking], "marker=flipped", MARKER, Some(2), Changed, REPORTS, "chat mode thinks, thinking mode does not"),
    f("thinking_marker_newline", &[Chat], "marker=newline", SPACE, Some(2), Added, TEMPLATE, "a newline behind the marker"),
    f("newline_between_turns", &[Chat], "between=newline", SPACE, Some(1), Added, TEMPLATE, "a newline before every role token"),
    f("blank_line_between_turns", &[Chat], "between=blank_line", SPACE, Some(1), Added, TEMPLATE, "a blank line before every role token"),
    f("tools_missing", &[Tools], "tools=missing", TOOLS, Some(0), Dropped, REPORTS, "the model knows no tools; its reasoning is dropped as well"),
    f("tools_before_system", &[Tools], "tools=before_system", TOOLS, Some(0), Moved, "vLLM's V4 tokenizer", "the tools in a system message of their own, before the other"),
    f("tools_sorted_keys", &[Tools], "tools=sorted_keys", TOOLS, Some(0), Changed, TEMPLATE, "keys of the schemas in alphabetical order"),
    f("tools_compact_json", &[Tools], "tools=compact", TOOLS, Some(0), CutInside, TEMPLATE, "no space after commas and colons"),
    f("tools_ascii_escaped", &[Tools], "tools=ascii", TOOLS, Some(0), Changed, TEMPLATE, "text beyond ASCII as \\u escapes"),
    f("tools_normalised", &[Tools], "tools=normalised", TOOLS, Some(0), CutInside, "deepseek-recipe 0.2.0, on purpose", "keys other than name, description, parameters are gone"),
    f("tools_wrapped", &[Tools], "tools=wrapped", TOOLS, Some(0), Added, TEMPLATE, "the whole tool object in place of its function"),
    f("calls_missing", &[Tools], "calls=missing", CALLS, Some(2), Dropped, CLIENT, "results without the calls they answer"),
    f("calls_compact_json", &[Tools], "calls=compact", CALLS, Some(2), CutInside, TEMPLATE, "no space after commas in arguments"),
    f("calls_all_strings", &[Tools], "calls=strings", CALLS, Some(2), Changed, TEMPLATE, "numbers and lists marked as strings"),
    f("calls_wrapped", &[Tools], "calls=wrapped", CALLS, Some(2), Changed, "servers that parse arguments twice", "one parameter named arguments"),
    f("calls_other_tags", &[Tools], "calls=other_tags", CALLS, Some(2), Changed, "the tags of V4.1 for V4", "tags the model was not trained on"),
    f("calls_as_json", &[Tools], "calls=json", CALLS, Some(2), Changed, TEMPLATE, "calls as JSON in place of DSML"),
    f("results_separate", &[Tools], "results=separate", RESULT, Some(3), Moved, TEMPLATE, "one user turn a result, in order of arrival"),
    f("results_in_arrival_order", &[Tools], "results=arrival", RESULT, Some(4), Changed, RULES, "results do not stand in the order of their calls"),
    f("results_untagged", &[Tools], "results=untagged", RESULT, Some(4), CutInside, TEMPLATE, "results look like the user's words"),
    f("results_missing", &[Tools], "results=missing", WHOLE, Some(3), Dropped, CLIENT, "calls are never answered"),
    f("only_last_result", &[Tools], "results=last_only", WHOLE, Some(3), Dropped, REPORTS, "of several results one is left"),
    f("eos_missing", &[Chat], "eos=missing", Some(Part::Eos), Some(2), Dropped, TEMPLATE, "earlier answers run into the next turn"),
    f("eos_after_user", &[Chat], "eos=after_user", Some(Part::Eos), Some(2), Added, TEMPLATE, "user turns end like answers"),
    f("generation_prompt_missing", &[Chat, Thinking], "generation=missing", START, None, Dropped, REPORTS, "the model continues the user's turn"),
    f("generation_prompt_twice", &[Chat], "generation=twice", START, None, Added, TEMPLATE, "the model's turn starts twice"),
    f("content_trimmed", &[Padded], "content=trimmed", CONTENT, Some(3), CutInside, TEMPLATE, "white space around contents is gone"),
    f("content_end_trimmed", &[Padded], "content=end_trimmed", CONTENT, Some(3), CutAtEnd, TEMPLATE, "white space behind contents is gone"),
    f("blocks_joined_by_newline", &[Blocks], "blocks=newline", SPACE, Some(1), CutAtEnd, "servers that flatten content", "text blocks joined by one newline"),
    f("blocks_joined_by_nothing", &[Blocks], "blocks=nothing", SPACE, Some(1), Dropped, "servers that flatten content", "text blocks run together"),
    f("first_block_only", &[Blocks], "blocks=first_only", CONTENT, Some(1), CutAtEnd, CLIENT, "only the first text block arrives"),
    f("developer_as_system", &[Developer], "developer=as_system", ROLE, Some(5), Dropped, TEMPLATE, "the developer's turn is no turn: nothing is asked"),
    f("developer_dropped", &[Developer], "developer=missing", WHOLE, Some(5), Dropped, TEMPLATE, "the developer's words are gone"),
    f("reminder_dropped", &[Reminder], "reminder=missing", WHOLE, Some(1), Dropped, TEMPLATE, "the reminder is gone"),
    f("reminder_as_user", &[Reminder], "reminder=as_user", ROLE, Some(1), Changed, TEMPLATE, "the reminder looks like the user's words"),
    f("task_token_missing", &[Task], "task=missing", Some(Part::Task), Some(0), Changed, TEMPLATE, "the task is a question like any other"),
    f("response_format_missing", &[Format], "format=missing", Some(Part::ResponseFormat), Some(0), Dropped, TEMPLATE, "the schema is enforced or forgotten, but not shown"),
    f("response_format_compact", &[Format], "format=compact", Some(Part::ResponseFormat), Some(0), CutInside, TEMPLATE, "no space after commas and colons"),
    f("bos_missing", &[Chat], "bos=missing", Some(Part::Bos), None, Dropped, REPORTS, "the first token is not BOS"),
    f("bos_twice", &[Chat], "bos=twice", Some(Part::Bos), None, Added, "template and tokenizer both add it", "two BOS at the start"),
    f("spelled_token_as_control", &[Spelled], "spelled=control", CONTENT, Some(1), Respelled, "servers that tokenise the rendered text", "user text that spells a control token becomes one; seen in token ids"),
];
