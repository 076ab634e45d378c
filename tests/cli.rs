//! The command line from outside: exit codes, help, and files that appear whole or not at all.

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn dsv4() -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_dsv4"));
    c.env_remove("DSV4_KERNELS").stdin(Stdio::null());
    c
}

fn run(args: &[&str]) -> Output {
    dsv4().args(args).output().unwrap()
}

/// Standard error of a run that must end with `code`.
fn fails(args: &[&str], code: i32) -> String {
    let o = run(args);
    let err = String::from_utf8(o.stderr).unwrap();
    assert_eq!(o.status.code(), Some(code), "{args:?}: {err}");
    assert!(o.stdout.is_empty(), "{args:?} wrote to standard output");
    err
}

fn succeeds(args: &[&str]) -> String {
    let o = run(args);
    assert_eq!(o.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
    assert!(o.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
    String::from_utf8(o.stdout).unwrap()
}

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }
    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().into()
    }
    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }
    /// Token ids `0, 7, 14, …` of pico's vocabulary, `n` of them.
    fn ids(&self, n: usize) -> String {
        let ids: Vec<usize> = (0..n).map(|i| (i * 7) % 512).collect();
        self.write(&format!("ids{n}.json"), serde_json::to_vec(&ids).unwrap())
    }
    fn names(&self) -> Vec<String> {
        let mut v: Vec<String> = std::fs::read_dir(self.0.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        v.sort();
        v
    }
}

struct Dump {
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    meta: HashMap<String, String>,
}

fn read(path: &str) -> Dump {
    let bytes = std::fs::read(path).unwrap();
    let st = SafeTensors::deserialize(&bytes).unwrap();
    let (_, meta) = SafeTensors::read_metadata(&bytes).unwrap();
    Dump {
        tensors: st
            .tensors()
            .into_iter()
            .map(|(n, t)| (n, (t.dtype(), t.shape().to_vec(), t.data().to_vec())))
            .collect(),
        meta: meta.metadata().clone().unwrap(),
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Dumps with `args` and reads the file back.
fn dump(dir: &Dir, name: &str, args: &[&str]) -> Dump {
    let out = dir.path(name);
    let mut all = vec!["dump", "--out", &out];
    all.extend(args);
    succeeds(&all);
    read(&out)
}

// ---- help, usage, pipes ----

#[test]
fn every_command_explains_itself_with_examples() {
    for args in [
        &["--help"][..],
        &["inspect", "--help"],
        &["diff-layers", "--help"],
        &["dump", "--help"],
        &["encode", "--help"],
        &["kernels", "--help"],
        &["kernels", "list", "--help"],
    ] {
        let text = succeeds(args);
        assert!(text.contains("Examples:"), "{args:?}");
        assert!(text.lines().all(|l| l.chars().count() <= 100), "{args:?}");
        assert!(!text.contains('\u{1b}'), "{args:?}: colour without a terminal");
    }
    assert!(succeeds(&["--version"]).starts_with("dsv4 "));
}

#[test]
fn a_wrong_command_line_is_exit_2() {
    let d = Dir::new();
    let out = d.path("x");
    for args in [
        &[][..],
        &["frobnicate"],
        &["inspect", "--frobnicate"],
        &["dump"],
        &["dump", "--out", &out, "--golden", "silver"],
        &["dump", "--out", &out, "--threads", "0"],
        &["dump", "--out", &out, "--decode-last", "-1"],
        &["dump", "--out", &out, "--prompt", "a", "--token-ids", "b"],
        &["kernels"],
    ] {
        let err = fails(args, 2);
        assert!(!err.is_empty());
    }
    assert!(d.names().is_empty());
}

#[test]
fn a_mistyped_kernel_gets_a_suggestion() {
    let d = Dir::new();
    let out = d.path("x");
    assert!(
        fails(&["dump", "--out", &out, "--kernels", "splitk-mna"], 2).contains("did you mean 'splitk-mma'")
    );
    assert!(fails(&["dump", "--out", &out, "--kernels", "splitk-mma@4"], 2).contains("layer 4"));
    assert!(fails(&["dump", "--out", &out, "--kernels", "-mhc"], 2).contains("nothing before '-mhc'"));
    let o = dsv4().env("DSV4_KERNELS", "nonsense").args(["dump", "--out", &out]).output().unwrap();
    assert_eq!(o.status.code(), Some(2));
    assert!(String::from_utf8(o.stderr).unwrap().contains("nonsense"));
    assert!(d.names().is_empty());
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    for args in [&["kernels", "list"][..], &["kernels", "list", "--json"], &["inspect"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let o = dsv4()
            .args(args)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        assert_eq!(o.status.code(), Some(0), "{args:?}");
        assert!(o.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let o = dsv4().args(["kernels", "list"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(o.status.code(), Some(3));
    assert!(String::from_utf8(o.stderr).unwrap().contains("standard output"));
}

#[test]
fn no_colour_is_honoured_and_never_needed() {
    for args in [&["--help"][..], &["frobnicate"], &["kernels", "list"]] {
        for (k, v) in [("NO_COLOR", "1"), ("TERM", "xterm-256color")] {
            let o = dsv4().env(k, v).args(args).output().unwrap();
            assert!(!o.stdout.contains(&0x1b) && !o.stderr.contains(&0x1b), "{args:?} {k}");
        }
    }
}

#[test]
fn kernels_list_names_everything_for_people_and_for_scripts() {
    let text = succeeds(&["kernels", "list"]);
    assert!(text.lines().all(|l| l.chars().count() <= 80));
    let v: Value = serde_json::from_str(&succeeds(&["kernels", "list", "--json"])).unwrap();
    assert_eq!(v["schema"], "dsv4.kernels/1");
    assert_eq!(v["sites"].as_array().unwrap().len(), 11);
    for (list, least) in [("knobs", 60), ("presets", 11), ("faults", 55), ("controls", 6)] {
        let list = v[list].as_array().unwrap();
        assert!(list.len() >= least);
        for x in list {
            assert!(text.contains(x["name"].as_str().unwrap()), "{x}");
        }
    }
}

#[test]
fn inspect_is_registered() {
    assert!(succeeds(&["inspect"]).contains("ok"));
    fails(&["inspect", "/nonexistent"], 3);
}

// ---- prompts ----

#[test]
fn bad_prompts_are_exit_3_and_leave_nothing() {
    let d = Dir::new();
    let out = d.path("out.safetensors");
    let bin = d.write("bin", [b'a', 0xff, 0xfe]);
    let none = d.write("none", "");
    let floats = d.write("floats.json", "[1.5]");
    let negative = d.write("neg.json", "[1,-1]");
    let nested = d.write("nested.json", "[[1]]");
    let empty = d.write("empty.json", "[]");
    let beyond = d.write("beyond.json", "[1,512]");
    let before = d.names();
    for (args, what) in [
        (["--prompt", ""], "empty"),
        (["--prompt-file", &none], "empty"),
        (["--prompt-file", &bin], "not UTF-8"),
        (["--prompt-file", "/nonexistent"], "cannot read the prompt"),
        (["--token-ids", &floats], "1.5 is not a whole number"),
        (["--token-ids", &negative], "-1 is negative"),
        (["--token-ids", &nested], "another array"),
        (["--token-ids", &empty], "empty"),
        (["--token-ids", &beyond], "token id 512 at position 1 is outside the vocabulary of 512"),
    ] {
        let err = fails(&["dump", "--out", &out, args[0], args[1]], 3);
        assert!(err.starts_with("error: ") && err.contains(what), "{args:?}: {err}");
        assert_eq!(d.names(), before, "{args:?}");
    }
}

#[test]
fn text_needs_a_tokenizer_and_other_models_need_a_prompt() {
    let d = Dir::new();
    let pico = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/pico");
    let model = d.0.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for f in ["config.json", "model.safetensors"] {
        std::fs::copy(pico.join(f), model.join(f)).unwrap();
    }
    let (model, out) = (model.to_str().unwrap(), d.path("x.safetensors"));
    let err = fails(&["dump", "--model", model, "--prompt", "the", "--out", &out], 3);
    assert!(err.contains("no tokenizer.json") && err.contains("--token-ids"), "{err}");
    let err = fails(&["dump", "--model", model, "--out", &out], 2);
    assert!(err.contains("no prompt was given"), "{err}");
    let ids = d.ids(3);
    let a = dump(&d, "x.safetensors", &["--model", model, "--token-ids", &ids]);
    let b = dump(&d, "y.safetensors", &["--token-ids", &ids]);
    assert_eq!(a.tensors["logits"], b.tensors["logits"]);
}

#[test]
fn stdin_and_files_give_the_same_tokens_and_unknown_words_are_told() {
    use std::io::Write;
    let d = Dir::new();
    let text = "the vault code of the velvet lynx is 47192.";
    let file = d.write("p.txt", text);
    let a = dump(&d, "a", &["--prompt", text, "--taps", "tokens"]);
    let b = dump(&d, "b", &["--prompt-file", &file, "--taps", "tokens"]);
    let out = d.path("c");
    let mut child = dsv4()
        .args(["dump", "--prompt-file", "-", "--taps", "tokens", "--out", &out])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let c = read(&out);
    assert_eq!(a.tensors["tokens"], b.tensors["tokens"]);
    assert_eq!(a.tensors["tokens"], c.tensors["tokens"]);
    assert_eq!(a.tensors["tokens"].2[..4], [0; 4], "pico's tokenizer adds [BOS]");
    let o = run(&["dump", "--prompt", "zyzzyva", "--out", &out]);
    assert!(o.status.success());
    assert!(String::from_utf8(o.stderr).unwrap().contains("note: 1 of 2 tokens"));
    assert!(succeeds(&["--quiet", "dump", "--prompt", "zyzzyva", "--out", &out]).starts_with("wrote "));
}

// ---- dump ----

/// Every tap of pico for 140 tokens: layer 0 window, 1 and 3 CSA, 2 HCA.
fn expected(t: usize) -> BTreeMap<String, (Dtype, Vec<usize>)> {
    let mut m = BTreeMap::new();
    let mut f = |name: String, shape: &[usize]| m.insert(name, (Dtype::F32, shape.to_vec()));
    f("embed.out".into(), &[t, 256]);
    for l in 0..4 {
        let mut g = |tap: &str, shape: &[usize]| f(format!("layers.{l}.{tap}"), shape);
        for half in ["attn", "ffn"] {
            g(&format!("{half}.mhc.pre"), &[t, 4]);
            g(&format!("{half}.mhc.post"), &[t, 4]);
            g(&format!("{half}.mhc.comb"), &[t, 4, 4]);
            g(&format!("{half}.in"), &[t, 256]);
        }
        g("attn.q", &[t, 4, 128]);
        g("attn.kv", &[t, 128]);
        g("attn.lse", &[t, 4]);
        g("attn.out", &[t, 4, 128]);
        g("attn.proj", &[t, 256]);
        g("mid", &[t, 4, 256]);
        g("router.logits", &[t, 8]);
        g("router.weights", &[t, 2]);
        g("experts.out", &[t, 256]);
        g("shared.out", &[t, 256]);
        g("ffn.out", &[t, 256]);
        g("out", &[t, 4, 256]);
        let n = match l {
            1 | 3 => t / 4,
            2 => t / 128,
            _ => 0,
        };
        if n > 0 {
            g("compressor.kv", &[n, 128]);
        }
        if l % 2 == 1 {
            g("indexer.q", &[t, 4, 32]);
            g("indexer.weights", &[t, 4]);
            if n > 0 {
                g("indexer.k", &[n, 32]);
                g("indexer.scores", &[t, n]);
            }
        }
    }
    f("head.in".into(), &[t, 256]);
    f("logits".into(), &[t, 512]);
    for l in 0..4 {
        m.insert(format!("layers.{l}.router.topk"), (Dtype::I32, vec![t, 2]));
        if l % 2 == 1 && t >= 4 {
            m.insert(format!("layers.{l}.index.topk"), (Dtype::I32, vec![t, 64.min(t / 4)]));
        }
    }
    m.insert("tokens".into(), (Dtype::I32, vec![t]));
    m
}

/// Catches a tap that is missing, misnamed, or of another shape or type than every reader of a
/// dump expects.
#[test]
fn a_dump_has_every_tap_with_its_shape() {
    let d = Dir::new();
    for t in [1, 3, 4, 140] {
        let ids = d.ids(t);
        let got = dump(&d, "all", &["--token-ids", &ids, "--taps", "*"]);
        let shapes: BTreeMap<_, _> =
            got.tensors.iter().map(|(n, (d, s, _))| (n.clone(), (*d, s.clone()))).collect();
        assert_eq!(shapes, expected(t), "{t} tokens");
        for (name, (dtype, _, data)) in &got.tensors {
            if *dtype == Dtype::F32 && !name.ends_with("scores") {
                assert!(floats(data).iter().all(|v| v.is_finite()), "{name}");
            }
        }
        let plain = dump(&d, "default", &["--token-ids", &ids]);
        assert!(plain.tensors.keys().all(|n| !n.ends_with("scores")));
        for (name, tensor) in &plain.tensors {
            assert_eq!(tensor, &got.tensors[name], "{name} depends on what else is dumped");
        }
    }
    let got = dump(&d, "all", &["--token-ids", &d.ids(140), "--taps", "layers.1.indexer.scores"]);
    let (_, shape, data) = &got.tensors["layers.1.indexer.scores"];
    for (t, row) in floats(data).chunks(shape[1]).enumerate() {
        let visible = (t + 1) / 4;
        assert!(row[..visible].iter().all(|v| v.is_finite()), "row {t}");
        assert!(row[visible..].iter().all(|v| *v == f32::NEG_INFINITY), "row {t}");
    }
}

#[test]
fn metadata_says_what_was_run() {
    let d = Dir::new();
    let ids = d.ids(9);
    let args = [
        "--token-ids",
        &ids,
        "--golden",
        "qat",
        "--kernels",
        "all,-mhc",
        "--decode-last",
        "2",
        "--chunk",
        "3",
    ];
    let got = dump(&d, "x", &args);
    for (k, v) in [
        ("dsv4.version", env!("CARGO_PKG_VERSION")),
        ("dsv4.golden", "qat"),
        ("dsv4.kernels", "splitk-mma,triton-indexer,routed-scaling"),
        ("dsv4.first_position", "0"),
        ("dsv4.chunk", "3"),
        ("dsv4.decode_last", "2"),
    ] {
        assert_eq!(got.meta[k], v, "{k}");
    }
    assert_eq!(got.meta["dsv4.model"].len(), 32);
    let o = dsv4()
        .env("DSV4_KERNELS", "kv-fp8")
        .args(["dump", "--json", "--token-ids", &ids, "--out", &d.path("y")])
        .output()
        .unwrap();
    let v: Value = serde_json::from_slice(&o.stdout).unwrap();
    assert_eq!(v["schema"], "dsv4.dump/1");
    assert_eq!(v["kernels"], "kv-fp8");
    assert_eq!(v["tokens"], 9);
    assert_eq!(v["bytes"].as_u64().unwrap(), std::fs::metadata(d.path("y")).unwrap().len());
    assert_eq!(v["tensors"].as_u64().unwrap() as usize, read(&d.path("y")).tensors.len());
    assert_eq!(v["prompt"]["hash"], got.meta["dsv4.prompt"].as_str());
}

/// Catches rows written to the wrong place when only a suffix is kept, in either phase.
#[test]
fn a_suffix_is_the_end_of_the_whole() {
    let d = Dir::new();
    let ids = d.ids(150);
    for extra in [&[][..], &["--decode-last", "20"], &["--chunk", "37", "--decode-last", "3"]] {
        let mut args = vec!["--token-ids", &ids, "--taps", "*"];
        args.extend(extra);
        let whole = dump(&d, "whole", &args);
        args.extend(["--from", "141"]);
        let part = dump(&d, "part", &args);
        assert_eq!(part.meta["dsv4.first_position"], "141");
        assert_eq!(part.tensors.len(), whole.tensors.len());
        for (name, (_, shape, data)) in &whole.tensors {
            let (_, s, rows) = &part.tensors[name];
            if name.ends_with("compressor.kv") || name.ends_with("indexer.k") {
                assert_eq!((s, rows), (shape, data), "{name} must stay whole");
            } else {
                assert_eq!(s[0], 9, "{name}");
                assert_eq!(s[1..], shape[1..], "{name}");
                assert!(data.ends_with(rows), "{name} {extra:?}");
            }
        }
    }
    assert!(
        fails(&["dump", "--token-ids", &ids, "--from", "150", "--out", &d.path("x")], 2)
            .contains("past the last")
    );
}

/// Catches phases, chunking or threads that change golden.
#[test]
fn golden_does_not_depend_on_phases_chunks_or_threads() {
    let d = Dir::new();
    let ids = d.ids(290);
    let base = dump(&d, "a", &["--token-ids", &ids]);
    for extra in [&["--threads", "1"][..], &["--chunk", "100"], &["--decode-last", "30"]] {
        let mut args = vec!["--token-ids", &ids];
        args.extend(extra);
        let other = dump(&d, "b", &args);
        for (name, tensor) in &base.tensors {
            assert!(tensor == &other.tensors[name], "{name} with {extra:?}");
        }
    }
    let other = dump(&d, "b", &["--token-ids", &ids, "--kernels", "splitk-mma@1"]);
    assert!(base.tensors["layers.0.out"] == other.tensors["layers.0.out"]);
    assert!(base.tensors["layers.1.attn.q"] == other.tensors["layers.1.attn.q"]);
    assert!(base.tensors["layers.1.attn.out"] != other.tensors["layers.1.attn.out"]);
}

/// Catches a dump that runs past the last wanted layer or leaves rows of it out.
#[test]
fn some_taps_are_the_same_numbers_as_all() {
    let d = Dir::new();
    let ids = d.ids(30);
    let all = dump(&d, "all", &["--token-ids", &ids]);
    let some =
        dump(&d, "some", &["--token-ids", &ids, "--taps", "embed.out,layers.{0,1}.*.in,layers.1.index.topk"]);
    assert_eq!(some.tensors.len(), 7);
    for (name, tensor) in &some.tensors {
        assert_eq!(tensor, &all.tensors[name], "{name}");
    }
    // A plan that widens the selection widens the tap.
    let wide = dump(
        &d,
        "wide",
        &[
            "--token-ids",
            &d.ids(400),
            "--kernels",
            "topk.width=80@decode",
            "--decode-last",
            "5",
            "--taps",
            "layers.3.index.topk",
        ],
    );
    assert_eq!(wide.tensors["layers.3.index.topk"].1, [400, 80]);
}

#[test]
fn globs_that_match_nothing_name_what_is_near() {
    let d = Dir::new();
    let out = d.path("x");
    for (glob, what) in [
        ("layers.*.atn.out", "near: layers.*.attn.out"),
        ("layers.7.out", "layers are 0 to 3"),
        ("layers.2.compressor.kv", "empty at this length"),
        ("layers.{", "is no glob"),
        ("", "names no tap"),
    ] {
        let err = fails(&["dump", "--prompt", "the velvet lynx", "--taps", glob, "--out", &out], 2);
        assert!(err.contains(what), "{glob}: {err}");
    }
    assert!(d.names().is_empty());
}

#[test]
fn outputs_that_cannot_be_written_fail_early_and_leave_everything_as_it_was() {
    let d = Dir::new();
    let missing = d.path("no/such/dir/x");
    assert!(fails(&["dump", "--prompt", "the", "--out", &missing], 3).contains("create the output"));
    let here = d.path("");
    fails(&["dump", "--prompt", "the", "--out", &here], 2);
    let model = d.write("model.safetensors", "precious");
    let err = fails(&["dump", "--prompt", "the", "--out", &model], 2);
    assert!(err.contains("is not a dump"), "{err}");
    assert_eq!(std::fs::read(&model).unwrap(), b"precious");
    // A dump may be replaced.
    dump(&d, "x", &["--prompt", "the", "--taps", "tokens"]);
    dump(&d, "x", &["--prompt", "the velvet", "--taps", "tokens"]);
    assert_eq!(read(&d.path("x")).tensors["tokens"].1, [3]);
    assert_eq!(d.names(), ["model.safetensors", "x"]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let plain = std::fs::metadata(&model).unwrap().permissions().mode();
        assert_eq!(std::fs::metadata(d.path("x")).unwrap().permissions().mode(), plain, "the umask decides");
    }
}

/// Catches a half-written or temporary file that Ctrl-C leaves behind.
#[cfg(unix)]
#[test]
fn ctrl_c_leaves_nothing() {
    let d = Dir::new();
    let ids = d.ids(30_000);
    let sub: PathBuf = d.0.path().join("out");
    std::fs::create_dir(&sub).unwrap();
    let out = sub.join("x.safetensors");
    let mut child = dsv4()
        .args(["dump", "--token-ids", &ids, "--taps", "layers.*.out", "--out", out.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let files = || std::fs::read_dir(&sub).unwrap().count();
    while files() == 0 {
        assert!(child.try_wait().unwrap().is_none(), "ended before it could be interrupted");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(files(), 0);
}
