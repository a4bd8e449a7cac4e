// y = x, the words of a block dealt out in turn: thread 0 the first, thread 1 the second, and after 256 again thread
// 0. One instruction of a warp touches one run of 128 bytes, four whole sectors. Same blocks, same work per thread as in
// copy_strided.cu.
// What still holds it back: nothing but memory itself; 16 bytes a thread instead of 4 would save instructions.
//
// nearpeak: kernel copy_contiguous
// nearpeak: op copy
// nearpeak: precision fp32
// nearpeak: grid ceil(n / 8192)
// nearpeak: block 256
// nearpeak: shared 0
// nearpeak: args x, y, n

constexpr int RUN = 32;

extern "C" __global__ void copy_contiguous(const float* x, float* y, int n) {
    long long first = (long long)blockIdx.x * blockDim.x * RUN + threadIdx.x;
#pragma unroll 8
    for (int i = 0; i < RUN; ++i) {
        long long at = first + i * (long long)blockDim.x;
        if (at < n) y[at] = x[at];
    }
}
