// y = x, each thread with a run of 32 words of its own, as one would share out work among CPU threads. On a GPU it is
// the wrong way: the threads of a warp run in step, so one instruction of a warp touches 32 words that lie 128 bytes
// apart, 32 sectors of memory for 128 bytes of data, and the caches must keep them all until their turn comes.
// What holds it back: the stride. copy_contiguous.cu hands out the same words in another order.
//
// nearpeak: kernel copy_strided
// nearpeak: op copy
// nearpeak: precision fp32
// nearpeak: grid ceil(n / 8192)
// nearpeak: block 256
// nearpeak: shared 0
// nearpeak: args x, y, n

constexpr int RUN = 32;

extern "C" __global__ void copy_strided(const float* x, float* y, int n) {
    long long first = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * RUN;
    for (int i = 0; i < RUN; ++i)
        if (first + i < n) y[first + i] = x[first + i];
}
