//! Finding a checkpoint's files: the built-in model, a single file, or shards behind an index.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::names::{Name, canonical};
use super::safetensors::{SafeTensors, short};
use super::strict_json::json_error;
use super::{Checkpoint, Home, Loc, Unused, config};
use crate::error::{Error, Result};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// Far above any released file, far below what hurts.
const MAX_CONFIG: u64 = 4 << 20;
const MAX_INDEX: u64 = 256 << 20;
const MAX_TOKENIZER: u64 = 256 << 20;

/// What `builtin:NAME` can be.
pub const BUILTINS: &[&str] = &["builtin:pico"];

mod pico {
    pub const CONFIG: &[u8] = include_bytes!("../../fixtures/pico/config.json");
    pub const MODEL: &[u8] = include_bytes!("../../fixtures/pico/model.safetensors");
    pub const TOKENIZER: &[u8] = include_bytes!("../../fixtures/pico/tokenizer.json");
}

pub(super) fn open(spec: &str) -> Result<Checkpoint> {
    if spec.starts_with("builtin:") {
        if spec != BUILTINS[0] {
            return Err(Error::input(format!("there is no built-in model `{}`", short(spec)))
                .hint(format!("built-in: {}", BUILTINS.join(", "))));
        }
        let config = config::read(pico::CONFIG, Path::new("builtin:pico/config.json"))?;
        let file = SafeTensors::from_static(Path::new("builtin:pico/model.safetensors"), pico::MODEL)?;
        return assemble(spec, Home::Builtin, config, pico::CONFIG.to_vec(), vec![file]);
    }
    let dir = Path::new(spec);
    let meta = std::fs::metadata(dir).map_err(|e| {
        Error::io(dir, "open the checkpoint", &e)
            .hint("give a directory with config.json and *.safetensors, or builtin:pico")
    })?;
    if !meta.is_dir() {
        return Err(Error::input("a checkpoint is a directory, not a file")
            .file(dir)
            .hint("give the directory that holds config.json and the *.safetensors files"));
    }
    let config_path = dir.join("config.json");
    let config_bytes = read_small(&config_path, MAX_CONFIG)?;
    let config = config::read(&config_bytes, &config_path)?;
    let files = weight_files(dir)?;
    assemble(spec, Home::Dir(dir.into()), config, config_bytes, files)
}

pub(super) fn tokenizer(home: &Home) -> Result<Option<Vec<u8>>> {
    match home {
        Home::Builtin => Ok(Some(pico::TOKENIZER.to_vec())),
        Home::Dir(dir) => {
            let path = dir.join("tokenizer.json");
            if path.try_exists().map_err(|e| Error::io(&path, "look for the tokenizer", &e))? {
                read_small(&path, MAX_TOKENIZER).map(Some)
            } else {
                Ok(None)
            }
        }
    }
}

/// Reads a whole text file, refusing one that is absurdly large or not a file.
fn read_small(path: &Path, max: u64) -> Result<Vec<u8>> {
    let meta = std::fs::metadata(path)
        .map_err(|e| Error::io(path, "open the file", &e).hint("is the download complete and readable?"))?;
    if !meta.is_file() {
        return Err(Error::input("not a regular file").file(path).hint("a plain file belongs here"));
    }
    if meta.len() > max {
        return Err(Error::input(format!(
            "the file has {} bytes; at most {max} make sense here",
            meta.len()
        ))
        .file(path)
        .hint("this is not the file it is named after"));
    }
    std::fs::read(path).map_err(|e| Error::io(path, "read the file", &e))
}

fn weight_files(dir: &Path) -> Result<Vec<SafeTensors>> {
    let index = dir.join(INDEX);
    let single = dir.join(SINGLE);
    let has_index = index.is_file();
    if single.is_file() && !has_index {
        return Ok(vec![SafeTensors::open(&single)?]);
    }
    if has_index {
        return sharded(dir, &index);
    }
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir)
        .map_err(|e| Error::io(dir, "list the directory", &e))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    found.sort();
    match found.as_slice() {
        [one] if !one.file_name().is_some_and(|n| n.to_string_lossy().contains("-of-")) => {
            Ok(vec![SafeTensors::open(one)?])
        }
        [] => Err(Error::input("the checkpoint has no weights")
            .file(dir)
            .hint(format!("expected {SINGLE} or {INDEX}"))),
        many => Err(Error::input(format!("the checkpoint has {} shards but no {INDEX}", many.len()))
            .file(dir)
            .hint("without the index a missing shard would go unnoticed; download it with the weights")),
    }
}

/// All shards an index names, with every promise of the index checked.
fn sharded(dir: &Path, index_path: &Path) -> Result<Vec<SafeTensors>> {
    let bytes = read_small(index_path, MAX_INDEX)?;
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|e| json_error(&e, &bytes, 0, "the shard index").file(index_path))?;
    if index.weight_map.is_empty() {
        return Err(Error::input("the shard index names no tensors")
            .file(index_path)
            .hint("download it again"));
    }
    let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, file) in &index.weight_map {
        shards.entry(file).or_default().push(tensor);
    }
    for file in shards.keys() {
        let mut parts = Path::new(file).components().peekable();
        if parts.peek().is_none() || !parts.all(|c| matches!(c, Component::Normal(_))) {
            return Err(Error::input(format!(
                "the shard index points outside the checkpoint: `{}`",
                short(file)
            ))
            .file(index_path)
            .hint("shards lie beside their index"));
        }
    }
    let absent: Vec<&str> = shards.keys().copied().filter(|f| !dir.join(f).is_file()).collect();
    if let Some(first) = absent.first() {
        let tensors = &shards[first];
        return Err(Error::input(format!(
            "{} of {} shards named in {INDEX} {} missing; the first holds {} tensors",
            absent.len(),
            shards.len(),
            if absent.len() == 1 { "is" } else { "are" },
            tensors.len()
        ))
        .file(dir.join(first))
        .tensor(short(tensors[0]))
        .hint("download the missing files into the checkpoint's directory"));
    }
    let mut files = Vec::with_capacity(shards.len());
    for (file, promised) in &shards {
        let opened = SafeTensors::open(&dir.join(file))?;
        let mut there: Vec<&str> = opened.entries().iter().map(|e| e.name.as_str()).collect();
        there.sort_unstable();
        if let Some(gone) = promised.iter().find(|t| there.binary_search(t).is_err()) {
            return Err(Error::input(format!(
                "{INDEX} promises the tensor in this shard, but the shard does not have it"
            ))
            .tensor(short(gone))
            .file(opened.path())
            .hint("shards and index come from different downloads; fetch both again"));
        }
        files.push(opened);
    }
    Ok(files)
}

/// Gives every tensor its official name and refuses two tensors with the same one.
fn assemble(
    spec: &str,
    home: Home,
    config: super::Config,
    config_bytes: Vec<u8>,
    files: Vec<SafeTensors>,
) -> Result<Checkpoint> {
    let mut tensors: HashMap<String, Loc> = HashMap::new();
    let mut packed: HashMap<(usize, bool), Loc> = HashMap::new();
    let mut mtp = Unused::default();
    for (f, file) in files.iter().enumerate() {
        for (i, entry) in file.entries().iter().enumerate() {
            let loc = Loc { file: f, entry: i };
            let previous = match canonical(&entry.name) {
                Name::Mtp => {
                    mtp.add(entry);
                    None
                }
                Name::Packed { layer, down } => packed.insert((layer, down), loc),
                Name::Plain(name) => tensors.insert(name, loc),
            };
            if let Some(p) = previous {
                let other = &files[p.file];
                return Err(Error::input(format!(
                    "two tensors are the same one: also `{}` in {}",
                    short(&other.entries()[p.entry].name),
                    other.path().display()
                ))
                .tensor(short(&entry.name))
                .file(file.path())
                .offset(entry.begin as u64)
                .hint("which of them counts cannot be guessed; remove one"));
            }
        }
    }
    Ok(Checkpoint { source: spec.into(), home, config, config_bytes, files, tensors, packed, mtp })
}

/// The index file: only `weight_map` matters, and a tensor named twice is an error.
struct Index {
    weight_map: Vec<(String, String)>,
}

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Index;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object with a weight_map")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Index, A::Error> {
                let mut found = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key == "weight_map" && found.is_none() {
                        found = Some(map.next_value::<Pairs>()?.0);
                    } else if key == "weight_map" {
                        return Err(A::Error::custom("`weight_map` appears twice"));
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                let weight_map = found.ok_or_else(|| A::Error::missing_field("weight_map"))?;
                Ok(Index { weight_map })
            }
        }
        d.deserialize_map(V)
    }
}

struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Pairs;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object {tensor: file}")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Pairs, A::Error> {
                let mut out: Vec<(String, String)> = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    out.push(pair);
                }
                out.sort();
                if let Some(w) = out.windows(2).find(|w| w[0].0 == w[1].0) {
                    return Err(A::Error::custom(format_args!("the tensor `{}` is named twice", w[0].0)));
                }
                Ok(Pairs(out))
            }
        }
        d.deserialize_map(V)
    }
}
