//! The paged fp8 cache as bytes. An entry is a data record (one e4m3 byte a plain dim, two bf16 bytes a rope dim) and a
//! scale record (one exponent byte per 64 plain dims, padded to 8). A page of 64 entries holds every data record, then
//! every scale record, and is padded to a multiple of the data record. With 448 plain and 64 rope dims that is
//! 576 + 8 = 584 bytes an entry and 37,440 bytes a page.

use super::knobs::KvCacheKnobs;
use super::mat::Mat;
use super::quant::{decode_fnuz, encode_then_ceil, scale_of};
use super::values::{Layout, Quant};
use crate::numeric::act_fp8::{AMAX_FLOOR, KV_BLOCK, encode_fp8_into};
use crate::numeric::{bf16, e4m3};

/// Entries of a page.
pub const PAGE: usize = 64;

/// The sizes of an entry in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Dims without rope.
    pub plain: usize,
    /// Dims under rope.
    pub rope: usize,
}

impl Record {
    /// Bytes of the data record.
    pub fn data(self) -> usize {
        self.plain + 2 * self.rope
    }
    /// Bytes of the scale record.
    pub fn scales(self) -> usize {
        self.plain.div_ceil(KV_BLOCK).next_multiple_of(8)
    }
    /// Bytes of an entry.
    pub fn entry(self) -> usize {
        self.data() + self.scales()
    }
    /// Bytes of a page, padding included.
    pub fn page(self) -> usize {
        (PAGE * self.entry()).next_multiple_of(self.data().max(1))
    }
    /// Where the data and the scales of slot `i` of a page are written.
    fn written(self, i: usize) -> (usize, usize) {
        (i * self.data(), PAGE * self.data() + i * self.scales())
    }
    /// Where a reader looks for them.
    fn read(self, i: usize, layout: Layout) -> (usize, usize) {
        match layout {
            Layout::Interleaved => (i * self.entry(), i * self.entry() + self.data()),
            _ => self.written(i),
        }
    }
}

/// One page of the cache.
pub struct Page {
    record: Record,
    bytes: Vec<u8>,
}

impl Page {
    /// A page of zeros.
    pub fn new(record: Record) -> Page {
        Page { record, bytes: vec![0; record.page()] }
    }
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// Encodes `row` into slot `i`.
    pub fn write(&mut self, i: usize, row: &[f32], quant: Quant) {
        let r = self.record;
        let (d, s) = r.written(i);
        let (plain, rope) = row.split_at(r.plain);
        let (data, scales) = self.bytes.split_at_mut(PAGE * r.data());
        let (codes, halves) = data[d..d + r.data()].split_at_mut(r.plain);
        let scales = &mut scales[s - PAGE * r.data()..][..r.plain.div_ceil(KV_BLOCK)];
        if quant == Quant::ThenCeil {
            for ((xs, cs), b) in plain.chunks(KV_BLOCK).zip(codes.chunks_mut(KV_BLOCK)).zip(scales) {
                *b = encode_then_ceil(xs, cs);
            }
        } else {
            encode_fp8_into(plain, KV_BLOCK, AMAX_FLOOR, codes, scales);
        }
        for (h, x) in halves.chunks_exact_mut(2).zip(rope) {
            h.copy_from_slice(&bf16::encode(*x).to_le_bytes());
        }
    }
    /// Decodes slot `i` into `row`, looking for it where `layout` says.
    pub fn read(&self, i: usize, row: &mut [f32], layout: Layout, quant: Quant) {
        let r = self.record;
        let (d, s) = r.read(i, layout);
        let (plain, rope) = row.split_at_mut(r.plain);
        let data = &self.bytes[d..d + r.data()];
        for (b, xs) in plain.chunks_mut(KV_BLOCK).enumerate() {
            let scale = scale_of(self.bytes[s + b], quant);
            for (x, c) in xs.iter_mut().zip(&data[b * KV_BLOCK..]) {
                *x = scale * if quant == Quant::FnuzBits { decode_fnuz(*c) } else { e4m3::decode(*c) };
            }
        }
        bf16::decode_le(&data[r.plain..], rope);
    }
}

/// Writes the rows of `x`, entries `row0..`, into pages and reads them back. A page holds what this call writes; other
/// slots are zeros. `keep_rope` leaves the rope dims as they are (they are stored apart).
pub fn through_pages(x: &mut Mat, row0: usize, rope: usize, keep_rope: bool, k: &KvCacheKnobs) {
    let record = Record { plain: x.cols - rope, rope };
    let mut at = 0;
    while at < x.rows {
        let first = (row0 + at) % PAGE;
        let n = (PAGE - first).min(x.rows - at);
        let mut page = Page::new(record);
        for i in 0..n {
            page.write(first + i, x.row(at + i), k.quant);
        }
        let mut row = vec![0f32; x.cols];
        for i in 0..n {
            page.read(first + i, &mut row, k.layout, k.quant);
            let keep = if keep_rope { record.plain } else { x.cols };
            x.row_mut(at + i)[..keep].copy_from_slice(&row[..keep]);
        }
        at += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::round::round_row;
    use crate::kernels::values::Fmt;
    use proptest::prelude::*;

    /// Catches a page that is not the published one: sizes, the place of a record, the padding.
    #[test]
    fn sizes_are_those_of_the_584_byte_entry() {
        let r = Record { plain: 448, rope: 64 };
        assert_eq!((r.data(), r.scales(), r.entry(), r.page()), (576, 8, 584, 37_440));
        assert_eq!((r.written(0), r.written(63)), ((0, 36_864), (36_288, 37_368)));
        assert!(r.page().is_multiple_of(576) && r.page() >= 64 * 584);
        let mut p = Page::new(r);
        p.write(3, &[1.0; 512], Quant::Exact);
        // amax 1: scale 2^-8 (byte 119), code of 256; the rope dims as bf16 1.0.
        assert_eq!(p.bytes()[3 * 576], e4m3::encode(256.0));
        assert_eq!(p.bytes()[3 * 576 + 448..3 * 576 + 450], [0x80, 0x3f]);
        assert_eq!(p.bytes()[64 * 576 + 3 * 8..][..8], [119, 119, 119, 119, 119, 119, 119, 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// Catches a record that overlaps another, a scale that reaches the wrong block, and bytes that do not decode to
        /// the values of the fake quantisation.
        #[test]
        fn bytes_read_back_are_the_rounded_values(
            rows in 1usize..140, row0 in 0usize..200, plain in 1usize..150, rope in 0usize..10, seed in 0u32..1000
        ) {
            let cols = plain + rope;
            let value = |i: usize| {
                let h = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503));
                ((h >> 8) as f32 / (1 << 24) as f32 - 0.5) * (1.0 + (h % 97) as f32)
            };
            let x = Mat::new(rows, cols, (0..rows * cols).map(value).collect());
            let mut y = x.clone();
            let k = KvCacheKnobs { layout: Layout::Paged, ..KvCacheKnobs::default() };
            through_pages(&mut y, row0, rope, false, &k);
            let mut want = x;
            for row in want.data.chunks_exact_mut(cols) {
                round_row(&mut row[..plain], Fmt::Fp8x64);
                round_row(&mut row[plain..], Fmt::Bf16);
            }
            // −0 and 0 decode alike but for the sign, which the bytes keep.
            prop_assert_eq!(y.data, want.data);
        }
    }

    /// Catches a reader of the wrong layout that happens to see the right values.
    #[test]
    fn a_reader_of_records_sees_other_places() {
        let x = Mat::new(64, 144, (0..64 * 144).map(|i| (i % 1009) as f32 - 500.0).collect());
        let mut y = x.clone();
        let k = KvCacheKnobs { layout: Layout::Interleaved, ..KvCacheKnobs::default() };
        through_pages(&mut y, 0, 16, false, &k);
        assert_ne!(x.row(5), y.row(5));
    }
}
