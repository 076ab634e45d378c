//! Golden against a dump made elsewhere.

use super::floor::{FloorRule, RowErrs};
use super::flow;
use super::judge::{Verdict, verdict};
use super::observer::Comparer;
use super::precision::{self, Precision, Products};
use super::rows::{Judging, TapRow};
use super::subject::Seat;
use super::{NOISE, Role};
use crate::checkpoint::{Checkpoint, Config};
use crate::engine::dump::Dump;
use crate::engine::pass::{Progress, for_each_layer};
use crate::engine::session::{Schedule, Session};
use crate::engine::tap_shape;
use crate::error::{Error, ErrorKind, Result};
use crate::kernels::{KnobPlan, Ops};
use crate::metrics::{Limits, Status};
use crate::model::{OuterWeights, Tap, TapId};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

/// How to compare.
#[derive(Debug, Clone)]
pub struct AgainstOptions {
    /// Golden's own knobs (`ideal`: none).
    pub golden: KnobPlan,
    /// True if golden quantises (then a perturbation moves values by whole steps).
    pub golden_quantises: bool,
    /// Precision of the dump's run, `None` to infer it.
    pub precision: Option<Precision>,
    /// Limits on excess.
    pub limits: Limits,
}

/// The comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Against {
    /// The conclusion.
    pub verdict: Verdict,
    /// One row a tap, in execution order.
    pub rows: Vec<TapRow>,
    /// Precision of the dump's run.
    pub precision: Precision,
    /// Where the precision comes from.
    pub precision_from: String,
    /// Tensors of the dump that are no taps of this model.
    pub ignored: Vec<String>,
}

/// Compares golden over `tokens` with `dump`. The caller has checked that the tokens agree.
pub fn against_dump<O: Ops + Clone + Send + 'static>(
    ops: &O,
    ckpt: &Arc<Checkpoint>,
    outer: &OuterWeights<O>,
    tokens: &[u32],
    dump: &Dump,
    options: &AgainstOptions,
    progress: &dyn Progress,
) -> Result<Against> {
    let c = ckpt.config();
    if dump.ids().is_empty() {
        return Err(Error::new(ErrorKind::NothingCompared, "the dump has no tap in common with this model")
            .file(dump.path())
            .hint("tap names look like layers.0.attn.out; `dsv4 dump --help` lists them"));
    }
    dump.check_shapes(c, tokens.len())?;
    if dump.ids().iter().all(|id| dump.rows(*id, 0, usize::MAX / 2).is_none() && !id.tap.is_index()) {
        return Err(
            Error::new(ErrorKind::NothingCompared, "every tap of the dump is empty").file(dump.path())
        );
    }
    let (mut precision, mut from) = match options.precision {
        Some(p) => (p, "given".to_string()),
        None => precision::from_values(dump),
    };
    let mut rows = run(ops, ckpt, outer, tokens, dump, options, precision, progress)?;
    if options.precision.is_none() && Products::of(&rows, dump, c).coarse() {
        for p in precision::coarser(precision) {
            let mut again = run(ops, ckpt, outer, tokens, dump, options, p, progress)?;
            let products = Products::of(&again, dump, c);
            if !products.explained() {
                continue;
            }
            from = "the typical error of its products".into();
            if !products.sure() {
                precision::hedge(&mut again, &rows, p);
                from = "assumed, because it explains the errors of its few taps".into();
            }
            (precision, rows) = (p, again);
            break;
        }
    }
    let context = format!("{} arithmetic explains", precision.name());
    let v = verdict(&rows, &context, |row| gap(row, dump, c));
    Ok(Against { verdict: v, rows, precision, precision_from: from, ignored: dump.ignored.clone() })
}

/// One lockstep pass.
fn run<O: Ops + Clone + Send + 'static>(
    ops: &O,
    ckpt: &Arc<Checkpoint>,
    outer: &OuterWeights<O>,
    tokens: &[u32],
    dump: &Dump,
    options: &AgainstOptions,
    precision: Precision,
    progress: &dyn Progress,
) -> Result<Vec<TapRow>> {
    let c = ckpt.config();
    let width = c.hc_mult * c.hidden_size;
    let rule = FloorRule::new(precision.unit_roundoff(), width);
    let session = Session::new(ops, c, tokens, Schedule::default())?;
    let mut noise = options.golden.clone();
    let settings: Vec<_> = NOISE.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    noise.push(None, None, &settings)?;
    let plans = [options.golden.clone(), options.golden.clone(), noise];
    let seats = [Role::Golden, Role::Local, Role::Noise].map(|role| Seat { role, subject: 0 });
    let mut cmp = Comparer::new(seats.to_vec(), Some(dump), c, rule, tokens);
    let mut memo = HashMap::new();
    for id in tap_shape::all(c, tokens.len(), &KnobPlan::default()).into_iter().map(|(id, _)| id) {
        let u = flow::storage(id, dump, c, &mut memo);
        if u > precision.unit_roundoff() {
            cmp.rules.insert(id, FloorRule::new(u, width));
        }
    }
    cmp.quantised = options.golden_quantises;
    progress.begin("comparing layers", c.num_hidden_layers);
    let mut lanes = session.embed_lanes(outer, &plans, &mut cmp)?;
    for_each_layer(ops, ckpt, progress, |i, w| {
        cmp.bias = w.gate_bias.clone();
        session.layer_lanes(w, i, &mut lanes, &mut cmp)?;
        cmp.name_structures(i);
        cmp.end_layer();
        Ok(())
    })?;
    session.head_lanes(outer, &lanes, &mut cmp)?;
    progress.end();

    let quantised = options.golden_quantises;
    let mut stepped = HashMap::new();
    let none = RowErrs::default();
    let rows: Vec<TapRow> = cmp.subjects[0]
        .taps
        .values()
        .filter(|(id, _)| dump.has(*id))
        .map(|(id, acc)| {
            let rule = cmp.rule_of(*id);
            let steps = if quantised { steps(*id, dump, c, &mut stepped) } else { None };
            let noise = cmp.noise.get(id).unwrap_or(&none);
            let judging = Judging { rule, noise, steps, limits: &options.limits, isolated: false };
            acc.finish(*id, kind(*id, c), &judging)
        })
        .collect();
    Ok(settle_unscaled(rows))
}

/// Layer kind in a word.
pub(super) fn kind(id: TapId, c: &Config) -> &'static str {
    id.layer.map_or("", |l| c.layers[l].kind.name())
}

/// The largest relative step in which noise moves this tap under a golden that quantises: its value
/// is quantised, or it hangs on quantised values that the dump does not hold. Neighbouring values
/// of e4m3 are at most an eighth apart, of e2m1 a half.
fn steps(id: TapId, dump: &Dump, c: &Config, memo: &mut HashMap<TapId, Option<f64>>) -> Option<f64> {
    if let Some(s) = memo.get(&id) {
        return *s;
    }
    let s = match id.tap {
        Tap::IndexerQ | Tap::IndexerK => Some(0.5),
        Tap::AttnKv | Tap::CompressorKv => Some(0.125),
        _ => flow::inputs(id, c)
            .into_iter()
            .filter(|i| !dump.has(*i))
            .filter_map(|i| steps(i, dump, c, memo))
            .max_by(f64::total_cmp),
    };
    memo.insert(id, s);
    s
}

/// Unscaled router weights are a choice, not a fault, if the next routed tap of the dump agrees
/// with weights that were scaled.
fn settle_unscaled(mut rows: Vec<TapRow>) -> Vec<TapRow> {
    for i in 0..rows.len() {
        if !rows[i].tap.ends_with("router.weights") || rows[i].note.is_none() {
            continue;
        }
        let routed = ["experts.out", "ffn.out", "out"];
        let next = rows[i + 1..]
            .iter()
            .find(|r| r.layer == rows[i].layer && routed.iter().any(|s| r.tap.ends_with(&format!(".{s}"))));
        if next.is_some_and(|n| n.status != Status::Suspect) {
            rows[i].status = Status::Elevated;
            rows[i].note = Some(
                "the weights are handed out without routed_scaling_factor; it is applied downstream".into(),
            );
        }
    }
    rows
}

/// Says which direct inputs of the blamed tap the dump lacks.
fn gap(row: &TapRow, dump: &Dump, c: &Config) -> Option<String> {
    let id = TapId::parse(&row.tap)?;
    let embed = TapId { layer: None, tap: Tap::EmbedOut };
    let missing: Vec<String> = flow::inputs(id, c)
        .into_iter()
        .filter(|i| *i != embed && !dump.has(*i))
        .map(|i| if i.layer == id.layer { i.tap.suffix().to_string() } else { i.to_string() })
        .collect();
    if missing.is_empty() {
        return None;
    }
    let before = dump.ids().into_iter().filter(|d| d.order() < id.order()).max_by_key(TapId::order);
    let since = before.map_or("the prompt".into(), |b| b.to_string());
    Some(format!(
        "not in the dump: {}; so this is the first tap that differs, and the error lies between {since} and here",
        missing.join(", ")
    ))
}
