// Attention of one token's heads over a list of shared key/value latents, tile by tile with online softmax: what
// sparse_mla_decode.cu and sparse_prefill.cu have in common. The rounding points are those of
// src/kernels/attention_split.rs with qk_dtype = bf16, p_dtype = bf16, exp_base = two, tile = TILE: products of bf16
// operands summed in f32, denominator from unrounded and P·V from bf16 probabilities.
//
// A block of 8 warps holds HEADS query rows. Per tile of TILE keys:
//   1. the keys are in shared memory once, as bf16 rows of 512, and serve as K and as V;
//   2. Q·Kᵀ: the warps share rows (WM), keys (WN) and the 512 dims (WK; partial scores are added in a fixed order);
//   3. softmax: a few threads a row;
//   4. P·V: every warp holds all rows of its own 64 dims, so that V is read from shared memory exactly once.
// Rows of 1024 bytes are stored with their 16-byte chunks permuted by the row's low bits, which keeps ldmatrix free of
// bank conflicts along either axis.

#ifndef HEADS
#define HEADS 64 // query heads of a block: 16, 32 or 64
#endif
#ifndef TILE
#define TILE 64 // keys of a tile: 32 or 64
#endif
#ifndef PAGED
#define PAGED 1 // 1: keys are read from the paged fp8 cache; 0: from bf16 rows
#endif

#define THREADS 256
#define DIM 512
#define ROW_BYTES 1024
#define MT (HEADS >= 32 ? 2 : 1)       // 16-row tiles of a warp in Q·Kᵀ
#define WM (HEADS / (16 * MT))         // warps along the rows
#define NT 4                           // 8-key tiles of a warp in Q·Kᵀ
#define WN (TILE / (8 * NT))           // warps along the keys
#define WK (8 / (WM * WN))             // warps along the dims
#define MT2 (HEADS / 16)               // 16-row tiles of a warp in P·V
#define S_STRIDE (TILE + 8)            // floats; 8 modulo 32 keeps stores of accumulators free of conflicts
#define P_STRIDE (2 * TILE + 16)       // bytes
#define TPR (256 / HEADS < TILE / 4 ? 256 / HEADS : TILE / 4) // softmax threads of a row
#define GROUPS (TILE / (4 * TPR))      // groups of four keys of a softmax thread

// The 584-byte entry in pages of 64 (src/kernels/kv_pages.rs): data records, then scale records, padded.
#define PAGE_BYTES 37440
#define DATA_BYTES 576
#define PLAIN 448
#define SCALES_AT 36864
#define RAW_STRIDE 592

// Two buffers of decoded keys let half of the warps decode the next tile while the other half multiplies.
#ifndef K_BUFFERS
#define K_BUFFERS 2
#endif
#define Q_AT 0
#define K_AT (Q_AT + HEADS * ROW_BYTES)
#define RAW_AT (K_AT + K_BUFFERS * TILE * ROW_BYTES)
#define S_AT (RAW_AT + PAGED * TILE * RAW_STRIDE)
#define P_AT (S_AT + WK * HEADS * S_STRIDE * 4)
#define F_AT (P_AT + HEADS * P_STRIDE)
#define LSE_AT (F_AT + HEADS * 4)
#define SLOTS_AT (LSE_AT + HEADS * 4)
// At the end the sums lie where queries and keys were: rows of 520 floats, 8 modulo 32 as above.
#define O_STRIDE 520
// Shared memory of a block that reads at most n keys: SLOTS_AT + 4 · n rounded up to a multiple of TILE.

// A slot names a key by the place of its record or row, in units of 16 bytes, with this bit if it is of the second cache.
#define SECOND (1u << 31)
#define NO_KEY 0xffffffffu
#define PAGE_UNITS (PAGE_BYTES / 16)
#define DATA_UNITS (DATA_BYTES / 16)
__device__ __forceinline__ u32 paged_slot(u32 row) { return (row >> 6) * PAGE_UNITS + (row & 63) * DATA_UNITS; }
__device__ __forceinline__ u32 row_slot(u32 row) { return row * (ROW_BYTES / 16); }

struct Softmax {
    float m; // running maximum, base-2 exponent
    float l; // running sum of unrounded probabilities
};

__device__ __forceinline__ u32 chunk_at(u32 base, int row, int chunk) {
    return base + row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
}

// Starts the copies of tile `t`: raw records into the staging area, or bf16 rows into their buffer. A warp brings
// TILE / 8 keys, which it reads from `slots` all at once.
__device__ __forceinline__ void fetch(u32 smem, const u32 *slots, int t, const u8 *first, const u8 *second) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, key0 = warp * (TILE / 8);
    const u32 *mine = slots + t * TILE + key0;
    u32 slot[TILE / 8];
#pragma unroll
    for (int i = 0; i < TILE / 8; ++i) slot[i] = mine[i];
#if PAGED
    // 32 of the 36 chunks of each record, one a lane; then the last four of eight records together, and their scales.
#pragma unroll
    for (int i = 0; i < TILE / 8; ++i) {
        const bool valid = slot[i] != NO_KEY;
        const u8 *from = ((slot[i] & SECOND) ? second : first) + (u64)(slot[i] & ~SECOND) * 16 + lane * 16;
        copy16(smem + RAW_AT + (key0 + i) * RAW_STRIDE + lane * 16, valid ? from : first, valid);
    }
    if (lane < TILE / 2) {
        const u32 of = mine[lane >> 2];
        const bool valid = of != NO_KEY;
        const u8 *from = ((of & SECOND) ? second : first) + (u64)(of & ~SECOND) * 16 + (32 + (lane & 3)) * 16;
        copy16(smem + RAW_AT + (key0 + (lane >> 2)) * RAW_STRIDE + (32 + (lane & 3)) * 16, valid ? from : first, valid);
    }
    if (lane < TILE / 8) {
        const u32 of = mine[lane], at = of & ~SECOND, page = at / PAGE_UNITS, entry = (at - page * PAGE_UNITS) / DATA_UNITS;
        const bool valid = of != NO_KEY;
        const u8 *from = ((of & SECOND) ? second : first) + (u64)page * PAGE_BYTES + SCALES_AT + entry * 8;
        copy8(smem + RAW_AT + (key0 + lane) * RAW_STRIDE + DATA_BYTES, valid ? from : first, valid);
    }
#else
    const u32 to = smem + K_AT + (t & 1) * TILE * ROW_BYTES;
#pragma unroll
    for (int i = 0; i < TILE / 8; ++i) {
        const bool valid = slot[i] != NO_KEY;
        const u8 *from = ((slot[i] & SECOND) ? second : first) + (u64)(slot[i] & ~SECOND) * 16 + lane * 16;
        copy16(chunk_at(to, key0 + i, lane), valid ? from : first, valid);
        copy16(chunk_at(to, key0 + i, lane + 32), valid ? from + 512 : first, valid);
    }
#endif
}

#if PAGED
// Decoded dims 0..447 lie in the order 0, 2, 1, 3 in every group of four: codes 0 and 2, and codes 1 and 3, of a word
// become pairs without a byte permutation. The query is brought into the same order, the output put back.
__device__ __forceinline__ u32 raw02(u32 w) { return ((w << 8) & 0x80008000u) | ((w << 4) & 0x07f007f0u); }
__device__ __forceinline__ u32 raw13(u32 w) { return (w & 0x80008000u) | ((w >> 4) & 0x07f007f0u); }

// 16 codes with a NaN or a scale of 2^8 and more: not seen in sane caches, but what is stored must come out.
__device__ __noinline__ void decode_rare(const u8 *codes, const u8 *scale, u8 *keys, int key0, int lane) {
    for (int i = 0; i < 4; ++i) {
        const Rebase s = rebase_e8m0<120>(scale[i * RAW_STRIDE]);
        u8 *row = keys + (key0 + i) * ROW_BYTES;
        for (int j = 0; j < 4; ++j) {
            const u32 w = *(const u32 *)(codes + i * RAW_STRIDE + j * 4);
            u32 *to = (u32 *)(row + (((2 * lane + (j >> 1)) ^ ((key0 + i) & 7)) << 4)) + (j & 1) * 2;
            to[0] = e4m3_put_nan(mul_bf16x2(mul_bf16x2(raw02(w), s.first), s.second), w << 8);
            to[1] = e4m3_put_nan(mul_bf16x2(mul_bf16x2(raw13(w), s.first), s.second), w);
        }
    }
}

// Raw records to bf16 rows; a warp takes TILE / 8 keys. Lanes 0..27 decode 16 codes each, lanes 28..31 copy 32 bytes of
// rope dims: every lane fills chunks 2·lane and 2·lane + 1. e4m3 times a power of two has 4 significant bits: no
// rounding happens here.
__device__ __forceinline__ void decode_tile(u8 *smem, u8 *keys) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, odd = (lane >> 2) & 1;
    const bool rope = lane >= PLAIN / 16;
    const int from = rope ? PLAIN + (lane - PLAIN / 16) * 32 : lane * 16;
#pragma unroll
    for (int first = 0; first < TILE / 8; first += 4) {
        const int key0 = warp * (TILE / 8) + first;
        const u8 *record = smem + RAW_AT + key0 * RAW_STRIDE;
        uint4 low[4], high[4];
        u32 scale[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            low[i] = *(const uint4 *)(record + i * RAW_STRIDE + from);
            if (rope) high[i] = *(const uint4 *)(record + i * RAW_STRIDE + from + 16);
            scale[i] = record[i * RAW_STRIDE + DATA_BYTES + (lane >> 2)];
        }
        u32 rare = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint4 w = low[i];
            if (!rope) {
                const u32 f = ((scale[i] + 120u) << 7) * 0x00010001u;
                rare |= e4m3_any_nan(w.x) | e4m3_any_nan(w.y) | e4m3_any_nan(w.z) | e4m3_any_nan(w.w) | (scale[i] > 134u);
                low[i] = make_uint4(mul_bf16x2(raw02(w.x), f), mul_bf16x2(raw13(w.x), f), mul_bf16x2(raw02(w.y), f),
                                    mul_bf16x2(raw13(w.y), f));
                high[i] = make_uint4(mul_bf16x2(raw02(w.z), f), mul_bf16x2(raw13(w.z), f), mul_bf16x2(raw02(w.w), f),
                                     mul_bf16x2(raw13(w.w), f));
            }
            // Half of the lanes store their second chunk first: eight lanes then fill eight different bank groups.
            const int key = key0 + i, x = key & 7;
            u8 *row = keys + key * ROW_BYTES;
            *(uint4 *)(row + (((2 * lane + odd) ^ x) << 4)) = odd ? high[i] : low[i];
            *(uint4 *)(row + (((2 * lane + 1 - odd) ^ x) << 4)) = odd ? low[i] : high[i];
        }
        if (rare) decode_rare(record + from, record + DATA_BYTES + (lane >> 2), keys, key0, lane);
    }
}
#endif

// Starts the copy of HEADS rows of queries; each thread later puts the chunks it has copied in the order of the keys.
__device__ __forceinline__ void bring_queries(u32 smem, const u16 *q) {
#pragma unroll 4
    for (int i = threadIdx.x; i < HEADS * 64; i += THREADS)
        copy16(chunk_at(smem + Q_AT, i >> 6, i & 63), q + (u64)i * 8, true);
}
__device__ __forceinline__ void order_queries(u8 *smem) {
#if PAGED
#pragma unroll 4
    for (int i = threadIdx.x; i < HEADS * 64; i += THREADS) {
        const int row = i >> 6, c = i & 63;
        uint4 *at = (uint4 *)(smem + Q_AT + row * ROW_BYTES + ((c ^ (row & 7)) << 4));
        const uint4 w = *at;
        if (c < PLAIN / 8)
            *at = make_uint4(__byte_perm(w.x, w.y, 0x5410), __byte_perm(w.x, w.y, 0x7632), __byte_perm(w.z, w.w, 0x5410),
                             __byte_perm(w.z, w.w, 0x7632));
    }
#endif
}
// Four neighbouring outputs in the order of dims.
__device__ __forceinline__ float4 in_order(float4 v, int dim) {
    return PAGED && dim < PLAIN ? make_float4(v.x, v.z, v.y, v.w) : v;
}

// Scores of a tile: each group of WK warps leaves its share of the dims in its own plane.
__device__ __forceinline__ void scores(u8 *smem, u32 base, u32 keys) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int wm = warp % WM, wn = warp / WM % WN, wk = warp / (WM * WN);
    const int x = lane & 7;
    const int qx = (lane >> 4) ^ x, kx = ((lane >> 3) & 1) ^ x;
    const u32 q_row = base + Q_AT + (wm * MT * 16 + (lane & 15)) * ROW_BYTES;
    const u32 k_row = keys + (wn * NT * 8 + x + ((lane >> 4) << 3)) * ROW_BYTES;
    float s[MT][NT][4] = {};
    // Operands of the next step are on their way while this one multiplies.
    u32 a[2][MT][4], b[2][NT / 2][4];
    auto operands = [&](int step) {
        const int c = (wk * (32 / WK) + step) * 2, to = step & 1;
#pragma unroll
        for (int m = 0; m < MT; ++m) ldmatrix_x4(a[to][m], q_row + m * 16 * ROW_BYTES + ((c ^ qx) << 4));
#pragma unroll
        for (int n = 0; n < NT / 2; ++n) ldmatrix_x4(b[to][n], k_row + n * 16 * ROW_BYTES + ((c ^ kx) << 4));
    };
    operands(0);
#pragma unroll
    for (int step = 0; step < 32 / WK; ++step) {
        if (step + 1 < 32 / WK) operands(step + 1);
#pragma unroll
        for (int n = 0; n < NT / 2; ++n)
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma_bf16(s[m][2 * n], a[step & 1][m], b[step & 1][n][0], b[step & 1][n][1]);
                mma_bf16(s[m][2 * n + 1], a[step & 1][m], b[step & 1][n][2], b[step & 1][n][3]);
            }
    }
    float *plane = (float *)(smem + S_AT) + wk * HEADS * S_STRIDE;
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            float *to = plane + (wm * MT * 16 + m * 16 + (lane >> 2)) * S_STRIDE + wn * NT * 8 + n * 8 + (lane & 3) * 2;
            *(float2 *)to = make_float2(s[m][n][0], s[m][n][1]);
            *(float2 *)(to + 8 * S_STRIDE) = make_float2(s[m][n][2], s[m][n][3]);
        }
}

// Probabilities of a tile, and the factor by which older sums of each row fade. Threads beyond HEADS · TPR are idle.
__device__ __forceinline__ void softmax(u8 *smem, const u32 *slots, float scale, Softmax &state) {
    const int row = threadIdx.x / TPR, part = threadIdx.x % TPR;
    if (row >= HEADS) return;
    float z[GROUPS][4], top = NEG_INF;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        const int col = (g * TPR + part) * 4;
        const float *from = (const float *)(smem + S_AT) + row * S_STRIDE + col;
        float4 v = *(const float4 *)from;
#pragma unroll
        for (int k = 1; k < WK; ++k) {
            float4 w = *(const float4 *)(from + k * HEADS * S_STRIDE);
            v = make_float4(v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w);
        }
        const uint4 slot = *(const uint4 *)(slots + col);
        z[g][0] = slot.x == NO_KEY ? NEG_INF : v.x * scale;
        z[g][1] = slot.y == NO_KEY ? NEG_INF : v.y * scale;
        z[g][2] = slot.z == NO_KEY ? NEG_INF : v.z * scale;
        z[g][3] = slot.w == NO_KEY ? NEG_INF : v.w * scale;
#pragma unroll
        for (int i = 0; i < 4; ++i) top = fmaxf(top, z[g][i]);
    }
#pragma unroll
    for (int d = 1; d < TPR; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    const float m = fmaxf(state.m, top);
    const bool none = m == NEG_INF;
    const float fade = none ? 1.0f : exp2_fast(state.m - m);
    float sum = 0.0f;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            z[g][i] = none ? 0.0f : exp2_fast(z[g][i] - m);
            sum += z[g][i];
        }
        u8 *to = smem + P_AT + row * P_STRIDE + (g * TPR + part) * 8;
        *(uint2 *)to = make_uint2(bf16x2_of(z[g][0], z[g][1]), bf16x2_of(z[g][2], z[g][3]));
    }
#pragma unroll
    for (int d = 1; d < TPR; d *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    state.l = state.l * fade + sum;
    state.m = m;
    if (part == 0) ((float *)(smem + F_AT))[row] = fade;
}

// acc ← acc · fade + P·V for the 64 dims of this warp.
__device__ __forceinline__ void values(u8 *smem, u32 base, u32 keys, float (&acc)[MT2][8][4]) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const float *fade = (const float *)(smem + F_AT) + (lane >> 2);
    bool fading = false;
#pragma unroll
    for (int m = 0; m < MT2; ++m) fading |= fade[m * 16] != 1.0f || fade[m * 16 + 8] != 1.0f;
    if (__any_sync(0xffffffffu, fading)) {
#pragma unroll
        for (int m = 0; m < MT2; ++m) {
            const float low = fade[m * 16], high = fade[m * 16 + 8];
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                acc[m][n][0] *= low;
                acc[m][n][1] *= low;
                acc[m][n][2] *= high;
                acc[m][n][3] *= high;
            }
        }
    }
    const int x = lane & 7;
    const u32 p_row = base + P_AT + (lane & 15) * P_STRIDE + (lane >> 4) * 16;
    const u32 v_row = keys + (lane & 15) * ROW_BYTES;
    const int vx = (warp * 8) ^ (lane >> 4) ^ x;
#pragma unroll
    for (int k = 0; k < TILE / 16; ++k) {
        u32 a[MT2][4], b[4];
#pragma unroll
        for (int m = 0; m < MT2; ++m) ldmatrix_x4(a[m], p_row + m * 16 * P_STRIDE + k * 32);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            ldmatrix_x4_trans(b, v_row + k * 16 * ROW_BYTES + ((vx ^ (n * 2)) << 4));
#pragma unroll
            for (int m = 0; m < MT2; ++m) {
                mma_bf16(acc[m][2 * n], a[m], b[0], b[1]);
                mma_bf16(acc[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Attention of HEADS rows of queries, whose copy has been started, over the first `n` slots, which lie in shared memory,
// padded with NO_KEY to whole tiles and visible to all threads. Sums stay un-normalised in `acc`, `state` is held by the
// softmax threads of each row.
__device__ __forceinline__ void attend(u8 *smem, const u8 *first, const u8 *second, int n, float scale,
                                       float (&acc)[MT2][8][4], Softmax &state) {
    const u32 base = smem_address(smem);
    const u32 *slots = (const u32 *)(smem + SLOTS_AT);
    const int tiles = (n + TILE - 1) / TILE;
    fetch(base, slots, 0, first, second);
    copies_commit();
    copies_wait<1>();
    order_queries(smem);
#if PAGED && K_BUFFERS == 2
    copies_wait<0>();
    __syncthreads();
    decode_tile(smem, smem + K_AT);
    __syncthreads();
    if (tiles > 1) fetch(base, slots, 1, first, second);
    copies_commit();
#endif
    for (int t = 0; t < tiles; ++t) {
        copies_wait<0>();
        __syncthreads();
        const u32 keys = base + K_AT + (K_BUFFERS == 2 ? (t & 1) * TILE * ROW_BYTES : 0);
#if PAGED && K_BUFFERS == 2
        // One warp of each scheduler decodes while the other one multiplies, then they change places.
        u8 *next = smem + K_AT + ((t + 1) & 1) * TILE * ROW_BYTES;
        const bool early = threadIdx.x < THREADS / 2, more = t + 1 < tiles;
        if (early && more) decode_tile(smem, next);
        scores(smem, base, keys);
        if (!early && more) decode_tile(smem, next);
        __syncthreads();
        if (t + 2 < tiles) fetch(base, slots, t + 2, first, second);
        copies_commit();
#else
#if PAGED
        decode_tile(smem, smem + K_AT);
        __syncthreads();
#endif
        if (t + 1 < tiles) fetch(base, slots, t + 1, first, second);
        copies_commit();
        scores(smem, base, keys);
        __syncthreads();
#endif
        softmax(smem, slots + t * TILE, scale * LOG2E, state);
        __syncthreads();
        values(smem, base, keys, acc);
    }
}

// Leaves acc · factor of each row in shared memory, where queries and keys were.
__device__ __forceinline__ void put_sums(u8 *smem, const float (&acc)[MT2][8][4]) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const float *factor = (const float *)(smem + F_AT) + (lane >> 2);
    float *to = (float *)smem + (lane >> 2) * O_STRIDE + warp * 64 + (lane & 3) * 2;
#pragma unroll
    for (int m = 0; m < MT2; ++m) {
        const float low = factor[m * 16], high = factor[m * 16 + 8];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            *(float2 *)(to + m * 16 * O_STRIDE + n * 8) = make_float2(acc[m][n][0] * low, acc[m][n][1] * low);
            *(float2 *)(to + (m * 16 + 8) * O_STRIDE + n * 8) = make_float2(acc[m][n][2] * high, acc[m][n][3] * high);
        }
    }
}

// Four bf16 outputs.
__device__ __forceinline__ uint2 bf16x4_of(float4 v) { return make_uint2(bf16x2_of(v.x, v.y), bf16x2_of(v.z, v.w)); }

// Factor on normalised sums, and LSE, once the sink has joined: its maximum takes part, it adds no value.
__device__ __forceinline__ float2 with_sink(float lse, float sink) {
    const float m = fmaxf(lse, sink);
    if (m == NEG_INF) return make_float2(0.0f, NEG_INF);
    const float w = exp2_fast((lse - m) * LOG2E), den = w + exp2_fast((sink - m) * LOG2E);
    return make_float2(w / den, m + logf(den));
}
// Natural LSE of a row's own keys. A sum that is no number stays one.
__device__ __forceinline__ float own_lse(const Softmax &s) { return s.l == 0.0f ? NEG_INF : (s.m + log2f(s.l)) * LN2; }
