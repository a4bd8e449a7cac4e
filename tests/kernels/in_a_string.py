"""CUDA source in a string, as PyCUDA's users write it. Must be read, never run."""

raise RuntimeError("this file was executed")

from pycuda.compiler import SourceModule  # noqa: E402

SOURCE = """
__global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    int column = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i)
        sum += a[row * k + i] * b[i * n + column];
    c[row * n + column] = sum;
}
"""
product = SourceModule(SOURCE).get_function("product")
