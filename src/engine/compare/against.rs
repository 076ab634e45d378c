//! Golden against a dump made elsewhere.

use super::blame;
use super::judge::{Precision, Verdict, verdict};
use super::observer::Comparer;
use super::rows::{FloorRule, Judging, TapAcc, TapRow};
use super::{NOISE, Role};
use crate::checkpoint::{Checkpoint, Config};
use crate::engine::dump::Dump;
use crate::engine::pass::{Progress, for_each_layer};
use crate::engine::session::{Schedule, Session};
use crate::error::{Error, ErrorKind, Result};
use crate::kernels::{KnobPlan, Mat, Ops, Site};
use crate::metrics::{Limits, Status};
use crate::model::{OuterWeights, Tap, TapId};
use crate::numeric::{bf16, f16};
use serde::Serialize;
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
        None => infer_from_values(dump),
    };
    let mut rows = run(ops, ckpt, outer, tokens, dump, options, precision, progress)?;
    if options.precision.is_none()
        && precision == Precision::F32
        && let Some(p) = infer_from_errors(&rows)
    {
        (precision, from) = (p, "the typical error of its taps".into());
        rows = run(ops, ckpt, outer, tokens, dump, options, precision, progress)?;
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
    let rule = FloorRule::new(precision, c.hc_mult * c.hidden_size);
    let session = Session::new(ops, c, tokens, Schedule::default())?;
    let mut noise = options.golden.clone();
    let settings: Vec<_> = NOISE.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    noise.push(None, None, &settings)?;
    let plans = [options.golden.clone(), options.golden.clone(), noise];
    let roles = vec![Role::Golden, Role::Local, Role::Noise];
    let mut cmp = Comparer::new(roles, Some(dump), c, rule, tokens.len());
    progress.begin("comparing layers", c.num_hidden_layers);
    let mut lanes = session.embed_lanes(outer, &plans, &mut cmp)?;
    for_each_layer(ops, ckpt, progress, |i, w| {
        cmp.bias = w.gate_bias.clone();
        session.layer_lanes(w, i, &mut lanes, &mut cmp)?;
        name_structures(&mut cmp, i, &rule, c);
        cmp.end_layer();
        Ok(())
    })?;
    session.head_lanes(outer, &lanes, &mut cmp)?;
    progress.end();

    let quantised = options.golden_quantises;
    let rows: Vec<TapRow> = cmp
        .taps
        .values()
        .filter(|(id, _)| dump.has(*id))
        .map(|(id, acc)| {
            let steps = steps(*id, dump, c, quantised, &rule);
            acc.finish(*id, kind(*id, c), &Judging { rule, steps, limits: &options.limits, isolated: false })
        })
        .collect();
    Ok(settle_unscaled(rows))
}

/// Layer kind in a word.
pub(super) fn kind(id: TapId, c: &Config) -> &'static str {
    id.layer.map_or("", |l| c.layers[l].kind.name())
}

/// True if noise moves this tap in steps: its value is quantised, or it hangs on quantised values
/// or a selection that the dump does not hold.
fn steps(id: TapId, dump: &Dump, c: &Config, quantised: bool, rule: &FloorRule) -> bool {
    let Some(layer) = id.layer else { return false };
    let has = |tap| dump.has(TapId { layer: Some(layer), tap });
    let spec = c.layers[layer];
    let compressed = spec.ratio > 0;
    let indexed = spec.kind == crate::checkpoint::LayerKind::Csa;
    let in_attention = id.tap >= Tap::AttnLse && id.tap <= Tap::Mid;
    if quantised {
        let quantised_tap = matches!(id.tap, Tap::AttnKv | Tap::CompressorKv | Tap::IndexerQ | Tap::IndexerK);
        let kv_missing = !has(Tap::AttnKv) || (compressed && !has(Tap::CompressorKv));
        let index_missing = id.tap == Tap::IndexerScores && !(has(Tap::IndexerQ) && has(Tap::IndexerK));
        if quantised_tap || index_missing || (in_attention && kv_missing && !has(Tap::AttnOut)) {
            return true;
        }
        if matches!(id.tap, Tap::AttnLse | Tap::AttnOut) && kv_missing {
            return true;
        }
    }
    let unforced = indexed && !has(Tap::IndexTopk) && rule.noise > 0.1;
    unforced && (matches!(id.tap, Tap::AttnLse | Tap::AttnOut) || (in_attention && !has(Tap::AttnOut)))
}

/// Looks for structure in what differs: storage, rotation.
pub(super) fn name_structures(cmp: &mut Comparer, layer: usize, rule: &FloorRule, c: &Config) {
    let floor = |acc: &TapAcc| (acc.noise_rows.rel_l2(|_| true) * rule.noise).max(rule.least);
    let set = |cmp: &mut Comparer, tap: Tap, site: Option<Site>, note: String, explained: bool| {
        let acc = cmp.acc(TapId { layer: Some(layer), tap });
        acc.note = Some(note);
        acc.explained = explained;
        acc.site = site;
    };
    for tap in [Tap::AttnKv, Tap::CompressorKv] {
        let Some((g, m)) = cmp.kept.remove(&tap) else { continue };
        let f = floor(cmp.acc(TapId { layer: Some(layer), tap }));
        if let Some(b) = blame::stored_kv(&g, &m, c.qk_rope_head_dim, f) {
            // A wrong compressed entry is the compressor's, unless only its format differs.
            let site = if tap == Tap::AttnKv || b.explained { Some(b.site) } else { None };
            set(cmp, tap, site, b.note, b.explained);
        }
    }
    let rotated = |cmp: &mut Comparer, tap: Tap| {
        let (g, m): (Mat, Mat) = cmp.kept.remove(&tap)?;
        let f = floor(cmp.acc(TapId { layer: Some(layer), tap }));
        Some(blame::is_rotated(&g, &m, c.index_head_dim, f))
    };
    let (q, k) = (rotated(cmp, Tap::IndexerQ), rotated(cmp, Tap::IndexerK));
    match (q, k) {
        (Some(true), Some(true)) => {
            for tap in [Tap::IndexerQ, Tap::IndexerK] {
                let note =
                    "rotated by Hadamard like its counterpart: scores are unchanged; compare with golden qat";
                set(cmp, tap, None, note.into(), true);
            }
        }
        (Some(true), _) => {
            let note = "queries are rotated by Hadamard, keys are not: the ranking carries no information";
            let note =
                if k.is_none() { "queries are rotated by Hadamard; keys are not in the dump" } else { note };
            set(cmp, Tap::IndexerQ, None, note.into(), false);
        }
        (_, Some(true)) => {
            let note = "keys are rotated by Hadamard, queries are not: the ranking carries no information";
            let note =
                if q.is_none() { "keys are rotated by Hadamard; queries are not in the dump" } else { note };
            set(cmp, Tap::IndexerK, None, note.into(), false);
        }
        _ => {}
    }
    if cmp.unscaled {
        let note = "the weights are handed out without routed_scaling_factor";
        set(cmp, Tap::RouterWeights, None, note.into(), false);
    }
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

/// Taps that `tap` is computed from.
fn upstream(tap: Tap) -> &'static [Tap] {
    match tap {
        Tap::AttnQ
        | Tap::AttnKv
        | Tap::CompressorKv
        | Tap::IndexerQ
        | Tap::IndexerK
        | Tap::IndexerWeights => &[Tap::AttnIn],
        Tap::IndexerScores | Tap::IndexTopk => &[Tap::IndexerQ, Tap::IndexerK, Tap::IndexerWeights],
        Tap::AttnLse | Tap::AttnOut => &[Tap::AttnQ, Tap::AttnKv, Tap::CompressorKv, Tap::IndexTopk],
        Tap::AttnProj => &[Tap::AttnOut],
        Tap::Mid => &[Tap::AttnPost, Tap::AttnComb, Tap::AttnProj],
        Tap::FfnPre | Tap::FfnPost | Tap::FfnComb | Tap::FfnIn => &[Tap::Mid],
        Tap::RouterLogits | Tap::SharedOut => &[Tap::FfnIn],
        Tap::RouterTopk => &[Tap::RouterLogits],
        Tap::RouterWeights => &[Tap::RouterLogits, Tap::RouterTopk],
        Tap::ExpertsOut => &[Tap::FfnIn, Tap::RouterTopk, Tap::RouterWeights],
        Tap::FfnOut => &[Tap::ExpertsOut, Tap::SharedOut],
        Tap::LayerOut => &[Tap::Mid, Tap::FfnPost, Tap::FfnComb, Tap::FfnOut],
        Tap::Logits => &[Tap::HeadIn],
        _ => &[],
    }
}

/// Says which direct inputs of the blamed tap the dump lacks.
fn gap(row: &TapRow, dump: &Dump, c: &Config) -> Option<String> {
    let id = TapId::parse(&row.tap)?;
    let spec = id.layer.map(|l| c.layers[l]);
    let exists = |t: &Tap| match t {
        Tap::CompressorKv => spec.is_some_and(|s| s.ratio > 0),
        Tap::IndexTopk => spec.is_some_and(|s| s.kind == crate::checkpoint::LayerKind::Csa),
        _ => true,
    };
    let mut missing: Vec<String> = upstream(id.tap)
        .iter()
        .filter(|t| exists(t) && !dump.has(TapId { layer: id.layer, tap: **t }))
        .map(|t| t.suffix().to_string())
        .collect();
    let stream = |l: usize| TapId { layer: Some(l), tap: Tap::LayerOut };
    match (id.tap, id.layer) {
        (Tap::AttnPre | Tap::AttnPost | Tap::AttnComb | Tap::AttnIn, Some(l))
            if l > 0 && !dump.has(stream(l - 1)) =>
        {
            missing.push(stream(l - 1).to_string());
        }
        (Tap::HeadIn, _) if !dump.has(stream(c.num_hidden_layers - 1)) => {
            missing.push(stream(c.num_hidden_layers - 1).to_string());
        }
        _ => {}
    }
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

/// bf16 or f16 if every value of the activations is representable in it (the embedding is left
/// out: a bf16 checkpoint embeds to bf16 values in any run).
fn infer_from_values(dump: &Dump) -> (Precision, String) {
    let streams = |id: &TapId| matches!(id.tap, Tap::Mid | Tap::LayerOut);
    let others =
        |id: &TapId| !id.tap.is_index() && !matches!(id.tap, Tap::EmbedOut | Tap::Mid | Tap::LayerOut);
    let mut ids: Vec<TapId> = dump.ids().into_iter().filter(streams).collect();
    let mut what = "residual streams";
    if ids.is_empty() {
        ids = dump.ids().into_iter().filter(others).collect();
        what = "taps";
    }
    let (mut n, mut b, mut h) = (0u64, 0u64, 0u64);
    for id in ids.iter().take(16) {
        if let Some((_, m)) = dump.rows(*id, 0, dump.first_position + 512) {
            for v in m.data.iter().filter(|v| v.is_finite() && **v != 0.0) {
                n += 1;
                b += bf16::is_representable(*v) as u64;
                h += f16::is_representable(*v) as u64;
            }
        }
    }
    if n == 0 {
        return (Precision::F32, "assumed: no values to infer it from".into());
    }
    // A random f32 is representable in bf16 with probability 2^-16.
    if b * 1000 >= n * 999 {
        (Precision::Bf16, format!("its {what} hold bf16 values only"))
    } else if h * 1000 >= n * 999 {
        (Precision::F16, format!("its {what} hold f16 values only"))
    } else {
        (Precision::F32, format!("its {what} hold full f32 values"))
    }
}

/// A run stored in f32 may have been computed more coarsely (TF32 products, bf16 autocast). Then
/// not one tap but most of them are off, by about what that precision explains.
fn infer_from_errors(rows: &[TapRow]) -> Option<Precision> {
    let coarse = |r: &&TapRow| r.index.is_none() && r.floor > 0.0 && !matches!(r.tap.as_str(), "embed.out");
    let rows: Vec<&TapRow> = rows.iter().filter(coarse).collect();
    if rows.len() < 6 {
        return None;
    }
    let median = |scale: f64| {
        let mut v: Vec<f64> = rows.iter().map(|r| r.excess / scale).collect();
        v.sort_unstable_by(f64::total_cmp);
        v[v.len() / 2]
    };
    if median(1.0) <= 8.0 {
        return None;
    }
    // Floors were those of f32; another precision's are larger by the ratio of the factors.
    let f32_factor = FloorRule::new(Precision::F32, 1).noise;
    [Precision::Tf32, Precision::Bf16].into_iter().find(|p| {
        let scale = FloorRule::new(*p, 1).noise / f32_factor;
        let m = median(scale);
        m <= 2.0
    })
}
