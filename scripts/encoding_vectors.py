"""Makes fixtures/encoding/recipe.jsonl: seeded conversations and what DeepSeek's own renderer makes of them.

    pip install deepseek-recipe==0.2.0
    python scripts/encoding_vectors.py > fixtures/encoding/recipe.jsonl

Only conversations on which that renderer means to agree with the script shipped beside the weights: an effort is named
(the defaults differ), one leading system message at most, no empty content, calls in the order of their ids, at least
one argument a call, in V4 reasoning in every assistant message when thinking and in none when not (beside tools that
renderer writes `</think>` for missing reasoning where the script writes `<think></think>`, and renders reasoning in chat
mode), tools of exactly name, description and parameters, a reminder only before
the first user (after one, the script starts a model turn first), and a user's turn at the end.
"""

import hashlib
import json
import random

import deepseek_recipe as dr

R = random.Random(20260801)
WORDS = ["hi", "  padded ", "é😀", "two\nlines", "a\n\nb", "the vault code", "1 < 2", "{\"json\": true}"]


def tools():
    names = R.sample(["f", "lookup", "add_two"], R.randint(1, 3))
    return [
        {
            "name": n,
            "description": R.choice(["", "does é", "line\nbreak"]),
            "parameters": {"type": "object", "properties": {"b": {"type": "number", "minimum": 0.5}, "a": {"enum": [1, None, "x"]}}},
        }
        for n in names
    ]


def conversation(v41, thinking):
    """Messages in OpenAI form, and the tools of the request."""
    offered = tools() if R.random() < 0.5 else []
    out = [{"role": "system", "content": R.choice(WORDS)}] if R.random() < 0.6 or offered else []
    call_id = 0
    for turn in range(R.randint(1, 4)):
        if turn:
            message = {"role": "assistant", "content": R.choice(WORDS)}
            if (R.random() < 0.7) if v41 else thinking:
                message["reasoning_content"] = R.choice(WORDS)
            if offered and R.random() < 0.6:
                calls = []
                for _ in range(R.randint(1, 3)):
                    call_id += 1
                    arguments = R.choice(['{"a":"x\\ny","b":2}', '{"k":{"z":1,"a":[true,null]}}', "no json", '{"x":0.25}'])
                    calls.append({"id": f"c{call_id:02}", "type": "function", "function": {"name": offered[0]["name"], "arguments": arguments}})
                message["tool_calls"] = calls
            out.append(message)
            results = [
                {"role": "tool", "tool_call_id": c["id"], "content": R.choice(WORDS)} for c in message.get("tool_calls", [])
            ]
            R.shuffle(results)
            out += results
        if v41 and turn and R.random() < 0.2 and not out[-1].get("tool_calls"):
            out.append({"role": "system", "content": "mid"})
        for _ in range(R.choice([1, 1, 1, 2])):
            out.append({"role": "user", "content": R.choice(WORDS)})
        if R.random() < 0.1 and turn == 0:
            first = next(i for i, m in enumerate(out) if m["role"] == "user")
            out.insert(first, {"role": "latest_reminder", "content": "today"})
    return out, offered


def native(m):
    text = m["content"]
    match m["role"]:
        case "system":
            return dr.SystemMessage(text)
        case "user":
            return dr.UserMessage(text)
        case "latest_reminder":
            return dr.LatestReminderMessage(text)
        case "tool":
            return dr.ToolMessage(text, tool_call_id=m["tool_call_id"])
    calls = [dr.ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in m.get("tool_calls", [])]
    return dr.AssistantMessage(text, reasoning_content=m.get("reasoning_content"), tool_calls=calls or None)


for i in range(240):
    v41 = i % 2 == 1
    effort, thinking = R.choice(["low", "high", "max"]), R.random() < 0.7
    messages, offered = conversation(v41, thinking)
    rendered = (dr.DeepseekV41Encoding() if v41 else dr.DeepseekV4Encoding()).render_conversation(
        dr.Conversation(
            [native(m) for m in messages],
            thinking_mode=thinking,
            reasoning_effort=effort,
            tools=[dr.ToolDefinition(t["name"], t["description"], t["parameters"]) for t in offered],
        )
    )
    case = {
        "encoder": "v4.1" if v41 else "0731",
        "mode": "thinking" if thinking else "chat",
        "effort": effort,
        "messages": messages,
        "tools": [{"type": "function", "function": t} for t in offered],
        "sha256": hashlib.sha256(rendered.prompt.encode()).hexdigest(),
        "control": len(rendered.special_ranges),
        "end": rendered.prompt[-40:],
    }
    print(json.dumps(case, ensure_ascii=False))
