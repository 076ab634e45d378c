//! The built-in model through golden: it must retrieve what its training taught it.

use dsv4::checkpoint::Checkpoint;
use dsv4::engine::{Loader, Quiet, Schedule, Session, forward};
use dsv4::kernels::{Cpu, Golden, KnobPlan, Spec};
use dsv4::model::Silent;
use std::sync::Arc;

/// Catches any error large enough to lose a needle (an indexer, rope, cache or mask that is wrong
/// above the identity horizon of 256 tokens), in golden `ideal` and golden `qat`. An independent
/// implementation answers all of the first 12 prompts.
#[test]
fn golden_answers_the_fixture_prompts() {
    let ckpt = Arc::new(Checkpoint::open("builtin:pico").unwrap());
    let tokenizer = tokenizers::Tokenizer::from_bytes(ckpt.tokenizer_json().unwrap().unwrap()).unwrap();
    let outer = Loader::new(Cpu, ckpt.clone()).outer().unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/pico/prompts.jsonl");
    let lines = std::fs::read_to_string(path).unwrap();
    let qat = Spec::default().plan(Golden::Qat, &ckpt.config().layers).unwrap();
    for plan in [KnobPlan::default(), qat] {
        let mut right = 0;
        for line in lines.lines().take(12) {
            let v: serde_json::Value = serde_json::from_str(line).unwrap();
            let mut ids = tokenizer.encode(v["prompt"].as_str().unwrap(), true).unwrap().get_ids().to_vec();
            let prompt = ids.len();
            assert_eq!(prompt as u64, v["tokens"].as_u64().unwrap(), "the tokenizer splits as it was made");
            let digits: Vec<u32> = v["answer"]
                .as_str()
                .unwrap()
                .chars()
                .filter(char::is_ascii_digit)
                .map(|d| tokenizer.token_to_id(&d.to_string()).unwrap())
                .collect();
            assert_eq!(digits.len(), 5);
            ids.extend(&digits);
            let s = Session::new(&Cpu, ckpt.config(), &ids, Schedule::default()).unwrap();
            let logits = forward(&s, &ckpt, &outer, &plan, prompt - 1, &Quiet, &mut Silent).unwrap();
            let argmax = |r: usize| {
                let row = logits.row(r - (prompt - 1));
                (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32
            };
            let row0 = logits.rows - (ids.len() - (prompt - 1));
            assert_eq!(row0, 0, "logits start at the position before the answer");
            right += digits.iter().enumerate().all(|(i, d)| argmax(prompt - 1 + i) == *d) as usize;
        }
        assert_eq!(right, 12);
    }
}
