//! From flags to what will be run.

use super::args::NeedleArgs;
use crate::checkpoint::{Checkpoint, Config};
use crate::error::{Error, Result};
use crate::kernels::Spec;
use crate::needle::custom::Custom;
use crate::needle::identity::Identity;
use crate::needle::record::Width;
use crate::needle::work::{self, Path};
use crate::needle::{Grid, Kind, Language, ctx};
use std::sync::Arc;

/// Everything that is settled before the run.
pub(super) struct Prepared {
    pub(super) checkpoint: Arc<Checkpoint>,
    pub(super) language: Language,
    pub(super) identity: Identity,
    pub(super) paths: Vec<Path>,
    pub(super) golden: crate::kernels::KnobPlan,
    pub(super) plan: work::Plan,
    pub(super) documents: std::ops::Range<usize>,
}

/// Settles everything: opens the checkpoint, makes every prompt once, and plans the passes.
pub(super) fn prepare(args: &NeedleArgs) -> Result<Prepared> {
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
