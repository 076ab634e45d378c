//! `dsv4 inspect`: what a checkpoint is, what it holds, and whether that is what its config calls for.
//!
//! Exit 0 if every expected tensor is there and usable (extra ones do no harm), 1 if any is missing, of the wrong shape or
//! type, or a hash table names an expert that does not exist; 3 if the checkpoint cannot be opened at all.

use std::fmt::Write as _;
use std::io::Write;

use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, Config, Inventory, LayerKind, Role, RoleSummary, Rope, Stored};
use crate::error::{Error, Result, exit};

/// Describe a checkpoint and check it against its config.
#[derive(Debug, Clone, clap::Args)]
pub struct InspectArgs {
    /// A directory with config.json and *.safetensors, or builtin:pico.
    #[arg(value_name = "MODEL", default_value = "builtin:pico")]
    pub model: String,
    /// Print one JSON object (schema dsv4.inspect/1) instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command; the result is the exit code.
pub fn run(args: &InspectArgs, out: &mut dyn Write) -> Result<i32> {
    let checkpoint = Checkpoint::open(&args.model)?;
    let facts = Facts::gather(&checkpoint);
    let text = if args.json {
        let mut text = serde_json::to_string_pretty(&facts.json()).map_err(|e| Error::bug(e.to_string()))?;
        text.push('\n');
        text
    } else {
        facts.text()
    };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of a pipe may have seen enough.
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::input(format!("cannot write the report: {e}")))
        }
        _ => Ok(if facts.ok() { exit::OK } else { exit::DIFFERENCE }),
    }
}

/// Everything both writers say.
struct Facts<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a Config,
    inventory: Inventory,
    hash: HashTables,
    questions: Vec<Question>,
}

/// A question with its answer and what the answer rests on.
struct Question {
    id: &'static str,
    question: &'static str,
    answer: &'static str,
    evidence: String,
}

/// What the hash layers' tables hold.
#[derive(Default)]
struct HashTables {
    layers: Vec<usize>,
    /// Layers whose table could not be read or names an unknown expert, and why.
    bad: Vec<(usize, String)>,
    /// Tokens sent twice to the same expert.
    repeated: usize,
}

impl HashTables {
    fn read(c: &Checkpoint) -> Self {
        let mut out = HashTables::default();
        for (l, spec) in c.config().layers.iter().enumerate().filter(|(_, s)| s.hash) {
            out.layers.push(l);
            let name = format!("layers.{l}.ffn.gate.tid2eid");
            // A missing table is reported as a missing tensor.
            if !spec.hash || !c.has(&name) {
                continue;
            }
            match c.load_i64(&name) {
                Ok((_, ids)) => {
                    let rows = ids.chunks(c.config().num_experts_per_tok);
                    out.repeated += rows.filter(|r| (1..r.len()).any(|i| r[..i].contains(&r[i]))).count();
                }
                Err(e) => out.bad.push((l, e.message().to_owned())),
            }
        }
        out
    }
}

impl<'a> Facts<'a> {
    fn gather(checkpoint: &'a Checkpoint) -> Self {
        let config = checkpoint.config();
        let inventory = checkpoint.inventory();
        let hash = HashTables::read(checkpoint);
        let questions = questions(checkpoint, &inventory, &hash);
        Facts { checkpoint, config, inventory, hash, questions }
    }

    fn ok(&self) -> bool {
        self.inventory.ok() && self.hash.bad.is_empty()
    }

    fn verdict(&self) -> String {
        let inv = &self.inventory;
        let mut parts = Vec::new();
        if inv.missing.0 > 0 {
            parts.push(format!("{} missing", count(inv.missing.0, "tensor")));
        }
        if inv.wrong.0 > 0 {
            parts.push(format!("{} unusable", count(inv.wrong.0, "tensor")));
        }
        if inv.wrong.0 == 0 && !self.hash.bad.is_empty() {
            parts.push(format!("{} out of range", count(self.hash.bad.len(), "hash table")));
        }
        if parts.is_empty() {
            parts.push("ok: nothing missing, nothing of the wrong shape".into());
        }
        if inv.extra.0 > 0 {
            parts.push(format!("{} extra (ignored)", inv.extra.0));
        }
        parts.join(", ")
    }

    fn json(&self) -> Value {
        let inv = &self.inventory;
        let c = self.config;
        let share = |s: &crate::checkpoint::Share| json!({"tensors": s.tensors, "params": s.params, "bytes": s.bytes});
        let roles: Vec<Value> = inv
            .roles
            .iter()
            .map(|r| {
                let formats: Vec<Value> = r
                    .formats
                    .iter()
                    .map(|(f, s)| {
                        let mut v = share(s);
                        v["stored"] = f.map(|f| f.to_string()).into();
                        v
                    })
                    .collect();
                let mut v = share(&r.total);
                v["role"] = r.role.name().into();
                v["formats"] = formats.into();
                v
            })
            .collect();
        json!({
            "schema": "dsv4.inspect/1",
            "verdict": {"status": if self.ok() { "ok" } else { "incomplete" }, "summary": self.verdict()},
            "source": self.checkpoint.source(),
            "fingerprint": self.checkpoint.fingerprint(),
            "config": config_json(c),
            "schedule": c.layers.iter().enumerate().map(|(l, s)| json!({
                "layer": l, "kind": s.kind.name(), "ratio": s.ratio, "hash": s.hash,
            })).collect::<Vec<_>>(),
            "horizon_tokens": c.horizon(),
            "params": {"total": inv.params_total, "active_per_token": inv.params_active},
            "bytes": inv.bytes_total,
            "roles": roles,
            "questions": self.questions.iter().map(|q| json!({
                "id": q.id, "question": q.question, "answer": q.answer, "evidence": q.evidence,
            })).collect::<Vec<_>>(),
            "missing": {"count": inv.missing.0, "names": inv.missing.1},
            "wrong": {"count": inv.wrong.0, "tensors": inv.wrong.1.iter().map(|w| json!({
                "name": w.name, "message": w.message,
            })).collect::<Vec<_>>()},
            "extra": {"count": inv.extra.0, "names": inv.extra.1},
        })
    }

    fn text(&self) -> String {
        let c = self.config;
        let inv = &self.inventory;
        let mut t = String::new();
        wrapped(&mut t, 0, &self.verdict());
        t.push('\n');
        line(&mut t, "model", self.checkpoint.source());
        line(&mut t, "architecture", &format!("{} ({} config)", c.model_type, c.dialect));
        line(&mut t, "fingerprint", &self.checkpoint.fingerprint());
        line(
            &mut t,
            "size",
            &format!(
                "{} parameters, {} active per token, {}",
                si(inv.params_total, ""),
                si(inv.params_active, ""),
                si(inv.bytes_total, "B")
            ),
        );
        line(
            &mut t,
            "dimensions",
            &format!(
                "hidden {}, {} heads x {} ({} rotary), q latent {}, output {} groups x {}, window {}, vocabulary {}",
                c.hidden_size,
                c.num_attention_heads,
                c.head_dim,
                c.qk_rope_head_dim,
                c.q_lora_rank,
                c.o_groups,
                c.o_lora_rank,
                c.sliding_window,
                c.vocab_size
            ),
        );
        line(
            &mut t,
            "mhc",
            &format!(
                "{} streams, {} Sinkhorn iterations, eps {:e}",
                c.hc_mult, c.hc_sinkhorn_iters, c.hc_eps
            ),
        );
        line(
            &mut t,
            "experts",
            &format!(
                "{} routed (top {}) + {} shared, width {}",
                c.n_routed_experts, c.num_experts_per_tok, c.n_shared_experts, c.moe_intermediate_size
            ),
        );
        line(&mut t, "schedule", &schedule(c));
        line(&mut t, "rope", &ropes(c));
        t.push('\n');
        self.role_table(&mut t);
        t.push('\n');
        for q in &self.questions {
            wrapped(&mut t, 0, q.question);
            wrapped(&mut t, 2, &format!("{}: {}", q.answer, q.evidence));
        }
        list(&mut t, "missing", inv.missing.0, inv.missing.1.iter().map(|n| (n.as_str(), "")));
        list(
            &mut t,
            "unusable",
            inv.wrong.0,
            inv.wrong.1.iter().map(|w| (w.name.as_str(), w.message.as_str())),
        );
        list(&mut t, "extra", inv.extra.0, inv.extra.1.iter().map(|n| (n.as_str(), "")));
        t
    }

    fn role_table(&self, t: &mut String) {
        let _ = writeln!(t, "{:<15} {:>8} {:>9} {:>9}  stored as", "role", "tensors", "params", "size");
        for r in &self.inventory.roles {
            let head = format!(
                "{:<15} {:>8} {:>9} {:>9}  ",
                r.role.name(),
                r.total.tensors,
                si(r.total.params, ""),
                si(r.total.bytes, "B")
            );
            let mut first = true;
            for (f, s) in &r.formats {
                let lead = if first { head.clone() } else { " ".repeat(head.len()) };
                first = false;
                let what = f.map_or("-".into(), |f| f.to_string());
                let share = if r.formats.len() > 1 { format!(" ({})", s.tensors) } else { String::new() };
                let _ = writeln!(t, "{}", format!("{lead}{what}{share}").trim_end());
            }
        }
    }
}

fn questions(c: &Checkpoint, inv: &Inventory, hash: &HashTables) -> Vec<Question> {
    let cfg = c.config();
    let mut out = Vec::new();
    let mut ask = |id, question, yes: bool, evidence: String| {
        out.push(Question { id, question, answer: if yes { "yes" } else { "no" }, evidence });
    };

    let mut mixing: Vec<(Option<Stored>, usize)> = Vec::new();
    let names = (0..cfg.layers.len()).flat_map(|l| ["attn", "ffn"].map(|s| format!("layers.{l}.hc_{s}_fn")));
    for name in names.chain(["hc_head_fn".to_owned()]) {
        let s = c.stored(&name);
        match mixing.iter_mut().find(|(f, _)| *f == s) {
            Some((_, n)) => *n += 1,
            None => mixing.push((s, 1)),
        }
    }
    let said: Vec<String> = mixing
        .iter()
        .map(|(f, n)| format!("{n} hc_*_fn as {}", f.map_or("missing or unusable".into(), |f| f.to_string())))
        .collect();
    ask(
        "mhc_f32",
        "Are the mHC mixing weights stored in f32?",
        mixing.iter().all(|(f, _)| matches!(f, Some(Stored::F32 | Stored::F64))),
        said.join(", "),
    );

    ask(
        "routed_sum",
        "Will the routed weights of any token sum to the scaling factor?",
        true,
        format!(
            "norm_topk_prob holds (the architecture has no other form) and routed_scaling_factor is {s}: \
         the {} weights of any token sum to {s}",
            cfg.num_experts_per_tok,
            s = cfg.routed_scaling_factor
        ),
    );

    match cfg.horizon() {
        Some(h) => ask(
            "horizon",
            "Can the indexer's ranking change a result?",
            cfg.max_position_embeddings > h,
            format!(
                "identity horizon {h} tokens = index_topk {} x ratio {}; up to there every entry is selected and a broken \
             indexer is invisible; the model claims {} positions",
                cfg.index_topk,
                cfg.csa_ratio().unwrap_or(0),
                cfg.max_position_embeddings
            ),
        ),
        None => ask(
            "horizon",
            "Can the indexer's ranking change a result?",
            false,
            "no CSA layer, hence no indexer and no identity horizon".into(),
        ),
    }

    ask(
        "clamp",
        "Are expert activations clamped?",
        cfg.swiglu_limit.is_some(),
        match cfg.swiglu_limit {
            Some(l) => format!(
                "swiglu_limit {l}: gate at most {l}, up within -{l} and {l}, routed and shared experts alike"
            ),
            None => "swiglu_limit is null".into(),
        },
    );

    let wrong_tables = hash.bad.first().map(|(l, why)| format!("layer {l}: {why}"));
    let absent = hash.layers.iter().filter(|l| !c.has(&format!("layers.{l}.ffn.gate.tid2eid"))).count();
    ask(
        "hash_layers",
        "Are there hash-routed layers, and are their expert ids in range?",
        !hash.layers.is_empty() && hash.bad.is_empty() && absent == 0,
        if hash.layers.is_empty() {
            "no hash-routed layer".into()
        } else if let Some(w) = wrong_tables {
            format!("layers {}; {w}", runs(&hash.layers))
        } else if absent > 0 {
            format!("layers {}; {absent} without its table", runs(&hash.layers))
        } else {
            format!(
                "layers {}: all ids below {}; {} sent twice to one expert",
                runs(&hash.layers),
                cfg.n_routed_experts,
                count(hash.repeated, "token")
            )
        },
    );

    let quantised: Vec<String> = inv
        .roles
        .iter()
        .filter_map(|r| {
            let forms: Vec<String> = quantised_forms(r).map(|f| f.to_string()).collect();
            (!forms.is_empty()).then(|| format!("{} {}", r.role.name(), forms.join(" and ")))
        })
        .collect();
    ask(
        "quantised",
        "Are any weights quantised?",
        !quantised.is_empty(),
        if quantised.is_empty() {
            "every role is stored in a plain float type".into()
        } else {
            quantised.join("; ")
        },
    );

    let nv = inv.role(Role::RoutedExperts).is_some_and(|r| r.formats.contains_key(&Some(Stored::NvFp4)));
    if nv {
        let first = cfg
            .layers
            .iter()
            .enumerate()
            .flat_map(|(l, _)| (0..cfg.n_routed_experts).map(move |e| (l, e)))
            .map(|(l, e)| format!("layers.{l}.ffn.experts.{e}.w1.weight"))
            .find(|n| c.stored(n) == Some(Stored::NvFp4));
        let scale = first.and_then(|n| c.input_scale(&n).ok().flatten());
        ask(
            "input_scale",
            "Do the NVFP4 experts carry activation scales?",
            scale.is_some(),
            match scale {
                Some(s) => format!(
                    "the first NVFP4 expert has input_scale {s:e}; W4A4 kernels use it, W4A16 kernels do not"
                ),
                None => "the first NVFP4 expert has no input_scale; only W4A16 kernels can run it".into(),
            },
        );
    }

    ask(
        "complete",
        "Is every tensor the config calls for there and usable?",
        inv.ok(),
        format!("{} missing, {} of wrong shape or type", inv.missing.0, inv.wrong.0),
    );
    let mtp = inv.role(Role::Mtp).map_or(0, |r| r.total.tensors);
    ask(
        "extra",
        "Are there tensors nobody reads?",
        inv.extra.0 + mtp > 0,
        format!("{} unknown, {mtp} of the drafter (mtp.*); neither changes the result", inv.extra.0),
    );
    ask(
        "keys",
        "Is every key of the config understood?",
        cfg.unknown_keys.is_empty(),
        if cfg.unknown_keys.is_empty() {
            "none is left over".into()
        } else {
            let some: Vec<&str> = cfg.unknown_keys.iter().take(12).map(String::as_str).collect();
            let more = cfg.unknown_keys.len() - some.len();
            format!(
                "not understood and ignored: {}{}",
                some.join(", "),
                if more > 0 { format!(" and {more} more") } else { String::new() }
            )
        },
    );
    out
}

fn quantised_forms(r: &RoleSummary) -> impl Iterator<Item = Stored> + '_ {
    r.formats.keys().flatten().copied().filter(|f| f.is_quantised())
}

fn config_json(c: &Config) -> Value {
    let rope = |r: &Rope| {
        json!({
            "theta": r.theta,
            "yarn": r.yarn.map(|y| json!({
                "factor": y.factor,
                "original_max_position_embeddings": y.original_max_position_embeddings,
                "beta_fast": y.beta_fast,
                "beta_slow": y.beta_slow,
            })),
        })
    };
    json!({
        "model_type": c.model_type,
        "dialect": c.dialect,
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "head_dim": c.head_dim,
        "qk_rope_head_dim": c.qk_rope_head_dim,
        "q_lora_rank": c.q_lora_rank,
        "o_groups": c.o_groups,
        "o_lora_rank": c.o_lora_rank,
        "sliding_window": c.sliding_window,
        "rope_main": rope(&c.rope_main),
        "rope_compress": rope(&c.rope_compress),
        "index_n_heads": c.index_n_heads,
        "index_head_dim": c.index_head_dim,
        "index_topk": c.index_topk,
        "hc_mult": c.hc_mult,
        "hc_sinkhorn_iters": c.hc_sinkhorn_iters,
        "hc_eps": exactly(c.hc_eps),
        "rms_norm_eps": exactly(c.rms_norm_eps),
        "moe_intermediate_size": c.moe_intermediate_size,
        "n_routed_experts": c.n_routed_experts,
        "n_shared_experts": c.n_shared_experts,
        "num_experts_per_tok": c.num_experts_per_tok,
        "routed_scaling_factor": exactly(c.routed_scaling_factor),
        "swiglu_limit": c.swiglu_limit.map(exactly),
        "max_position_embeddings": c.max_position_embeddings,
        "bos_token_id": c.bos_token_id,
        "eos_token_ids": c.eos_token_ids,
        "num_nextn_predict_layers": c.num_nextn_predict_layers,
        "unknown_keys": c.unknown_keys,
    })
}

/// An f32 as the shortest decimal that reads back as it: 1e-6, not 9.999999974752427e-7.
fn exactly(x: f32) -> Value {
    format!("{x:e}").parse::<f64>().map_or(Value::Null, Value::from)
}

/// "window 0-1; csa ratio 4: 2,4..42 (21); hca ratio 128: 3,5..41 (20); hash-routed 0-2".
fn schedule(c: &Config) -> String {
    let mut groups: Vec<((LayerKind, usize), Vec<usize>)> = Vec::new();
    for (l, s) in c.layers.iter().enumerate() {
        match groups.iter_mut().find(|(key, _)| *key == (s.kind, s.ratio)) {
            Some((_, list)) => list.push(l),
            None => groups.push(((s.kind, s.ratio), vec![l])),
        }
    }
    let mut parts: Vec<String> = groups
        .iter()
        .map(|((kind, ratio), list)| {
            let ratio = if *kind == LayerKind::Window { String::new() } else { format!(" ratio {ratio}") };
            format!("{}{ratio}: {} ({})", kind.name(), runs(list), list.len())
        })
        .collect();
    let hash: Vec<usize> = c.layers.iter().enumerate().filter(|(_, s)| s.hash).map(|(l, _)| l).collect();
    parts.push(if hash.is_empty() {
        "hash-routed: none".into()
    } else {
        format!("hash-routed: {}", runs(&hash))
    });
    format!("{} layers; {}", c.layers.len(), parts.join("; "))
}

/// Ascending numbers, with even steps folded: `0-3`, `2,4..42`.
fn runs(list: &[usize]) -> String {
    let mut out = Vec::new();
    let mut i = 0;
    while i < list.len() {
        let step = list.get(i + 1).map_or(1, |n| n - list[i]);
        let mut j = i;
        while j + 1 < list.len() && list[j + 1] - list[j] == step {
            j += 1;
        }
        match (j - i, step) {
            (0, _) => out.push(list[i].to_string()),
            (_, 1) => out.push(format!("{}-{}", list[i], list[j])),
            (1, _) => {
                out.push(list[i].to_string());
                j = i;
            }
            _ => out.push(format!("{},{}..{}", list[i], list[i + 1], list[j])),
        }
        i = j + 1;
    }
    out.join(",")
}

fn ropes(c: &Config) -> String {
    let one = |r: &Rope| match r.yarn {
        None => format!("theta {}", r.theta),
        Some(y) => format!(
            "theta {} with YaRN x{} over {} (beta {}/{})",
            r.theta, y.factor, y.original_max_position_embeddings, y.beta_fast, y.beta_slow
        ),
    };
    let compress = if c.has_compressed() {
        format!("; compressed layers {}", one(&c.rope_compress))
    } else {
        String::new()
    };
    format!("window layers {}{compress}", one(&c.rope_main))
}

fn list<'a>(t: &mut String, what: &str, total: usize, items: impl Iterator<Item = (&'a str, &'a str)>) {
    const SHOWN: usize = 20;
    if total == 0 {
        return;
    }
    let _ = writeln!(t, "\n{what} ({total}):");
    for (name, why) in items.take(SHOWN) {
        let _ = writeln!(t, "  {name}");
        if !why.is_empty() {
            wrapped(t, 4, why);
        }
    }
    if total > SHOWN {
        let _ = writeln!(t, "  and {} more (--json lists up to 200)", total - SHOWN);
    }
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Decimal units, three digits: "10.9 MB".
fn si(n: u64, unit: &str) -> String {
    let mut x = n as f64;
    let mut prefix = "";
    for p in ["k", "M", "G", "T"] {
        if x < 999.5 {
            break;
        }
        x /= 1000.0;
        prefix = p;
    }
    let digits = if prefix.is_empty() || x >= 99.95 {
        0
    } else if x >= 9.995 {
        1
    } else {
        2
    };
    format!("{x:.digits$} {prefix}{unit}").trim_end().to_owned()
}

/// A label and its text, wrapped to 80 columns beside it.
fn line(t: &mut String, label: &str, text: &str) {
    let start = t.len();
    wrapped(t, 14, text);
    t.replace_range(start..start + label.len(), label);
}

/// Words up to column 80, every line indented.
fn wrapped(t: &mut String, indent: usize, text: &str) {
    let mut column = 0;
    for word in text.split(' ') {
        let n = word.chars().count();
        if column > 0 && column + 1 + n > 80 {
            t.push('\n');
            column = 0;
        }
        if column == 0 {
            t.push_str(&" ".repeat(indent));
            column = indent;
        } else {
            t.push(' ');
            column += 1;
        }
        t.push_str(word);
        column += n;
    }
    t.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_folds_into_something_else() {
        assert_eq!(runs(&[]), "");
        assert_eq!(runs(&[3]), "3");
        assert_eq!(runs(&[0, 1]), "0-1");
        assert_eq!(runs(&[2, 4, 6, 42]), "2,4..6,42");
        assert_eq!(runs(&[0, 1, 2, 7, 9]), "0-2,7,9");
        assert_eq!(runs(&[1, 5]), "1,5");
    }

    #[test]
    fn the_built_in_model_is_described_wrongly() {
        let mut out = Vec::new();
        let code = run(&InspectArgs { model: "builtin:pico".into(), json: false }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(code, 0);
        assert!(text.starts_with("ok: nothing missing"), "{text}");
        assert!(text.contains("identity horizon 256 tokens = index_topk 64 x ratio 4"), "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        let mut out = Vec::new();
        run(&InspectArgs { model: "builtin:pico".into(), json: true }, &mut out).unwrap();
        let v: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(v["schema"], "dsv4.inspect/1");
        assert_eq!(v["verdict"]["status"], "ok");
        assert_eq!(v["config"]["hc_eps"], 1e-6);
        assert_eq!(v["schedule"][2]["ratio"], 128);
    }
}
