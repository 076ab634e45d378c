// What the kernels share: conversions between number formats, tensor-core products, asynchronous copies.
// No header is included anywhere: every kernel file compiles as it is with NVRTC, once the line that includes this file
// is replaced by its text (scripts/compile_kernels.py does so, and whoever embeds the sources must).

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define NEG_INF (__int_as_float(0xff800000))
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

// ---- bf16 ----------------------------------------------------------------------------------------------------------

// Two f32 to a pair of bf16, to nearest even; `lo` takes the lower half.
__device__ __forceinline__ u32 bf16x2_of(float lo, float hi) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
__device__ __forceinline__ u16 bf16_of(float x) { return (u16)bf16x2_of(x, 0.0f); }
__device__ __forceinline__ float f32_of(u16 b) { return __uint_as_float((u32)b << 16); }
__device__ __forceinline__ float f32_lo(u32 p) { return __uint_as_float(p << 16); }
__device__ __forceinline__ float f32_hi(u32 p) { return __uint_as_float(p & 0xffff0000u); }
// Products of pairs, rounded once. An fma with −0, because mul.bf16x2 exists from sm_90 on only; subnormals are kept.
__device__ __forceinline__ u32 mul_bf16x2(u32 a, u32 b) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
    return r;
}

// ---- e4m3 ----------------------------------------------------------------------------------------------------------

// The pair of bf16 whose exponent fields are those of two e4m3 codes, not yet rebased: value · 2^-120. Codes are the
// bytes 1 and 3 of `u`; the other bytes are zero. A subnormal code becomes a subnormal bf16, so one product by 2^120
// (times any power of two) decodes both kinds.
__device__ __forceinline__ u32 e4m3_raw(u32 u) { return (u & 0x80008000u) | ((u >> 4) & 0x07f007f0u); }
// Codes 0 and 1, and codes 2 and 3, of a word as raw pairs.
__device__ __forceinline__ u32 e4m3_raw01(u32 w) { return e4m3_raw(__byte_perm(w, 0, 0x1404)); }
__device__ __forceinline__ u32 e4m3_raw23(u32 w) { return e4m3_raw(__byte_perm(w, 0, 0x3424)); }
// Non-zero if one of four codes is a NaN (0x7f, 0xff).
__device__ __forceinline__ u32 e4m3_any_nan(u32 w) { return ((w & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u; }
// NaN in the halves of `v` whose code (bytes 1 and 3 of `u`) is a NaN.
__device__ __forceinline__ u32 e4m3_put_nan(u32 v, u32 u) {
    if ((u & 0x7f00u) == 0x7f00u) v = (v & 0xffff0000u) | 0x7fc0u;
    if ((u & 0x7f000000u) == 0x7f000000u) v = (v & 0xffffu) | 0x7fc00000u;
    return v;
}
// The f32 value of a code.
__device__ __forceinline__ float e4m3_f32(u32 code) {
    if ((code & 0x7f) == 0x7f) return __int_as_float(0x7fc00000);
    float mag = __uint_as_float((code & 0x7f) << 20) * 0x1p120f;
    return (code & 0x80) ? -mag : mag;
}
// 2^120 (or another rebasing power `REBASE`) times the scale of e8m0 byte `b`, as a bf16 pair to multiply raw pairs by,
// and a second factor for scales so large that the product of both would overflow (1 for all others).
struct Rebase {
    u32 first, second;
};
template <int REBASE> __device__ __forceinline__ Rebase rebase_e8m0(u32 b) {
    Rebase r;
    u32 f = b + REBASE;
    if (f <= 254u) {
        r.first = (f << 7) * 0x00010001u;
        r.second = 0x3f803f80u;
    } else {
        r.first = ((REBASE + 127u) << 7) * 0x00010001u;
        r.second = (b == 255u ? 0x7fc0u : b << 7) * 0x00010001u;
    }
    return r;
}
// Four e4m3 codes under one power-of-two scale to four bf16: exact, as 4 significant bits need no rounding.
__device__ __forceinline__ uint2 e4m3x4_bf16(u32 w, Rebase s) {
    uint2 r = make_uint2(mul_bf16x2(e4m3_raw01(w), s.first), mul_bf16x2(e4m3_raw23(w), s.first));
    if (s.second != 0x3f803f80u) r = make_uint2(mul_bf16x2(r.x, s.second), mul_bf16x2(r.y, s.second));
    if (e4m3_any_nan(w)) {
        r.x = e4m3_put_nan(r.x, __byte_perm(w, 0, 0x1404));
        r.y = e4m3_put_nan(r.y, __byte_perm(w, 0, 0x3424));
    }
    return r;
}
// The nearest e4m3 value, ties to even, saturating: src/numeric/e4m3.rs `round`, for finite x.
__device__ __forceinline__ float e4m3_round(float x) {
    u32 b = __float_as_uint(x), a = b & 0x7fffffffu, r;
    if (a < (121u << 23)) {
        r = __float_as_uint(__fadd_rn(__fadd_rn(__uint_as_float(a), 16384.0f), -16384.0f));
    } else {
        r = (a + 0x7ffffu + ((a >> 20) & 1)) & ~0xfffffu;
        r = r > 0x43e00000u ? 0x43e00000u : r;
    }
    return a > 0x7f800000u ? x : __uint_as_float(r | (b & 0x80000000u));
}
// k of the scale 2^k = 2^ceil(log2(max(amax, 1e-4) · fp32(1/448))): src/numeric/scale.rs.
__device__ __forceinline__ int fp8_scale_exponent(float amax) {
    u32 b = __float_as_uint(__fmul_rn(fmaxf(amax, 1e-4f), 1.0f / 448.0f));
    return (int)((b >> 23) & 255) - 127 + ((b & 0x7fffffu) != 0);
}
// 2^k for normal results.
__device__ __forceinline__ float pow2i(int k) { return __uint_as_float((u32)(k + 127) << 23); }

// ---- tensor cores --------------------------------------------------------------------------------------------------

__device__ __forceinline__ u32 smem_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
// d += a·b of a 16x16 and a 16x8 tile, bf16 in, f32 sums.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- copies --------------------------------------------------------------------------------------------------------

// 16 bytes from global to shared memory; zeros if `valid` is false (then nothing is read).
__device__ __forceinline__ void copy16(u32 to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy8(u32 to, const void *from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid ? 8 : 0) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
// 16 bytes that are read once: they need no place in the first-level cache.
__device__ __forceinline__ uint4 load_streamed(const void *p) {
    uint4 r;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(p));
    return r;
}

// ---- elementary functions ------------------------------------------------------------------------------------------

__device__ __forceinline__ float exp2_fast(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ float rcp_fast(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
