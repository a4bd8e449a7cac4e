// nearpeak: kernel broken
// nearpeak: op copy
// nearpeak: grid ceil(n / 64)
// nearpeak: block 64
// nearpeak: args x, y, n
__kernel void broken(__global const float* x, __global float* y, int n) {
    int i = get_global_id(0);
    if (i < n) y[i] = x[i] + missing;
}
