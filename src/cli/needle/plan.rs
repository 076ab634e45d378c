//! What a grid will cost, said before it starts.

use super::prepare::Prepared;
use crate::cli::table::{bytes, count, grouped, wrapped};
use crate::engine::grid::{GridPath, grade};
use crate::engine::{Loader, Quiet};
use crate::error::Result;
use crate::kernels::Cpu;
use crate::needle::ctx::short;
use serde_json::{Value, json};

/// Larger checkpoints are not read for a test of speed.
const SMALL: u64 = 1 << 30;

/// Tokens a second of one path, from one short prompt; `None` where the test would cost as much as the run.
pub(super) fn speed(p: &Prepared) -> Result<Option<f64>> {
    let Some(job) = p.plan.sample.clone().filter(|_| p.checkpoint.inventory().bytes_total < SMALL) else {
        return Ok(None);
    };
    let outer = Loader::new(Cpu, p.checkpoint.clone()).outer()?;
    let path = [GridPath { name: "golden".into(), plan: p.golden.clone() }];
    let tokens = job.tokens.len() as f64;
    let started = std::time::Instant::now();
    grade(&Cpu, &p.checkpoint, &outer, &[job], &path, &Quiet)?;
    Ok(Some(tokens / started.elapsed().as_secs_f64()))
}

fn cells(p: &Prepared) -> usize {
    p.identity.grid.ctx.len() * p.identity.grid.depths.len()
}

/// As JSON, schema `dsv4.needle-plan/1`.
pub(super) fn json(p: &Prepared, speed: Option<f64>) -> Value {
    let g = &p.identity.grid;
    json!({
        "schema": "dsv4.needle-plan/1",
        "run": p.identity,
        "cells": cells(p),
        "documents": [p.documents.start, p.documents.end],
        "trials": p.plan.run,
        "not_run": p.plan.not_run,
        "paths": p.identity.paths().iter().map(|(n, w)| json!([n, w.label()])).collect::<Vec<_>>(),
        "tokens": p.plan.tokens,
        "computed": p.plan.computed,
        "passes": p.plan.passes.iter().map(|r| json!([r.start, r.end])).collect::<Vec<_>>(),
        "bytes": p.plan.bytes,
        "seconds": seconds(p, speed),
        "kind": g.kind,
    })
}

fn seconds(p: &Prepared, speed: Option<f64>) -> Option<f64> {
    speed.map(|s| p.plan.computed as f64 * p.paths.len() as f64 / s)
}

/// For people.
pub(super) fn text(p: &Prepared, speed: Option<f64>) -> String {
    let (g, plan) = (&p.identity.grid, &p.plan);
    let ctx: Vec<String> = g.ctx.iter().map(|c| short(*c)).collect();
    let depths: Vec<String> = g.depths.iter().map(f64::to_string).collect();
    let ctx = if ctx.len() > 12 {
        format!("{} … {} ({})", ctx[0], ctx[ctx.len() - 1], ctx.len())
    } else {
        ctx.join(" ")
    };
    let mut rows = vec![
        ("kind", format!("{}, {}", g.kind.name(), p.identity.style)),
        ("contexts", ctx),
        ("depths", depths.join(" ")),
        ("cells", format!("{}, {} each", cells(p), count(g.trials, "trial"))),
        (
            "haystacks",
            format!("{} ({} a cell and haystack)", p.documents.len(), count(g.questions, "question")),
        ),
        ("prompts", format!("{}, {} that cannot be made", grouped(plan.run as u64), plan.not_run)),
        (
            "paths",
            p.identity
                .paths()
                .iter()
                .map(|(n, w)| format!("{n} {}", w.label()))
                .collect::<Vec<_>>()
                .join(", "),
        ),
        ("tokens", format!("{} a path", grouped(plan.tokens))),
        (
            "computed",
            format!(
                "{} a path: shared beginnings save {:.1} %",
                grouped(plan.computed),
                100.0 * (1.0 - plan.computed as f64 / plan.tokens.max(1) as f64)
            ),
        ),
        ("passes", format!("{} over the weights", plan.passes.len())),
        ("memory", format!("{} of streams and caches", bytes(plan.bytes))),
    ];
    if let Some(s) = seconds(p, speed) {
        let say = if s < 120.0 { format!("{s:.0} s") } else { format!("{:.0} min", s / 60.0) };
        rows.push((
            "time",
            format!(
                "about {say}, from one prompt of {} tokens; long contexts are slower",
                plan.sample.as_ref().map_or(0, |j| j.answer_from)
            ),
        ));
    }
    rows.into_iter()
        .map(|(k, v)| {
            let text = wrapped(&v, 11);
            format!("{k:<11}{}", text.trim_start())
        })
        .collect()
}
