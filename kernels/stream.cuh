// A product of few rows of activations with many rows of weights, which are read once, straight into operand registers,
// and decoded there: what moe.cu and linear_fp8.cu have in common. Every decoded weight is exact in bf16 (at most 6
// significant bits times a power of two), so products are those of the stored numbers, summed in f32.
//
// The weights are the left operand (16 rows a tile), the tokens the right one (8 a tile). A step is 64 bytes of each
// weight row: a thread reads 16 of them, and as the dims that meet in one product are a matter of convention, these are
// consecutive dims. Activations pass through shared memory in chunks of STEPS steps, laid out so that every thread finds
// its 16 bytes beside those of its neighbours.

#ifndef FORMAT
#define FORMAT 0 // weights: 0 bf16, 1 mxfp4, 2 nvfp4, 3 fp8 in 128x128 blocks
#endif
#ifndef NT
#define NT 1 // tiles of 8 tokens
#endif
#ifndef KW
#define KW 1 // warps that share K; their sums are added in ascending order
#endif

#define MW 2                                                // tiles of 16 weight rows of a warp
#define UNITS (FORMAT == 0 ? 1 : FORMAT == 3 ? 2 : 4)       // groups of 8 dims in 16 bytes of weights
#define STEP_DIMS (32 * UNITS)
#ifndef STEPS
#define STEPS (KW > 1 ? 8 : 4) // steps of a chunk: a multiple of KW, and of 2 · KW unless it is KW
#endif
#define CHUNK_DIMS (STEPS * STEP_DIMS)                      // K is a multiple of this
#define CHUNK_BYTES (STEPS * UNITS * NT * 512)
// Dynamic shared memory of a block: two chunks, or what the warps that share K exchange.
#define STREAM_SMEM (KW > 1 && 8192 * NT > 2 * CHUNK_BYTES ? 8192 * NT : 2 * CHUNK_BYTES)
#define ROW_WARPS (8 / KW)
#define TOKEN_ROWS (8 * NT)

// Four pairs of bf16: the operands of two products.
struct Pairs {
    u32 p[4];
};

#if FORMAT == 1 || FORMAT == 2
// Eight e2m1 codes. The halves of a pair are four codes apart, because they are so in the word; activations are paired
// alike. The raw pair has the code's exponent bits unrebased: value · 2^-126, a subnormal for the code 0.5.
__device__ __forceinline__ Pairs e2m1_pairs(u32 w, u32 factor) {
    Pairs r;
    const u32 v = w >> 8;
    r.p[0] = ((w << 12) & 0x80008000u) | ((w << 6) & 0x01c001c0u);
    r.p[1] = ((w << 8) & 0x80008000u) | ((w << 2) & 0x01c001c0u);
    r.p[2] = ((v << 12) & 0x80008000u) | ((v << 6) & 0x01c001c0u);
    r.p[3] = ((v << 8) & 0x80008000u) | ((v << 2) & 0x01c001c0u);
#pragma unroll
    for (int i = 0; i < 4; ++i) r.p[i] = mul_bf16x2(r.p[i], factor);
    return r;
}
#endif

// nvfp4: the scale e4m3 · 2^118 keeps every product of code and scale a normal number; 2^8 is left for the epilogue.
#define LEFT_OVER (FORMAT == 2 ? 256.0f : 1.0f)

// Unit `q` of 16 bytes of a weight row. RARE: scales beyond what one factor can express, and codes that are no numbers.
template <bool RARE> __device__ __forceinline__ Pairs decode_unit(const uint4 &w, u32 scale, int q) {
#if FORMAT == 0
    Pairs r = {{w.x, w.y, w.z, w.w}};
    return r;
#else
    const u32 words[4] = {w.x, w.y, w.z, w.w};
#if FORMAT == 1
    if (!RARE) return e2m1_pairs(words[q], ((scale + 126u) << 7) * 0x00010001u);
    const Rebase s = rebase_e8m0<126>(scale);
    Pairs r = e2m1_pairs(words[q], s.first);
#pragma unroll
    for (int i = 0; i < 4; ++i) r.p[i] = mul_bf16x2(r.p[i], s.second);
    return r;
#elif FORMAT == 2
    const u32 code = q < 2 ? scale & 255 : scale >> 8;
    float s = __uint_as_float((code & 0x7f) << 20) * 0x1p119f * 0x1p119f;
    if ((code & 0x7f) == 0x7f) s = __uint_as_float(0x7fc00000);
    return e2m1_pairs(words[q], __byte_perm(__float_as_uint(s) | (code & 0x80) << 24, 0, 0x3232));
#else
    if (RARE) {
        const Rebase s = rebase_e8m0<120>(scale);
        const uint2 a = e4m3x4_bf16(words[2 * q], s), b = e4m3x4_bf16(words[2 * q + 1], s);
        Pairs r = {{a.x, a.y, b.x, b.y}};
        return r;
    }
    const u32 f = ((scale + 120u) << 7) * 0x00010001u;
    Pairs r = {{mul_bf16x2(e4m3_raw01(words[2 * q]), f), mul_bf16x2(e4m3_raw23(words[2 * q]), f),
                mul_bf16x2(e4m3_raw01(words[2 * q + 1]), f), mul_bf16x2(e4m3_raw23(words[2 * q + 1]), f)}};
    return r;
#endif
#endif
}

// Where the 16 rows of each tile of this thread's warp begin: its row of the lower and of the upper half.
struct Rows {
    const u8 *weights[MW][2];
    const u8 *scales[MW][2];
};

struct Raw {
    uint4 w[MW][2];
    u32 s[MW][2];
};

__device__ __forceinline__ void load_step(Raw &raw, const Rows &rows, int step, int t) {
#pragma unroll
    for (int m = 0; m < MW; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            raw.w[m][half] = load_streamed(rows.weights[m][half] + (u64)step * 64 + t * 16);
#if FORMAT == 1
            raw.s[m][half] = rows.scales[m][half][step * 4 + t];
#elif FORMAT == 2
            raw.s[m][half] = *(const u16 *)(rows.scales[m][half] + (step * 4 + t) * 2);
#elif FORMAT == 3
            raw.s[m][half] = rows.scales[m][half][step >> 1];
#else
            raw.s[m][half] = 0;
#endif
        }
}

// Starts the copy of chunk `c` of the activations: row i of the tile is row `token[i]` of x, or zeros if that is < 0.
__device__ __forceinline__ void stage(u32 to, const u16 *x, const int *token, int dims, int c) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < TOKEN_ROWS * (CHUNK_DIMS / 8); i += 256) {
        const u32 row = i / (CHUNK_DIMS / 8), k = i % (CHUNK_DIMS / 8);
        const u32 step = k / (4 * UNITS), t = k / UNITS % 4, q = k % UNITS;
        const int from = token[row];
        copy16(to + ((step * UNITS + q) * NT + row / 8) * 512 + (row % 8) * 64 + t * 16,
               x + (u64)(u32)max(from, 0) * (u32)dims + c * CHUNK_DIMS + k * 8, from >= 0);
    }
}

template <bool RARE> __device__ __forceinline__ void consume_step(const Raw &raw, const u8 *x, float (&acc)[MW][NT][4]) {
#pragma unroll
    for (int q = 0; q < UNITS; ++q) {
        u32 a0[MW][4], a1[MW][4];
#pragma unroll
        for (int m = 0; m < MW; ++m) {
            const Pairs lo = decode_unit<RARE>(raw.w[m][0], raw.s[m][0], q), hi = decode_unit<RARE>(raw.w[m][1], raw.s[m][1], q);
            a0[m][0] = lo.p[0], a0[m][1] = hi.p[0], a0[m][2] = lo.p[1], a0[m][3] = hi.p[1];
            a1[m][0] = lo.p[2], a1[m][1] = hi.p[2], a1[m][2] = lo.p[3], a1[m][3] = hi.p[3];
        }
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            uint4 b = *(const uint4 *)(x + (q * NT + n) * 512);
#if FORMAT == 1 || FORMAT == 2
            b = make_uint4(__byte_perm(b.x, b.z, 0x5410), __byte_perm(b.x, b.z, 0x7632), __byte_perm(b.y, b.w, 0x5410),
                           __byte_perm(b.y, b.w, 0x7632));
#endif
#pragma unroll
            for (int m = 0; m < MW; ++m) mma_bf16(acc[m][n], a0[m], b.x, b.y);
#pragma unroll
            for (int m = 0; m < MW; ++m) mma_bf16(acc[m][n], a1[m], b.z, b.w);
        }
    }
}

// The rare path is a loop of its own, entered by the whole warp, so that the usual one has no branch.
__device__ __forceinline__ void consume(const Raw &raw, const u8 *x, float (&acc)[MW][NT][4]) {
#if FORMAT == 1 || FORMAT == 3
    u32 rare = 0;
#pragma unroll
    for (int m = 0; m < MW; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4 w = raw.w[m][half];
            rare |= raw.s[m][half] > (FORMAT == 1 ? 128u : 134u);
            if (FORMAT == 3) rare |= e4m3_any_nan(w.x) | e4m3_any_nan(w.y) | e4m3_any_nan(w.z) | e4m3_any_nan(w.w);
        }
    if (__any_sync(0xffffffffu, rare)) return consume_step<true>(raw, x, acc);
#endif
    consume_step<false>(raw, x, acc);
}

// acc[m][n]: row g (elements 0, 1) and row g + 8 (2, 3) of weight tile m with tokens 2t and 2t + 1 of token tile n, for
// lane 4g + t. With KW > 1 only the warps with kw = 0 hold the result. `token` lies in shared memory.
__device__ __forceinline__ void stream(u8 *smem, const u16 *x, const int *token, int dims, const Rows &rows,
                                       float (&acc)[MW][NT][4]) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
    const int kw = warp % KW, chunks = dims / CHUNK_DIMS;
    const u32 base = smem_address(smem);
    Raw raw[2];
    load_step(raw[0], rows, kw, t);
    stage(base, x, token, dims, 0);
    copies_commit();
    for (int c = 0; c < chunks; ++c) {
        copies_wait<0>();
        __syncthreads();
        if (c + 1 < chunks) stage(base + ((c + 1) & 1) * CHUNK_BYTES, x, token, dims, c + 1);
        copies_commit();
        const u8 *chunk = smem + (c & 1) * CHUNK_BYTES + lane * 16;
#if STEPS / KW == 1
        if (c & 1) {
            if (c + 1 < chunks) load_step(raw[0], rows, (c + 1) * STEPS + kw, t);
            consume(raw[1], chunk + kw * UNITS * NT * 512, acc);
        } else {
            if (c + 1 < chunks) load_step(raw[1], rows, (c + 1) * STEPS + kw, t);
            consume(raw[0], chunk + kw * UNITS * NT * 512, acc);
        }
#else
#pragma unroll
        for (int i = 0; i < STEPS / KW; ++i) {
            const int next = c * STEPS + (i + 1) * KW + kw;
            if (next < chunks * STEPS) load_step(raw[(i + 1) & 1], rows, next, t);
            consume(raw[i & 1], chunk + (i * KW + kw) * UNITS * NT * 512, acc);
        }
#endif
    }
#if KW > 1
    float *mine = (float *)smem + warp * (MW * NT * 128) + lane;
    __syncthreads();
    if (kw > 0) {
#pragma unroll
        for (int i = 0; i < MW * NT * 4; ++i) mine[i * 32] = (&acc[0][0][0])[i];
    }
    __syncthreads();
    if (kw == 0) {
#pragma unroll
        for (int k = 1; k < KW; ++k)
#pragma unroll
            for (int i = 0; i < MW * NT * 4; ++i) (&acc[0][0][0])[i] += mine[k * (MW * NT * 128) + i * 32];
    }
#endif
}
