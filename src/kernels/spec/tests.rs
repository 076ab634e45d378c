use super::*;
use crate::checkpoint::LayerKind;
use proptest::prelude::*;

fn layers() -> Vec<LayerSpec> {
    let l = |kind, ratio, hash| LayerSpec { kind, ratio, hash };
    vec![
        l(LayerKind::Window, 0, true),
        l(LayerKind::Csa, 4, false),
        l(LayerKind::Hca, 128, false),
        l(LayerKind::Csa, 4, false),
    ]
}

fn spec(s: &str) -> Spec {
    s.parse().unwrap_or_else(|e| panic!("{s}: {e}"))
}

fn hint(s: &str) -> String {
    let e = match s.parse::<Spec>() {
        Err(e) => e,
        Ok(x) => x.plan(Golden::Ideal, &layers()).expect_err(s),
    };
    assert_eq!(e.kind(), crate::ErrorKind::Usage, "{s}");
    e.to_string()
}

fn at(s: &str, layer: Option<usize>, phase: Phase) -> String {
    spec(s).plan(Golden::Ideal, &layers()).unwrap().at(layer, phase).to_string()
}

/// Catches a canonical form that says something else than what was typed.
#[test]
fn specs_print_canonically() {
    for (text, want) in [
        ("", "none"),
        ("none", "none"),
        (" splitk-mma , kv-fp8,", "splitk-mma,kv-fp8"),
        ("all", "splitk-mma,triton-indexer,mhc-bf16,routed-scaling"),
        ("all,-mhc", "splitk-mma,triton-indexer,routed-scaling"),
        ("all,-splitk-mma", "triton-indexer,mhc-bf16,routed-scaling"),
        ("all,none,kv-fp8", "kv-fp8"),
        ("all,-all", "none"),
        ("bf16,-mhc", "bf16,-mhc"),
        ("bf16,-mhc,mhc.w_dtype=bf16", "bf16,-mhc,mhc.w_dtype=bf16"),
        ("all,-mhc@2", "splitk-mma,triton-indexer,mhc-bf16,routed-scaling,-mhc@2"),
        ("attn.derotate=false", "attn.derotate=off"),
        ("splitk-mma@3", "splitk-mma@3"),
        ("attn.sink=dropped@2+1@decode", "attn.sink=dropped@1-2@decode"),
        ("attn.sink=dropped@decode@0+2-3", "attn.sink=dropped@0+2-3@decode"),
        ("hadamard_q_only@1", "hadamard_q_only@1"),
    ] {
        assert_eq!(spec(text).to_string(), want, "{text}");
        assert_eq!(spec(want), spec(text), "{want}");
    }
}

/// Catches a setting that reaches the wrong layer or phase, and a removal that removes too much.
#[test]
fn settings_reach_their_layers_and_phases() {
    assert_eq!(at("attn.splits=8@1-2@decode", Some(1), Phase::Decode), "attn.splits=8");
    assert_eq!(at("attn.splits=8@1-2@decode", Some(1), Phase::Prefill), "golden");
    assert_eq!(at("attn.splits=8@1-2@decode", Some(3), Phase::Decode), "golden");
    assert_eq!(at("head.in_dtype=bf16", None, Phase::Prefill), "head.in_dtype=bf16");
    assert_eq!(at("attn.splits=8,attn.splits=4", Some(0), Phase::Prefill), "attn.splits=4");
    assert_eq!(at("mhc-bf16,-mhc@2", Some(2), Phase::Prefill), "golden");
    assert_eq!(at("mhc-bf16,-mhc@2", Some(1), Phase::Prefill), "mhc.x_dtype=bf16,mhc.w_dtype=bf16");
    assert!(!at("bf16,-mhc", Some(1), Phase::Prefill).contains("mhc."));
    assert!(at("bf16,-mhc", Some(1), Phase::Prefill).contains("linear.in_dtype=bf16"));
    // A fault goes where it can exist, and nowhere else.
    assert_eq!(at("overlap_off_in_decode", Some(1), Phase::Decode), "compressor.overlap=off");
    assert_eq!(at("overlap_off_in_decode", Some(1), Phase::Prefill), "golden");
    assert_eq!(at("overlap_off_in_decode", Some(2), Phase::Decode), "golden");
    assert_eq!(at("scale_hash_layers_only", Some(0), Phase::Prefill), "golden");
    assert_eq!(at("scale_hash_layers_only", Some(3), Phase::Prefill), "router.scale=never");
}

/// Catches a removal that undoes golden itself.
#[test]
fn removal_returns_to_the_golden_of_the_run() {
    let qat = Golden::Qat.knobs();
    let l = layers();
    for text in ["none", "triton-indexer,-indexer", "bf16,-indexer,-kv_cache", "triton-indexer,-indexer@1"] {
        let k = spec(text).plan(Golden::Qat, &l).unwrap().at(Some(1), Phase::Prefill);
        assert_eq!(k.indexer, qat.indexer, "{text}");
        assert_eq!(k.kv_cache, qat.kv_cache, "{text}");
    }
}

/// Catches an unknown name without a way on, and a word that silently does nothing.
#[test]
fn mistakes_get_a_suggestion() {
    assert!(hint("splitk-mna").contains("did you mean 'splitk-mma'"));
    assert!(hint("all,-mch").contains("did you mean '-mhc'"));
    assert!(hint("relu_of").contains("did you mean 'relu_off'"));
    assert!(hint("atn.splits=8").contains("did you mean 'attn.splits'"));
    assert!(hint("attn.sink=maybe").contains("it takes once, dropped"));
    assert!(hint("attn.splits").contains("a knob needs a value"));
    assert!(hint("attn.splits=4000000000").contains("up to"));
    assert!(hint("mhc").contains("is a site"));
    assert!(hint("all,-head").contains("nothing before"));
    assert!(hint("-splitk-mma").contains("not there"));
    assert!(hint("all,-splitk-mma@2").contains("confined"));
    assert!(hint("splitk-mma@x").contains("neither layers nor a phase"));
    assert!(hint("splitk-mma@3-1").contains("neither"));
    assert!(hint("splitk-mma@-1").contains("neither"));
    assert!(hint("splitk-mma@decode@decode").contains("neither"));
    assert!(hint("splitk-mma@4").contains("layer 4"));
    assert!(hint("splitk-mma@0-99999999999").contains("the model has 4"));
    assert!(hint("relu_off@2").contains("no layer to be planted in"));
    assert!(hint("overlap_off_in_decode@prefill").contains("decode only"));
    assert!(hint("qwertyuiop").contains("kernels list"));
}

proptest! {
    /// Catches a spec whose printed form is another point in knob space.
    #[test]
    fn what_is_printed_parses_to_the_same_plan(words in prop::collection::vec(0usize..14, 0..6)) {
        const WORDS: [&str; 14] = [
            "all", "none", "splitk-mma", "bf16", "reference-script@1-2", "-mhc", "-indexer@3", "-splitk-mma",
            "attn.splits=8", "attn.splits=1@2@decode", "mhc.w_dtype=tf32", "relu_off", "sink_dropped@0+3", "kv-fp8@decode",
        ];
        let text = words.iter().map(|w| WORDS[*w]).collect::<Vec<_>>().join(",");
        if let Ok(s) = text.parse::<Spec>() {
            let again: Spec = s.to_string().parse().unwrap();
            prop_assert_eq!(again.to_string(), s.to_string());
            for golden in Golden::ALL {
                let (a, b) = (s.plan(golden, &layers()).unwrap(), again.plan(golden, &layers()).unwrap());
                for layer in [None, Some(0), Some(1), Some(2), Some(3)] {
                    for phase in [Phase::Prefill, Phase::Decode] {
                        prop_assert_eq!(a.at(layer, phase), b.at(layer, phase));
                    }
                }
            }
        }
    }
}
