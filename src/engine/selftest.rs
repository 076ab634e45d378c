//! Positive controls: every fault is planted at chosen layers and the comparison, run as a user
//! would run it, must name its site and first layer; harmless points and A/A runs must stay quiet.

use super::compare::{Candidate, Group, Path, Scope, Setting, against_candidates};
use super::pass::Progress;
use super::session::Schedule;
use crate::checkpoint::{Checkpoint, Config};
use crate::error::Result;
use crate::kernels::faults::{CONTROLS, FAULTS, Fault, Needs};
use crate::kernels::{KnobPlan, Ops};
use crate::metrics::Status;
use crate::model::OuterWeights;
use serde::Serialize;
use std::sync::Arc;

/// A clamp low enough that ordinary activations exceed it: golden and the fault both get it.
const LOW_CLAMP: f32 = 0.25;
/// A chunk that ends inside a window of every ratio.
const CHUNK: usize = 150;
/// Decode steps: more than one window of ratio 4.
const DECODE: usize = 12;

/// What to test.
#[derive(Debug, Clone)]
pub struct SelftestOptions {
    /// Only faults whose name contains this.
    pub only: Option<String>,
    /// Plant in every layer a fault applies to, instead of the first and the last.
    pub every_layer: bool,
    /// A/A runs.
    pub aa_runs: usize,
    /// Seed of the A/A prompts.
    pub seed: u64,
}

/// One planted fault, or one harmless control.
#[derive(Debug, Clone, Serialize)]
pub struct Sensitivity {
    /// Name of the fault or control.
    pub fault: String,
    /// Class letter.
    pub class: char,
    /// Site that must be named.
    pub site: String,
    /// Layer it was planted in; `None` outside layers.
    pub layer: Option<usize>,
    /// A harmless control, which must stay quiet.
    pub control: bool,
    /// Changed at least one bit of some tap.
    pub exercised: bool,
    /// Named at the right site and layer (controls: stayed quiet).
    pub passed: bool,
    /// Status of the verdict.
    pub status: Status,
    /// Where the verdict points: layer and site.
    pub found_layer: Option<usize>,
    /// Site the verdict names.
    pub found_site: Option<String>,
    /// The signal: the tap it shows at.
    pub tap: Option<String>,
    /// What kind of signal.
    pub signal: String,
    /// Size: error over floor, or share of entries lost for index taps.
    pub size: f64,
}

/// The result of a selftest.
#[derive(Debug, Clone, Serialize)]
pub struct Selftest {
    /// One row a planted fault and layer.
    pub rows: Vec<Sensitivity>,
    /// Fault kinds that changed a bit, and those found wherever they did.
    pub kinds: usize,
    /// See `kinds`.
    pub kinds_found: usize,
    /// A/A runs made.
    pub aa_runs: usize,
    /// A/A runs that raised an alarm or were not bit-identical.
    pub aa_alarms: usize,
    /// The verdict on identical faults on both sides, which is no evidence at all.
    pub oracle: String,
}

impl Selftest {
    /// True if every fault that changed a bit was found and nothing else raised an alarm. A fault
    /// that this model cannot show is no pass: it is counted apart and named in the table.
    pub fn passed(&self) -> bool {
        self.aa_alarms == 0 && self.rows.iter().all(|r| r.passed || !r.exercised) && self.kinds_found > 0
    }
}

/// Runs the selftest over `tokens`.
pub fn selftest<O: Ops + Clone + Send + 'static>(
    ops: &O,
    ckpt: &Arc<Checkpoint>,
    outer: &OuterWeights<O>,
    tokens: &[u32],
    options: &SelftestOptions,
    progress: &dyn Progress,
) -> Result<Selftest> {
    let c = ckpt.config();
    let jobs = jobs(c, options);
    let mut groups: Vec<Group> = Vec::new();
    // Where each job's result will be: group and place in it.
    let mut seats = Vec::new();
    for job in &jobs {
        let (setting, plan) = job.planted(c, tokens)?;
        let g = match groups.iter().position(|g| g.setting == setting) {
            Some(g) => g,
            None => {
                groups.push(Group { setting, paths: Vec::new() });
                groups.len() - 1
            }
        };
        seats.push((g, groups[g].paths.len()));
        groups[g].paths.push(Path { plan, scope: Scope::Verdict });
    }
    let aa = groups.len();
    groups.extend((0..options.aa_runs).map(|i| golden_twice(c, options.seed.wrapping_add(i as u64))));
    groups.push(fault_on_both_sides(tokens)?);
    progress.begin("planting faults", groups.iter().map(|g| g.paths.len()).sum());
    let found = against_candidates(ops, ckpt, outer, &groups, progress)?;
    progress.end();
    let rows: Vec<Sensitivity> =
        jobs.iter().zip(seats).map(|(job, (g, i))| judge(job, &found[g][i])).collect();
    let runs = found[aa..aa + options.aa_runs].iter().flatten();
    let kinds: Vec<&str> =
        FAULTS.iter().map(|f| f.name).filter(|n| rows.iter().any(|r| r.fault == *n)).collect();
    let all_passed = |n: &&&str| rows.iter().filter(|r| r.fault == **n).all(|r| r.passed);
    Ok(Selftest {
        kinds: kinds.len(),
        kinds_found: kinds.iter().filter(all_passed).count(),
        aa_runs: options.aa_runs,
        aa_alarms: runs.filter(|r| !r.identical || r.verdict.status != Status::Ok).count(),
        oracle: if found.last().is_some_and(|f| f[0].identical) {
            "no independent evidence"
        } else {
            "differs"
        }
        .into(),
        rows,
    })
}

/// A fault or control and the layer to plant it in.
struct Job {
    fault: &'static Fault,
    layer: Option<usize>,
    control: bool,
}

fn jobs(c: &Config, options: &SelftestOptions) -> Vec<Job> {
    let wanted = |f: &&'static Fault| options.only.as_ref().is_none_or(|o| f.name.contains(o.as_str()));
    let mut jobs = Vec::new();
    for (list, control) in [(FAULTS, false), (CONTROLS, true)] {
        for fault in list.iter().filter(wanted) {
            if fault.site().outside_layers() {
                jobs.push(Job { fault, layer: None, control });
                continue;
            }
            let mut layers: Vec<usize> =
                (0..c.num_hidden_layers).filter(|l| fault.layers.holds(&c.layers[*l])).collect();
            if !options.every_layer && layers.len() > 2 {
                layers = vec![layers[0], layers[layers.len() - 1]];
            }
            jobs.extend(layers.into_iter().map(|l| Job { fault, layer: Some(l), control }));
        }
    }
    jobs
}

impl Job {
    /// The schedule and stimulus that the fault needs, and its knobs at its layer.
    fn planted(&self, c: &Config, tokens: &[u32]) -> Result<(Setting, KnobPlan)> {
        let fault = self.fault;
        let schedule = match fault.needs {
            Needs::Chunk | Needs::Chunks | Needs::HorizonChunks => Schedule { chunk: CHUNK, decode_last: 0 },
            Needs::Decode | Needs::HorizonDecode => Schedule { chunk: 0, decode_last: DECODE },
            _ => Schedule::default(),
        };
        // What brings the fault about on a small model is planted on both sides.
        let mut golden = KnobPlan::default();
        if !fault.both.is_empty() {
            golden.push(None, None, &fault.both())?;
        }
        let mut plan = golden.clone();
        plan.push(self.layer.map(|l| vec![l]), fault.phase, &fault.settings())?;
        let config =
            (fault.needs == Needs::Clamp).then(|| Config { swiglu_limit: Some(LOW_CLAMP), ..c.clone() });
        Ok((Setting { tokens: tokens.to_vec(), golden, schedule, config, ..Setting::default() }, plan))
    }
}

/// Golden beside itself on a seeded prompt.
fn golden_twice(c: &Config, seed: u64) -> Group {
    let setting = Setting { tokens: random_prompt(c, seed), ..Setting::default() };
    Group { setting, paths: vec![Path { plan: KnobPlan::default(), scope: Scope::Full }] }
}

/// The same fault on both sides: they agree to the bit, and the report must say that this is no
/// evidence.
fn fault_on_both_sides(tokens: &[u32]) -> Result<Group> {
    let mut plan = KnobPlan::default();
    plan.push(None, None, &[("mhc.comb".into(), "transposed".into())])?;
    let setting = Setting { tokens: tokens.to_vec(), golden: plan.clone(), ..Setting::default() };
    Ok(Group { setting, paths: vec![Path { plan, scope: Scope::Full }] })
}

fn judge(job: &Job, run: &Candidate) -> Sensitivity {
    let Job { fault, layer, control } = *job;
    let v = &run.verdict;
    let site = fault.site().to_string();
    let row = v.tap.as_ref().and_then(|t| run.rows.iter().find(|r| r.tap == *t));
    let right = v.layer == layer && v.site.as_deref() == Some(site.as_str());
    let mut passed = v.status == Status::Suspect && right;
    let mut tap = v.tap.clone();
    let (mut signal, mut size) = match row {
        Some(r) if !r.findings.is_empty() => (r.findings[0].to_string(), r.findings.len() as f64),
        Some(r) => match &r.index {
            Some(i) => (format!("{} real flips", i.real_flips), 1.0 - i.local_overlap),
            None if r.row_excess > 4.0 * r.excess => ("single rows over their floor".into(), r.row_excess),
            None => ("error over its floor".into(), r.excess),
        },
        None => (String::new(), 0.0),
    };
    if fault.needs == Needs::Ties && !passed && !control {
        // Ties broken otherwise are never a suspect: they show as near-tie flips and nothing else.
        let flips = run
            .rows
            .iter()
            .find(|r| r.layer == layer && r.index.as_ref().is_some_and(|i| i.near_tie_flips > 0));
        if let Some(r) = flips.filter(|r| r.site == site && v.status != Status::Suspect) {
            let i = r.index.as_ref().map_or(0, |i| i.near_tie_flips);
            (passed, tap, signal, size) =
                (true, Some(r.tap.clone()), format!("{i} near-tie flips"), i as f64);
        }
    }
    if control {
        passed = v.status != Status::Suspect;
    }
    Sensitivity {
        fault: fault.name.into(),
        class: fault.class,
        site,
        layer,
        control,
        exercised: !run.identical,
        passed,
        status: v.status,
        found_layer: v.layer,
        found_site: v.site.clone(),
        tap,
        signal,
        size,
    }
}

/// A seeded prompt of 40 to 160 tokens.
fn random_prompt(c: &Config, seed: u64) -> Vec<u32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    let mut next = move || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        s
    };
    let n = 40 + (next() % 121) as usize;
    (0..n.min(c.max_position_embeddings)).map(|_| (next() % c.vocab_size as u64) as u32).collect()
}
