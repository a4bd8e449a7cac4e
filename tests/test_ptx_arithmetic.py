"""Every kind of arithmetic that the interpreter knows, against Python's integers and numpy's floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from traced_run import done, one


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def test_integer_arithmetic() -> None:
    names = ["a / b", "a % b", "a << (b & 63 & 31)", "a >> (b & 31)", "(int)((unsigned)a >> (b & 31))", "__mulhi(a, b)",
             "(int)__umulhi(a, b)", "__popc(a)", "__clz(a)", "(int)__brev(a)", "(int)__byte_perm(a, b, 0x5140)",
             "(int)__funnelshift_l(a, b, 7)", "(int)__funnelshift_r(a, b, 39)", "min(a, b)", "max(a, b)",
             "(int)min((unsigned)a, (unsigned)b)", "abs(a)", "a ^ ~b", "(int)((a & b) | (a ^ 3))", "a * b + a",
             "(int)(((long long)a * b) >> 16)", "(int)((unsigned)a / (unsigned)b)", "(short)a", "(int)(unsigned char)a",
             "a > b ? a : b - 1"]  # fmt: skip
    lines = "".join(f"z[{k} * 64 + i] = {e};" for k, e in enumerate(names))
    text = one("int i = threadIdx.x; int a = x[i], b = y[i];" + lines, "const int* x", "const int* y", "int* z")
    random = np.random.default_rng(1)
    x, y = random.integers(-(2**31), 2**31, (2, 64)).astype(np.int32)
    y[:16] = random.integers(1, 9, 16)
    x[:4], y[:4] = [0, -1, 2**31 - 1, 7], [3, 3, 1, -2]
    z = np.zeros((len(names), 64), np.int32)
    done(text, (1,), (64,), x, y, z)
    for i in range(64):
        a, b = int(x[i]), int(y[i])
        u, v = a % 2**32, b % 2**32
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        both = v << 32 | u
        picked = sum((both >> 8 * byte & 255) << 8 * n for n, byte in enumerate((0, 4, 1, 5)))
        want = [quotient, a - quotient * b, a << (b & 31), a >> (b & 31), u >> (b & 31), a * b >> 32, u * v >> 32,
                u.bit_count(), 32 - u.bit_length(), int(f"{u:032b}"[::-1], 2), picked,
                (both << 7) >> 32, both >> 7, min(a, b), max(a, b), min(u, v), abs(a), a ^ ~b, (a & b) | (a ^ 3),
                a * b + a, a * b >> 16, u // v, _signed(a, 16), u & 255, a if a > b else b - 1]  # fmt: skip
        got = [int(v) for v in z[:, i]]
        assert got == [_signed(w, 32) for w in want], (
            a,
            b,
            [n for n, g, w in zip(names, got, want, strict=True) if g != _signed(w, 32)],
        )


def test_long_integers_and_bit_fields() -> None:
    body = """int i = threadIdx.x; long long a = x[i], b = y[i]; unsigned f; int g; unsigned h;
        z[i] = __mul64hi(a, b); z[32 + i] = __umul64hi(a, b); z[64 + i] = a / b;
        z[96 + i] = (unsigned long long)a % 1000003;
        asm("bfe.u32 %0, %1, %2, %3;" : "=r"(f) : "r"((unsigned)a), "r"((unsigned)b & 31), "r"(7));
        asm("bfe.s32 %0, %1, %2, %3;" : "=r"(g) : "r"((int)a), "r"((int)b & 31), "r"(7));
        asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(h) : "r"((unsigned)b), "r"((unsigned)a), "r"(5), "r"(9));
        z[128 + i] = f; z[160 + i] = g; z[192 + i] = h;"""
    random = np.random.default_rng(2)
    x, y = random.integers(-(2**63), 2**63 - 1, (2, 32))
    y[:8] = [3, -3, 17, -1, 2**40, 5, -(2**33), 9]
    z = np.zeros((7, 32), np.int64)
    done(one(body, "const long long* x", "const long long* y", "long long* z"), (1,), (32,), x, y, z)
    for i in range(32):
        a, b = int(x[i]), int(y[i])
        u, v, low = a % 2**64, b % 2**64, a % 2**32
        position = b & 31
        count = min(7, 32 - position)
        field = low >> position & ((1 << 7) - 1)
        want = [a * b >> 64, u * v >> 64, abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1), u % 1000003, field,
                _signed(field, count) if count else 0, low & ~(511 << 5) | (b & 511) << 5]  # fmt: skip
        assert [int(w) for w in z[:, i]] == [_signed(w, 64) for w in want]


def test_floating_point() -> None:
    names = ["a + b", "a - b", "a * b", "a / b", "sqrtf(fabsf(a))", "fmaf(a, b, a)", "fminf(a, b)", "fmaxf(a, b)", "-a",
             "__frcp_rn(b)", "rintf(a)", "floorf(a)", "ceilf(a)", "truncf(a)", "(float)(int)a",
             "(float)(unsigned)fabsf(b)", "(float)((double)a * b)",
             "(a > b) ? a : b", "exp2f(a)", "a < b || a != a ? 1.f : 2.f", "__saturatef(a)",
             "copysignf(a, b)", "(float)__float2int_rn(a)", "rsqrtf(fabsf(b))"]  # fmt: skip
    lines = "".join(f"z[{k} * 64 + i] = {e};" for k, e in enumerate(names))
    text = one("int i = threadIdx.x; float a = x[i], b = y[i];" + lines, "const float* x", "const float* y", "float* z")
    random = np.random.default_rng(3)
    x, y = (random.standard_normal((2, 64)) * 10).astype(np.float32)
    x[0], y[1], x[2] = np.nan, np.nan, 0.5
    z = np.zeros((len(names), 64), np.float32)
    done(text, (1,), (64,), x, y, z)
    f, d = np.float32, np.float64
    whole = np.nan_to_num(np.trunc(x))
    want = [x + y, x - y, x * y, x / y, np.sqrt(np.abs(x)), (x.astype(d) * y + x).astype(f), np.fmin(x, y),
            np.fmax(x, y), -x, 1 / y, np.rint(x), np.floor(x), np.ceil(x), np.trunc(x), whole,
            np.nan_to_num(np.trunc(np.abs(y))), (x.astype(d) * y).astype(f), np.where(x > y, x, y), np.exp2(x),
            np.where((x < y) | np.isnan(x), f(1), f(2)),
            np.where(np.isnan(x), 0, np.clip(x, 0, 1)), np.copysign(x, y), np.nan_to_num(np.rint(x)),
            1 / np.sqrt(np.abs(y))]  # fmt: skip
    for name, got, expected in zip(names, z, want, strict=True):
        assert np.allclose(got, expected, rtol=3e-7, atol=0, equal_nan=True), name


def test_half_precisions_alone_and_in_pairs() -> None:
    body = """int i = threadIdx.x; unsigned a = x[i], b = y[i], c;
        asm("fma.rn.f16x2 %0, %1, %2, %1;" : "=r"(c) : "r"(a), "r"(b)); z[i] = c;
        asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(v[i]), "r"(w[i])); z[32 + i] = c;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(c) : "f"(f[i]), "f"(f[i + 1])); z[64 + i] = c;
        unsigned short h; float back;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f[i])); asm("cvt.f32.f16 %0, %1;" : "=f"(back) : "h"(h));
        g[i] = back;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f[i])); asm("cvt.f32.bf16 %0, %1;" : "=f"(back) : "h"(h));
        g[32 + i] = back;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(c) : "f"(f[i])); g[64 + i] = __uint_as_float(c);"""
    random = np.random.default_rng(4)

    def brief(a: Any) -> Any:  # to bf16 and back, by another way: round the integer quotient
        bits = a.astype(np.float32).view(np.uint32).astype(np.uint64)
        rest, kept = bits & 0xFFFF, bits >> 16
        kept += (rest > 0x8000) | ((rest == 0x8000) & (kept % 2 == 1))
        return kept.astype(np.uint16)

    def long(bits: Any) -> Any:
        return (bits.astype(np.uint32) << 16).view(np.float32)

    x, y = random.standard_normal((2, 64)).astype(np.float16)
    v, w = (brief(random.standard_normal(64)) for _ in range(2))
    f = random.standard_normal(33).astype(np.float32)
    z, g = np.zeros((3, 32), np.uint32), np.zeros((3, 32), np.float32)
    text = one(body, *(f"const unsigned* {n}" for n in "xyvw"), "const float* f", "unsigned* z", "float* g")
    done(text, (1,), (32,), *(a.view(np.uint32) for a in (x, y, v, w)), f, z, g)
    fused = (x.astype(np.float64) * y + x).astype(np.float16)
    assert np.array_equal(z[0].view(np.float16), fused)
    assert np.array_equal(z[1].view(np.uint16), brief(long(v) + long(w)))
    assert np.array_equal(z[2].view(np.uint16).reshape(32, 2), np.stack([brief(f[1:]), brief(f[:-1])], axis=1))
    assert np.array_equal(g[0], f[:32].astype(np.float16).astype(np.float32))
    assert np.array_equal(g[1], long(brief(f[:32])))
    assert np.abs(g[2] / f[:32] - 1).max() <= 2.0**-11
    assert not (g[2].view(np.uint32) & 0x1FFF).any()


def test_directed_roundings_and_the_exponential() -> None:
    random = np.random.default_rng(3)
    a, b, c = random.standard_normal((3, 64)).astype(np.float32)
    found = np.zeros((5, 64), np.float32)
    text = one("""int i = threadIdx.x; z[i] = __fmaf_rz(a[i], b[i], c[i]); z[64 + i] = __fmaf_rd(a[i], b[i], c[i]);
        z[128 + i] = __fmaf_ru(a[i], b[i], c[i]); z[192 + i] = fmaf(a[i], b[i], c[i]); z[256 + i] = expf(a[i]);""",
               "const float* a", "const float* b", "const float* c", "float* z")  # fmt: skip
    done(text, (1,), (64,), a, b, c, found)
    exact = a.astype(np.float64) * b + c
    zero, down, up, near, exponential = found
    assert (np.abs(zero) <= np.abs(exact)).all()
    assert (down <= exact).all()
    assert (up >= exact).all()
    assert ((near == down) | (near == up)).all()
    assert (np.nextafter(down, np.float32(np.inf)) >= up).all()
    assert np.allclose(exponential, np.exp(a.astype(np.float64)), rtol=3e-7)
