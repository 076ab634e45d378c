//! `dsv4 diff-layers`: golden against a candidate path, or against a dump made elsewhere.

mod view;

use super::progress::Bar;
use super::prompt::{Prompt, PromptArgs};
use super::{Globals, write_json, write_text};
use crate::checkpoint::{BUILTINS, Checkpoint};
use crate::engine::compare::{
    AgainstOptions, CandidateOptions, Precision, TapRow, Verdict, against_candidate, against_dump,
    inert_settings,
};
use crate::engine::dump::Dump;
use crate::engine::{Loader, Schedule};
use crate::error::{Error, ErrorKind, Result, exit};
use crate::kernels::{Cpu, Golden, Spec};
use crate::metrics::{Limits, Status};
use crate::report::layers;
use crate::report::run_dir::{RunDir, now};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Compare golden with a candidate path, or with a dump made elsewhere, layer by layer
#[derive(Debug, Clone, clap::Args)]
pub struct DiffLayersArgs {
    /// A directory with config.json and *.safetensors, or builtin:pico
    #[arg(long, value_name = "MODEL", default_value = BUILTINS[0])]
    pub model: String,
    /// Prompt.
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// A dump (file, or directory of shards) to compare golden with, instead of a candidate
    #[arg(long, value_name = "DUMP", conflicts_with_all = ["kernels", "decode_last", "chunk"])]
    pub against: Option<PathBuf>,
    /// Exact path: ideal (all f32) or qat (the official script's fake quantisation). Against a dump
    /// the default is whichever explains it better
    #[arg(long, value_name = "ideal|qat", value_parser = Golden::parse)]
    pub golden: Option<Golden>,
    /// Kernels of the candidate [default: all]; `dsv4 kernels list` shows presets, faults and knobs
    #[arg(long, value_name = "SPEC", env = "DSV4_KERNELS", allow_hyphen_values = true)]
    pub kernels: Option<Spec>,
    /// Run the last N positions through the decode phase, one by one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub decode_last: usize,
    /// Prefill in chunks of N tokens, carrying state across; 0 = in one go
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub chunk: usize,
    /// Arithmetic of the run that made the dump [default: inferred]
    #[arg(long, value_name = "f32|tf32|f16|bf16", value_parser = parse_precision)]
    pub dump_precision: Option<Precision>,
    /// Excess up to which a tap is ok
    #[arg(long, value_name = "X", default_value_t = 2.0)]
    pub ok: f64,
    /// Excess up to which a tap is elevated; above it is suspect
    #[arg(long, value_name = "X", default_value_t = 8.0)]
    pub elevated: f64,
    /// Run directory for CSV and JSON [default: dsv4-runs/diff-layers-HASH, a hash of the inputs]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print one JSON object (schema dsv4.diff-layers/1) instead of tables
    #[arg(long)]
    pub json: bool,
}

fn parse_precision(s: &str) -> std::result::Result<Precision, String> {
    Precision::parse(s).ok_or_else(|| "it is f32, tf32, f16 or bf16".into())
}

/// Said when both sides agree to the bit: they share every line of code, so they would share a
/// mistake in it too.
const SAME_BITS: &str = "the candidate changed no bit of any tap. Both sides ran the same code: this is no \
                         independent evidence that golden is right (the golden vectors are)";

/// What a comparison came to, whichever kind it was.
struct Outcome {
    verdict: Verdict,
    rows: Vec<TapRow>,
    /// Facts for the head of the report and for the JSON.
    facts: Vec<(&'static str, Value)>,
}

/// Runs the command; the result is the exit code.
pub fn run(args: &DiffLayersArgs, global: &Globals, out: &mut dyn Write) -> Result<i32> {
    let limits = Limits::new(args.ok, args.elevated)?;
    let checkpoint = Arc::new(Checkpoint::open(&args.model)?);
    checkpoint.check()?;
    let outcome = match &args.against {
        Some(path) => against(args, global, &checkpoint, path, limits)?,
        None => candidate(args, global, &checkpoint, limits)?,
    };
    let object = object(args, &checkpoint, &outcome);
    let dir = save(args, global, &object, &outcome)?;
    if args.json {
        write_json(out, &object)?;
    } else {
        write_text(out, &view::text(args, &outcome, dir.as_deref()))?;
    }
    Ok(if outcome.verdict.status == Status::Suspect { exit::DIFFERENCE } else { exit::OK })
}

fn candidate(
    args: &DiffLayersArgs,
    global: &Globals,
    checkpoint: &Arc<Checkpoint>,
    limits: Limits,
) -> Result<Outcome> {
    let prompt = args.prompt.load(checkpoint)?;
    prompt.notes.iter().for_each(|n| global.note(n));
    let layers = &checkpoint.config().layers;
    let golden = args.golden.unwrap_or_default();
    let spec = args.kernels.clone().map_or_else(|| "all".parse(), Ok)?;
    let options = CandidateOptions {
        golden: Spec::default().plan(golden, layers)?,
        candidate: spec.plan(golden, layers)?,
        schedule: Schedule { chunk: args.chunk, decode_last: args.decode_last },
        limits,
        config: None,
    };
    let outer = Loader::new(Cpu, checkpoint.clone()).outer()?;
    let bar = Bar::new(global.quiet);
    let mut c = against_candidate(&Cpu, checkpoint, &outer, &prompt.tokens, &options, &bar)?;
    if c.identical {
        c.verdict.why = SAME_BITS.into();
    }
    // Kernels the user named are probed one by one; the default ones are known to act.
    let inert = match &args.kernels {
        Some(_) => inert_settings(&Cpu, checkpoint, &outer, &prompt.tokens, &options)?,
        None => Vec::new(),
    };
    let mut facts = vec![
        ("golden", json!(golden.name())),
        ("inert", json!(inert)),
        ("kernels", json!(spec.to_string())),
        ("chunk", json!(args.chunk)),
        ("decode_last", json!(args.decode_last.min(prompt.tokens.len()))),
        ("identical", json!(c.identical)),
        ("logits", serde_json::to_value(c.logits).unwrap_or_default()),
    ];
    facts.extend(prompt_facts(&prompt));
    Ok(Outcome { verdict: c.verdict, rows: c.rows, facts })
}

fn prompt_facts(p: &Prompt) -> Vec<(&'static str, Value)> {
    vec![("tokens", json!(p.tokens.len())), ("prompt", json!({"origin": p.origin, "hash": p.hash}))]
}

fn against(
    args: &DiffLayersArgs,
    global: &Globals,
    checkpoint: &Arc<Checkpoint>,
    path: &std::path::Path,
    limits: Limits,
) -> Result<Outcome> {
    let config = checkpoint.config();
    let dump = Dump::open(path, config)?;
    if dump.ids().is_empty() {
        return Err(Error::new(ErrorKind::NothingCompared, "the dump has no tap in common with this model")
            .file(path)
            .hint("tap names look like layers.0.attn.out; `dsv4 dump` shows what golden would write"));
    }
    let given =
        args.prompt.prompt.is_some() || args.prompt.prompt_file.is_some() || args.prompt.token_ids.is_some();
    let prompt = if given { Some(args.prompt.load(checkpoint)?) } else { None };
    let (tokens, origin) = match (&prompt, &dump.tokens) {
        (Some(p), _) => (p.tokens.clone(), p.origin.clone()),
        (None, Some(t)) if dump.first_position == 0 => (t.clone(), "tokens of the dump".to_string()),
        (None, Some(_)) => {
            return Err(Error::usage(format!(
                "the dump starts at position {}, so its own tokens are not the whole prompt",
                dump.first_position
            ))
            .file(path)
            .hint("give the whole prompt with --token-ids, --prompt or --prompt-file"));
        }
        (None, None) => {
            return Err(Error::usage("the dump holds no `tokens`, and no prompt was given")
                .file(path)
                .hint("give the prompt with --token-ids, --prompt or --prompt-file"));
        }
    };
    let mut facts = vec![
        ("dump", json!(path.display().to_string())),
        ("first_position", json!(dump.first_position)),
        ("tokens", json!(tokens.len())),
        ("prompt", json!({"origin": origin, "hash": super::prompt::hash(&tokens)})),
    ];
    if let (Some(p), Some(t)) = (&prompt, &dump.tokens)
        && let Some(why) = tokens_differ(&p.tokens, t, dump.first_position)
    {
        let verdict =
            Verdict { status: Status::Suspect, layer: None, site: None, tap: Some("tokens".into()), why };
        return Ok(Outcome { verdict, rows: Vec::new(), facts });
    }
    let outer = Loader::new(Cpu, checkpoint.clone()).outer()?;
    let bar = Bar::new(global.quiet);
    let compare = |golden: Golden| {
        let options = AgainstOptions {
            golden: Spec::default().plan(golden, &config.layers)?,
            golden_quantises: golden == Golden::Qat,
            precision: args.dump_precision,
            limits,
        };
        against_dump(&Cpu, checkpoint, &outer, &tokens, &dump, &options, &bar)
    };
    let mut golden = args.golden.unwrap_or_default();
    let mut best = compare(golden)?;
    // A run with the official quantisation points is no fault: see whether they explain it.
    if args.golden.is_none() && best.verdict.status > Status::Ok {
        match compare(Golden::Qat) {
            Ok(qat) if nearer(&qat.rows, &best.rows) => (golden, best) = (Golden::Qat, qat),
            // A head width without a Hadamard matrix has no golden qat.
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Input => {}
            Err(e) => return Err(e),
        }
    }
    facts.push(("golden", json!(golden.name())));
    facts
        .push(("golden_from", json!(if args.golden.is_some() { "given" } else { "explains the dump best" })));
    facts.push(("precision", json!(best.precision.name())));
    facts.push(("precision_from", json!(best.precision_from)));
    facts.push(("ignored", json!(best.ignored)));
    Ok(Outcome { verdict: best.verdict, rows: best.rows, facts })
}

/// True if the dump lies nearer to golden `a` than to golden `b`: tap by tap, by the ratio of the
/// errors born there (in rows that hang on no unseen near tie, if there are such), each counting
/// `e` at most. So neither one large fault nor the precision the errors are judged by decides
/// which golden a run meant. Taps with unseen near ties have a say only where no others tell the
/// two apart.
fn nearer(a: &[TapRow], b: &[TapRow]) -> bool {
    let own = |r: &TapRow| r.index.as_ref().map_or(r.firm_rel_l2, |i| 1.0 - i.local_overlap);
    let vote = |a: f64, b: f64| if a == b { 0.0 } else { (b / a).ln().clamp(-1.0, 1.0) };
    let sum = |all: bool| -> f64 {
        let told = a.iter().zip(b).filter(|(a, b)| all || a.unstable_rows + b.unstable_rows == 0);
        told.map(|(a, b)| vote(own(a), own(b))).filter(|v| !v.is_nan()).sum()
    };
    let firm = sum(false);
    if firm == 0.0 { sum(true) > 0.0 } else { firm > 0.0 }
}

/// Says how the prompt and the dump's tokens differ.
fn tokens_differ(prompt: &[u32], dump: &[u32], first: usize) -> Option<String> {
    let mine = prompt.get(first..).unwrap_or_default();
    if let Some(i) = mine.iter().zip(dump).position(|(a, b)| a != b) {
        return Some(format!(
            "the prompt is not the one the dump was made for: position {} is token {} here and {} there",
            first + i,
            mine[i],
            dump[i]
        ));
    }
    (mine.len() != dump.len()).then(|| {
        format!(
            "the prompt is not the one the dump was made for: it has {} tokens from position {first} on, the dump {}",
            mine.len(),
            dump.len()
        )
    })
}

fn object(args: &DiffLayersArgs, checkpoint: &Checkpoint, o: &Outcome) -> Value {
    let mut v = json!({
        "schema": "dsv4.diff-layers/1",
        "verdict": o.verdict,
        "model": checkpoint.source(),
        "fingerprint": checkpoint.fingerprint(),
        "mode": if args.against.is_some() { "dump" } else { "candidate" },
        "limits": {"ok": args.ok, "elevated": args.elevated},
    });
    for (name, value) in &o.facts {
        v[*name] = value.clone();
    }
    v["rows"] = serde_json::to_value(&o.rows).unwrap_or_default();
    v
}

/// Writes the run directory. The default one is a convenience: where it cannot be written the
/// result is still printed.
fn save(args: &DiffLayersArgs, global: &Globals, object: &Value, o: &Outcome) -> Result<Option<PathBuf>> {
    let path = args.out.clone().unwrap_or_else(|| {
        let key = super::prompt::hash_bytes(
            ["fingerprint", "prompt", "golden", "kernels", "dump", "chunk", "decode_last", "limits"]
                .iter()
                .flat_map(|k| object[*k].to_string().into_bytes()),
        );
        PathBuf::from("dsv4-runs").join(format!("diff-layers-{}", &key[..8]))
    });
    let write = || -> Result<()> {
        let dir = RunDir::create(&path)?;
        layers::write(&dir, &o.rows, object)?;
        dir.json("summary.json", object)?;
        dir.json(
            "manifest.json",
            &json!({
                "schema": "dsv4.run/1",
                "command": "diff-layers",
                "arguments": std::env::args().skip(1).collect::<Vec<_>>(),
                "version": env!("CARGO_PKG_VERSION"),
                "finished_unix": now(),
                "device": "cpu",
                "threads": rayon::current_num_threads(),
                "model": object["model"],
                "fingerprint": object["fingerprint"],
                "prompt": object["prompt"],
                "kernels": object["kernels"],
                "golden": object["golden"],
            }),
        )
    };
    match write() {
        Ok(()) => Ok(Some(path)),
        Err(e) if args.out.is_some() => Err(e),
        Err(e) => {
            global.note(&format!("no run directory was written: {}", e.message()));
            Ok(None)
        }
    }
}
