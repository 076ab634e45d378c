//! A safetensors file: memory-mapped bytes and a header that has been checked before anything trusts it.
//!
//! Our own reader because every failure must name file, tensor and offset, and because a header may come from anywhere:
//! nothing is allocated from a number in it, only from its actual bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::strict_json::json_error;
use crate::error::{Error, Result};

/// The element types this tool decodes, and the name of any other.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    F8E4M3,
    F8E8M0,
    I64,
    I32,
    I8,
    U8,
    /// Known to safetensors, not to this tool; carries its name.
    Other(String),
}

impl Dtype {
    fn parse(name: &str) -> Self {
        match name {
            "F64" => Dtype::F64,
            "F32" => Dtype::F32,
            "F16" => Dtype::F16,
            "BF16" => Dtype::Bf16,
            "F8_E4M3" => Dtype::F8E4M3,
            "F8_E8M0" => Dtype::F8E8M0,
            "I64" => Dtype::I64,
            "I32" => Dtype::I32,
            "I8" => Dtype::I8,
            "U8" => Dtype::U8,
            other => Dtype::Other(other.into()),
        }
    }

    /// The name in the file.
    pub fn name(&self) -> &str {
        match self {
            Dtype::F64 => "F64",
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::Bf16 => "BF16",
            Dtype::F8E4M3 => "F8_E4M3",
            Dtype::F8E8M0 => "F8_E8M0",
            Dtype::I64 => "I64",
            Dtype::I32 => "I32",
            Dtype::I8 => "I8",
            Dtype::U8 => "U8",
            Dtype::Other(s) => s,
        }
    }

    /// Bits of one element; `None` for a type nobody knows.
    fn bits(&self) -> Option<u64> {
        Some(match self {
            Dtype::F64 | Dtype::I64 => 64,
            Dtype::F32 | Dtype::I32 => 32,
            Dtype::F16 | Dtype::Bf16 => 16,
            Dtype::F8E4M3 | Dtype::F8E8M0 | Dtype::I8 | Dtype::U8 => 8,
            Dtype::Other(s) => match s.as_str() {
                "F4" => 4,
                "F6_E2M3" | "F6_E3M2" => 6,
                "BOOL" | "F8_E5M2" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
                "I16" | "U16" => 16,
                "U32" => 32,
                "U64" | "C64" => 64,
                _ => return None,
            },
        })
    }

    /// Bytes of one element, for types this tool decodes.
    pub fn size(&self) -> usize {
        self.bits().map_or(1, |b| b.div_ceil(8) as usize)
    }
}

/// One tensor of a file. The range has been checked to lie inside the file and to fit shape and dtype.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape; its product does not overflow.
    pub shape: Vec<usize>,
    /// First byte, counted from the start of the file.
    pub begin: usize,
    /// One past the last byte.
    pub end: usize,
}

/// Where a file's bytes live.
pub(super) enum Bytes {
    Map(memmap2::Mmap),
    Static(&'static [u8]),
}

/// A checked safetensors file.
pub struct SafeTensors {
    path: PathBuf,
    bytes: Bytes,
    header_len: usize,
    entries: Vec<Entry>,
    metadata: BTreeMap<String, String>,
}

/// What the format itself allows; also keeps a header from being a memory bomb.
const MAX_HEADER: u64 = 100_000_000;
const MAX_RANK: usize = 8;

impl SafeTensors {
    /// Maps and checks a file.
    pub fn open(path: &Path) -> Result<Self> {
        let meta = std::fs::metadata(path).map_err(|e| Error::io(path, "open the file", &e))?;
        if !meta.is_file() {
            return Err(Error::input("not a regular file").file(path));
        }
        if meta.len() < 8 {
            return Err(truncated(meta.len()).file(path));
        }
        let file = std::fs::File::open(path).map_err(|e| Error::io(path, "open the file", &e))?;
        // SAFETY: the map is read-only and private to this process. The remaining hazard is another process truncating the
        // file while it is mapped, which raises SIGBUS; that is inherent to mapping and the price of not copying 160 GB.
        let map = unsafe { memmap2::Mmap::map(&file) }
            .map_err(|e| Error::io(path, "map the file into memory", &e))?;
        Self::new(path, Bytes::Map(map))
    }

    /// Checks bytes that are part of the program.
    pub fn from_static(path: &Path, bytes: &'static [u8]) -> Result<Self> {
        Self::new(path, Bytes::Static(bytes))
    }

    fn new(path: &Path, bytes: Bytes) -> Result<Self> {
        let parsed = parse(as_slice(&bytes)).map_err(|e| e.file(path))?;
        Ok(SafeTensors {
            path: path.into(),
            bytes,
            header_len: parsed.header_len,
            entries: parsed.entries,
            metadata: parsed.metadata,
        })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors, ordered by position in the file.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The `__metadata__` strings.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The bytes of a tensor of this file.
    pub fn data(&self, entry: &Entry) -> &[u8] {
        &self.all()[entry.begin..entry.end]
    }

    /// The file's whole content.
    pub(super) fn all(&self) -> &[u8] {
        as_slice(&self.bytes)
    }

    /// The header's JSON.
    pub(super) fn header(&self) -> &[u8] {
        &self.all()[8..8 + self.header_len]
    }
}

fn as_slice(bytes: &Bytes) -> &[u8] {
    match bytes {
        Bytes::Map(m) => m,
        Bytes::Static(s) => s,
    }
}

fn truncated(len: u64) -> Error {
    Error::input(format!("the file is truncated: {len} bytes cannot hold a safetensors header"))
        .hint("download the file again")
}

struct Parsed {
    header_len: usize,
    entries: Vec<Entry>,
    metadata: BTreeMap<String, String>,
}

fn parse(bytes: &[u8]) -> Result<Parsed> {
    let total = bytes.len() as u64;
    let Some(first) = bytes.first_chunk::<8>() else { return Err(truncated(total)) };
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(Error::input("this is a Git LFS pointer, not the file itself").hint("run `git lfs pull`"));
    }
    let header_len = u64::from_le_bytes(*first);
    if header_len > total - 8 {
        return Err(Error::input(format!(
            "the header claims {header_len} bytes, but the file has only {total}"
        ))
        .offset(0)
        .hint("the file is truncated or is not safetensors; download it again"));
    }
    if header_len > MAX_HEADER {
        return Err(Error::input(format!(
            "the header has {header_len} bytes; the format allows {MAX_HEADER}"
        ))
        .offset(0)
        .hint("the file is damaged or is not safetensors"));
    }
    let header = &bytes[8..8 + header_len as usize];
    let parsed: Header =
        serde_json::from_slice(header).map_err(|e| json_error(&e, header, 8, "the safetensors header"))?;
    let data_start = 8 + header_len;
    let mut entries = Vec::with_capacity(parsed.entries.len());
    for (name, raw) in parsed.entries {
        entries.push(check_entry(name, raw, data_start, total)?);
    }
    check_layout(&mut entries, data_start as usize, bytes.len())?;
    Ok(Parsed { header_len: header_len as usize, entries, metadata: parsed.metadata })
}

fn check_entry(name: String, raw: RawEntry, data_start: u64, total: u64) -> Result<Entry> {
    let (begin, end) = raw.data_offsets;
    let fail = |message: String, hint: &str| Error::input(message).tensor(short(&name)).hint(hint);
    if begin > end {
        return Err(fail(format!("data_offsets run backwards: {begin} to {end}"), "the header is damaged"));
    }
    let absolute = |o: u64| data_start.checked_add(o);
    let (Some(from), Some(to)) = (absolute(begin), absolute(end)) else {
        return Err(fail(format!("data_offsets {begin} to {end} are out of range"), "the header is damaged"));
    };
    if to > total {
        return Err(fail(
            format!("the tensor's data ends at byte {to}, but the file has only {total} bytes"),
            "the file is truncated or its offsets are damaged; download it again",
        )
        .offset(from));
    }
    let dtype = Dtype::parse(&raw.dtype);
    let shape: Option<Vec<usize>> = raw.shape.0.iter().map(|d| usize::try_from(*d).ok()).collect();
    // Bits are counted in u64, so the element count fits usize whenever its bits do.
    let bits = raw.shape.0.iter().try_fold(dtype.bits().unwrap_or(8), |n, d| n.checked_mul(*d));
    let (Some(shape), Some(bits)) = (shape, bits) else {
        return Err(fail(
            format!("the shape {:?} is too large to count", raw.shape.0),
            "the header is damaged",
        )
        .offset(from));
    };
    if dtype.bits().is_some() && (end - begin).checked_mul(8) != Some(bits) {
        return Err(fail(
            format!(
                "the tensor occupies {} bytes, but {} {:?} needs {}",
                end - begin,
                dtype.name(),
                shape,
                bits.div_ceil(8)
            ),
            "shape, dtype and data_offsets of the header do not belong together",
        )
        .offset(from));
    }
    Ok(Entry { name, dtype, shape, begin: from as usize, end: to as usize })
}

/// Sorts by position and refuses duplicates, overlaps, gaps and trailing bytes, as the format demands.
fn check_layout(entries: &mut [Entry], data_start: usize, total: usize) -> Result<()> {
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    for pair in entries.windows(2) {
        if pair[0].name == pair[1].name {
            return Err(Error::input("the tensor appears twice in the header")
                .tensor(short(&pair[0].name))
                .offset(8)
                .hint("the file is damaged; two tensors cannot share a name"));
        }
    }
    entries.sort_by_key(|a| (a.begin, a.end));
    let mut at = data_start;
    let mut before: Option<&Entry> = None;
    for e in entries.iter() {
        if e.begin < at {
            let other = before.map_or(String::new(), |b| format!(" of {}", short(&b.name)));
            return Err(Error::input(format!(
                "the tensor's data starts inside the data{other}, which ends at byte {at}"
            ))
            .tensor(short(&e.name))
            .offset(e.begin as u64)
            .hint("overlapping tensors: the header is damaged"));
        }
        if e.begin > at {
            return Err(Error::input(format!(
                "{} bytes before the tensor belong to no tensor",
                e.begin - at
            ))
            .tensor(short(&e.name))
            .offset(at as u64)
            .hint("safetensors has no gaps: the header is damaged or a tensor was removed from it"));
        }
        at = e.end;
        before = Some(e);
    }
    if at < total {
        return Err(Error::input(format!("{} bytes at the end of the file belong to no tensor", total - at))
            .offset(at as u64)
            .hint("the header is damaged or something was appended to the file"));
    }
    Ok(())
}

/// A name from the file as an error message can carry it: short, and without control characters for a terminal to obey.
pub(super) fn short(name: &str) -> String {
    let clean = |c: char| if c.is_control() { '?' } else { c };
    if name.chars().count() <= 160 {
        name.chars().map(clean).collect()
    } else {
        name.chars().take(157).map(clean).chain("...".chars()).collect()
    }
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Shape;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a shape")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while let Some(d) = seq.next_element::<u64>()? {
                    if dims.len() == MAX_RANK {
                        return Err(A::Error::custom(format_args!(
                            "a shape with more than {MAX_RANK} dimensions"
                        )));
                    }
                    dims.push(d);
                }
                Ok(Shape(dims))
            }
        }
        d.deserialize_seq(V)
    }
}

struct Header {
    entries: Vec<(String, RawEntry)>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object {tensor name: {dtype, shape, data_offsets}}")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Header, A::Error> {
                let mut header = Header { entries: Vec::new(), metadata: BTreeMap::new() };
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        header.metadata = map.next_value::<Option<_>>()?.unwrap_or_default();
                    } else {
                        let raw: RawEntry = map.next_value()?;
                        header.entries.push((name, raw));
                    }
                }
                Ok(header)
            }
        }
        d.deserialize_map(V)
    }
}
