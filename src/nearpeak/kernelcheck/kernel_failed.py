"""What can go wrong with a kernel once it runs: a verdict on the kernel, not on the user's command line."""

from __future__ import annotations


class KernelFailed(Exception):
    """The kernel broke while it ran. `context_lost`: nothing more can be run on the GPU by this process."""

    def __init__(self, message: str, context_lost: bool = False) -> None:
        super().__init__(message)
        self.context_lost = context_lost


class OutputRefused(Exception):
    """A callable gave something that is no plain result: a lazy tensor, one on another device, nothing at all.

    `slip` is a short name of what it did: "subclass", "device", "nothing", "count", "not a tensor".
    """

    def __init__(self, slip: str, message: str) -> None:
        super().__init__(message)
        self.slip = slip
