//! Reading a dump: taps by name from one safetensors file or a directory of shards.

use super::tap_shape;
use crate::checkpoint::Config;
use crate::checkpoint::safetensors::{Dtype, Entry, SafeTensors};
use crate::error::{Error, Result};
use crate::kernels::{KnobPlan, Mat};
use crate::model::{Axis, Tap, TapId};
use crate::numeric::{bf16, f16};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A dump made elsewhere.
pub struct Dump {
    path: PathBuf,
    files: Vec<SafeTensors>,
    taps: BTreeMap<(usize, Tap), Slot>,
    /// Names in the dump that are no taps of this model.
    pub ignored: Vec<String>,
    /// First position the rows of token taps stand for.
    pub first_position: usize,
    /// Token ids, if the dump has them: those from `first_position` on.
    pub tokens: Option<Vec<u32>>,
}

/// Where a tap lies.
#[derive(Clone)]
struct Slot {
    file: usize,
    entry: Entry,
}

impl Dump {
    /// Opens a file or every `*.safetensors` of a directory; `c` tells which taps exist.
    pub fn open(path: &Path, c: &Config) -> Result<Dump> {
        let mut paths = vec![path.to_path_buf()];
        if path.is_dir() {
            let entries = std::fs::read_dir(path).map_err(|e| Error::io(path, "list the dump", &e))?;
            paths = entries
                .filter_map(|e| e.ok().map(|e| e.path()))
                .filter(|p| p.extension().is_some_and(|x| x == "safetensors"))
                .collect();
            paths.sort();
            if paths.is_empty() {
                return Err(Error::input("the dump directory holds no .safetensors file").file(path));
            }
        }
        let files = paths.iter().map(|p| SafeTensors::open(p)).collect::<Result<Vec<_>>>()?;
        let mut dump = Dump {
            path: path.to_path_buf(),
            files: Vec::new(),
            taps: BTreeMap::new(),
            ignored: Vec::new(),
            first_position: 0,
            tokens: None,
        };
        let mut first = None;
        for (i, f) in files.iter().enumerate() {
            if let Some(p) = f.metadata().get("dsv4.first_position") {
                let p: usize = p.parse().map_err(|_| {
                    Error::input(format!("dsv4.first_position is '{p}', not a position")).file(f.path())
                })?;
                if first.is_some_and(|q| q != p) {
                    return Err(Error::input(format!(
                        "shards disagree on dsv4.first_position: {} and {p}",
                        first.unwrap_or(0)
                    ))
                    .file(f.path())
                    .hint("dump ranges of positions into separate directories"));
                }
                first = Some(p);
            }
            for e in f.entries() {
                if e.name == "tokens" {
                    dump.tokens = Some(read_tokens(f, e)?);
                    continue;
                }
                // Any tap this model has in a sequence long enough.
                let known = TapId::parse(&e.name)
                    .filter(|id| tap_shape::shape(*id, c, usize::MAX >> 16, &KnobPlan::default()).is_some());
                let Some(id) = known else {
                    dump.ignored.push(e.name.clone());
                    continue;
                };
                let slot = Slot { file: i, entry: e.clone() };
                if dump.taps.insert(id.order(), slot).is_some() {
                    return Err(Error::input("two shards hold the same tap").tensor(&e.name).file(f.path()));
                }
            }
        }
        dump.files = files;
        dump.first_position = first.unwrap_or(0);
        Ok(dump)
    }

    /// The path the user gave.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Taps present, in execution order.
    pub fn ids(&self) -> Vec<TapId> {
        self.taps.values().filter_map(|s| TapId::parse(&s.entry.name)).collect()
    }

    /// True if the tap is present.
    pub fn has(&self, id: TapId) -> bool {
        self.taps.contains_key(&id.order())
    }

    /// The dtype a tap is stored in.
    pub fn dtype(&self, id: TapId) -> Option<&Dtype> {
        self.taps.get(&id.order()).map(|s| &s.entry.dtype)
    }

    /// Checks every tap's shape against a run over `t` tokens; leading axes of length 1 (a batch)
    /// are accepted.
    pub fn check_shapes(&self, c: &Config, t: usize) -> Result<()> {
        for slot in self.taps.values() {
            let e = &slot.entry;
            let id = TapId::parse(&e.name).ok_or_else(|| Error::bug("a tap lost its name"))?;
            let mut want =
                tap_shape::shape(id, c, t, &KnobPlan::default()).unwrap_or_else(|| vec![0; rank(id.tap)]);
            if tap_shape::by_token(id.tap) {
                want[0] = t.saturating_sub(self.first_position);
            }
            let mut got = e.shape.clone();
            while got.len() > want.len() && got[0] == 1 {
                got.remove(0);
            }
            // The width of a selection is the dump's own: sets are compared.
            let same =
                if id.tap == Tap::IndexTopk { got.len() == 2 && got[0] == want[0] } else { got == want };
            let floats = matches!(e.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16);
            let ints = matches!(e.dtype, Dtype::I32 | Dtype::I64);
            let place =
                |err: Error| err.tensor(&e.name).file(self.files[slot.file].path()).offset(e.begin as u64);
            // A tap that is still empty at this length may be there without rows.
            if e.shape.contains(&0) && want.contains(&0) {
                continue;
            }
            if !same {
                return Err(place(Error::input(format!(
                    "the dump's shape is {:?}, golden's is {want:?}",
                    e.shape
                )))
                .hint("the dump was made for another prompt, model or first position"));
            }
            if id.tap.is_index() != ints || (!ints && !floats) {
                return Err(place(Error::input(format!("dtype {} does not fit this tap", e.dtype.name())))
                    .hint("index taps are i32 or i64, all others f32, f64, bf16 or f16"));
            }
        }
        Ok(())
    }

    /// Rows `from..to` (positions or entries) of a numeric tap that the dump covers, and the first
    /// covered row. `None` if it covers none of them.
    pub fn rows(&self, id: TapId, from: usize, to: usize) -> Option<(usize, Mat)> {
        let (slot, a, b, cols, base) = self.range(id, from, to)?;
        let size = slot.entry.dtype.size();
        let bytes = self.files[slot.file].data(&slot.entry);
        let bytes = &bytes[(a - base) * cols * size..(b - base) * cols * size];
        let mut out = vec![0f32; (b - a) * cols];
        match slot.entry.dtype {
            Dtype::F32 => {
                for (o, v) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *o = f32::from_le_bytes(*v);
                }
            }
            Dtype::F64 => {
                for (o, v) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    *o = f64::from_le_bytes(*v) as f32;
                }
            }
            Dtype::Bf16 => bf16::decode_le(bytes, &mut out),
            Dtype::F16 => f16::decode_le(bytes, &mut out),
            _ => return None,
        }
        Some((a, Mat::new(b - a, cols, out)))
    }

    /// Rows of an index tap, as [`Dump::rows`]: first row, width, ids. Ids that do not fit i32
    /// become the largest i32, which no entry has.
    pub fn index_rows(&self, id: TapId, from: usize, to: usize) -> Option<(usize, usize, Vec<i32>)> {
        let (slot, a, b, cols, base) = self.range(id, from, to)?;
        let bytes = self.files[slot.file].data(&slot.entry);
        let size = slot.entry.dtype.size();
        let bytes = &bytes[(a - base) * cols * size..(b - base) * cols * size];
        let ids = match slot.entry.dtype {
            Dtype::I32 => bytes.as_chunks::<4>().0.iter().map(|v| i32::from_le_bytes(*v)).collect(),
            Dtype::I64 => bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|v| i32::try_from(i64::from_le_bytes(*v)).unwrap_or(i32::MAX))
                .collect(),
            _ => return None,
        };
        Some((a, cols, ids))
    }

    /// The slot, the covered rows `a..b`, columns, and the row the first stored row stands for.
    fn range(&self, id: TapId, from: usize, to: usize) -> Option<(&Slot, usize, usize, usize, usize)> {
        let slot = self.taps.get(&id.order())?;
        let base = if id.tap.axis() == Axis::Token { self.first_position } else { 0 };
        let rows_axis = slot.entry.shape.len().checked_sub(rank(id.tap))?;
        let rows = *slot.entry.shape.get(rows_axis)?;
        let cols: usize = slot.entry.shape[rows_axis + 1..].iter().product();
        let (a, b) = (from.max(base), to.min(base + rows));
        (a < b).then_some((slot, a, b, cols, base))
    }
}

/// Number of axes of a tap.
pub fn rank(tap: Tap) -> usize {
    match tap {
        Tap::AttnComb
        | Tap::FfnComb
        | Tap::AttnQ
        | Tap::IndexerQ
        | Tap::AttnOut
        | Tap::Mid
        | Tap::LayerOut => 3,
        _ => 2,
    }
}

fn read_tokens(f: &SafeTensors, e: &Entry) -> Result<Vec<u32>> {
    let bytes = f.data(e);
    let ids: Vec<i64> = match e.dtype {
        Dtype::I32 => bytes.as_chunks::<4>().0.iter().map(|v| i32::from_le_bytes(*v) as i64).collect(),
        Dtype::I64 => bytes.as_chunks::<8>().0.iter().map(|v| i64::from_le_bytes(*v)).collect(),
        _ => {
            return Err(Error::input(format!("tokens are stored as {}", e.dtype.name()))
                .tensor("tokens")
                .file(f.path())
                .hint("store token ids as i32 or i64"));
        }
    };
    ids.into_iter()
        .map(|v| {
            u32::try_from(v).map_err(|_| {
                Error::input(format!("token id {v} is negative or too large")).tensor("tokens").file(f.path())
            })
        })
        .collect()
}
