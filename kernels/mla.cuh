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

#define K_BUFFERS (PAGED ? 1 : 2)
#define Q_AT 0
#define K_AT (Q_AT + HEADS * ROW_BYTES)
#define RAW_AT (K_AT + K_BUFFERS * TILE * ROW_BYTES)
#define S_AT (RAW_AT + PAGED * TILE * RAW_STRIDE)
#define P_AT (S_AT + WK * HEADS * S_STRIDE * 4)
#define F_AT (P_AT + HEADS * P_STRIDE)
#define SLOTS_AT (F_AT + HEADS * 4)
// Shared memory of a block that reads at most n keys: SLOTS_AT + 4 · n rounded up to a multiple of TILE.

// A slot names a key: its row (page · 64 + entry), with this bit if it is of the second cache; −1 is no key.
#define SECOND (1 << 30)

struct Softmax {
    float m; // running maximum, base-2 exponent
    float l; // running sum of unrounded probabilities
};

__device__ __forceinline__ u32 chunk_at(u32 base, int row, int chunk) {
    return base + row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
}

// Starts the copies of tile `t`: raw records into the staging area, or bf16 rows into their buffer.
__device__ __forceinline__ void fetch(u32 smem, const int *slots, int t, const u8 *first, const u8 *second) {
#if PAGED
    for (int i = threadIdx.x; i < TILE * (DATA_BYTES / 16); i += THREADS) {
        int key = i / (DATA_BYTES / 16), c = i % (DATA_BYTES / 16);
        int slot = slots[t * TILE + key];
        const u8 *cache = (slot & SECOND) ? second : first;
        int at = slot < 0 ? 0 : slot & (SECOND - 1);
        const u8 *from = cache + (u64)(at >> 6) * PAGE_BYTES + (at & 63) * DATA_BYTES + c * 16;
        copy16(smem + RAW_AT + key * RAW_STRIDE + c * 16, slot < 0 ? first : from, slot >= 0);
    }
    if (threadIdx.x < TILE) {
        int slot = slots[t * TILE + threadIdx.x];
        const u8 *cache = (slot & SECOND) ? second : first;
        int at = slot < 0 ? 0 : slot & (SECOND - 1);
        const u8 *from = cache + (u64)(at >> 6) * PAGE_BYTES + SCALES_AT + (at & 63) * 8;
        copy8(smem + RAW_AT + threadIdx.x * RAW_STRIDE + DATA_BYTES, slot < 0 ? first : from, slot >= 0);
    }
#else
    u32 to = smem + K_AT + (t & 1) * TILE * ROW_BYTES;
    for (int i = threadIdx.x; i < TILE * 64; i += THREADS) {
        int key = i >> 6, c = i & 63;
        int slot = slots[t * TILE + key];
        const u8 *rows = (slot & SECOND) ? second : first;
        u64 at = slot < 0 ? 0 : slot & (SECOND - 1);
        copy16(chunk_at(to, key, c), slot < 0 ? first : rows + at * ROW_BYTES + c * 16, slot >= 0);
    }
#endif
}

#if PAGED
// Raw records to bf16 rows. e4m3 times a power of two has 4 significant bits: no rounding happens here.
__device__ __forceinline__ void decode_tile(u8 *smem) {
    for (int i = threadIdx.x; i < TILE * (PLAIN / 16); i += THREADS) {
        int key = i / (PLAIN / 16), c = i % (PLAIN / 16);
        const u8 *record = smem + RAW_AT + key * RAW_STRIDE;
        uint4 codes = *(const uint4 *)(record + c * 16);
        Rebase s = rebase_e8m0<120>(record[DATA_BYTES + (c >> 2)]);
        uint2 a = e4m3x4_bf16(codes.x, s), b = e4m3x4_bf16(codes.y, s);
        uint2 d = e4m3x4_bf16(codes.z, s), e = e4m3x4_bf16(codes.w, s);
        uint4 low = make_uint4(a.x, a.y, b.x, b.y), high = make_uint4(d.x, d.y, e.x, e.y);
        // Half of the lanes store their second chunk first: eight lanes then fill eight different bank groups.
        u8 *row = smem + K_AT + key * ROW_BYTES;
        int odd = (c >> 2) & 1, x = key & 7;
        *(uint4 *)(row + (((2 * c + odd) ^ x) << 4)) = odd ? high : low;
        *(uint4 *)(row + (((2 * c + 1 - odd) ^ x) << 4)) = odd ? low : high;
    }
    for (int i = threadIdx.x; i < TILE * 8; i += THREADS) {
        int key = i >> 3, c = i & 7;
        uint4 rope = *(const uint4 *)(smem + RAW_AT + key * RAW_STRIDE + PLAIN + c * 16);
        *(uint4 *)(smem + K_AT + key * ROW_BYTES + (((PLAIN / 8 + c) ^ (key & 7)) << 4)) = rope;
    }
}
#endif

// Scores of a tile: each group of WK warps leaves its share of the dims in its own plane.
__device__ __forceinline__ void scores(u8 *smem, u32 base, u32 keys) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int wm = warp % WM, wn = warp / WM % WN, wk = warp / (WM * WN);
    const int x = lane & 7;
    const int qx = (lane >> 4) ^ x, kx = ((lane >> 3) & 1) ^ x;
    const u32 q_row = base + Q_AT + (wm * MT * 16 + (lane & 15)) * ROW_BYTES;
    const u32 k_row = keys + (wn * NT * 8 + x + ((lane >> 4) << 3)) * ROW_BYTES;
    float s[MT][NT][4] = {};
#pragma unroll 4
    for (int step = 0; step < 32 / WK; ++step) {
        const int c = (wk * (32 / WK) + step) * 2;
        u32 a[MT][4], b[4];
        for (int m = 0; m < MT; ++m) ldmatrix_x4(a[m], q_row + m * 16 * ROW_BYTES + ((c ^ qx) << 4));
        for (int n = 0; n < NT / 2; ++n) {
            ldmatrix_x4(b, k_row + n * 16 * ROW_BYTES + ((c ^ kx) << 4));
            for (int m = 0; m < MT; ++m) {
                mma_bf16(s[m][2 * n], a[m], b[0], b[1]);
                mma_bf16(s[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
    float *plane = (float *)(smem + S_AT) + wk * HEADS * S_STRIDE;
    for (int m = 0; m < MT; ++m)
        for (int n = 0; n < NT; ++n) {
            float *to = plane + (wm * MT * 16 + m * 16 + (lane >> 2)) * S_STRIDE + wn * NT * 8 + n * 8 + (lane & 3) * 2;
            *(float2 *)to = make_float2(s[m][n][0], s[m][n][1]);
            *(float2 *)(to + 8 * S_STRIDE) = make_float2(s[m][n][2], s[m][n][3]);
        }
}

// Probabilities of a tile, and the factor by which older sums of each row fade. Threads beyond HEADS · TPR are idle.
__device__ __forceinline__ void softmax(u8 *smem, const int *slots, float scale, Softmax &state) {
    const int row = threadIdx.x / TPR, part = threadIdx.x % TPR;
    if (row >= HEADS) return;
    float z[GROUPS][4], top = NEG_INF;
    for (int g = 0; g < GROUPS; ++g) {
        const int col = (g * TPR + part) * 4;
        const float *from = (const float *)(smem + S_AT) + row * S_STRIDE + col;
        float4 v = *(const float4 *)from;
        for (int k = 1; k < WK; ++k) {
            float4 w = *(const float4 *)(from + k * HEADS * S_STRIDE);
            v = make_float4(v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w);
        }
        int4 slot = *(const int4 *)(slots + col);
        z[g][0] = slot.x < 0 ? NEG_INF : v.x * scale;
        z[g][1] = slot.y < 0 ? NEG_INF : v.y * scale;
        z[g][2] = slot.z < 0 ? NEG_INF : v.z * scale;
        z[g][3] = slot.w < 0 ? NEG_INF : v.w * scale;
        for (int i = 0; i < 4; ++i) top = fmaxf(top, z[g][i]);
    }
    for (int d = 1; d < TPR; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    const float m = fmaxf(state.m, top);
    const bool none = m == NEG_INF;
    const float fade = none ? 1.0f : exp2_fast(state.m - m);
    float sum = 0.0f;
    for (int g = 0; g < GROUPS; ++g) {
        for (int i = 0; i < 4; ++i) {
            z[g][i] = none ? 0.0f : exp2_fast(z[g][i] - m);
            sum += z[g][i];
        }
        u8 *to = smem + P_AT + row * P_STRIDE + (g * TPR + part) * 8;
        *(uint2 *)to = make_uint2(bf16x2_of(z[g][0], z[g][1]), bf16x2_of(z[g][2], z[g][3]));
    }
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
    for (int m = 0; m < MT2; ++m) fading |= fade[m * 16] != 1.0f || fade[m * 16 + 8] != 1.0f;
    if (__any_sync(0xffffffffu, fading)) {
        for (int m = 0; m < MT2; ++m) {
            const float low = fade[m * 16], high = fade[m * 16 + 8];
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
        for (int m = 0; m < MT2; ++m) ldmatrix_x4(a[m], p_row + m * 16 * P_STRIDE + k * 32);
        for (int n = 0; n < 4; ++n) {
            ldmatrix_x4_trans(b, v_row + k * 16 * ROW_BYTES + ((vx ^ (n * 2)) << 4));
            for (int m = 0; m < MT2; ++m) {
                mma_bf16(acc[m][2 * n], a[m], b[0], b[1]);
                mma_bf16(acc[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Attention of HEADS rows of `q` over the first `n` slots, which lie in shared memory, padded with −1 to whole tiles
// and visible to all threads. Sums stay un-normalised in `acc`, `state` is held by the softmax threads of each row.
__device__ __forceinline__ void attend(u8 *smem, const u16 *q, const u8 *first, const u8 *second, int n, float scale,
                                       float (&acc)[MT2][8][4], Softmax &state) {
    const u32 base = smem_address(smem);
    const int *slots = (const int *)(smem + SLOTS_AT);
    const int tiles = (n + TILE - 1) / TILE;
    for (int i = threadIdx.x; i < HEADS * 64; i += THREADS)
        copy16(chunk_at(base + Q_AT, i >> 6, i & 63), q + (i >> 6) * DIM + (i & 63) * 8, true);
    fetch(base, slots, 0, first, second);
    copies_commit();
    for (int t = 0; t < tiles; ++t) {
        copies_wait<0>();
        __syncthreads();
        u32 keys = base + K_AT;
#if PAGED
        decode_tile(smem);
        __syncthreads();
#else
        keys += (t & 1) * TILE * ROW_BYTES;
#endif
        if (t + 1 < tiles) fetch(base, slots, t + 1, first, second);
        copies_commit();
        scores(smem, base, keys);
        __syncthreads();
        softmax(smem, slots + t * TILE, scale * LOG2E, state);
        __syncthreads();
        values(smem, base, keys, acc);
    }
}
