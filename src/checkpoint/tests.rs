use super::*;

#[test]
fn the_builtin_model_is_incomplete_or_reads_wrongly() {
    let c = Checkpoint::open("builtin:pico").unwrap();
    c.check().unwrap();
    let inv = c.inventory();
    assert!(inv.ok() && inv.extra.0 == 0, "{inv:?}");
    assert_eq!(c.config().horizon(), Some(256));
    spec::for_each(c.config(), |name| {
        if name.ends_with("tid2eid") {
            let (shape, ids) = c.load_i64(name).unwrap();
            assert_eq!(shape, [512, 2]);
            assert_eq!(ids.len(), 1024);
        } else {
            let t = c.load(name).unwrap();
            assert_eq!(t.data.len(), t.shape.iter().product::<usize>(), "{name}");
        }
    });
    assert_eq!(c.stored("layers.0.hc_attn_fn"), Some(Stored::F32));
    assert_eq!(c.stored("layers.0.attn.wq_a.weight"), Some(Stored::Bf16));
    assert!(c.tokenizer_json().unwrap().is_some());
    // w1 rows come first in the packed tensor, then w3 rows.
    let raw =
        c.files[0].entries().iter().find(|e| e.name == "model.layers.1.mlp.experts.gate_up_proj").unwrap();
    let bytes = c.files[0].data(raw);
    let at = |i: usize| half::bf16::from_le_bytes(bytes[2 * i..2 * i + 2].try_into().unwrap()).to_f32();
    assert_eq!(c.load("layers.1.ffn.experts.3.w1.weight").unwrap().data[5], at(3 * 256 * 256 + 5));
    assert_eq!(
        c.load("layers.1.ffn.experts.3.w3.weight").unwrap().data[5],
        at(3 * 256 * 256 + 128 * 256 + 5)
    );
    let rows = c.load_rows("embed.weight", 7..9).unwrap();
    assert_eq!(rows.data, c.load("embed.weight").unwrap().data[7 * 256..9 * 256]);
}

#[test]
fn a_reader_cannot_be_shared_between_threads() {
    fn sync<T: Sync + Send>() {}
    sync::<Checkpoint>();
}
