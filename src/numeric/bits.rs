//! Rounding of an IEEE binary32 bit pattern to fewer mantissa bits: the core that all formats here share.

/// Bit pattern of +inf; anything above it (sign cleared) is NaN.
pub const INF: u32 = 0x7f80_0000;
/// All bits but the sign.
pub const ABS: u32 = 0x7fff_ffff;
/// The sign bit.
pub const SIGN: u32 = 0x8000_0000;

/// Drops the low `drop` mantissa bits, round-to-nearest, ties to even. A carry runs into the exponent, which is
/// exactly what IEEE wants: 1.111…₂ becomes 10.0₂, and the largest finite values become inf.
///
/// Adding `half − 1 + lsb` and truncating is right because the sum crosses the next kept step when the dropped part
/// is above one half, or equal to one half with the kept part odd. Do not pass a NaN: the carry could reach the sign.
#[inline(always)]
pub const fn rne(bits: u32, drop: u32) -> u32 {
    let lsb = (bits >> drop) & 1;
    let half_minus_1 = (1u32 << (drop - 1)) - 1;
    bits.wrapping_add(half_minus_1 + lsb) & !((1u32 << drop) - 1)
}

/// `rne` on the magnitude with NaN kept (and made quiet), for formats that share f32's exponent range.
#[inline(always)]
pub const fn rne_f32(x: f32, drop: u32) -> f32 {
    let b = x.to_bits();
    let quiet = (b & !((1u32 << drop) - 1)) | 0x0040_0000;
    f32::from_bits(if (b & ABS) > INF { quiet } else { rne(b, drop) })
}
