//! A safetensors file whose shapes are known before its values: the header is written first, rows
//! wherever they come, and the file takes its name when it is complete.

use super::temp::TempFile;
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

/// What a tensor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// f32; columns nobody writes are −inf.
    F32,
    /// i32; columns nobody writes are −1.
    I32,
}

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub element: Element,
    /// Its shape, rows first; no dimension is 0.
    pub shape: Vec<usize>,
}

struct Place {
    spec: TensorSpec,
    rows: usize,
    cols: usize,
    /// Absolute, in bytes.
    offset: u64,
    /// Rows written so far.
    done: usize,
}

/// The file being written.
pub struct SafetensorsWriter {
    temp: TempFile,
    places: Vec<Place>,
    total: u64,
    buffer: Vec<u8>,
}

/// Values encoded at once.
const CHUNK: usize = 1 << 15;

impl SafetensorsWriter {
    /// Creates the file beside `target` and writes its header.
    pub fn create(target: &Path, metadata: &[(&str, String)], specs: Vec<TensorSpec>) -> Result<Self> {
        let temp = TempFile::beside(target)?;
        let mut header = Map::new();
        let meta: Map<String, Value> = metadata.iter().map(|(k, v)| ((*k).into(), json!(v))).collect();
        header.insert("__metadata__".into(), meta.into());
        let mut data = 0u64;
        let mut places = Vec::with_capacity(specs.len());
        for spec in specs {
            let too_large =
                || Error::input("the tensor is too large to be written").tensor(&spec.name).file(target);
            let count =
                spec.shape.iter().try_fold(1u64, |a, d| a.checked_mul(*d as u64)).ok_or_else(too_large)?;
            if count == 0 {
                return Err(Error::bug("an empty tensor in a dump").tensor(&spec.name));
            }
            let end = count.checked_mul(4).and_then(|b| b.checked_add(data)).ok_or_else(too_large)?;
            let dtype = if spec.element == Element::F32 { "F32" } else { "I32" };
            let entry = json!({"dtype": dtype, "shape": spec.shape, "data_offsets": [data, end]});
            if header.insert(spec.name.clone(), entry).is_some() {
                return Err(Error::bug("two tensors of one name in a dump").tensor(&spec.name));
            }
            let rows = spec.shape[0];
            places.push(Place { rows, cols: (count / rows as u64) as usize, offset: data, done: 0, spec });
            data = end;
        }
        let mut json = serde_json::to_vec(&header).map_err(|e| Error::bug(e.to_string()))?;
        json.resize(json.len().next_multiple_of(8), b' ');
        let start = 8 + json.len() as u64;
        places.iter_mut().for_each(|p| p.offset += start);
        let w = SafetensorsWriter { temp, places, total: start + data, buffer: Vec::new() };
        let mut file = w.temp.file();
        file.write_all(&(json.len() as u64).to_le_bytes())
            .and_then(|()| file.write_all(&json))
            .and_then(|()| file.set_len(w.total))
            .map_err(|e| w.failed(&e))?;
        Ok(w)
    }

    /// Bytes of the finished file.
    pub fn bytes(&self) -> u64 {
        self.total
    }

    /// Writes rows `row0..` of tensor number `i`, `cols` numbers each.
    pub fn numbers(&mut self, i: usize, row0: usize, cols: usize, data: &[f32]) -> Result<()> {
        self.rows(i, Element::F32, row0, cols, data, f32::NEG_INFINITY, f32::to_le_bytes)
    }

    /// Writes rows `row0..` of tensor number `i`, `cols` ids each.
    pub fn ids(&mut self, i: usize, row0: usize, cols: usize, data: &[i32]) -> Result<()> {
        self.rows(i, Element::I32, row0, cols, data, -1, i32::to_le_bytes)
    }

    fn rows<V: Copy>(
        &mut self,
        i: usize,
        element: Element,
        row0: usize,
        cols: usize,
        data: &[V],
        fill: V,
        bytes: fn(V) -> [u8; 4],
    ) -> Result<()> {
        let p = &mut self.places[i];
        let n = data.len().checked_div(cols).unwrap_or(0);
        if p.spec.element != element || cols > p.cols || n * cols != data.len() || row0 + n > p.rows {
            let (name, shape) = (&p.spec.name, &p.spec.shape);
            return Err(
                Error::bug(format!("rows {row0}.. of width {cols} do not fit {shape:?}")).tensor(name)
            );
        }
        p.done += n;
        let (offset, width) = (p.offset, p.cols);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut file = self.temp.file();
        let mut write = || {
            file.seek(SeekFrom::Start(offset + 4 * (row0 * width) as u64))?;
            if cols == width {
                for chunk in data.chunks(CHUNK) {
                    buffer.clear();
                    buffer.extend(chunk.iter().flat_map(|v| bytes(*v)));
                    file.write_all(&buffer)?;
                }
            } else {
                for row in data.chunks(cols.max(1)) {
                    buffer.clear();
                    let pad = std::iter::repeat_n(fill, width - cols);
                    buffer.extend(row.iter().copied().chain(pad).flat_map(bytes));
                    file.write_all(&buffer)?;
                }
            }
            Ok(())
        };
        let done = write();
        self.buffer = buffer;
        done.map_err(|e| self.failed(&e))
    }

    /// Checks that every row was written and puts the file in place.
    pub fn finish(self) -> Result<u64> {
        for p in &self.places {
            if p.done != p.rows {
                let what = format!("{} of {} rows were written", p.done, p.rows);
                return Err(Error::bug(what).tensor(&p.spec.name));
            }
        }
        self.temp.keep()?;
        Ok(self.total)
    }

    fn failed(&self, e: &std::io::Error) -> Error {
        Error::io(self.temp.target(), "write the output", e)
            .hint(format!("the file takes {} bytes; nothing was left behind", self.total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;

    fn spec(name: &str, element: Element, shape: &[usize]) -> TensorSpec {
        TensorSpec { name: name.into(), element, shape: shape.to_vec() }
    }

    /// Catches rows at wrong offsets, padding of the wrong value, and a header others cannot read.
    #[test]
    fn rows_in_any_order_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let specs = vec![spec("a", Element::F32, &[3, 1, 2]), spec("ids", Element::I32, &[2, 3])];
        let mut w = SafetensorsWriter::create(&path, &[("k", "v\"\n".into())], specs).unwrap();
        w.numbers(0, 1, 2, &[3.0, 4.0, 5.0, 6.0]).unwrap();
        w.ids(1, 0, 2, &[7, 8]).unwrap();
        w.numbers(0, 0, 1, &[1.0]).unwrap();
        w.ids(1, 1, 3, &[9, 10, 11]).unwrap();
        assert!(!path.exists());
        let bytes = w.finish().unwrap();
        let data = std::fs::read(&path).unwrap();
        assert_eq!(data.len() as u64, bytes);
        let st = SafeTensors::deserialize(&data).unwrap();
        assert_eq!(st.tensor("a").unwrap().shape(), [3, 1, 2]);
        let f: Vec<f32> = st
            .tensor("a")
            .unwrap()
            .data()
            .chunks(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(f, [1.0, f32::NEG_INFINITY, 3.0, 4.0, 5.0, 6.0]);
        let i: Vec<i32> = st
            .tensor("ids")
            .unwrap()
            .data()
            .chunks(4)
            .map(|b| i32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(i, [7, 8, -1, 9, 10, 11]);
        let (_, meta) = SafeTensors::read_metadata(&data).unwrap();
        assert_eq!(meta.metadata().as_ref().unwrap()["k"], "v\"\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// Catches an incomplete file that gets its name, and a temporary one left behind.
    #[test]
    fn an_incomplete_file_never_appears() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let mut w = SafetensorsWriter::create(&path, &[], vec![spec("a", Element::F32, &[2, 1])]).unwrap();
        w.numbers(0, 0, 1, &[1.0]).unwrap();
        assert!(w.numbers(0, 2, 1, &[1.0]).is_err());
        assert!(w.numbers(0, 0, 2, &[1.0, 2.0]).is_err());
        assert!(w.ids(0, 0, 1, &[1]).is_err());
        assert!(w.finish().is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
