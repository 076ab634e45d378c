// Decode of sparse latent attention, split over the key list, on the paged fp8 cache.
// Must match src/kernels/attention_split.rs with attn.{qk_dtype=bf16, p_dtype=bf16, exp_base=two, tile=TILE,
// splits=S, split_rule=even, sink_in_max=on, out_dtype=bf16} on keys read by src/kernels/kv_pages.rs.
//
// sparse_mla_decode: grid (heads / HEADS, splits, batch), 256 threads. Keys are the window ids, then the compressed ids;
// split s takes ids [s·per, (s+1)·per) of that list, per = ceil((nw + nc) / splits). With one split the result is
// complete; with more, normalised f32 partials and their natural LSE (−inf: no key, and then no partial is written) go
// to `part` and `part_lse`, and sparse_mla_merge adds them in ascending order of splits.

#include "common.cuh"
#include "mla.cuh"

// The slot of entry `id` of sequence `b`: through the page table, or as it is without one.
__device__ __forceinline__ int slot_of(int id, const int *table, int pages, int b, int mark) {
    if (id < 0) return -1;
    if (table) id = table[(u64)b * pages + (id >> 6)] * 64 + (id & 63);
    return id | mark;
}

// Factor on normalised sums, and LSE, once the sink has joined: its maximum takes part, it adds no value.
__device__ __forceinline__ float2 with_sink(float lse, const float *sinks, int head) {
    const float sink = sinks ? sinks[head] : NEG_INF;
    const float m = fmaxf(lse, sink);
    if (m == NEG_INF) return make_float2(0.0f, NEG_INF);
    const float w = exp2_fast((lse - m) * LOG2E), den = w + exp2_fast((sink - m) * LOG2E);
    return make_float2(w / den, m + logf(den));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sparse_mla_decode(const u16 *q,                                                    // [batch, heads, 512] bf16
                      const u8 *window, const int *window_table, const int *window_ids, // pages, [batch, w_pages], [batch, nw]
                      const u8 *comp, const int *comp_table, const int *comp_ids,       // pages, [batch, c_pages], [batch, nc]
                      const float *sinks,                                              // [heads] or null
                      u16 *out, float *lse,                                            // [batch, heads, 512], [batch, heads]
                      float *part, float *part_lse,                                    // [batch, splits, heads, 512], […, heads]
                      int heads, int nw, int nc, int w_pages, int c_pages, float scale) {
    extern __shared__ __align__(128) u8 smem[];
    const int head0 = blockIdx.x * HEADS, split = blockIdx.y, splits = gridDim.y, b = blockIdx.z;
    const int total = nw + nc, per = (total + splits - 1) / splits;
    const int from = min(split * per, total), n = min(from + per, total) - from;
    int *slots = (int *)(smem + SLOTS_AT);
    bool any = false;
    for (int i = threadIdx.x; i < (n + TILE - 1) / TILE * TILE; i += THREADS) {
        const int j = from + i;
        int slot = -1;
        if (i < n) {
            if (j < nw) slot = slot_of(window_ids[(u64)b * nw + j], window_table, w_pages, b, 0);
            else slot = slot_of(comp_ids[(u64)b * nc + j - nw], comp_table, c_pages, b, SECOND);
        }
        slots[i] = slot;
        any |= slot >= 0;
    }
    const u64 row0 = ((u64)b * splits + split) * heads + head0;
    const bool keys = __syncthreads_or(any);
    if (!keys && splits > 1) {
        if (threadIdx.x < HEADS) part_lse[row0 + threadIdx.x] = NEG_INF;
        return;
    }
    float acc[MT2][8][4] = {};
    Softmax state = {NEG_INF, 0.0f};
    if (keys) attend(smem, q + ((u64)b * heads + head0) * DIM, window, comp, n, scale, acc, state);
    __syncthreads();
    float *factor = (float *)(smem + F_AT);
    const int row = threadIdx.x / TPR;
    if (row < HEADS && threadIdx.x % TPR == 0) {
        const float own = state.l > 0.0f ? (state.m + log2f(state.l)) * LN2 : NEG_INF;
        float f = state.l > 0.0f ? 1.0f / state.l : 0.0f;
        if (splits == 1) {
            const float2 s = with_sink(own, sinks, head0 + row);
            f *= s.x;
            lse[(u64)b * heads + head0 + row] = s.y;
        } else {
            part_lse[row0 + row] = own;
        }
        factor[row] = f;
    }
    __syncthreads();
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int m = 0; m < MT2; ++m) {
        for (int half = 0; half < 2; ++half) {
            const int r = m * 16 + half * 8 + (lane >> 2);
            const float f = factor[r];
            for (int n8 = 0; n8 < 8; ++n8) {
                const float x = acc[m][n8][2 * half] * f, y = acc[m][n8][2 * half + 1] * f;
                const int col = warp * 64 + n8 * 8 + (lane & 3) * 2;
                if (splits == 1) *(u32 *)(out + ((u64)b * heads + head0 + r) * DIM + col) = bf16x2_of(x, y);
                else *(float2 *)(part + (row0 + r) * DIM + col) = make_float2(x, y);
            }
        }
    }
}

// Merges up to 32 splits: grid (heads, batch), 128 threads, four dims a thread.
extern "C" __global__ void __launch_bounds__(128)
    sparse_mla_merge(const float *part, const float *part_lse, const float *sinks, u16 *out, float *lse, int heads,
                     int splits) {
    const int head = blockIdx.x, b = blockIdx.y, lane = threadIdx.x & 31;
    const u64 row0 = (u64)b * splits * heads + head;
    const float own = lane < splits ? part_lse[row0 + (u64)lane * heads] : NEG_INF;
    const float sink = sinks ? sinks[head] : NEG_INF;
    float m = own;
    for (int d = 16; d; d /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));
    m = fmaxf(m, sink);
    const float w = own == NEG_INF ? 0.0f : exp2_fast((own - m) * LOG2E);
    float den = sink == NEG_INF ? 0.0f : exp2_fast((sink - m) * LOG2E);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    // An empty split has written no partial: its place holds whatever was there and is not read.
    for (int s0 = 0; s0 < splits; s0 += 8) {
        float4 v[8];
        float ws[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            ws[i] = __shfl_sync(0xffffffffu, w, (s0 + i) & 31);
            const bool there = s0 + i < splits && ws[i] > 0.0f;
            if (!there) ws[i] = 0.0f;
            v[i] = there ? *(const float4 *)(part + (row0 + (u64)(s0 + i) * heads) * DIM + threadIdx.x * 4)
                         : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            den += ws[i];
            sum.x = fmaf(ws[i], v[i].x, sum.x);
            sum.y = fmaf(ws[i], v[i].y, sum.y);
            sum.z = fmaf(ws[i], v[i].z, sum.z);
            sum.w = fmaf(ws[i], v[i].w, sum.w);
        }
    }
    const float f = den > 0.0f ? 1.0f / den : 0.0f;
    u16 *to = out + ((u64)b * heads + head) * DIM + threadIdx.x * 4;
    *(uint2 *)to = make_uint2(bf16x2_of(sum.x * f, sum.y * f), bf16x2_of(sum.z * f, sum.w * f));
    if (threadIdx.x == 0) lse[(u64)b * heads + head] = m == NEG_INF ? NEG_INF : m + logf(den);
}
