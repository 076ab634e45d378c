// The lightning indexer: scores of compressed entries, and the exact, repeatable choice of the best.
// Must match src/kernels/index.rs: `scores` with indexer.{q_dtype, k_dtype} = bf16 (or the fp8 formats, the query's scale
// then folded into the head weight as in src/kernels/index_emul.rs, fold_scale = on), and `select` with ties to the
// lower id, −0 equal to +0, NaN below everything, ids ascending, −1 behind the last.
//
// indexer_scores: grid (ceil(n / 256), ceil(tokens / TOKENS), sequences), 256 threads. A warp keeps 32 keys in registers
// as the left operand, the 64 heads of token after token pass by in shared memory as the right one; the sum over heads
// is then a sum along the rows of the accumulators. Blocks that no token of theirs can see only write −inf.

#include "common.cuh"

#ifndef KEYS_FP8
#define KEYS_FP8 0 // 1: keys are e4m3 with one f32 scale each
#endif
#ifndef QUERY_FP8
#define QUERY_FP8 0 // 1: queries are e4m3 with one f32 scale a head
#endif
#define IDX_HEADS 64
#define IDX_DIM 128
#define BLOCK_KEYS 256
// Bytes of a query row in shared memory: 16-byte reads by (head, part) then touch every bank group once.
#define Q_STRIDE 320
#define Q_BYTES (IDX_HEADS * Q_STRIDE)

// Eight values of a row as the bf16 pairs of two products. Which dims meet in one product is a matter of convention as
// long as both operands share it; this one lets every thread read 8 consecutive dims.
__device__ __forceinline__ uint4 eight_fp8(uint2 codes) {
    const u32 f = 247u << 7 | 247u << 23; // 2^120
    return make_uint4(mul_bf16x2(e4m3_raw01(codes.x), f), mul_bf16x2(e4m3_raw23(codes.x), f),
                      mul_bf16x2(e4m3_raw01(codes.y), f), mul_bf16x2(e4m3_raw23(codes.y), f));
}
// The same where one of the codes is a NaN.
__device__ __forceinline__ void put_nans(uint4 &v, uint2 codes) {
    v.x = e4m3_put_nan(v.x, __byte_perm(codes.x, 0, 0x1404));
    v.y = e4m3_put_nan(v.y, __byte_perm(codes.x, 0, 0x3424));
    v.z = e4m3_put_nan(v.z, __byte_perm(codes.y, 0, 0x1404));
    v.w = e4m3_put_nan(v.w, __byte_perm(codes.y, 0, 0x3424));
}

// Brings the query heads and head weights of a token into a buffer.
__device__ __forceinline__ void bring_query(u8 *to, float *w, const u8 *q, const float *q_scale, const float *weights,
                                            u64 token) {
#if QUERY_FP8
#pragma unroll 2
    for (int i = threadIdx.x; i < IDX_HEADS * 16; i += 256) {
        const uint2 codes = ((const uint2 *)(q + token * (IDX_HEADS * IDX_DIM)))[i];
        uint4 v = eight_fp8(codes);
        if (e4m3_any_nan(codes.x) | e4m3_any_nan(codes.y)) put_nans(v, codes);
        *(uint4 *)(to + (i >> 4) * Q_STRIDE + (i & 15) * 16) = v;
    }
#else
    for (int i = threadIdx.x; i < IDX_HEADS * 16; i += 256)
        copy16(smem_address(to + (i >> 4) * Q_STRIDE + (i & 15) * 16),
               q + (token * IDX_HEADS + (i >> 4)) * IDX_DIM * 2 + (i & 15) * 16, true);
#endif
    if (threadIdx.x < IDX_HEADS) {
        const u64 at = token * IDX_HEADS + threadIdx.x;
        w[threadIdx.x] = weights[at] * (QUERY_FP8 ? q_scale[at] : 1.0f);
    }
}

extern "C" __global__ void __launch_bounds__(256, 2)
    indexer_scores(const u8 *q, const float *q_scale,    // [sequences·tokens, 64, 128], [.., 64] (fp8 only)
                   const float *weights,                 // [sequences·tokens, 64]
                   const u8 *keys, const float *k_scale, // [sequences, n, 128], [sequences, n] (fp8 only)
                   const int *visible,                   // [sequences·tokens]: entries each token sees
                   float *out,                           // [sequences·tokens, n]
                   int tokens, int n, int per_block) {
    __shared__ __align__(16) u8 queries[2][Q_BYTES];
    __shared__ float head_weights[2][IDX_HEADS];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int key0 = blockIdx.x * BLOCK_KEYS;
    const int first = blockIdx.y * per_block, last = min(first + per_block, tokens);
    const u64 token0 = (u64)blockIdx.z * tokens;
    // Lane t of a quad writes the key of row tile t/2, half t%2.
    const int mine = key0 + warp * 32 + (t >> 1) * 16 + (t & 1) * 8 + g;
    int most = 0;
    for (int i = first; i < last; ++i) most = max(most, visible[token0 + i]);
    if (key0 >= most) {
        for (int i = first; i < last; ++i)
            if (mine < n) out[(token0 + i) * n + mine] = NEG_INF;
        return;
    }
    bring_query(queries[0], head_weights[0], q, q_scale, weights, token0 + first);
    copies_commit();
    // Rows beyond the last key repeat it; what they give is not written.
    uint4 key[2][2][4];
    float key_factor = 1.0f;
    const u8 *rows[4]; // tile, half
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = min(key0 + warp * 32 + i * 8 + g, n - 1);
        rows[i] = keys + ((u64)blockIdx.z * n + row) * (KEYS_FP8 ? IDX_DIM : 2 * IDX_DIM) + t * (KEYS_FP8 ? 8 : 16);
    }
#if KEYS_FP8
    key_factor = k_scale[(u64)blockIdx.z * n + min(mine, n - 1)];
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint2 codes[2][4];
        u32 nan = 0;
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int b = 0; b < 4; ++b) codes[j][b] = *(const uint2 *)(rows[i + j] + b * 32);
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int b = 0; b < 4; ++b) {
                key[i >> 1][j][b] = eight_fp8(codes[j][b]);
                nan |= e4m3_any_nan(codes[j][b].x) | e4m3_any_nan(codes[j][b].y);
            }
        if (nan) {
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int b = 0; b < 4; ++b) put_nans(key[i >> 1][j][b], codes[j][b]);
        }
    }
#else
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int b = 0; b < 4; ++b) key[i >> 1][i & 1][b] = load_streamed(rows[i] + b * 64);
#endif
    for (int i = first; i < last; ++i) {
        const int buffer = (i - first) & 1;
        copies_wait<0>();
        __syncthreads();
        if (i + 1 < last) bring_query(queries[buffer ^ 1], head_weights[buffer ^ 1], q, q_scale, weights, token0 + i + 1);
        copies_commit();
        const int seen = visible[token0 + i];
        if (key0 >= seen) {
            if (mine < n) out[(token0 + i) * n + mine] = NEG_INF;
            continue;
        }
        const u8 *row = queries[buffer] + g * Q_STRIDE + t * 16;
        const float2 *w = (const float2 *)(head_weights[buffer]) + t;
        float sum[2][2] = {};
#pragma unroll 1
        for (int h = 0; h < IDX_HEADS / 8; h += 2) {
            float d[2][2][4] = {};
#pragma unroll
            for (int b = 0; b < 4; ++b) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const uint4 v = *(const uint4 *)(row + (h + j) * 8 * Q_STRIDE + b * 64);
#pragma unroll
                    for (int m = 0; m < 2; ++m) {
                        const uint4 lo = key[m][0][b], hi = key[m][1][b];
                        const u32 a0[4] = {lo.x, hi.x, lo.y, hi.y}, a1[4] = {lo.z, hi.z, lo.w, hi.w};
                        mma_bf16(d[j][m], a0, v.x, v.y);
                        mma_bf16(d[j][m], a1, v.z, v.w);
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float2 f = w[(h + j) * 4];
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    sum[m][0] = fmaf(f.y, fmaxf(d[j][m][1], 0.0f), fmaf(f.x, fmaxf(d[j][m][0], 0.0f), sum[m][0]));
                    sum[m][1] = fmaf(f.y, fmaxf(d[j][m][3], 0.0f), fmaf(f.x, fmaxf(d[j][m][2], 0.0f), sum[m][1]));
                }
            }
        }
        float score = 0.0f;
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float s = sum[m][half];
                s += __shfl_xor_sync(0xffffffffu, s, 1);
                s += __shfl_xor_sync(0xffffffffu, s, 2);
                if (t == m * 2 + half) score = s;
            }
        if (mine < n) out[(token0 + i) * n + mine] = mine < seen ? score * key_factor : NEG_INF;
    }
}

// ---- selection -----------------------------------------------------------------------------------------------------

#define SELECT_THREADS 1024
#define BINS 2048
#define LIST 2560 // entries of the bin of the k-th key that are listed

__device__ __forceinline__ u32 ordered(float x) {
    if (x != x) return 0;
    const u32 b = __float_as_uint(x + 0.0f);
    return (b >> 31) ? ~b : b | 0x80000000u;
}

// Exclusive sum of `x` over the threads of the block, and the total.
__device__ __forceinline__ int block_sum(int x, int *scratch, int &total) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int s = x;
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, s, d);
        if (lane >= d) s += other;
    }
    __syncthreads();
    if (lane == 31) scratch[warp] = s;
    __syncthreads();
    int w = scratch[lane];
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, w, d);
        if (lane >= d) w += other;
    }
    total = __shfl_sync(0xffffffffu, w, 31);
    const int before = __shfl_sync(0xffffffffu, w, (warp + 31) & 31);
    return (warp ? before : 0) + s - x;
}

// The k best of each row: grid (rows), 1024 threads. Dynamic shared memory: 8 · ceil(n / 32) bytes for two sets of bits,
// one bit an entry, then 4 bytes for each of the first `cached` scores, which are then read from memory once.
//
// One pass over the row counts the leading 11 bits; one more marks what lies above the bin of the k-th key and lists the
// bin itself. The rest of the descent sees the list only. A bin that does not fit the list (ties, mostly) is descended by
// passes over the row. Marks, not arrival, decide what is written, so the result is the same in every run.
extern "C" __global__ void __launch_bounds__(SELECT_THREADS, 1)
    indexer_topk(const float *scores, // [rows, n]
                 const int *visible,  // [rows]: only the first of them take part
                 int *ids,            // [rows, k]
                 int n, int k, int cached) {
    extern __shared__ __align__(16) u32 dynamic[];
    __shared__ int bins[BINS];
    __shared__ int scratch[32];
    __shared__ int found[2];
    __shared__ u32 list_key[LIST];
    __shared__ int list_id[LIST];
    __shared__ int listed;
    const u64 row = blockIdx.x;
    const int seen = min(visible[row], n), tid = threadIdx.x, lane = tid & 31;
    int *out = ids + row * k;
    if (seen <= k) {
        for (int i = tid; i < k; i += SELECT_THREADS) out[i] = i < seen ? i : -1;
        return;
    }
    const int words = (n + 31) / 32;
    u32 *above = dynamic, *equal = dynamic + words, *held = dynamic + 2 * words;
    const float *from = scores + row * n;
    const int hold = min(cached, seen);
    auto key = [&](int j) { return j < hold ? held[j] : ordered(__ldg(from + j)); };

    // Radix descent: 11, 11 and 10 bits. `prefix` are the leading bits of the k-th largest key, `left` the bits below
    // them, `need` how many of the keys that share them are still to be taken, `whole` that it is all of them.
    u32 prefix = 0;
    int need = k, left = 32, bin = 0;
    bool whole = false;
    auto clear = [&] {
        for (int i = tid; i < BINS; i += SELECT_THREADS) bins[i] = 0;
        __syncthreads();
    };
    auto descend = [&](int width) {
        __syncthreads();
        // Thread i looks at two bins, counted from the highest.
        const int high = BINS - 1 - 2 * tid, a = bins[high], b = bins[high - 1];
        int total;
        const int before = block_sum(a + b, scratch, total);
        if (before < need && before + a >= need) found[0] = high, found[1] = before;
        else if (before + a < need && before + a + b >= need) found[0] = high - 1, found[1] = before + a;
        __syncthreads();
        prefix = prefix << width | (u32)found[0];
        need -= found[1];
        left -= width;
        bin = bins[found[0]];
        whole = bin == need;
        __syncthreads();
    };
    clear();
#pragma unroll 4
    for (int j = tid; j < seen; j += SELECT_THREADS) {
        const u32 u = ordered(__ldg(from + j));
        if (j < hold) held[j] = u;
        atomicAdd(&bins[u >> 21], 1);
    }
    descend(11);
    const bool few = !whole && bin <= LIST;
    if (few) {
        if (tid == 0) listed = 0;
        __syncthreads();
#pragma unroll 4
        for (int w = tid >> 5; w < words; w += SELECT_THREADS / 32) {
            const int j = w * 32 + lane;
            const u32 u = j < seen ? key(j) : 0;
            const u32 up = __ballot_sync(0xffffffffu, j < seen && u >> 21 > prefix);
            const u32 in = __ballot_sync(0xffffffffu, j < seen && u >> 21 == prefix);
            int at = 0;
            if (lane == 0) {
                above[w] = up, equal[w] = 0;
                if (in) at = atomicAdd(&listed, __popc(in));
            }
            at = __shfl_sync(0xffffffffu, at, 0) + __popc(in & ((1u << lane) - 1));
            if (in >> lane & 1) list_key[at] = u, list_id[at] = j;
        }
    }
    while (left > 0 && !whole) {
        const int width = left > 10 ? 11 : 10, shift = left - width;
        clear();
        auto count = [&](u32 u) {
            if (u >> left == prefix) atomicAdd(&bins[(u >> shift) & ((1u << width) - 1)], 1);
        };
        if (few) {
            for (int i = tid; i < listed; i += SELECT_THREADS) count(list_key[i]);
        } else {
#pragma unroll 4
            for (int j = tid; j < seen; j += SELECT_THREADS) count(key(j));
        }
        descend(width);
    }
    const u32 least = whole ? prefix << left : prefix + 1; // keys from here on are taken
    const int ties = whole ? 0 : need;                     // and so many of those equal to prefix, lowest ids first
    if (few) {
        for (int i = tid; i < listed; i += SELECT_THREADS) {
            const int j = list_id[i];
            if (list_key[i] >= least) atomicOr(&above[j >> 5], 1u << (j & 31));
            else if (!whole && list_key[i] == prefix) atomicOr(&equal[j >> 5], 1u << (j & 31));
        }
    } else {
#pragma unroll 4
        for (int w = tid >> 5; w < words; w += SELECT_THREADS / 32) {
            const int j = w * 32 + lane;
            const u32 u = j < seen ? key(j) : 0;
            const u32 up = __ballot_sync(0xffffffffu, j < seen && u >= least);
            const u32 same = __ballot_sync(0xffffffffu, j < seen && !whole && u == prefix);
            if (lane == 0) above[w] = up, equal[w] = same;
        }
    }
    __syncthreads();
    const int each = (words + SELECT_THREADS - 1) / SELECT_THREADS;
    const int begin = min(tid * each, words), end = min(begin + each, words);
    int count = 0, total;
    for (int w = begin; w < end; ++w) count += __popc(equal[w]);
    int rank = block_sum(count, scratch, total);
    count = 0;
    for (int w = begin; w < end; ++w) {
        u32 same = equal[w], taken = above[w];
        while (same) {
            const u32 bit = same & (0u - same);
            if (rank++ < ties) taken |= bit;
            same ^= bit;
        }
        above[w] = taken;
        count += __popc(taken);
    }
    int at = block_sum(count, scratch, total);
    for (int w = begin; w < end; ++w)
        for (u32 bits = above[w]; bits; bits &= bits - 1) out[at++] = w * 32 + __ffs(bits) - 1;
}
