//! Official name → checked location, storage form and decoded values.

use std::ops::Range;

use super::decode::{self, Form, Source};
use super::safetensors::{Dtype, Entry, SafeTensors, short};
use super::spec::{self, Expect};
use super::stored::{ScaleType, Stored};
use super::{Checkpoint, Loc, Tensor};
use crate::error::{Error, Result};
use crate::numeric::fp8_block::{self, Scales};
use crate::numeric::{act_fp4, nvfp4};

/// A tensor found, with its storage form understood and its shape checked against the config.
pub(super) struct Found<'a> {
    pub expect: Expect,
    pub stored: Stored,
    /// Bytes of the weight (of this expert's share, if packed) and of its scales.
    pub bytes: usize,
    file: &'a SafeTensors,
    entry: &'a Entry,
    /// Offset of the first byte in the file.
    offset: usize,
    source: Source<'a>,
}

impl Checkpoint {
    pub(super) fn find(&self, name: &str) -> Result<Found<'_>> {
        let expect = spec::lookup(&self.config, name).ok_or_else(|| {
            Error::input("this architecture has no such tensor")
                .tensor(short(name))
                .file(&self.source)
                .hint("names are the official ones, e.g. layers.3.attn.wq_a.weight")
        })?;
        let packed = self.packed_slot(name);
        match (self.tensors.get(name), packed) {
            (Some(_), Some((loc, ..))) => Err(self
                .at(*loc, Error::input(format!("{name} is stored twice: alone and inside this packed tensor")))
                .hint("which of them counts cannot be guessed; remove one")),
            (Some(loc), None) => self.find_plain(name, *loc, expect),
            (None, Some((loc, expert, part))) => self.find_packed(*loc, expert, part, expect),
            (None, None) => Err(Error::input(format!("the checkpoint lacks this tensor, shape {:?}", expect.shape))
                .tensor(name)
                .file(&self.source)
                .hint("config and weights do not belong together, or the download is incomplete; see `dsv4 inspect`")),
        }
    }

    /// The packed tensor that would hold expert `name`: its place, the expert, and which part.
    pub(super) fn packed_slot(&self, name: &str) -> Option<(&Loc, usize, Part)> {
        let mut parts = name.strip_prefix("layers.")?.split('.');
        let layer = spec::index(parts.next()?)?;
        if parts.next()? != "ffn" || parts.next()? != "experts" {
            return None;
        }
        let expert = spec::index(parts.next()?)?;
        let part = match parts.next()? {
            "w1" => Part::Gate,
            "w3" => Part::Up,
            "w2" => Part::Down,
            _ => return None,
        };
        let loc = self.packed.get(&(layer, matches!(part, Part::Down)))?;
        Some((loc, expert, part))
    }

    fn find_packed(&self, loc: Loc, expert: usize, part: Part, expect: Expect) -> Result<Found<'_>> {
        let (file, entry) = self.entry(loc);
        let (i, d) = (self.config.moe_intermediate_size, self.config.hidden_size);
        let e = self.config.n_routed_experts;
        let whole = if matches!(part, Part::Down) { vec![e, d, i] } else { vec![e, 2 * i, d] };
        if entry.shape != whole {
            return Err(self.wrong_shape(loc, &whole, "[n_routed_experts, rows, columns]"));
        }
        let Some((stored, form)) = plain_form(&entry.dtype) else {
            return Err(
                self.wrong_dtype(loc, "F64, F32, F16 or BF16 (quantised experts must be stored one by one)")
            );
        };
        let size = entry.dtype.size();
        let share = expect.shape[0] * expect.shape[1] * size;
        let from = match part {
            Part::Gate => expert * 2 * share,
            Part::Up => (expert * 2 + 1) * share,
            Part::Down => expert * share,
        };
        let source = Source { cols: expect.shape[1], data: &file.data(entry)[from..from + share], form };
        Ok(Found { expect, stored, bytes: share, file, entry, offset: entry.begin + from, source })
    }

    fn find_plain(&self, name: &str, loc: Loc, expect: Expect) -> Result<Found<'_>> {
        let (file, entry) = self.entry(loc);
        let base = name.strip_suffix(".weight");
        let companion = |suffix: &str| base.and_then(|b| self.tensors.get(&format!("{b}.{suffix}"))).copied();
        let (scale, nv_scale) = (companion("scale"), companion("weight_scale"));
        let (stored, form, scale_bytes) = match &entry.dtype {
            Dtype::F8E4M3 if !expect.ids => {
                self.same_shape(loc, &expect.shape, expect.formula)?;
                let Some(scale) = scale else {
                    return Err(self
                        .at(loc, Error::input("FP8 weight without its block scales"))
                        .hint("expected a `.scale` or `.weight_scale_inv` tensor of the same module"));
                };
                self.fp8(loc, scale, &expect)?
            }
            Dtype::I8 | Dtype::U8 if !expect.ids => self.fp4(name, loc, scale, nv_scale, &expect)?,
            Dtype::I64 | Dtype::I32 if expect.ids => {
                self.same_shape(loc, &expect.shape, expect.formula)?;
                let stored = if entry.dtype == Dtype::I64 { Stored::I64 } else { Stored::I32 };
                // Integers are read by `load_i64`; the form is never used.
                (stored, Form::F32, 0)
            }
            dtype => {
                let Some((stored, form)) = plain_form(dtype).filter(|_| !expect.ids) else {
                    let allowed = if expect.ids { "I64 or I32" } else { "a float, FP8 or packed FP4 type" };
                    return Err(self.wrong_dtype(loc, allowed));
                };
                self.same_shape(loc, &expect.shape, expect.formula)?;
                if let Some(s) = scale.or(nv_scale) {
                    let raw = &self.entry(s).1.name;
                    return Err(self.at(loc, Error::input(format!(
                        "the weight is stored as {}, yet a block scale `{}` lies beside it", dtype.name(), short(raw)
                    ))).hint("either the weight was dequantised and the scale left behind, or the dtype is wrong"));
                }
                (stored, form, 0)
            }
        };
        let cols = expect.shape[1..].iter().product();
        let data = file.data(entry);
        let source = Source { cols, data, form };
        Ok(Found {
            expect,
            stored,
            bytes: data.len() + scale_bytes,
            file,
            entry,
            offset: entry.begin,
            source,
        })
    }

    fn fp8(&self, loc: Loc, scale: Loc, expect: &Expect) -> Result<(Stored, Form<'_>, usize)> {
        let [rows, cols] = self.two_dims(loc, expect)?;
        let (file, entry) = self.entry(scale);
        let [br, bc] = self.config.quant.weight_block_size.unwrap_or(fp8_block::BLOCK);
        let want = vec![rows.div_ceil(br), cols.div_ceil(bc)];
        if entry.shape != want {
            let message = format!(
                "the block scales have shape {:?}; blocks of {br}x{bc} over {:?} need {want:?}",
                entry.shape, expect.shape
            );
            let hint = if self.config.quant.weight_block_size.is_some() {
                "quantization_config.weight_block_size and the tensor disagree"
            } else {
                "the config has no quantization_config.weight_block_size, so 128x128 was assumed; state the real one there"
            };
            return Err(self.at(scale, Error::input(message)).hint(hint));
        }
        let bytes = file.data(entry);
        let (scales, kind) = match entry.dtype {
            Dtype::F8E8M0 | Dtype::U8 => (Scales::E8m0(bytes), ScaleType::E8m0),
            Dtype::F32 => (Scales::F32(bytes), ScaleType::F32),
            _ => return Err(self.wrong_dtype(scale, "F8_E8M0 or F32 for FP8 block scales")),
        };
        let stored = Stored::Fp8Block { rows: br, cols: bc, scale: kind };
        Ok((stored, Form::Fp8 { scales, block: [br, bc] }, bytes.len()))
    }

    fn fp4(
        &self,
        name: &str,
        loc: Loc,
        scale: Option<Loc>,
        nv_scale: Option<Loc>,
        expect: &Expect,
    ) -> Result<(Stored, Form<'_>, usize)> {
        let [rows, cols] = self.two_dims(loc, expect)?;
        if cols % 2 != 0 {
            return Err(self.wrong_dtype(
                loc,
                "an unpacked type, as an odd number of columns cannot be packed in pairs",
            ));
        }
        self.same_shape(loc, &[rows, cols / 2], "packed FP4: half the columns")?;
        if let Some(other) = self.config.quant.expert_dtype.as_deref().filter(|d| *d != "fp4") {
            return Err(self
                .at(
                    loc,
                    Error::input(format!(
                        "the weight is packed FP4, but the config says expert_dtype {other}"
                    )),
                )
                .hint("config and weights do not belong together"));
        }
        let block = |s: Loc, per: usize| -> Result<&[u8]> {
            let want = [rows, cols.div_ceil(per)];
            let (file, entry) = self.entry(s);
            if entry.shape != want {
                return Err(self
                    .at(
                        s,
                        Error::input(format!(
                            "the block scales have shape {:?}; one per {per} over {:?} needs {want:?}",
                            entry.shape, expect.shape
                        )),
                    )
                    .hint("scales and weight do not belong together"));
            }
            Ok(file.data(entry))
        };
        match (scale, nv_scale) {
            (Some(s), None) => {
                if !matches!(self.entry(s).1.dtype, Dtype::F8E8M0 | Dtype::U8) {
                    return Err(self.wrong_dtype(s, "F8_E8M0 for MXFP4 scales"));
                }
                let scales = block(s, act_fp4::BLOCK)?;
                Ok((Stored::MxFp4, Form::Mx { scales }, scales.len()))
            }
            (None, Some(s)) => {
                if self.entry(s).1.dtype != Dtype::F8E4M3 {
                    return Err(self.wrong_dtype(s, "F8_E4M3 for NVFP4 scales"));
                }
                let scales = block(s, nvfp4::BLOCK)?;
                let global = self.scalar(name, "weight_scale_2")?.ok_or_else(|| {
                    self.at(loc, Error::input("NVFP4 weight without its tensor scale"))
                        .hint("expected `.weight_scale_2`")
                })?;
                Ok((Stored::NvFp4, Form::Nv { scales, global }, scales.len() + 4))
            }
            (Some(_), Some(_)) => Err(self
                .at(loc, Error::input("packed FP4 weight with both `.scale` and `.weight_scale`"))
                .hint("MXFP4 has the first, NVFP4 the second; a conversion was left half done")),
            (None, None) => Err(self
                .at(loc, Error::input("packed FP4 weight without block scales"))
                .hint("expected `.scale` (MXFP4) or `.weight_scale` and `.weight_scale_2` (NVFP4)")),
        }
    }

    /// The F32 scalar `suffix` beside the weight `name`.
    pub(super) fn scalar(&self, name: &str, suffix: &str) -> Result<Option<f32>> {
        let Some(base) = name.strip_suffix(".weight") else { return Ok(None) };
        let Some(loc) = self.tensors.get(&format!("{base}.{suffix}")) else { return Ok(None) };
        let (file, entry) = self.entry(*loc);
        if entry.dtype != Dtype::F32 || entry.shape.iter().product::<usize>() != 1 {
            return Err(self.wrong_dtype(*loc, "one F32 number"));
        }
        let v = f32::from_le_bytes(file.data(entry).try_into().expect("one F32 has four bytes"));
        if !v.is_finite() {
            return Err(self.at(*loc, Error::input(format!("the scale is {v}"))).hint("the file is damaged"));
        }
        Ok(Some(v))
    }

    pub(super) fn decode(&self, name: &str, rows: Option<Range<usize>>) -> Result<Tensor> {
        let found = self.find(name)?;
        if found.expect.ids {
            return Err(Error::bug(format!("{name} holds ids; it is read with load_i64")));
        }
        let all = found.expect.shape[0];
        let rows = rows.unwrap_or(0..all);
        if rows.start > rows.end || rows.end > all {
            return Err(Error::bug(format!("rows {rows:?} of {name}, which has {all}")));
        }
        let first = rows.start * found.source.cols;
        let mut shape = found.expect.shape.clone();
        shape[0] = rows.len();
        let data =
            decode::decode(&found.source, rows).map_err(|(i, value)| found.not_finite(first + i, value))?;
        Ok(Tensor { shape, data, stored: found.stored })
    }

    pub(super) fn decode_ids(&self, name: &str) -> Result<(Vec<usize>, Vec<i64>)> {
        let found = self.find(name)?;
        if !found.expect.ids {
            return Err(Error::bug(format!("{name} holds weights; it is read with load")));
        }
        let bytes = found.source.data;
        let ids: Vec<i64> = match found.stored {
            Stored::I64 => bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
            _ => bytes.as_chunks::<4>().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
        };
        let experts = self.config.n_routed_experts;
        if let Some(i) = ids.iter().position(|id| usize::try_from(*id).map_or(true, |id| id >= experts)) {
            let at = place(&found.expect.shape, i);
            return Err(found
                .error(format!("element {i} {at} is expert {}, but there are {experts}", ids[i]))
                .offset((found.offset + i * found.entry.dtype.size()) as u64)
                .hint("n_routed_experts and the hash table disagree, or the file is damaged"));
        }
        Ok((found.expect.shape, ids))
    }

    pub(super) fn entry(&self, loc: Loc) -> (&SafeTensors, &Entry) {
        let file = &self.files[loc.file];
        (file, &file.entries()[loc.entry])
    }

    /// `e` with the place of a stored tensor.
    fn at(&self, loc: Loc, e: Error) -> Error {
        let (file, entry) = self.entry(loc);
        e.tensor(short(&entry.name)).file(file.path()).offset(entry.begin as u64)
    }

    fn wrong_dtype(&self, loc: Loc, allowed: &str) -> Error {
        let dtype = self.entry(loc).1.dtype.name();
        self.at(loc, Error::input(format!("the tensor's dtype is {}; expected {allowed}", short(dtype))))
            .hint("the file is not a DeepSeek-V4 checkpoint this tool knows")
    }

    fn wrong_shape(&self, loc: Loc, want: &[usize], formula: &str) -> Error {
        let got = &self.entry(loc).1.shape;
        self.at(
            loc,
            Error::input(format!("the tensor has shape {got:?}; the config calls for {want:?} = {formula}")),
        )
        .hint("config.json and the weights do not belong together")
    }

    fn same_shape(&self, loc: Loc, want: &[usize], formula: &str) -> Result<()> {
        if self.entry(loc).1.shape == want { Ok(()) } else { Err(self.wrong_shape(loc, want, formula)) }
    }

    fn two_dims(&self, loc: Loc, expect: &Expect) -> Result<[usize; 2]> {
        <[usize; 2]>::try_from(expect.shape.as_slice())
            .map_err(|_| self.wrong_dtype(loc, "an unquantised type, as only matrices are quantised"))
    }
}

/// Which projection of a packed expert.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Gate,
    Up,
    Down,
}

impl Found<'_> {
    fn error(&self, message: String) -> Error {
        Error::input(message).tensor(short(&self.entry.name)).file(self.file.path())
    }

    fn not_finite(&self, i: usize, value: f32) -> Error {
        let what = if value.is_nan() { "NaN" } else { "infinite" };
        let mut e = self.error(format!("element {i} {} is {what}", place(&self.expect.shape, i)));
        if matches!(self.source.form, Form::F64 | Form::F32 | Form::F16 | Form::Bf16) {
            e = e.offset((self.offset + i * self.entry.dtype.size()) as u64);
        } else {
            e = e.offset(self.offset as u64);
        }
        e.hint("no trained model has such a weight; the file is damaged or a conversion failed")
    }
}

/// "[row, column]" of a flat index.
fn place(shape: &[usize], i: usize) -> String {
    match shape {
        [_, cols] => format!("[{}, {}]", i / cols, i % cols),
        _ => format!("[{i}]"),
    }
}

fn plain_form(dtype: &Dtype) -> Option<(Stored, Form<'static>)> {
    match dtype {
        Dtype::F64 => Some((Stored::F64, Form::F64)),
        Dtype::F32 => Some((Stored::F32, Form::F32)),
        Dtype::F16 => Some((Stored::F16, Form::F16)),
        Dtype::Bf16 => Some((Stored::Bf16, Form::Bf16)),
        _ => None,
    }
}
