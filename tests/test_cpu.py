import pytest

from program_support.processor import sums_of_bytes_saturate


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("processor : 0\nflags : fpu avx avx2 fma\n", True),
        ("flags : fpu avx2 avx512f avx512_vnni\nflags : fpu avx2\n", False),
        ("flags : fpu avx2 avx_vnni\n", False),
        ("Features : fp asimd asimddp\n", False),  # ARM
        ("", False),
    ],
)
def test_saturation(tmp_path, text, wanted):
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert sums_of_bytes_saturate(file) is wanted
    assert not sums_of_bytes_saturate(tmp_path / "missing")
