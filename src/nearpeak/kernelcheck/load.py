"""FILE[:NAME] and flags → a kernel that the checks can run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nearpeak.kernelcheck.declaration import choose, merge
from nearpeak.kernelcheck.kernel import Declaration, Kernel
from nearpeak.kernelcheck.source import Source, read_source

if TYPE_CHECKING:
    import torch


def load_kernel(
    file_and_name: str,
    flags: Mapping[str, Any],
    device: torch.device,
    arch: str | None = None,
    opencl: str | None = None,
) -> Kernel:
    """Read, compile or import, and load.

    flags: keys of a declaration (op, precision, grid, block, shared, args, require, constants, launch), as text or as
    `Declaration` holds them; None where not given. device: where the tensors lie; an OpenCL kernel's are always on the
    CPU. arch: such as "sm_90a", for CUDA. opencl: "cpu", "gpu" or a part of a device's name.
    Raises UserError for whatever the user can put right.
    """
    source = read_source(file_and_name)
    declaration = declaration_of(source, flags)
    if source.language == "CUDA":
        from nearpeak.kernelcheck.cuda_kernel import CudaKernel

        return CudaKernel(source, declaration, device, arch)
    if source.language == "OpenCL":
        from nearpeak.kernelcheck.opencl_devices import choose_device
        from nearpeak.kernelcheck.opencl_kernel import OpenClKernel

        return OpenClKernel(source, declaration, choose_device(opencl))
    from nearpeak.kernelcheck.python_kernel import CallableKernel, TritonKernel

    kind = TritonKernel if source.language == "Triton" else CallableKernel
    return kind(source, declaration, device)


def declaration_of(source: Source, flags: Mapping[str, Any]) -> Declaration:
    """The declaration of the source's kernel with the flags merged in; one of flags alone where the file has none."""
    assert source.name is not None
    if any(declaration.kernel == source.name for declaration in source.declarations):
        return merge(choose(source.declarations, source.name, str(source.path)), flags)
    return merge(Declaration(kernel=source.name), flags)
