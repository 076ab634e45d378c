//! `dsv4 needle`: recall of planted facts by context length, depth and `index_topk`, and why a fact is lost.

pub mod files;
pub mod outcome;
mod plan;
pub mod view;

use super::progress::Bar;
use super::{Globals, write_json, write_text};
use crate::checkpoint::{BUILTINS, Checkpoint, Config};
use crate::engine::{Loader, Progress};
use crate::error::{Error, Result};
use crate::kernels::{Cpu, Golden, Spec};
use crate::needle::custom::Custom;
use crate::needle::identity::Identity;
use crate::needle::record::{Record, Width};
use crate::needle::work::{self, Path};
use crate::needle::{Grid, Kind, Language, ctx};
use crate::report::needle::read;
use files::{Files, Shard, keys};
use outcome::Outcome;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Recall of planted facts by context length, depth and index_topk, and why a fact is lost
#[derive(Debug, Clone, clap::Args)]
pub struct NeedleArgs {
    /// A directory with config.json, tokenizer.json and *.safetensors, or builtin:pico
    #[arg(long, value_name = "MODEL", default_value = BUILTINS[0])]
    pub model: String,
    /// Context lengths: 4k; 2k,8k; 2k..32k (doubling); 2k..32k:+2k (steps); k is 1024
    /// [default: the identity horizon and 2k..32k]
    #[arg(long, value_name = "LENGTHS", help_heading = "Prompts")]
    pub ctx: Option<String>,
    /// Run each length N also as N+1, … so that every remainder modulo M is there (4: the entries of the index)
    #[arg(long, value_name = "M", num_args = 0..=1, default_missing_value = "4", value_parser = clap::value_parser!(u16).range(2..=128), help_heading = "Prompts")]
    pub phase_sweep: Option<u16>,
    /// Where in the context the fact stands, as shares of it
    #[arg(long, value_name = "LIST", default_value = "0.1,0.3,0.5,0.7,0.9", help_heading = "Prompts")]
    pub depth: String,
    /// Trials a cell (length × depth)
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Prompts")]
    pub trials: u32,
    /// Questions a cell asks of one haystack; haystacks = trials / questions [default: 3, own text: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Prompts")]
    pub questions: Option<u32>,
    /// passkey: one question; multi: several in one prompt; turns: earlier turns ask and answer
    #[arg(long, value_name = "KIND", default_value = "passkey", value_parser = parse_kind, help_heading = "Prompts")]
    pub kind: Kind,
    /// Seed of the haystacks
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Prompts")]
    pub seed: u64,
    /// A text file to hide your own needle in
    #[arg(long, value_name = "FILE", requires_all = ["needle", "question", "answer"], conflicts_with = "kind", help_heading = "Own text")]
    pub haystack: Option<PathBuf>,
    /// The sentence that is hidden
    #[arg(long, value_name = "TEXT", requires = "haystack", help_heading = "Own text")]
    pub needle: Option<String>,
    /// The question behind the haystack
    #[arg(long, value_name = "TEXT", requires = "haystack", help_heading = "Own text")]
    pub question: Option<String>,
    /// The right answer
    #[arg(long, value_name = "TEXT", requires = "haystack", help_heading = "Own text")]
    pub answer: Option<String>,
    /// Selection widths, as numbers, `native` or `all` [default: a quarter of index_topk, native, twice]
    #[arg(long, value_name = "LIST", help_heading = "Paths")]
    pub topk: Option<String>,
    /// A candidate beside golden; `dsv4 kernels list` shows presets, faults and knobs
    #[arg(
        long,
        value_name = "SPEC",
        env = "DSV4_KERNELS",
        allow_hyphen_values = true,
        help_heading = "Paths"
    )]
    pub kernels: Option<Spec>,
    /// A second candidate
    #[arg(
        long,
        value_name = "SPEC",
        allow_hyphen_values = true,
        requires = "kernels",
        help_heading = "Paths"
    )]
    pub vs: Option<Spec>,
    /// Exact path: ideal (all f32) or qat (the official script's fake quantisation)
    #[arg(long, value_name = "ideal|qat", default_value = "ideal", value_parser = Golden::parse, help_heading = "Paths")]
    pub golden: Golden,
    /// Recall that counts as reliable
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = parse_share, help_heading = "Paths")]
    pub reliable: f64,
    /// Run golden once more at the smallest width whose estimated ceiling is reliable
    #[arg(long, conflicts_with = "shard", help_heading = "Paths")]
    pub confirm: bool,
    /// Bytes for streams and caches, like 8G: haystacks are cut into as few passes as fit
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Run")]
    pub memory: Option<u64>,
    /// Show what would be run, and stop
    #[arg(long, help_heading = "Run")]
    pub plan: bool,
    /// Run directory [default: dsv4-runs/needle-HASH, a hash of the run]
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    pub out: Option<PathBuf>,
    /// Complete an interrupted run, to the same bytes
    #[arg(long, help_heading = "Run")]
    pub resume: bool,
    /// Only part I of N (haystacks are shared out); `dsv4 merge` puts the parts together
    #[arg(long, value_name = "I/N", value_parser = Shard::parse, help_heading = "Run")]
    pub shard: Option<Shard>,
    /// Print one JSON object (schema dsv4.needle/1) instead of tables
    #[arg(long, help_heading = "Run")]
    pub json: bool,
}

fn parse_kind(s: &str) -> std::result::Result<Kind, String> {
    let all = [Kind::Passkey, Kind::Multi, Kind::Turns];
    all.into_iter().find(|k| k.name() == s).ok_or_else(|| "it is passkey, multi or turns".into())
}

fn parse_share(s: &str) -> std::result::Result<f64, String> {
    s.parse()
        .ok()
        .filter(|v| *v > 0.0 && *v < 1.0)
        .ok_or_else(|| "it is a share between 0 and 1, like 0.9".into())
}

fn parse_bytes(s: &str) -> std::result::Result<u64, String> {
    let t = s.trim().trim_end_matches(['B', 'b']).trim_end_matches('i');
    let shift = match t.as_bytes().last() {
        Some(b'k' | b'K') => 10,
        Some(b'm' | b'M') => 20,
        Some(b'g' | b'G') => 30,
        Some(b't' | b'T') => 40,
        _ => 0,
    };
    let digits = if shift > 0 { &t[..t.len() - 1] } else { t };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift)).filter(|n| *n > 0);
    number.ok_or_else(|| "it is a number of bytes, like 900M or 8G".into())
}

/// Everything that is settled before the run.
struct Prepared {
    checkpoint: Arc<Checkpoint>,
    language: Language,
    identity: Identity,
    paths: Vec<Path>,
    golden: crate::kernels::KnobPlan,
    plan: work::Plan,
    documents: std::ops::Range<usize>,
}

/// Runs the command; the result is the exit code.
pub fn run(args: &NeedleArgs, global: &Globals, out: &mut dyn Write) -> Result<i32> {
    let p = prepare(args)?;
    if args.plan {
        let loaded = plan::speed(&p, global)?;
        if args.json {
            write_json(out, &plan::json(&p, loaded))?;
        } else {
            write_text(out, &plan::text(&p, loaded))?;
        }
        return Ok(crate::error::exit::OK);
    }
    let path = args.out.clone().unwrap_or_else(|| default_dir(&p.identity, args.shard));
    let names: Vec<(String, Width)> = p.paths.iter().map(|p| (p.name.clone(), p.width)).collect();
    let (files, mut records) =
        Files::open(&path, &p.identity, args.shard, args.resume, |dir| whole(&p, &names, dir))?;
    if args.resume {
        let per: usize = p.documents.clone().map(|d| p.identity.grid.places(d).len() * names.len()).sum();
        global.note(&format!("resuming: {} of {per} records are there", records.len()));
    }
    let outer = Loader::new(Cpu, p.checkpoint.clone()).outer()?;
    let done = documents_of(&records, &names, &p);
    let bar = Bar::new(global.quiet);
    let left: Vec<_> =
        p.plan.passes.iter().map(|r| r.start.max(done)..r.end).filter(|r| !r.is_empty()).collect();
    let steps: usize = left.iter().map(|r| r.len()).sum::<usize>() * p.paths.len();
    let progress = Whole::new(&bar, steps * p.checkpoint.config().num_hidden_layers);
    for pass in left {
        let grid = &p.identity.grid;
        let graded = work::pass(&Cpu, &p.checkpoint, &outer, &p.language, grid, pass, &p.paths, &progress)?;
        for document in graded {
            files.append(&document)?;
            records.extend(document);
        }
    }
    let mut all = names.clone();
    if args.confirm {
        confirm(&p, &files, &outer, &mut records, &mut all, &progress)?;
    }
    drop(progress);
    drop(bar);
    let outcome = Outcome::of(p.identity, all, records);
    outcome.write(&files)?;
    if args.json {
        write_json(out, &outcome.object)?;
    } else {
        write_text(out, &view::text(&outcome, files.path()))?;
    }
    outcome.exit_code()
}

/// The width a confirmation runs at: the smallest that would do, unless it was run already.
fn confirm_width(p: &Prepared, records: &[Record], names: &[(String, Width)]) -> Option<Width> {
    let summary = crate::needle::summary::summarise(&p.identity, names, records);
    let (_, k) = summary.width_needed.into_iter().find(|(n, _)| n == "golden")?;
    let width = Width::Fixed(k?);
    let known = names.iter().any(|(n, w)| {
        n == "golden" && w.entries(p.identity.index_topk) == width.entries(p.identity.index_topk)
    });
    (!known).then_some(width)
}

fn confirm(
    p: &Prepared,
    files: &Files,
    outer: &crate::model::OuterWeights<Cpu>,
    records: &mut Vec<Record>,
    names: &mut Vec<(String, Width)>,
    progress: &dyn Progress,
) -> Result<()> {
    let first: usize =
        p.documents.clone().map(|d| p.identity.grid.places(d).len()).sum::<usize>() * names.len();
    let Some(width) = confirm_width(p, &records[..first], names) else { return Ok(()) };
    let path = [Path::new("golden", &p.golden, width)?];
    names.push(("golden".into(), width));
    let mut there = records.len() - first;
    for d in p.documents.clone() {
        let n = p.identity.grid.places(d).len();
        if there >= n {
            there -= n;
            continue;
        }
        let grid = &p.identity.grid;
        let graded = work::pass(&Cpu, &p.checkpoint, outer, &p.language, grid, d..d + 1, &path, progress)?;
        for document in graded {
            files.append(&document)?;
            records.extend(document);
        }
    }
    Ok(())
}

/// The records of whole documents in an interrupted run.
fn whole(p: &Prepared, names: &[(String, Width)], dir: &std::path::Path) -> Vec<Record> {
    let grid = &p.identity.grid;
    let mut records = read(dir, keys(grid, p.documents.clone(), names));
    let mut fits = 0;
    for d in p.documents.clone() {
        let n = grid.places(d).len() * names.len();
        if fits + n > records.len() {
            records.truncate(fits);
            return records;
        }
        fits += n;
    }
    if p.identity.confirm
        && let Some(width) = confirm_width(p, &records, names)
    {
        let second = [("golden".to_string(), width)];
        let all = keys(grid, p.documents.clone(), names).chain(keys(grid, p.documents.clone(), &second));
        records = read(dir, all);
        for d in p.documents.clone() {
            let n = grid.places(d).len();
            if fits + n > records.len() {
                break;
            }
            fits += n;
        }
        records.truncate(fits);
    }
    records
}

/// The first document that is not there yet.
fn documents_of(records: &[Record], names: &[(String, Width)], p: &Prepared) -> usize {
    let mut left = records.len();
    for d in p.documents.clone() {
        let n = p.identity.grid.places(d).len() * names.len();
        if left < n {
            return d;
        }
        left -= n;
    }
    p.documents.end
}

fn default_dir(id: &Identity, shard: Option<Shard>) -> PathBuf {
    let text = serde_json::to_string(id).unwrap_or_default();
    let key = super::prompt::hash_bytes(text.into_bytes());
    let part = shard.map_or(String::new(), |s| format!("-{}-of-{}", s.index, s.of));
    PathBuf::from("dsv4-runs").join(format!("needle-{}{part}", &key[..8]))
}

fn prepare(args: &NeedleArgs) -> Result<Prepared> {
    let checkpoint = Arc::new(Checkpoint::open(&args.model)?);
    checkpoint.check()?;
    let config = checkpoint.config();
    let grid = grid(args, config)?;
    grid.check(config.max_position_embeddings)?;
    let widths = widths(args, config)?;
    let layers = &config.layers;
    let golden = Spec::default().plan(args.golden, layers)?;
    let mut named = vec![("golden".to_string(), golden.clone())];
    for spec in [&args.kernels, &args.vs].into_iter().flatten().filter(|s| !s.is_none()) {
        let name = spec.to_string();
        if named.iter().any(|(n, _)| *n == name) {
            return Err(Error::usage(format!("--vs is the same path as --kernels: {name}"))
                .hint("golden always runs; leave out --vs"));
        }
        named.push((name, spec.plan(args.golden, layers)?));
    }
    let mut paths = Vec::new();
    for (name, plan) in &named {
        for width in &widths {
            paths.push(Path::new(name, plan, *width)?);
        }
    }
    let documents = match args.shard {
        None => 0..grid.documents(),
        Some(s) if s.of > grid.documents() => {
            return Err(Error::usage(format!(
                "--shard {}/{} has more parts than there are haystacks ({})",
                s.index,
                s.of,
                grid.documents()
            ))
            .hint("use fewer shards, more --trials, or fewer --questions a haystack"));
        }
        Some(s) => s.range(grid.documents()),
    };
    let language = Language::of(&checkpoint)?;
    let plan = work::plan(&checkpoint, &language, &grid, documents.clone(), paths.len(), args.memory)?;
    if plan.run == 0 {
        let shortest = grid.ctx.first().copied().unwrap_or(0);
        return Err(Error::usage(format!(
            "no prompt can be made: {} tokens have no room for a fact and its question",
            grid.ctx.last().copied().unwrap_or(shortest)
        ))
        .hint("use a longer --ctx; about 128 tokens are the least"));
    }
    let csa = |l: &usize| layers[*l].kind == crate::checkpoint::LayerKind::Csa;
    let identity = Identity {
        model: checkpoint.source().into(),
        fingerprint: checkpoint.fingerprint(),
        prompts: plan.prompts.clone(),
        style: language.style.name().into(),
        golden: args.golden.name().into(),
        kernels: named[1..].iter().map(|(n, _)| n.clone()).collect(),
        topk: widths.iter().map(|w| w.label()).collect(),
        grid,
        reliable: args.reliable,
        confirm: args.confirm,
        index_topk: config.index_topk,
        ratio: config.csa_ratio().unwrap_or(0),
        csa_layers: (0..layers.len()).filter(csa).collect(),
    };
    Ok(Prepared { checkpoint, language, identity, paths, golden, plan, documents })
}

fn grid(args: &NeedleArgs, config: &Config) -> Result<Grid> {
    let mut lengths = match &args.ctx {
        Some(text) => ctx::parse(text)?,
        None => {
            let most = config.max_position_embeddings.saturating_sub(64);
            let usual = ctx::parse("2k..32k")?.into_iter();
            usual.chain(config.horizon()).filter(|n| *n <= most).collect()
        }
    };
    lengths.sort_unstable();
    lengths.dedup();
    if let Some(m) = args.phase_sweep {
        lengths = ctx::sweep(&lengths, usize::from(m));
    }
    let bad = |d: &str| {
        Error::usage(format!("'{d}' in --depth is no share of the context"))
            .hint("give shares like 0.1,0.5,0.9")
    };
    let mut depths = Vec::new();
    for d in args.depth.split(',').map(str::trim) {
        depths.push(d.parse::<f64>().ok().filter(|v| (0.0..=1.0).contains(v)).ok_or_else(|| bad(d))?);
    }
    depths.sort_unstable_by(f64::total_cmp);
    depths.dedup();
    let custom = match &args.haystack {
        None => None,
        Some(path) => Some(Custom {
            haystack: std::fs::read_to_string(path).map_err(|e| {
                Error::io(path, "read the haystack", &e).hint("it must be a file of UTF-8 text")
            })?,
            needle: args.needle.clone().unwrap_or_default(),
            question: args.question.clone().unwrap_or_default(),
            answer: args.answer.clone().unwrap_or_default(),
        }),
    };
    let questions = match (&custom, args.questions) {
        (Some(_), Some(n)) if n > 1 => {
            return Err(
                Error::usage("--haystack asks one question of each haystack").hint("leave out --questions")
            );
        }
        (Some(_), _) => 1,
        (None, n) => n.unwrap_or(3).min(args.trials),
    };
    let kind = if custom.is_some() { Kind::Custom } else { args.kind };
    Ok(Grid {
        kind,
        ctx: lengths,
        depths,
        trials: args.trials as usize,
        questions: questions as usize,
        seed: args.seed,
        custom,
    })
}

fn widths(args: &NeedleArgs, config: &Config) -> Result<Vec<Width>> {
    let native = config.index_topk;
    let Some(text) = &args.topk else {
        if config.csa_ratio().is_none() {
            return Ok(vec![Width::Native]);
        }
        let fixed = |k: usize| Width::Fixed(k as u32);
        return Ok(vec![fixed((native / 4).max(1)), Width::Native, fixed(native * 2)]);
    };
    let mut widths = Vec::new();
    for word in text.split(',').map(str::trim) {
        let w = Width::parse(word).filter(|w| !matches!(w, Width::Fixed(k) if *k > 1 << 20)).ok_or_else(
            || {
                Error::usage(format!("'{word}' in --topk is no width"))
                    .hint("give numbers, `native` or `all`: --topk 16,native,all")
            },
        )?;
        widths.push(if w == Width::Fixed(native as u32) { Width::Native } else { w });
    }
    widths.sort_by_key(|w| w.entries(native));
    widths.dedup();
    Ok(widths)
}

/// One bar over all passes.
struct Whole<'a> {
    bar: &'a Bar,
}

impl<'a> Whole<'a> {
    fn new(bar: &'a Bar, steps: usize) -> Self {
        bar.begin("grading prompts", steps);
        Whole { bar }
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        self.bar.end();
    }
}

impl Progress for Whole<'_> {
    fn begin(&self, _: &str, _: usize) {}
    fn step(&self) {
        self.bar.step();
    }
    fn end(&self) {}
}
