// OpenCL kernels that are wrong, each in one way. Only there to be refused.
//
// nearpeak: kernel wrong_values
// nearpeak: op elementwise:square
// nearpeak: grid ceil(n / 64)
// nearpeak: block 64
// nearpeak: args x, y, n
//
// nearpeak: kernel multiples_of_16
// nearpeak: op matmul
// nearpeak: grid max(1, n // 16), max(1, m // 16)
// nearpeak: block 16, 16
// nearpeak: args a, b, c, m, n, k
//
// nearpeak: kernel out_of_bounds
// nearpeak: op copy
// nearpeak: grid ceil(n / 64)
// nearpeak: block 64
// nearpeak: args x, y, n

__kernel void wrong_values(__global const float* x, __global float* y, int n) {
    int i = get_global_id(0);
    if (i < n) y[i] = x[i] * x[i] * 1.01f;
}

__kernel void multiples_of_16(__global const float* a, __global const float* b, __global float* c, int m, int n, int k) {
    int column = get_global_id(0), row = get_global_id(1);
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k / 16 * 16; ++i) sum += a[row * k + i] * b[i * n + column];
    c[row * n + column] = sum;
}

__kernel void out_of_bounds(__global const float* x, __global float* y, int n) {
    int i = get_global_id(0);
    if (i <= n) y[i] = x[i < n ? i : n - 1];
}
