//! Running an experiment: every set of toggles on every prompt, in both phases, beside one golden.

use super::config::Experiment;
use super::table::Table;
use super::toggles::{self, Set};
use crate::checkpoint::Checkpoint;
use crate::engine::compare::{Candidate, Group, Path, Scope, Setting, against_candidates};
use crate::engine::{Progress, Schedule};
use crate::error::Result;
use crate::kernels::{KnobPlan, Ops, Phase, Spec};
use crate::metrics::Limits;
use crate::model::OuterWeights;
use crate::report::layers;
use std::sync::Arc;

/// What golden against itself is called in tables.
pub const AA: &str = "A/A";

/// One run of an experiment: golden against itself, or a set of toggles.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// What tables call it.
    pub name: String,
    /// The toggles that are on; 0 for A/A.
    pub set: Set,
    /// Their kernels together.
    pub kernels: String,
}

/// A prompt of the experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// What tables call it: its number.
    pub name: String,
    /// Token ids.
    pub tokens: Vec<u32>,
}

/// Names and kernels of the runs of some sets; A/A first when asked for.
pub fn runs(exp: &Experiment, sets: &[Set], aa: bool) -> Result<Vec<Run>> {
    let names: Vec<String> = exp.toggles.iter().map(|t| t.name.clone()).collect();
    let one = |s: &Set| -> Result<Run> {
        let text: Vec<String> = toggles::members(*s).map(|i| exp.toggles[i].kernels.to_string()).collect();
        let name = toggles::name(*s, &names);
        // Together they must still make sense: `-site` takes back what stands to its left.
        let spec: Spec =
            text.join(",").parse().map_err(|e: crate::Error| e.context(format!("run `{name}`")))?;
        Ok(Run { name, set: *s, kernels: spec.to_string() })
    };
    let mut out = Vec::new();
    if aa {
        out.push(Run { name: AA.into(), set: 0, kernels: "none".into() });
    }
    for s in sets {
        out.push(one(s)?);
    }
    Ok(out)
}

/// Columns that name the rows of every table of an experiment.
const NAMES: [&str; 3] = ["run", "prompt", "phase"];

/// `runs.csv`: the verdict of every run on every prompt in every phase.
const RUNS: [&str; 10] =
    ["run", "prompt", "phase", "kernels", "status", "layer", "site", "tap", "identical", "why"];

/// The tables of an experiment that measured nothing yet.
pub fn no_tables() -> Vec<Table> {
    let with_names = |name: &str, columns: &[&str]| Table {
        name: name.into(),
        columns: NAMES.iter().chain(columns).map(|c| c.to_string()).collect(),
        rows: Vec::new(),
    };
    let mut runs = with_names("runs", &[]);
    runs.columns = RUNS.map(str::to_owned).to_vec();
    vec![
        runs,
        with_names("layers", layers::LAYERS),
        with_names("index", layers::INDEX),
        with_names("router", layers::INDEX),
        with_names("logits", layers::LOGITS),
    ]
}

/// Runs `runs` and appends what they measured. All share golden's run and the pass over the weights.
pub fn measure<O: Ops + Clone + Send + 'static>(
    ops: &O,
    ckpt: &Arc<Checkpoint>,
    outer: &OuterWeights<O>,
    exp: &Experiment,
    prompts: &[Prompt],
    runs: &[Run],
    tables: &mut [Table],
    progress: &dyn Progress,
) -> Result<()> {
    let config = &ckpt.config().layers;
    let golden = Spec::default().plan(exp.golden, config)?;
    let mut paths = Vec::new();
    for r in runs {
        let plan: KnobPlan = r.kernels.parse::<Spec>()?.plan(exp.golden, config)?;
        paths.push(Path { plan, scope: Scope::Full });
    }
    let mut groups = Vec::new();
    let mut what = Vec::new();
    for p in prompts {
        for (phase, decode_last) in [(Phase::Prefill, 0), (Phase::Decode, exp.run.decode_last)] {
            if phase == Phase::Decode && decode_last == 0 {
                continue;
            }
            what.push((&p.name, phase));
            groups.push(Group {
                setting: Setting {
                    tokens: p.tokens.clone(),
                    golden: golden.clone(),
                    schedule: Schedule { chunk: exp.run.chunk, decode_last },
                    limits: Limits::default(),
                    config: None,
                    only: Some(phase),
                },
                paths: paths.clone(),
            });
        }
    }
    progress.begin("comparing kernels", groups.len() * paths.len());
    let found = against_candidates(ops, ckpt, outer, &groups, progress)?;
    progress.end();
    // By run, then prompt and phase: the order a reader looks for.
    for (i, r) in runs.iter().enumerate() {
        for ((prompt, phase), candidates) in what.iter().zip(&found) {
            write(tables, r, prompt, *phase, &candidates[i]);
        }
    }
    Ok(())
}

fn write(tables: &mut [Table], run: &Run, prompt: &str, phase: Phase, c: &Candidate) {
    let v = &c.verdict;
    let opt = |o: &Option<String>| o.clone().unwrap_or_default();
    let names = [run.name.clone(), prompt.to_owned(), phase.to_string()];
    let named = |row: Vec<String>| names.iter().cloned().chain(row).collect::<Vec<_>>();
    tables[0].rows.push(named(vec![
        run.kernels.clone(),
        v.status.to_string(),
        v.layer.map_or(String::new(), |l| l.to_string()),
        opt(&v.site),
        opt(&v.tap),
        c.identical.to_string(),
        v.why.clone(),
    ]));
    tables[1].rows.extend(layers::numbers_of(&c.rows).into_iter().map(named));
    tables[2].rows.extend(layers::sets_of(&c.rows, "index.topk").into_iter().map(named));
    tables[3].rows.extend(layers::sets_of(&c.rows, "router.topk").into_iter().map(named));
    tables[4].rows.push(named(layers::logits_of(&serde_json::to_value(c.logits).unwrap_or_default())));
}
