//! `dsv4 dump`: the named tensors of one path, written to a safetensors file as they come.

use super::path::PathArgs;
use super::progress::Bar;
use super::prompt::PromptArgs;
use super::table::{bytes, count, grouped};
use super::{Globals, write_json, write_text};
use crate::checkpoint::{BUILTINS, Checkpoint};
use crate::engine::tap_sink::{TapSink, stream};
use crate::engine::{Session, tap_shape};
use crate::error::{Error, Result, exit};
use crate::kernels::{Cpu, Spec, knobs::nearest};
use crate::model::{Tap, TapId};
use crate::report::safetensors_writer::{Element, SafetensorsWriter, TensorSpec};
use globset::{GlobBuilder, GlobMatcher};
use serde_json::json;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TOKENS: &str = "tokens";
const VERSION_KEY: &str = "dsv4.version";

/// Write the intermediate tensors of one run to a safetensors file
#[derive(Debug, Clone, clap::Args)]
pub struct DumpArgs {
    /// A directory with config.json and *.safetensors, or builtin:pico
    #[arg(long, value_name = "MODEL", default_value = BUILTINS[0])]
    pub model: String,
    /// Prompt.
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Path.
    #[command(flatten)]
    pub path: PathArgs,
    /// Taps to write, as globs over their names; all but indexer.scores by default
    #[arg(long, value_name = "GLOB,GLOB")]
    pub taps: Option<String>,
    /// First position whose rows are written; compressed entries stay whole
    #[arg(long, value_name = "P", default_value_t = 0)]
    pub from: usize,
    /// The file to write
    #[arg(long, short, value_name = "FILE")]
    pub out: PathBuf,
    /// Print one JSON object (schema dsv4.dump/1) instead of a line
    #[arg(long)]
    pub json: bool,
}

/// Runs the command; the result is the exit code.
pub fn run(args: &DumpArgs, global: &Globals, out: &mut dyn Write) -> Result<i32> {
    guard_target(&args.out)?;
    let checkpoint = Arc::new(Checkpoint::open(&args.model)?);
    let config = checkpoint.config();
    let spec = args.path.spec(&Spec::default());
    let plan = args.path.plan(&spec, &checkpoint)?;
    let prompt = args.prompt.load(&checkpoint)?;
    prompt.notes.iter().for_each(|n| global.note(n));
    let session = Session::new(&Cpu, config, &prompt.tokens, args.path.schedule())?;
    let total = prompt.tokens.len();
    if args.from >= total {
        return Err(Error::usage(format!("--from {} is past the last token", args.from))
            .hint(format!("the prompt has {}, counted from 0", count(total, "token"))));
    }

    let available = tap_shape::all(config, total, &plan);
    let wanted = select(args.taps.as_deref(), &available, config.num_hidden_layers)?;
    let rows = total - args.from;
    let mut specs = vec![TensorSpec { name: TOKENS.into(), element: Element::I32, shape: vec![rows] }];
    specs.extend(wanted.iter().map(|(id, shape)| {
        let mut shape = shape.clone();
        if tap_shape::by_token(id.tap) {
            shape[0] = rows;
        }
        let element = if id.tap.is_index() { Element::I32 } else { Element::F32 };
        TensorSpec { name: id.to_string(), element, shape }
    }));
    let fingerprint = checkpoint.fingerprint();
    let metadata = [
        (VERSION_KEY, env!("CARGO_PKG_VERSION").into()),
        ("dsv4.model", fingerprint.clone()),
        ("dsv4.golden", args.path.golden.to_string()),
        ("dsv4.kernels", spec.to_string()),
        ("dsv4.first_position", args.from.to_string()),
        ("dsv4.chunk", args.path.chunk.to_string()),
        ("dsv4.decode_last", args.path.decode_last.min(total).to_string()),
        ("dsv4.prompt", prompt.hash.clone()),
    ];
    let tensors = specs.len();
    let mut file = SafetensorsWriter::create(&args.out, &metadata, specs)?;
    let ids: Vec<i32> = prompt.tokens[args.from..].iter().map(|t| *t as i32).collect();
    file.ids(0, 0, 1, &ids)?;
    if !wanted.is_empty() {
        let ids: Vec<TapId> = wanted.iter().map(|(id, _)| *id).collect();
        stream(&session, &checkpoint, &plan, &ids, args.from, &Bar::new(global.quiet), &mut Sink(&mut file))?;
    }
    let size = file.finish()?;

    if args.json {
        write_json(
            out,
            &json!({
                "schema": "dsv4.dump/1",
                "out": args.out.display().to_string(),
                "tensors": tensors,
                "bytes": size,
                "tokens": total,
                "first_position": args.from,
                "source": checkpoint.source(),
                "model": fingerprint,
                "golden": args.path.golden.name(),
                "kernels": spec.to_string(),
                "chunk": args.path.chunk,
                "decode_last": args.path.decode_last.min(total),
                "prompt": {"origin": prompt.origin, "hash": prompt.hash},
            }),
        )?;
    } else {
        let range = match args.from {
            0 => String::new(),
            p => format!(" from position {}", grouped(p as u64)),
        };
        write_text(
            out,
            &format!(
                "wrote {}: {}, {}; {}{range}, golden {}, kernels {spec}\n",
                args.out.display(),
                count(tensors, "tensor"),
                bytes(size),
                count(total, "token"),
                args.path.golden,
            ),
        )?;
    }
    Ok(exit::OK)
}

/// The taps behind `tokens` in the file.
struct Sink<'a>(&'a mut SafetensorsWriter);

impl TapSink for Sink<'_> {
    fn numbers(&mut self, tap: usize, row0: usize, cols: usize, data: &[f32]) -> Result<()> {
        self.0.numbers(tap + 1, row0, cols, data)
    }
    fn ids(&mut self, tap: usize, row0: usize, cols: usize, data: &[i32]) -> Result<()> {
        self.0.ids(tap + 1, row0, cols, data)
    }
}

/// Refuses to replace a file that is no dump: a mistyped name must not cost a checkpoint.
fn guard_target(target: &Path) -> Result<()> {
    let Ok(file) = std::fs::File::open(target) else { return Ok(()) };
    if !file.metadata().is_ok_and(|m| m.is_file()) {
        return Ok(());
    }
    let mut start = Vec::new();
    file.take(1 << 12).read_to_end(&mut start).map_err(|e| Error::io(target, "read what is there", &e))?;
    if start.is_empty() || start.windows(VERSION_KEY.len()).any(|w| w == VERSION_KEY.as_bytes()) {
        return Ok(());
    }
    Err(Error::usage("the output exists and is not a dump of dsv4")
        .file(target)
        .hint("choose another name, or remove the file first"))
}

type Shaped = (TapId, Vec<usize>);

/// The taps that the globs ask for, in execution order.
fn select(globs: Option<&str>, available: &[Shaped], layers: usize) -> Result<Vec<Shaped>> {
    let Some(text) = globs else {
        return Ok(available.iter().filter(|(id, _)| id.tap != Tap::IndexerScores).cloned().collect());
    };
    let globs = split(text).into_iter().map(Pattern::new).collect::<Result<Vec<_>>>()?;
    if globs.is_empty() {
        return Err(
            Error::usage("--taps names no tap").hint("leave it away for every tap but indexer.scores")
        );
    }
    let names: Vec<String> = available.iter().map(|(id, _)| id.to_string()).collect();
    for g in &globs {
        if !g.matches(TOKENS) && !names.iter().any(|n| g.matches(n)) {
            return Err(g.matches_nothing(&names, layers));
        }
    }
    let chosen = available.iter().zip(&names).filter(|(_, n)| globs.iter().any(|g| g.matches(n)));
    Ok(chosen.map(|(tap, _)| tap.clone()).collect())
}

/// Splits at commas outside braces.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0i32, 0);
    for (i, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth <= 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.into_iter().map(str::trim).filter(|p| !p.is_empty()).collect()
}

struct Pattern<'a> {
    text: &'a str,
    glob: GlobMatcher,
}

impl<'a> Pattern<'a> {
    fn new(text: &'a str) -> Result<Self> {
        let glob = GlobBuilder::new(text).build().map_err(|e| {
            Error::usage(format!("'{text}' is no glob: {}", e.kind()))
                .hint("* stands for anything, {a,b} for either, as in 'layers.{0,3}.attn.*'")
        })?;
        Ok(Pattern { text, glob: glob.compile_matcher() })
    }
    fn matches(&self, name: &str) -> bool {
        self.glob.is_match(name)
    }
    fn matches_nothing(&self, names: &[String], layers: usize) -> Error {
        let e = Error::usage(format!("no tap of this run matches '{}'", self.text));
        let everything = (0..layers).map(Some).chain([None]).flat_map(|layer| {
            Tap::ALL
                .iter()
                .map(move |tap| TapId { layer, tap: *tap })
                .filter(move |id| id.tap.layered() == layer.is_some())
        });
        if let Some(id) = everything.into_iter().find(|id| self.matches(&id.to_string())) {
            return e.hint(format!("'{id}' is a tap, but its layer has none, or it is empty at this length"));
        }
        // Layers are alike: one name stands for all.
        let any_layer = |n: &str| match n.strip_prefix("layers.").and_then(|r| r.split_once('.')) {
            Some((l, tap)) if l.bytes().all(|c| c.is_ascii_digit() || c == b'*') => format!("layers.*.{tap}"),
            _ => n.to_owned(),
        };
        let mut kinds: Vec<String> = Vec::new();
        for n in names.iter().map(|n| any_layer(n)).chain([TOKENS.into()]) {
            if !kinds.contains(&n) {
                kinds.push(n);
            }
        }
        let mut near = Vec::new();
        while near.len() < 3
            && let Some(n) = nearest(&any_layer(self.text), &kinds)
        {
            kinds.retain(|k| *k != n);
            near.push(n);
        }
        e.hint(if near.is_empty() {
            format!(
                "there are {}; the model's layers are 0 to {}",
                kinds.join(", "),
                layers.saturating_sub(1)
            )
        } else {
            format!("near: {}; the model's layers are 0 to {}", near.join(", "), layers.saturating_sub(1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::KnobPlan;

    fn names(globs: Option<&str>) -> Result<Vec<String>> {
        let c = Checkpoint::open(BUILTINS[0]).unwrap();
        let all = tap_shape::all(c.config(), 300, &KnobPlan::default());
        Ok(select(globs, &all, 4)?.iter().map(|(id, _)| id.to_string()).collect())
    }

    /// Catches the `[T,N]` scores being written unasked, and a glob that means something else.
    #[test]
    fn globs_choose_taps_in_execution_order() {
        let all = names(None).unwrap();
        assert!(all.iter().all(|n| !n.ends_with("scores")));
        assert_eq!(names(Some("*")).unwrap().len(), all.len() + 2);
        assert_eq!(
            names(Some("logits, layers.1.{mid,out}")).unwrap(),
            ["layers.1.mid", "layers.1.out", "logits"]
        );
        assert_eq!(
            names(Some("layers.*.index.topk")).unwrap(),
            ["layers.1.index.topk", "layers.3.index.topk"]
        );
        assert!(names(Some("tokens")).unwrap().is_empty());
        assert_eq!(all.first().unwrap(), "embed.out");
        assert_eq!(all.last().unwrap(), "logits");
    }

    #[test]
    fn a_glob_that_matches_nothing_lists_near_names() {
        let e = |g| names(Some(g)).unwrap_err().to_string();
        assert!(e("layers.*.atn.out").contains("near: layers.*.attn.out"), "{}", e("layers.*.atn.out"));
        assert!(e("layers.9.attn.out").contains("layers are 0 to 3"));
        assert!(e("logit").contains("near: logits"));
        assert!(e("layers.0.compressor.kv").contains("its layer has none"));
        assert!(e("layers.[").contains("is no glob"));
        assert!(e(",").contains("names no tap"));
        assert!(e("nothing_like_it_at_all").contains("there are embed.out"));
    }
}
