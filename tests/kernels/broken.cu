// nearpeak: kernel broken
// nearpeak: op copy
// nearpeak: grid ceil(n / 64)
// nearpeak: block 64
// nearpeak: args x, y, n
extern "C" __global__ void broken(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + missing;
}
