"""Devices that are refused, and what those are called that compute."""

from pathlib import Path

import pytest
import torch

from fst_core.config.model import ConfigError
from fst_core.journal import read_events
from fst_core.policy import device
from fst_core.policy.device import device_name, pick_device
from fst_core.session import Session
from tests.runs import tiny_config

INTEL = (
    "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel: Xeon\n\nprocessor\t: 1\n"
)
ARM = "processor\t: 0\nCPU implementer\t: 0x41\n\nHardware\t: board\n"

DEVICES = [
    *("", "meta", "toaster", " cpu", "CPU", "cuda:x", "cuda:-1", "\0", "\ud800"),
    *("xla", "lazy", "vulkan", "hpu", "ipu", "mtia", "privateuseone", "fpga", "hip"),
]


@pytest.mark.parametrize("name", DEVICES)
def test_devices_of_no_use_are_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^policy\.device = .*; set "):
        pick_device(name)


@pytest.mark.parametrize(("present", "refused"), [(0, "cuda"), (0, "cuda:0"), (2, "cuda:2")])
def test_a_gpu_that_is_not_there_is_refused(
    present: int, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: present > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: present)
    with pytest.raises(ConfigError, match=f"policy.device = '{refused}': .*; set "):
        pick_device(refused)
    if present:
        assert pick_device("cuda:1") == torch.device("cuda:1")
        assert pick_device("auto") == torch.device("cuda")
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("told", "name"), [(INTEL, "Intel: Xeon (family 6, model 143)"), (ARM, "arch"), (None, "arch")]
)
def test_a_cpu_has_the_name_that_linux_gives_it(
    told: str | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what torch makes of it: the same chip computes otherwise with other instructions."""
    info = tmp_path / "cpuinfo"
    if told is not None:
        info.write_text(told)
    monkeypatch.setattr(device, "CPU_INFO", info)
    monkeypatch.setattr(device.platform, "machine", lambda: "arch")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert device_name(torch.device("cpu")) == f"{name}, AVX2"


def test_a_gpu_has_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {torch.device("cuda:1"): "NVIDIA H200"}
    monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)
    assert device_name(torch.device("cuda:1")) == "NVIDIA H200"


def test_a_run_says_where_it_was_begun(tmp_path: Path) -> None:
    with Session(tiny_config(policy={"device": "cpu"}), tmp_path / "run") as session:
        started = next(iter(read_events(session.journal.path)))
    assert started["device"] == device_name(torch.device("cpu"))
