// Step 1: the kernel everyone writes first. One thread computes one output: a row of A times a column of B.
// It is right, and slow: threadIdx.x runs down the ROWS, so the 32 threads of a warp, which the GPU serves
// together, read 16 different rows of A and write 16 different rows of C. Each such access fetches a whole
// 32-byte sector from memory and uses 4 bytes of it.
// What holds it back: the access pattern. Step 2 changes nothing else.
//
// nearpeak: kernel matmul_plain
// nearpeak: op matmul
// nearpeak: precision fp32
// nearpeak: grid ceil(m / 16), ceil(n / 16)
// nearpeak: block 16, 16
// nearpeak: shared 0
// nearpeak: args a, b, c, m, n, k

extern "C" __global__ void matmul_plain(const float* a, const float* b, float* c, int m, int n, int k) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    int column = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[(size_t)row * k + i] * b[(size_t)i * n + column];
    c[(size_t)row * n + column] = sum;
}
