// Mixing weights of the hyper-connections: μ = (fn·x)·ν, then pre, post and the Sinkhorn-projected comb, in one launch.
// Must match src/kernels/mhc_split.rs and mhc.rs with mhc.{x_dtype = bf16, w_dtype = bf16, norm_site = after,
// split_k = S, split_order = 0}: bf16 operands, f32 sums, partial sums of K added in ascending order.
//
// grid (ceil(tokens / 32), S), 256 threads. The 24 outputs leave no work for a grid along them, so blocks share K. Each
// warp has its own part of K and reads it straight into operand registers: the dims that meet in one product are a
// matter of convention, and this one lets every thread read 8 consecutive ones. The block that arrives last adds the
// partial sums (in the order of splits, not of arrival) and finishes 32 tokens.

#include "common.cuh"

#define STREAMS 4
#define MIXES 24
#define COLS 25 // the mixes and the sum of squares
#define TOKENS 32
#define WARPS 8

// Row softmax, + eps, columns, then iters − 1 times rows and columns. Quotients that a later step normalises again are
// products with an approximate reciprocal: what it is off by scales a whole row or column alike. The last is exact.
__device__ __forceinline__ void sinkhorn(float (&c)[STREAMS][STREAMS], float eps, int iters) {
#pragma unroll
    for (int j = 0; j < STREAMS; ++j) {
        const float top = fmaxf(fmaxf(c[j][0], c[j][1]), fmaxf(c[j][2], c[j][3]));
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < STREAMS; ++k) {
            c[j][k] = expf(c[j][k] - top);
            sum += c[j][k];
        }
#pragma unroll
        for (int k = 0; k < STREAMS; ++k) c[j][k] = c[j][k] / sum + eps;
    }
    for (int i = 0; i < iters; ++i) {
        if (i > 0) {
#pragma unroll
            for (int j = 0; j < STREAMS; ++j) {
                const float r = rcp_fast((((eps + c[j][0]) + c[j][1]) + c[j][2]) + c[j][3]);
#pragma unroll
                for (int k = 0; k < STREAMS; ++k) c[j][k] *= r;
            }
        }
#pragma unroll
        for (int k = 0; k < STREAMS; ++k) {
            const float sum = (((eps + c[0][k]) + c[1][k]) + c[2][k]) + c[3][k];
            if (i + 1 < iters) {
                const float r = rcp_fast(sum);
#pragma unroll
                for (int j = 0; j < STREAMS; ++j) c[j][k] *= r;
            } else {
#pragma unroll
                for (int j = 0; j < STREAMS; ++j) c[j][k] = c[j][k] / sum;
            }
        }
    }
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

extern "C" __global__ void __launch_bounds__(256, 2)
    mhc_mix(const u16 *x,                            // [tokens, dims] bf16, dims = streams · hidden
            const u16 *fn,                           // [24, dims] bf16
            const float *base, const float *factors, // [24], [3]
            float *pre, float *post, float *comb,    // [tokens, 4], [tokens, 4], [tokens, 4, 4]
            float *partial,                          // [S, ceil(tokens / 32) · 32, 25]; unused if S = 1
            u32 *arrived,                            // [ceil(tokens / 32)] zeros, left as zeros; unused if S = 1
            int tokens, int dims, float norm_eps, float hc_eps, int iters) {
    __shared__ float sums[WARPS][TOKENS][COLS];
    __shared__ float mu[TOKENS][COLS];
    __shared__ bool last;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int tile = blockIdx.x, split = blockIdx.y, splits = gridDim.y;
    const int per_warp = dims / (splits * WARPS); // a multiple of 32
    const u64 k0 = (u64)(split * WARPS + warp) * per_warp + t * 8;
    const u16 *rows[4], *cols[3];
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[i] = x + (u64)min(tile * TOKENS + i * 8 + g, tokens - 1) * dims + k0;
#pragma unroll
    for (int i = 0; i < 3; ++i) cols[i] = fn + (u64)(i * 8 + g) * dims + k0;
    float d[2][3][4] = {}, squares[4] = {};
#pragma unroll 2
    for (int k = 0; k < per_warp; k += 32) {
        uint4 a[4], b[3];
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = load_streamed(rows[i] + k);
#pragma unroll
        for (int i = 0; i < 3; ++i) b[i] = *(const uint4 *)(cols[i] + k);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const uint4 lo = a[2 * m], hi = a[2 * m + 1];
            const u32 a0[4] = {lo.x, hi.x, lo.y, hi.y}, a1[4] = {lo.z, hi.z, lo.w, hi.w};
#pragma unroll
            for (int n = 0; n < 3; ++n) {
                mma_bf16(d[m][n], a0, b[n].x, b[n].y);
                mma_bf16(d[m][n], a1, b[n].z, b[n].w);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 p[4] = {a[i].x, a[i].y, a[i].z, a[i].w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float lo = f32_lo(p[j]), hi = f32_hi(p[j]);
                squares[i] = fmaf(hi, hi, fmaf(lo, lo, squares[i]));
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 1);
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 2);
        if (t == 0) sums[warp][i * 8 + g][MIXES] = squares[i];
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 3; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[warp][m * 16 + (i >> 1) * 8 + g][n * 8 + t * 2 + (i & 1)] = d[m][n][i];
    __syncthreads();
    const u64 plane = (u64)gridDim.x * TOKENS * COLS;
    float *here = partial + (u64)tile * TOKENS * COLS;
    const int used = min(TOKENS, tokens - tile * TOKENS) * COLS;
    for (int i = threadIdx.x; i < used; i += 256) {
        float s = 0.0f;
        for (int w = 0; w < WARPS; ++w) s += (&sums[w][0][0])[i];
        if (splits == 1) (&mu[0][0])[i] = s;
        else __stcg(here + split * plane + i, s);
    }
    if (splits > 1) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            last = atomicAdd(&arrived[tile], 1) == (u32)splits - 1;
            if (last) arrived[tile] = 0;
        }
        __syncthreads();
        if (!last) return;
        __threadfence();
        for (int i = threadIdx.x; i < used; i += 256) {
            float s = 0.0f;
#pragma unroll 8
            for (int p = 0; p < splits; ++p) s += __ldcg(here + p * plane + i);
            (&mu[0][0])[i] = s;
        }
    }
    __syncthreads();
    const int token = tile * TOKENS + threadIdx.x;
    if (threadIdx.x >= TOKENS || token >= tokens) return;
    const float *m = mu[threadIdx.x];
    const float nu = 1.0f / sqrtf(m[MIXES] / (float)dims + norm_eps);
    float c[STREAMS][STREAMS];
#pragma unroll
    for (int j = 0; j < STREAMS; ++j) {
        pre[token * 4 + j] = sigmoid(m[j] * nu * factors[0] + base[j]) + hc_eps;
        post[token * 4 + j] = 2.0f * sigmoid(m[4 + j] * nu * factors[1] + base[4 + j]);
#pragma unroll
        for (int k = 0; k < STREAMS; ++k) c[j][k] = m[8 + 4 * j + k] * nu * factors[2] + base[8 + 4 * j + k];
    }
    sinkhorn(c, hc_eps, iters);
#pragma unroll
    for (int j = 0; j < STREAMS; ++j) *(float4 *)(comb + token * 16 + j * 4) = make_float4(c[j][0], c[j][1], c[j][2], c[j][3]);
}
