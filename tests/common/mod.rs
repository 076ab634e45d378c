//! Helpers shared by the tests. Each test binary uses some of them.
#![allow(dead_code)]

pub mod toy;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// A tensor as it lies in a file.
#[derive(Clone)]
pub struct Raw {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// The bytes of a safetensors file.
pub fn safetensors(tensors: &[Raw]) -> Vec<u8> {
    let mut header = Map::new();
    let mut at = 0;
    for t in tensors {
        let end = at + t.bytes.len();
        header.insert(t.name.clone(), json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, end]}));
        at = end;
    }
    with_header(&Value::Object(header).to_string(), tensors.iter().flat_map(|t| t.bytes.iter().copied()))
}

/// Length, header, data.
pub fn with_header(header: &str, data: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    out.extend(data);
    out
}

/// A safetensors file taken apart: its header as JSON, and its data.
pub fn split(file: &[u8]) -> (Map<String, Value>, Vec<u8>) {
    let n = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&file[8..8 + n]).unwrap(), file[8 + n..].to_vec())
}

/// Writes `tensors` into `parts` shards with an index.
pub fn write_sharded(dir: &Path, tensors: &[Raw], parts: usize) {
    let mut map = Map::new();
    for (i, chunk) in tensors.chunks(tensors.len().div_ceil(parts)).enumerate() {
        let name = format!("model-{:05}-of-{parts:05}.safetensors", i + 1);
        std::fs::write(dir.join(&name), safetensors(chunk)).unwrap();
        map.extend(chunk.iter().map(|t| (t.name.clone(), name.clone().into())));
    }
    let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
    std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

/// A copy of the built-in model that a test may damage.
pub struct Pico {
    dir: tempfile::TempDir,
}

impl Pico {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for f in ["config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(fixture(f), dir.path().join(f)).unwrap();
        }
        Pico { dir }
    }
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
    pub fn spec(&self) -> &str {
        self.path().to_str().unwrap()
    }
    pub fn weights(&self) -> PathBuf {
        self.path().join("model.safetensors")
    }
    /// Replaces the weights file by what `f` makes of it.
    pub fn edit(&self, f: impl FnOnce(&mut Vec<u8>)) -> &Self {
        let mut bytes = std::fs::read(self.weights()).unwrap();
        f(&mut bytes);
        std::fs::write(self.weights(), bytes).unwrap();
        self
    }
    /// Edits the weights' header.
    pub fn header(&self, f: impl FnOnce(&mut Map<String, Value>)) -> &Self {
        self.edit(|bytes| {
            let (mut header, data) = split(bytes);
            f(&mut header);
            *bytes = with_header(&Value::Object(header).to_string(), data);
        })
    }
    /// Edits the data of one tensor.
    pub fn data(&self, name: &str, f: impl FnOnce(&mut [u8])) -> &Self {
        self.edit(|bytes| {
            let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let range = split(bytes).0[name]["data_offsets"].clone();
            let at = |i: usize| 8 + n + range[i].as_u64().unwrap() as usize;
            f(&mut bytes[at(0)..at(1)]);
        })
    }
    /// Edits the config.
    pub fn config(&self, f: impl FnOnce(&mut Map<String, Value>)) -> &Self {
        let path = self.path().join("config.json");
        let mut c: Map<String, Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        f(&mut c);
        std::fs::write(path, Value::Object(c).to_string()).unwrap();
        self
    }
}

/// A file of the built-in model.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/pico").join(name)
}
