"""Names, aliases and a user's own files; every kind of bad file gives one clear sentence."""

import re
from pathlib import Path
from typing import Any

import pytest

from infercast.errors import FileFormatError, InputError, UnknownNameError
from infercast.hardware import gpu_from_driver_name, gpu_names, load, load_gpu

FULL = """\
architecture = "hopper"
sms = 200
boost_clock_mhz = 2000
sustained_clock_mhz = 1800
dram_gib = 100
dram_gb_per_s = 5000
l2_mib = 80
pcie_gb_per_s = 63
tdp_w = 900
"""


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    "name", ["h200-sxm", "H200-SXM", "h200_sxm", "h200 sxm", "h200", "H200", "NVIDIA H200", " h200 "]
)
def test_names_are_read_kindly(name: str) -> None:
    assert load_gpu(name) is load_gpu("h200-sxm")


def test_a_plain_name_reads_only_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for cached in (load._load_bundled, load.architectures, load._aliases):
        cached.cache_clear()
    read: list[object] = []
    real = load.read_data
    monkeypatch.setattr(load, "read_data", lambda file: (read.append(Path(file).name), real(file))[1])
    load_gpu("l40s")
    assert sorted(map(str, read)) == ["architectures.toml", "l40s.toml"]
    load_gpu("l40s")
    assert len(read) == 2


def test_an_unknown_name_offers_near_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'h20o'; did you mean .*h20.*known: a10,.*TOML file"):
        load_gpu("h20o")
    with pytest.raises(UnknownNameError, match="unknown GPU driver name 'NVIDIA Z9'"):
        gpu_from_driver_name("NVIDIA Z9")
    with pytest.raises(UnknownNameError):
        load_gpu("")


def test_boards_that_hold_a_higher_clock_than_they_are_rated_at_have_all_rates_of_it(tmp_path: Path) -> None:
    rated, held = (
        load_gpu(written(tmp_path, f"{FULL}{more}\n[tensor_tflops]\nbf16 = 1000\n", name))
        for more, name in (("", "rated.toml"), ("held_clock_mhz = 2200", "held.toml"))
    )
    assert (held.boost_clock, held.sustained_clock) == (2.2e9, rated.sustained_clock)
    for rate in ("fma_flops", "special_rate", "l2_bandwidth"):
        assert getattr(held, rate) == pytest.approx(1.1 * getattr(rated, rate))
    assert held.dense_flops("bf16") == pytest.approx(1.1e15)


def test_a_full_file_inherits_the_architecture(tmp_path: Path) -> None:
    path = written(tmp_path, FULL)
    for given in (path, str(path)):
        gpu = load_gpu(given)
        assert (gpu.name, gpu.title, gpu.vendor, gpu.compute_capability) == ("mine", "mine", "NVIDIA", "9.0")
        assert gpu.dense_flops("bf16") == 4096 * 200 * 2e9
        assert gpu.fma_flops == 2 * 128 * 200 * 2e9
        assert gpu.l2_bandwidth == 6144 * 2e9
        assert gpu.driver_bytes == round(0.985 * gpu.dram_bytes)
        assert (gpu.nvlink_bandwidth, gpu.gpus_per_node) == (0, 1)
        assert gpu.sources == ("described in mine.toml",)


def test_a_file_may_override_the_architecture(tmp_path: Path) -> None:
    more = "special_ops_per_sm_clock = 64\nl2_bytes_per_sm_clock = 16\ncompute_capability = '9.9'\n"
    gpu = load_gpu(written(tmp_path, FULL + more + "[tensor_flops_per_sm_clock]\nbf16 = 1000\n"))
    assert gpu.special_rate == 64 * 200 * 2e9
    assert gpu.l2_bandwidth == 16 * 200 * 2e9
    assert gpu.compute_capability == "9.9"
    assert gpu.tensor_flops == {"fp32": gpu.fma_flops, "bf16": 1000 * 200 * 2e9}


def test_three_lines_make_a_chip_that_does_not_exist(tmp_path: Path) -> None:
    base = load_gpu("h200-sxm")
    gpu = load_gpu(written(tmp_path, 'base = "H200"\ndram_gb_per_s = 9600\ndram_gib = 282\n', "h400.toml"))
    assert (gpu.name, gpu.aliases) == ("h400", ())
    assert gpu.dram_bandwidth == 2 * base.dram_bandwidth
    assert gpu.driver_bytes == 2 * base.driver_bytes
    assert (gpu.tensor_flops, gpu.l2_bandwidth) == (base.tensor_flops, base.l2_bandwidth)


def test_what_follows_from_a_changed_field_moves_with_it(tmp_path: Path) -> None:
    base = load_gpu("h200-sxm")
    more = 'base = "h200-sxm"\nsms = 264\nboost_clock_mhz = 915\n[tensor_tflops]\nfp4 = 5000\n'
    gpu = load_gpu(written(tmp_path, more + "[tensor_flops_per_sm_clock]\nint8 = 10\n"))
    assert gpu.sustained_fraction == pytest.approx(base.sustained_fraction)
    assert gpu.dense_flops("bf16") == pytest.approx(base.dense_flops("bf16"))  # twice the SMs at half the clock
    assert gpu.fma_flops == pytest.approx(base.fma_flops)
    assert gpu.dense_flops("fp4") == 5e15
    assert gpu.dense_flops("int8") == 10 * 264 * 915e6


def test_another_architecture_keeps_nothing_on_the_chip(tmp_path: Path) -> None:
    gpu = load_gpu(written(tmp_path, 'base = "h200-sxm"\narchitecture = "blackwell"\n'))
    assert gpu.dense_flops("fp4") == 32768 * gpu.sms * gpu.boost_clock
    assert (gpu.compute_capability, gpu.dram_bytes) == ("10.0", load_gpu("h200-sxm").dram_bytes)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sms = = 3", r"line 1: not valid TOML: .*"),
        (FULL + "sms = 3", r"line 10: not valid TOML: .*"),
        ("", r"missing architecture, sms, .*tdp_w \(or start from a bundled GPU"),
        (FULL.replace("sms = 200\n", ""), "missing sms "),
        (FULL + "tdp = 3", "unknown field 'tdp'; did you mean tdp_w\\? known: base, name"),
        (FULL.replace("200\n", '"many"\n', 1), "sms must be a positive whole number, not 'many'"),
        (FULL.replace("200\n", "9" * 400 + "\n", 1), "sms must be a positive whole number, not 999"),
        (FULL.replace("200\n", "1.5\n", 1), "sms must be a positive whole number, not 1.5"),
        (FULL.replace("200\n", "true\n", 1), "sms must be a positive whole number, not True"),
        (FULL.replace("= 100\n", "= -1\n"), "dram_gib must be a finite number of at least 0.0001, not -1"),
        (FULL.replace("= 100\n", "= true\n"), "dram_gib must be a finite number of at least 0.0001, not True"),
        (FULL.replace("= 100\n", "= nan\n"), "dram_gib must be a finite number of at least 0.0001, not nan"),
        (FULL.replace("= 100\n", "= inf\n"), "dram_gib must be a finite number of at least 0.0001, not inf"),
        (FULL.replace("= 900\n", "= 1e-300\n"), "tdp_w must be a finite number of at least 0.0001, not 1e-300"),
        (FULL.replace("= 900\n", "= 0\n"), "tdp_w must be a finite number of at least 0.0001, not 0"),
        (FULL + "nvlink_gb_per_s = -1", "nvlink_gb_per_s must be zero or a positive finite number, not -1"),
        (FULL + "aliases = 'one'", "aliases must be a list of non-empty strings, not 'one'"),
        (FULL + "title = ' '", "title must be a non-empty string, not ' '"),
        (FULL + "tensor_tflops = 3", "tensor_tflops must be a table of rates by format, not 3"),
        (
            FULL + "[tensor_tflops]\nbf61 = 1",
            "unknown field 'tensor_tflops.bf61'; did you mean bf16\\? known: tf32, bf16",
        ),
        (
            FULL + "[tensor_tflops]\nbf16 = '1'",
            "tensor_tflops.bf16 must be a finite number of at least 0.0001, not '1'",
        ),
        (FULL + "[tensor_tflops]\nfp8 = 1", "tensor_tflops must name bf16 or fp16"),
        (
            FULL.replace('"hopper"', '"hoper"'),
            "field 'architecture': unknown architecture 'hoper'; did you mean hopper",
        ),
        (FULL.replace("= 1800", "= 2100"), "sustained_clock_mhz 2100 is above boost_clock_mhz 2000"),
        (FULL + "pcie_topology = ['switch']", "pcie_topology must be one of"),
        (FULL + "cpu = 'grase'", "field 'cpu': unknown host 'grase'; did you mean grace"),
        (FULL + "driver_mib = 999999", "driver_mib 999999 is more than dram_gib 100 holds"),
        ('base = "h20o-sxm"', "field 'base': unknown bundled GPU 'h20o-sxm'; did you mean h200-sxm"),
    ],
)
def test_a_bad_file_gives_one_clear_sentence(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(FileFormatError, match=re.escape(str(path)) + "(: |, )" + problem) as caught:
        load_gpu(path)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for name, problem in [
        ("none.toml", "no such file"),
        ("folder.toml", "is a directory"),
        ("binary.toml", "not UTF-8"),
    ]:
        with pytest.raises(FileFormatError, match=rf"{name}: .*{problem}"):
            load_gpu(str(tmp_path / name))


@pytest.mark.parametrize("given", ["gpus/mine", "mine.toml", Path("h200-sxm")])
def test_what_looks_like_a_path_is_one(given: Any) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_gpu(given)


def test_bundled_files_stand_alone() -> None:
    assert all("base" not in load._bundled_table(name) for name in gpu_names())
