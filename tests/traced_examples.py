"""The example kernels with the geometry and sizes at which the tests look at them; traced by addresses alone."""

from __future__ import annotations

from functools import cache

from nearpeak.kernelcheck.ptx import parse
from nearpeak.kernelcheck.trace import trace
from nearpeak.kernelcheck.trace_memory import AddressOnly
from nearpeak.kernelcheck.trace_records import Launch, Trace
from ptx_compile import example

N, SIDE, WORDS = 4096, 8192, 1 << 26
_PRODUCT = ("a", "b", "c")


def _launch(name: str, n: int) -> Launch:
    square, image, words = AddressOnly(n * n * 4), AddressOnly(SIDE * SIDE * 4), AddressOnly(WORDS * 4)
    product = (square, square, square, n, n, n)
    launches = {
        "matmul_1_plain": Launch((n // 16, n // 16), (16, 16), product, _PRODUCT),
        "matmul_2_along_rows": Launch((n // 16, n // 16), (16, 16), product, _PRODUCT),
        "matmul_3_shared_tiles": Launch((n // 32, n // 32), (32, 32), product, _PRODUCT),
        "matmul_4_register_tiles": Launch((n // 128, n // 128), (256,), product, _PRODUCT),
        "transpose_uncoalesced": Launch((SIDE // 32, SIDE // 8), (32, 8), (image, image, SIDE, SIDE), ("x", "y")),
        "transpose_tiled": Launch((SIDE // 32, SIDE // 32), (32, 8), (image, image, SIDE, SIDE), ("x", "y")),
        "copy_strided": Launch((WORDS // 8192,), (256,), (words, words, WORDS), ("x", "y")),
        "copy_contiguous": Launch((WORDS // 8192,), (256,), (words, words, WORDS), ("x", "y")),
        "sum_structures": Launch((1056,), (256,), (AddressOnly(WORDS * 32), AddressOnly(4), WORDS), ("x", "y")),
        "sum_arrays": Launch((1056,), (256,), (words, AddressOnly(4), WORDS), ("x", "y")),
    }
    return launches[name]


@cache
def traced(name: str, n: int = N) -> Trace:
    module = parse(example(name))
    result = trace(module, next(iter(module.kernels)), _launch(name, n))
    assert result.stopped is None
    return result
