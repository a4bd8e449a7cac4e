"""Python functions that are wrong, each in one way. Only there to be refused.

nearpeak's checks import this file, each in a process of its own.
"""

import os
import random
import time

import torch

# nearpeak: kernel returns_nan
# nearpeak: op softmax
#
# nearpeak: kernel caches
# nearpeak: op matmul
#
# nearpeak: kernel sometimes_wrong
# nearpeak: op copy
# nearpeak: args x, y
#
# nearpeak: kernel hangs
# nearpeak: op copy
#
# nearpeak: kernel aborts
# nearpeak: op copy
#
# nearpeak: kernel undeclared

_kept: dict[tuple[int, int, tuple[int, ...]], torch.Tensor] = {}


def returns_nan(x: torch.Tensor) -> torch.Tensor:
    """0 ÷ 0 in the last row."""
    y = x.softmax(1)
    y[-1] *= float("nan")
    return y


def caches(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Looks at where the inputs lie, not at what they hold."""
    key = (a.data_ptr(), b.data_ptr(), (*a.shape, *b.shape))
    if key not in _kept:
        _kept[key] = a @ b
    return _kept[key].clone()


def sometimes_wrong(x: torch.Tensor, y: torch.Tensor) -> None:
    """Two threads that sometimes meet at one element."""
    y.copy_(x)
    if random.random() < 0.5:
        y[0] += 1


def hangs(x: torch.Tensor) -> torch.Tensor:
    while True:
        time.sleep(1)


def aborts(x: torch.Tensor) -> torch.Tensor:
    os.abort()


def undeclared(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
