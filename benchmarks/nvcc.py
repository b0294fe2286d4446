"""Compile many CUDA sources at a time, without a device.

nvcc takes seconds to read its headers, once per file. So programs with the same head (the text that
TVM writes before the first kernel) go into one file. If nvcc refuses this file, each half is
compiled alone, down to the faulty programs.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pruner.commands import Commands

_KERNEL = 'extern "C" __global__'
_NAME = re.compile(r"\bmain(_kernel\w*)")  # TVM names kernels after the function
_TOGETHER = 24  # programs a file
_LIMIT_S = 600.0  # for one file
_OPTIONS = (  # those of TVM's own calls (tvm/support/nvcc.py)
    "--cubin",
    "-O3",
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT16_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    "--use_fast_math",
    "--ptxas-options=--register-usage-level=10",
)


def compiled(sources: Mapping[str, str], arch: str) -> Iterator[dict[str, str | None]]:
    """Yield nvcc's verdicts, file by file: None, or the reason of refusal."""
    heads: dict[str, list[str]] = {}
    for name, source in sources.items():
        heads.setdefault(source.partition(_KERNEL)[0], []).append(name)
    for names in heads.values():
        for start in range(0, len(names), _TOGETHER):
            some = names[start : start + _TOGETHER]
            yield _verdicts({name: sources[name] for name in some}, arch)


def together(sources: Mapping[str, str]) -> str:
    """A single source from several with the same head, each with its own names of kernels."""
    out: list[str] = []
    for name, source in sources.items():
        head, kernel, rest = source.partition(_KERNEL)
        body = _NAME.sub(rf"{name}\1", kernel + rest)
        out += [] if out else [head]
        out.append(f'#line 1 "{name}"\n{body}')
    return "\n".join(out)


def _verdicts(sources: Mapping[str, str], arch: str) -> dict[str, str | None]:
    reason = _compile(together(sources), arch)
    if reason is None or len(sources) == 1:
        return dict.fromkeys(sources, reason)
    names = list(sources)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    first, second = ({name: sources[name] for name in half} for half in halves)
    return _verdicts(first, arch) | _verdicts(second, arch)


def _compile(text: str, arch: str) -> str | None:
    """Why nvcc refuses a source, in one line."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "programs.cu")
        source.write_text(text, encoding="utf-8")
        command = ["nvcc", *_OPTIONS, "-arch", arch, "-o", f"{folder}/out.cubin", str(source)]
        log = Path(folder, "log")
        code = Commands().run(command, log, limit_s=_LIMIT_S, patience_s=0.0)
        told = log.read_text(encoding="utf-8", errors="replace")
    if code is None:
        return f"longer than {_LIMIT_S:.0f} s"
    if code == 0:
        return None
    lines = [line.strip() for line in told.splitlines() if "error" in line]
    return (lines or told.strip().splitlines()[-1:] or [f"exit {code}"])[0]
