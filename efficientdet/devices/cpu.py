"""What the CPU's instructions can do."""

from pathlib import Path

_DOT_PRODUCTS = {"avx_vnni", "avx512_vnni", "amx_int8"}  # of bytes, summed in 32 bits


def sums_of_bytes_saturate(cpu_information: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether products of unsigned and signed bytes are added up in 16 bits, where two of them may be too much: an x86 CPU
    from before VNNI."""
    try:
        lines = cpu_information.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False  # no Linux
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return "avx2" in flags and not _DOT_PRODUCTS.intersection(flags)
