//! Prefill, chunked prefill and token-by-token decode are the same function, bit for bit, whatever
//! the number of threads: golden `ideal`, and golden with the quantisation points that `qat` sets.

use dsv4::checkpoint::Checkpoint;
use dsv4::engine::session::Lane;
use dsv4::engine::{Loader, Schedule, Session};
use dsv4::kernels::{Cpu, KnobPlan, Mat};
use dsv4::model::{LayerWeights, OuterWeights, Silent};
use std::sync::{Arc, LazyLock};

/// First context length at which the built-in model's indexer has to choose: `index_topk · 4`.
const HORIZON: usize = 256;

/// The built-in model, loaded once: most of these runs are short.
struct Pico {
    ckpt: Arc<Checkpoint>,
    outer: OuterWeights<Cpu>,
    layers: Vec<LayerWeights<Cpu>>,
}

static PICO: LazyLock<Pico> = LazyLock::new(|| {
    let ckpt = Arc::new(Checkpoint::open("builtin:pico").unwrap());
    let loader = Loader::new(Cpu, ckpt.clone());
    let layers = (0..ckpt.config().num_hidden_layers).map(|i| loader.layer(i).unwrap()).collect();
    Pico { outer: loader.outer().unwrap(), layers, ckpt }
});

fn tokens(n: usize) -> Vec<u32> {
    (0..n).map(|i| if i == 0 { 0 } else { 4 + ((i * 7919) % 500) as u32 }).collect()
}

fn plan(settings: &[(&str, &str)]) -> KnobPlan {
    let mut plan = KnobPlan::default();
    let settings: Vec<_> = settings.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    plan.push(None, None, &settings).unwrap();
    plan
}

/// Golden `ideal`, and golden with every quantisation point of `qat`.
fn plans() -> [(&'static str, KnobPlan); 2] {
    let qat = [
        ("kv_cache.window", "fp8_64"),
        ("kv_cache.compressed", "fp8_64"),
        ("indexer.hadamard", "both"),
        ("indexer.q_dtype", "mxfp4"),
        ("indexer.k_dtype", "mxfp4"),
    ];
    [("ideal", KnobPlan::default()), ("qat", plan(&qat))]
}

/// Logits of every position.
fn logits(n: usize, chunk: usize, decode_last: usize, plan: &KnobPlan) -> Mat {
    let tokens = tokens(n);
    let schedule = Schedule { chunk, decode_last };
    let session = Session::new(&Cpu, PICO.ckpt.config(), &tokens, schedule).unwrap();
    let mut lane = Lane::new(plan.clone(), session.embed(&PICO.outer, plan, &mut Silent).unwrap());
    for (i, layer) in PICO.layers.iter().enumerate() {
        session.layer(layer, i, &mut lane, &mut Silent).unwrap();
    }
    session.head(&PICO.outer, &lane.x, 0, plan, &mut Silent).unwrap()
}

/// The first row in which two results differ in any bit, NaNs and signs of zero included.
fn first_difference(a: &Mat, b: &Mat) -> Option<usize> {
    let bits = |m: &Mat, r: usize| m.row(r).iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(a.cols, b.cols);
    (0..a.rows.min(b.rows)).find(|r| bits(a, *r) != bits(b, *r))
}

/// Catches an operation whose result for a token depends on the tokens fed with it (a product
/// that sums in another order for one row, a cache that decode writes or reads otherwise, a
/// window or visibility that is off by one in one phase).
///
/// Row `t` of a causal model does not depend on the length, so one decode of 300 tokens holds the
/// answer for every length; each length's prefill must give the bits of its rows.
#[test]
fn decode_equals_prefill_at_every_length_to_300() {
    for (name, plan) in plans() {
        let decoded = logits(300, 0, 300, &plan);
        // What `qat` adds is local to an entry: one length in seven covers every remainder.
        for n in (1..=300).step_by(if name == "ideal" { 1 } else { 7 }) {
            let prefill = logits(n, 0, 0, &plan);
            assert_eq!(prefill.rows, n);
            assert_eq!(first_difference(&prefill, &decoded), None, "{name}: prefill of {n} tokens");
        }
    }
}

/// Catches state that a prefill leaves for decode in another form than decode itself does, where
/// something closes or begins: a window of either compressor, or the choice of entries.
#[test]
fn decode_after_prefill_equals_prefill_around_every_border() {
    for (name, plan) in plans() {
        let whole = logits(HORIZON + 8, 0, 0, &plan);
        for border in [4, 128, HORIZON] {
            for n in border - 2..=border + 2 {
                for last in [1, 2, 5] {
                    let mixed = logits(n, 0, last, &plan);
                    assert_eq!(mixed.rows, n);
                    let at = first_difference(&mixed, &whole);
                    assert_eq!(at, None, "{name}: {n} tokens, the last {last} decoded");
                }
            }
        }
    }
}

/// Catches pending tokens, overlap, index keys or window entries lost, doubled or shifted where
/// one chunk ends and the next begins.
#[test]
fn chunked_prefill_equals_one_shot() {
    for (name, plan) in plans() {
        let whole = logits(1100, 0, 0, &plan);
        for chunk in [1, 3, 4, 127, 128, 129, 1000] {
            let chunked = logits(1100, chunk, 0, &plan);
            assert_eq!(chunked.rows, whole.rows);
            assert_eq!(first_difference(&chunked, &whole), None, "{name}: chunks of {chunk}");
        }
    }
}

/// Catches a sum whose order depends on how work was divided, and two tasks that write one place.
#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for (name, plan) in plans() {
        let [one, two, five] = [1, 2, 5].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| logits(700, 0, 3, &plan))
        });
        assert_eq!(first_difference(&one, &two), None, "{name}: 2 threads");
        assert_eq!(first_difference(&one, &five), None, "{name}: 5 threads");
    }
}

/// Catches tests above that cannot fail: states that do not survive a chunk border, a rule that
/// holds in one phase only, and a format that rounds nothing must all show.
#[test]
fn planted_faults_show() {
    let golden = KnobPlan::default();
    let whole = logits(400, 0, 0, &golden);
    assert_eq!(first_difference(&logits(400, 0, 0, &plans()[1].1), &whole), Some(0), "qat rounds");

    // Entries of the second chunk are wrong from its first window on.
    let lost = plan(&[("compressor.carry", "off")]);
    assert_eq!(first_difference(&logits(400, 0, 0, &lost), &whole), None, "one chunk loses nothing");
    let at = first_difference(&logits(400, 129, 0, &lost), &whole).expect("a lost compressor state");
    assert!((129..129 + 4).contains(&at), "{at}");

    // Lost index keys are seen only where there is something to choose.
    let lost = plan(&[("indexer.carry", "off")]);
    assert_eq!(first_difference(&logits(HORIZON, 129, 0, &lost), &whole), None, "below the horizon");
    let at = first_difference(&logits(400, 129, 0, &lost), &whole).expect("lost index keys");
    assert!(at >= HORIZON, "{at}");

    // A window that is one short in decode only.
    let mut short = KnobPlan::default();
    let setting = [("attn.window".to_string(), "one_short".to_string())];
    short.push(None, Some(dsv4::kernels::Phase::Decode), &setting).unwrap();
    assert_eq!(first_difference(&logits(300, 0, 0, &short), &whole), None, "prefill is untouched");
    assert_eq!(first_difference(&logits(300, 0, 300, &short), &whole), Some(31));
}
