//! Section D: what was ruled out, by which experiment; who is left; and what to do next.

use super::Source;
use crate::kernels::Spec;
use serde::Serialize;
use serde_json::Value;

/// Something that an experiment ruled out, or left open.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// The question, in the order that is cheapest to check.
    pub question: String,
    /// `ruled out`, `found`, `not tested`, `undecided`.
    pub answer: String,
    /// What the answer rests on.
    pub by: String,
}

/// The principal suspect.
#[derive(Debug, Clone, Serialize)]
pub struct Principal {
    /// Site, if one is named.
    pub site: String,
    /// First layer, if one is named.
    pub layer: Option<u64>,
    /// What was switched on: toggles, a kernel spec, or the dump.
    pub what: String,
    /// Evidence in words.
    pub why: String,
    /// The run that shows it.
    pub run: String,
    /// Cheapest next experiment, a command line.
    pub next: String,
}

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v[key].as_str().unwrap_or_default()
}

/// The suspect that the evidence points at most directly: the engine's own tensors first, then an experiment that
/// isolates a toggle, then a comparison of emulated kernels, then recall.
pub fn principal(runs: &[Source]) -> Option<Principal> {
    let of = |command: &'static str| runs.iter().filter(move |r| r.command == command);
    let dump = |r: &&Source| r.summary["mode"] == "dump";
    of("diff-layers")
        .filter(dump)
        .find_map(comparison)
        .or_else(|| of("ab").find_map(experiment))
        .or_else(|| of("diff-layers").filter(|r| !dump(r)).find_map(comparison))
        .or_else(|| of("needle").find_map(recall))
}

fn comparison(run: &Source) -> Option<Principal> {
    let v = &run.summary["verdict"];
    if v["status"] != "suspect" {
        return None;
    }
    let kernels = run.summary["kernels"].as_str();
    let layer = v["layer"].as_u64();
    let next = match kernels {
        Some(k) => format!("dsv4 kernels check --kernels {k}"),
        None => format!(
            "dsv4 diff-layers --against {} --json | jq '.rows[] | select(.layer == {})'",
            text(&run.summary, "dump"),
            layer.map_or("null".into(), |l| l.to_string())
        ),
    };
    Some(Principal {
        site: text(v, "site").into(),
        layer,
        what: kernels.map_or_else(
            || format!("the run that {} was dumped from", text(&run.summary, "dump")),
            str::to_owned,
        ),
        why: text(v, "why").into(),
        run: run.path.clone(),
        next,
    })
}

fn experiment(run: &Source) -> Option<Principal> {
    let s = &run.summary["conclusion"]["suspect"];
    if s.is_null() {
        return None;
    }
    let toggles: Vec<&str> = s["toggles"].as_array()?.iter().filter_map(Value::as_str).collect();
    let spec = run.summary["runs"].as_array().into_iter().flatten().find(|r| r["name"] == s["run"]);
    let kernels = spec.map_or("", |r| text(r, "kernels"));
    // Where no tap is off, the sites that the toggles set are all there is to say.
    let sites = || {
        kernels.parse::<Spec>().map_or(String::new(), |s| {
            s.sites().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        })
    };
    Some(Principal {
        site: s["site"].as_str().map_or_else(sites, str::to_owned),
        layer: s["layer"].as_u64(),
        what: toggles.join(" + "),
        why: text(s, "why").into(),
        run: run.path.clone(),
        next: if toggles.len() > 1 {
            "dsv4 ab --bisect".into()
        } else {
            format!("dsv4 diff-layers --model {} --kernels {kernels}", text(&run.summary, "model"))
        },
    })
}

fn recall(run: &Source) -> Option<Principal> {
    let cause = run.summary["verdict"]["cause"].as_str()?;
    if matches!(cause, "nothing-wrong" | "undecided" | "not-run") {
        return None;
    }
    let d =
        run.summary["diagnosis"].as_array()?.iter().find(|d| d["path"] == run.summary["verdict"]["path"])?;
    let evidence: Vec<&str> =
        d["evidence"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    Some(Principal {
        site: match cause {
            "ranking-broken" | "ranking-worse" => "indexer",
            "selected-not-used" => "attn",
            "cache-mask-chunk" => "kv_cache",
            "coverage-limit" => "topk",
            "prompt" => "prompt",
            _ => "",
        }
        .into(),
        layer: None,
        what: text(d, "path").into(),
        why: format!("{}; {}", text(d, "headline"), evidence.join("; ")),
        run: run.path.clone(),
        next: text(d, "next").into(),
    })
}

/// The five questions in the order of their cost.
pub fn steps(runs: &[Source]) -> Vec<Step> {
    let step = |q: &str, answer: &str, by: String| Step { question: q.into(), answer: answer.into(), by };
    let names = |list: &[&Source]| list.iter().map(|r| r.path.as_str()).collect::<Vec<_>>().join(", ");
    let mut out = Vec::new();

    let dumps: Vec<&Source> = runs.iter().filter(|r| r.summary["mode"] == "dump").collect();
    let other = dumps.iter().find(|r| r.summary["verdict"]["tap"] == "tokens");
    out.push(match other {
        Some(r) => step("Is the prompt wrong?", "found", format!("{}: {}", r.path, text(&r.summary["verdict"], "why"))),
        None => step(
            "Is the prompt wrong?",
            "not tested",
            "compare what the server sent with the official encoding: dsv4 encode --messages FILE --against SENT".into(),
        ),
    });

    let kernels: Vec<&Source> =
        runs.iter().filter(|r| matches!(r.command.as_str(), "ab" | "diff-layers")).collect();
    let broken: Vec<&Source> =
        kernels.iter().copied().filter(|r| comparison(r).is_some() || experiment_fails(r)).collect();
    out.push(if kernels.is_empty() {
        step(
            "Is a kernel wrong?",
            "not tested",
            "dsv4 ab, or dsv4 diff-layers --against a dump of the engine".into(),
        )
    } else if broken.is_empty() {
        step("Is a kernel wrong?", "ruled out", format!("for the kernels and prompts of {}", names(&kernels)))
    } else {
        step("Is a kernel wrong?", "found", names(&broken))
    });

    let needles: Vec<&Source> = runs.iter().filter(|r| r.command == "needle").collect();
    for (question, causes) in [
        ("Are the facts not selected?", &["ranking-broken", "ranking-worse", "coverage-limit"][..]),
        ("Are they selected and not used?", &["selected-not-used", "cache-mask-chunk", "phase"][..]),
    ] {
        let has = |r: &&Source, causes: &[&str]| {
            let d = r.summary["diagnosis"].as_array().into_iter().flatten();
            d.filter_map(|d| d["cause"].as_str()).any(|c| causes.contains(&c))
        };
        let found: Vec<&Source> = needles.iter().copied().filter(|r| has(r, causes)).collect();
        let unsure = |r: &&Source| has(r, &["undecided", "not-run"]) || thin(r);
        let open: Vec<&Source> = needles.iter().copied().filter(unsure).collect();
        out.push(if needles.is_empty() {
            step(question, "not tested", "dsv4 needle".into())
        } else if !found.is_empty() {
            step(question, "found", names(&found))
        } else if !open.is_empty() {
            step(question, "undecided", format!("too few trials in {}", names(&open)))
        } else {
            step(question, "ruled out", format!("at the lengths and depths of {}", names(&needles)))
        });
    }

    let golden = |r: &&Source| {
        let d = r.summary["diagnosis"].as_array().into_iter().flatten();
        d.filter(|d| d["path"] == "golden")
            .any(|d| !matches!(d["cause"].as_str(), Some("nothing-wrong" | "undecided")))
    };
    let limits: Vec<&Source> = needles.iter().copied().filter(golden).collect();
    out.push(if needles.is_empty() {
        step("Can the checkpoint itself not do it?", "not tested", "dsv4 needle".into())
    } else if limits.is_empty() && needles.iter().any(|r| thin(r)) {
        step(
            "Can the checkpoint itself not do it?",
            "undecided",
            format!("too few trials in {}", names(&needles)),
        )
    } else if limits.is_empty() {
        step(
            "Can the checkpoint itself not do it?",
            "ruled out",
            format!("golden recalls in {}", names(&needles)),
        )
    } else {
        step(
            "Can the checkpoint itself not do it?",
            "found",
            format!("golden itself fails in {}", names(&limits)),
        )
    });
    out
}

/// True if a path's own width has too few trials at some length to say that recall is as reliable as asked for.
fn thin(r: &Source) -> bool {
    let limit = r.summary["run"]["reliable"].as_f64().unwrap_or(1.0);
    let rows = r.summary["recall"].as_array().into_iter().flatten();
    rows.filter(|c| c["depth"].is_null() && c["topk"] == "native" && c["n"].as_u64() > Some(0))
        .any(|c| c["low"].as_f64().is_none_or(|low| low < limit))
}

fn experiment_fails(r: &Source) -> bool {
    r.command == "ab" && r.summary["conclusion"]["passed"] == Value::Bool(false)
}

/// What nobody should read out of the runs.
pub fn not_tested(runs: &[Source]) -> Vec<String> {
    let any = |f: &dyn Fn(&Source) -> bool| runs.iter().any(f);
    let mut out: Vec<String> = Vec::new();
    if !any(&|r| r.summary["mode"] == "dump") {
        out.push(
            "The engine itself: no tensors of it were compared. Emulated kernels round, tile and select as the named \
             kernels are known to; the binary that runs may not be one of them."
                .into(),
        );
    }
    if !any(&|r| r.command == "needle") {
        out.push("Recall: no needle grid is among the runs.".into());
    }
    if !any(&|r| r.command == "selftest") {
        out.push("The tool's own sensitivity on this model: no selftest is among the runs.".into());
    }
    if !any(&|r| r.command == "inspect") {
        out.push("The checkpoint: it was not inspected.".into());
    }
    let decode = |r: &Source| {
        r.manifest["run"]["decode_last"].as_u64().or(r.summary["decode_last"].as_u64()).is_some_and(|n| n > 0)
    };
    if !any(&decode) {
        out.push("Decode kernels: every comparison was prefill only.".into());
    }
    out.push("Speculative decoding, graph capture, concurrency and load: every path here runs one prompt at a time.".into());
    out
}
