//! Every knob and every fault on the built-in model.

use dsv4::Error;
use dsv4::checkpoint::{Checkpoint, Config};
use dsv4::engine::compare::{Group, Path, Scope, Setting, against_candidates};
use dsv4::engine::session::Lane;
use dsv4::engine::{Loader, Quiet, Schedule, Session};
use dsv4::kernels::faults::{CONTROLS, FAULTS, Fault, Needs};
use dsv4::kernels::values::{Fmt, KnobValue};
use dsv4::kernels::{Cpu, Golden, Index, KnobPlan, Knobs, Mat, Spec};
use dsv4::metrics::Status;
use dsv4::model::{LayerWeights, Observer, OuterWeights, TapAt};
use std::collections::HashMap;
use std::sync::Arc;
use tokenizers::Tokenizer;

/// The built-in model, loaded once, and a prompt.
struct Pico {
    ckpt: Arc<Checkpoint>,
    outer: OuterWeights<Cpu>,
    layers: Vec<LayerWeights<Cpu>>,
    tokens: Vec<u32>,
}

impl Pico {
    fn new(tokens: usize) -> Pico {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/pico");
        let ckpt = Arc::new(Checkpoint::open(dir.to_str().unwrap()).unwrap());
        let loader = Loader::new(Cpu, ckpt.clone());
        let outer = loader.outer().unwrap();
        let layers = (0..ckpt.config().num_hidden_layers).map(|i| loader.layer(i).unwrap()).collect();
        let text = std::fs::read_to_string(dir.join("default_prompt.txt")).unwrap();
        let ids = Tokenizer::from_file(dir.join("tokenizer.json")).unwrap().encode(text, false).unwrap();
        Pico { ckpt, outer, layers, tokens: ids.get_ids()[..tokens].to_vec() }
    }
    fn config(&self) -> &Config {
        self.ckpt.config()
    }
    /// Runs `plan`; stops at an error of the observer.
    fn run(&self, plan: &KnobPlan, schedule: Schedule, obs: &mut dyn Observer<Cpu>) -> dsv4::Result<()> {
        let s = Session::new(&Cpu, self.config(), &self.tokens, schedule)?;
        let mut lane = Lane::new(plan.clone(), s.embed(&self.outer, plan, obs)?);
        for (i, w) in self.layers.iter().enumerate() {
            s.layer(w, i, &mut lane, obs)?;
        }
        s.head(&self.outer, &lane.x, 0, plan, obs).map(|_| ())
    }
    /// The first tap at which `plan` differs from `base` by a bit.
    fn first_difference(&self, base: &Bits, plan: &KnobPlan, schedule: Schedule) -> Option<String> {
        let mut watch = Watch { base, at: HashMap::new(), differs: None };
        match self.run(plan, schedule, &mut watch) {
            Ok(()) => None,
            Err(e) => Some(watch.differs.unwrap_or_else(|| panic!("{e}"))),
        }
    }
}

/// Every bit of every tap, by tap name.
#[derive(Default)]
struct Bits(HashMap<String, Vec<u32>>);

impl Observer<Cpu> for Bits {
    fn wants_scores(&self, _: usize) -> bool {
        true
    }
    fn tensor(&mut self, _: &Cpu, at: TapAt, t: &mut Mat) -> dsv4::Result<()> {
        self.0.entry(at.id.to_string()).or_default().extend(t.data.iter().map(|v| v.to_bits()));
        Ok(())
    }
    fn index(&mut self, at: TapAt, ids: &mut Index) -> dsv4::Result<()> {
        self.0.entry(at.id.to_string()).or_default().extend(ids.ids.iter().map(|v| *v as u32));
        Ok(())
    }
}

/// Stops at the first bit that differs.
struct Watch<'a> {
    base: &'a Bits,
    at: HashMap<String, usize>,
    differs: Option<String>,
}

impl Watch<'_> {
    fn see(&mut self, at: TapAt, bits: impl Iterator<Item = u32>) -> dsv4::Result<()> {
        let name = at.id.to_string();
        let base = &self.base.0[&name];
        let pos = self.at.entry(name.clone()).or_default();
        for b in bits {
            if base.get(*pos) != Some(&b) {
                self.differs = Some(name);
                return Err(Error::bug("differs"));
            }
            *pos += 1;
        }
        Ok(())
    }
}

impl Observer<Cpu> for Watch<'_> {
    fn wants_scores(&self, _: usize) -> bool {
        true
    }
    fn tensor(&mut self, _: &Cpu, at: TapAt, t: &mut Mat) -> dsv4::Result<()> {
        self.see(at, t.data.iter().map(|v| v.to_bits()))
    }
    fn index(&mut self, at: TapAt, ids: &mut Index) -> dsv4::Result<()> {
        self.see(at, ids.ids.iter().map(|v| *v as u32))
    }
}

/// Above the horizon of 256 tokens, two chunks that meet off every boundary, and decode steps.
const SCHEDULE: Schedule = Schedule { chunk: 150, decode_last: 6 };

fn plan(settings: &[(String, String)]) -> KnobPlan {
    let mut p = KnobPlan::default();
    p.push(None, None, settings).unwrap();
    p
}

fn words(list: &str) -> Vec<(String, String)> {
    list.split(',').filter_map(|s| s.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
}

fn base(pico: &Pico, both: &str) -> Bits {
    let mut bits = Bits::default();
    pico.run(&plan(&words(both)), SCHEDULE, &mut bits).unwrap();
    bits
}

/// Catches a golden value that is not golden: every knob set to its default by name, one bit off anywhere.
#[test]
fn every_knob_at_its_golden_value_changes_no_bit() {
    let pico = Pico::new(300);
    let all: Vec<_> =
        Knobs::defs().iter().map(|d| (format!("{}.{}", d.site, d.name), d.golden.clone())).collect();
    assert!(all.len() > 90, "{}", all.len());
    assert_eq!(pico.first_difference(&base(&pico, ""), &plan(&all), SCHEDULE), None);
}

/// What a knob needs beside it, on both sides, to be read at all.
const BESIDE: &[(&str, &str)] = &[
    ("attn.chunk", "attn.split_rule=chunk"),
    ("attn.split_rule", "attn.splits=3"),
    ("attn.lse_base", "attn.splits=3"),
    ("attn.lse_base_mismatch", "attn.splits=3"),
    ("attn.partial_dtype", "attn.splits=3"),
    ("attn.empty", "attn.splits=8"),
    ("attn.sink", "attn.splits=3"),
    ("mhc.split_order", "mhc.split_k=8"),
    ("kv_cache.rope_bf16", "kv_cache.window=fp8_64"),
    ("kv_cache.layout", "kv_cache.window=fp8_64"),
    ("kv_cache.quant", "kv_cache.window=fp8_64"),
    ("topk.coarse_cap", "topk.coarse_bits=8"),
    ("topk.tie", "indexer.score_dtype=fp8_row"),
    ("topk.seed", "indexer.score_dtype=fp8_row,topk.tie=arrival"),
    ("router.softplus", "router.logit_gain=8"),
    ("experts.clamp", "experts.limit_percent=1"),
    ("experts.quant", "experts.in_dtype=fp8_128"),
    ("experts.scale_above", "experts.scale=never"),
    ("linear.wo_a_bf16", "linear.in_dtype=fp8_128"),
    ("linear.quant", "linear.in_dtype=fp8_128"),
];

/// Values that change no bit here, and why.
const INERT: &[(&str, &str, &str)] = &[
    ("kv_cache.layout", "paged", "the bytes hold exactly the rounded values; rope dims stay as they are"),
    ("router.table", "bf16", "expert ids up to 256 are bf16 values"),
    ("embed.dtype", "bf16", "the checkpoint is in bf16"),
    ("experts.w_dtype", "bf16", "the checkpoint is in bf16"),
    ("linear.w_dtype", "bf16", "the checkpoint is in bf16"),
    ("topk.coarse_bits", "4", "without a cap the second pass finds the exact set"),
];

/// Numbers to try for knobs that take one.
const NUMBERS: &[(&str, &[&str])] = &[
    ("attn.splits", &["2", "8"]),
    ("attn.chunk", &["5", "32"]),
    ("attn.tile", &["1", "64"]),
    ("attn.entry_wrap", &["1", "4"]),
    ("mhc.split_k", &["2", "16"]),
    ("mhc.split_order", &["7"]),
    ("mhc.sinkhorn_iters", &["1", "5"]),
    ("kv_cache.ring_shift", &["1", "16"]),
    ("compressor.ape_phase", &["1"]),
    ("topk.width", &["8", "512"]),
    ("topk.coarse_bits", &["4"]),
    ("topk.coarse_cap", &["1"]),
    ("topk.seed", &["7"]),
    ("router.logit_gain", &["2"]),
    ("experts.limit_percent", &["1", "1000"]),
    ("experts.max_rows", &["8"]),
    ("experts.scale_above", &["100000"]),
    ("head.softcap", &["10"]),
];

/// Catches a knob or a value that nothing reads: every value of every knob changes a bit somewhere, or stands in INERT.
#[test]
fn every_value_of_every_knob_is_read() {
    let pico = Pico::new(300);
    let mut bases: HashMap<&str, Bits> = HashMap::new();
    let mut dead = Vec::new();
    for d in Knobs::defs() {
        let path = format!("{}.{}", d.site, d.name);
        let both = BESIDE.iter().find(|(p, _)| *p == path).map_or("", |b| b.1);
        bases.entry(both).or_insert_with(|| base(&pico, both));
        let values: Vec<&str> = match NUMBERS.iter().find(|(p, _)| *p == path) {
            Some((_, v)) => v.to_vec(),
            // Formats share their code: three of them show that the knob is read.
            None if d.values == Fmt::choices() => vec!["bf16", "fp8_row_pow2", "mxfp4_half_down"],
            None => d.values.split(", ").collect(),
        };
        for v in values.into_iter().filter(|v| *v != d.golden) {
            let mut settings = words(both);
            settings.push((path.clone(), v.into()));
            let moved = pico.first_difference(&bases[both], &plan(&settings), SCHEDULE);
            let inert = INERT.iter().any(|(p, w, _)| *p == path && *w == v);
            if moved.is_some() == inert {
                dead.push(format!("{path}={v}: {moved:?}"));
            }
        }
    }
    assert!(dead.is_empty(), "changed no bit, or is not inert: {dead:#?}");
}

/// Catches a format without code of its own: each rounds the same tensor to other values.
#[test]
fn every_format_is_another_rounding() {
    // Blocks of very different size, so that block lengths show.
    let size = |i: usize| [1e-5, 1e-2, 40.0, 40.0][i / 64];
    let x: Vec<f32> =
        (0..256).map(|i| (((i * 7919 % 1009) as f32 - 504.0) / 97.0 + 0.01) * size(i)).collect();
    let mut seen: Vec<(String, Vec<f32>)> = Vec::new();
    for f in Fmt::choices().split(", ") {
        let mut v = x.clone();
        dsv4::kernels::round::round_row(&mut v, Fmt::parse(f).unwrap());
        assert!(seen.iter().all(|(_, w)| *w != v), "{f} is another format's twin");
        seen.push((f.into(), v));
    }
}

/// Catches state that a chunk border or the change to decode loses: the same bits at every tap, golden and every preset
/// whose arithmetic is local to a token. (Scores are left out: their rows grow with the entries that exist so far.)
#[test]
fn chunks_and_decode_change_no_bit() {
    let pico = Pico::new(300);
    for p in ["none", "splitk-mma", "triton-indexer", "kv-fp8", "fp8-linear", "reference-script", "bf16"] {
        let spec: Spec = p.parse().unwrap();
        let plan = spec.plan(Golden::Ideal, &pico.config().layers).unwrap();
        let mut whole = Bits::default();
        pico.run(&plan, Schedule::default(), &mut whole).unwrap();
        let mut parts = Bits::default();
        pico.run(&plan, SCHEDULE, &mut parts).unwrap();
        for (tap, bits) in whole.0.iter().filter(|(t, _)| !t.ends_with("indexer.scores")) {
            assert!(parts.0[tap] == *bits, "{p}: {tap}");
        }
    }
}

/// Plants every point in every layer where it can be, with what it needs, and returns the names of
/// those whose verdict is not `right`.
fn misjudged(points: &[Fault], right: impl Fn(&Fault, Status, Option<&str>) -> bool) -> Vec<&'static str> {
    let pico = Pico::new(400);
    let mut groups: Vec<Group> = Vec::new();
    let mut names: Vec<Vec<&Fault>> = Vec::new();
    // The built-in model has 8 experts.
    for f in points.iter().filter(|f| f.needs != Needs::ManyExperts) {
        let mut golden = KnobPlan::default();
        golden.push(None, None, &f.both()).unwrap();
        let spec: Spec = f.name.parse().unwrap();
        let mut plan = golden.clone();
        plan.overrides.extend(spec.plan(Golden::Ideal, &pico.config().layers).unwrap().overrides);
        let chunk = if f.needs.chunk() { 150 } else { 0 };
        let schedule = Schedule { chunk, decode_last: if f.needs.decode() { 24 } else { 0 } };
        let tokens = if f.needs == Needs::Short { &pico.tokens[..24] } else { &pico.tokens[..] };
        let setting = Setting { tokens: tokens.to_vec(), golden, schedule, ..Setting::default() };
        let g = groups.iter().position(|g| g.setting == setting).unwrap_or_else(|| {
            groups.push(Group { setting, paths: Vec::new() });
            names.push(Vec::new());
            groups.len() - 1
        });
        groups[g].paths.push(Path { plan, scope: Scope::Verdict });
        names[g].push(f);
    }
    let found = against_candidates(&Cpu, &pico.ckpt, &pico.outer, &groups, &Quiet).unwrap();
    let mut wrong = Vec::new();
    for (f, c) in names.iter().flatten().zip(found.iter().flatten()) {
        let v = &c.verdict;
        let ok = right(f, v.status, v.site.as_deref());
        let mark = if ok { "ok " } else { "BAD" };
        println!(
            "{mark} {:<34} {:<10} {:?} {:?} {:?} {:?}",
            f.name,
            f.site(),
            v.status,
            v.site,
            v.layer,
            v.tap
        );
        if !ok {
            wrong.push(f.name);
        }
    }
    wrong
}

/// Catches a fault that is found at another site than it says, or not at all.
#[test]
fn faults_are_found_at_their_sites() {
    let wrong = misjudged(FAULTS, |f, status, site| status != Status::Ok && site == Some(f.site().name()));
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Catches a harmless point that raises an alarm.
#[test]
fn controls_stay_quiet() {
    let wrong = misjudged(CONTROLS, |_, status, _| status == Status::Ok);
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Catches lanes that a lockstep pass leaves out although the verdict hangs on them: a fault found in a
/// batch is found in the same tap, by the same size and in the same words as alone with every lane.
#[test]
fn a_batch_judges_as_a_comparison_alone_does() {
    let pico = Pico::new(300);
    let planted = |spec: &str| {
        let spec: Spec = spec.parse().unwrap();
        spec.plan(Golden::Ideal, &pico.config().layers).unwrap()
    };
    let specs = [
        "relu_off@1",
        "comb_transposed@2",
        "width_halved@3",
        "reuse_topk_n_layers",
        "kv-fp8",
        "embed_scaled",
    ];
    let setting = Setting { tokens: pico.tokens.clone(), schedule: SCHEDULE, ..Setting::default() };
    let paths = |scope| specs.iter().map(|s| Path { plan: planted(s), scope }).collect();
    let batch = Group { setting: setting.clone(), paths: paths(Scope::Verdict) };
    let alone = paths(Scope::Full).into_iter();
    let mut groups: Vec<Group> =
        alone.map(|p: Path| Group { setting: setting.clone(), paths: vec![p] }).collect();
    groups.push(batch);
    let mut found = against_candidates(&Cpu, &pico.ckpt, &pico.outer, &groups, &Quiet).unwrap();
    let batch = found.pop().unwrap();
    for ((spec, b), a) in specs.iter().zip(&batch).zip(found.iter().flatten()) {
        let (v, w) = (&b.verdict, &a.verdict);
        assert_eq!((v.status, v.layer, &v.site, &v.tap), (w.status, w.layer, &w.site, &w.tap), "{spec}");
        assert_eq!(b.identical, a.identical, "{spec}");
        for row in &b.rows {
            let full = a.rows.iter().find(|r| r.tap == row.tap).unwrap();
            assert_eq!(
                (row.local_rel_l2, row.floor, row.row_excess, row.status, &row.findings),
                (full.local_rel_l2, full.floor, full.row_excess, full.status, &full.findings),
                "{spec} {}",
                row.tap
            );
        }
    }
}
