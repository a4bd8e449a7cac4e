// CUDA kernels that are right by luck: what they give is right, how they come to it is not.
//
// nearpeak: kernel reads_past_the_end
// nearpeak: op copy
// nearpeak: grid ceil(n / 64)
// nearpeak: block 64
// nearpeak: args x, y, n
//
// nearpeak: kernel races
// nearpeak: op copy
// nearpeak: grid ceil(n / 64)
// nearpeak: block 64
// nearpeak: args x, y, n

// The compiler must not leave out a read of which nothing is used, as a careless one would stay in a larger kernel.
extern "C" __global__ void reads_past_the_end(const float* x, float* y, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    float value;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(x + i));
    if (i < n) y[i] = value;
}

// Each thread reads what one of the other warp has written, and trusts to time instead of a barrier.
extern "C" __global__ void races(const float* x, float* y, int n) {
    __shared__ float tile[64];
    int t = threadIdx.x, other = 63 - t, first = blockIdx.x * 64;
    if (first + other < n) tile[other] = x[first + other];
    for (long long until = clock64() + 20000; clock64() < until;) {}
    if (first + t < n) y[first + t] = tile[t];
}
