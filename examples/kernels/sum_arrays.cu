// The sum of the first of 8 fields, kept as a structure of arrays: x is (8, n), y = Σ x[0][i]. Neighbouring threads read
// neighbouring words, and every byte that memory delivers is used. The arithmetic is that of sum_structures.cu.
// What still holds it back: memory, as it should; loads of 16 bytes would save some instructions.
//
// nearpeak: kernel sum_arrays
// nearpeak: op field_sum
// nearpeak: layout arrays
// nearpeak: precision fp32
// nearpeak: grid max(1, min(1056, ceil(n / 256)))
// nearpeak: block 256
// nearpeak: shared 0
// nearpeak: args x, y, n

constexpr int THREADS = 256;
constexpr int BLOCKS = 1056;                           // 8 for each of 132 multiprocessors

// The sum of all values of a block's threads, in thread 0.
__device__ float sum_of_block(float value) {
    __shared__ float of_warp[THREADS / 32];
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_down_sync(0xFFFFFFFF, value, apart);
    __syncthreads();                                   // the array may still be read from a call before
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x < THREADS / 32 ? of_warp[threadIdx.x] : 0.0f;
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_down_sync(0xFFFFFFFF, value, apart);
    return value;
}

__device__ float of_block[BLOCKS];
__device__ unsigned blocks_done = 0;

extern "C" __global__ void sum_arrays(const float* x, float* y, int n) {
    float value = 0.0f;
    for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < n; i += (long long)gridDim.x * THREADS)
        value += x[i];
    value = sum_of_block(value);

    // The block that finishes last adds up what the blocks have left, always in the same order.
    __shared__ bool last;
    if (threadIdx.x == 0) {
        of_block[blockIdx.x] = value;
        __threadfence();
        last = atomicAdd(&blocks_done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    value = 0.0f;
    for (int i = threadIdx.x; i < gridDim.x; i += THREADS) value += __ldcg(&of_block[i]);
    value = sum_of_block(value);
    if (threadIdx.x == 0) {
        *y = value;
        blocks_done = 0;                               // ready for the next launch
    }
}
