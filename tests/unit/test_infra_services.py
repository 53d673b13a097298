"""Records of local services that are damaged or of other programs: a sentence, nothing ended."""

import argparse
import json
import os
from pathlib import Path

import pytest

from infra import services
from infra.processes import Started, members
from infra.servers import ServiceError, keys_path, store_keys

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
ENTRY = {"port": 21001, "s3_port": 21001, "pid": os.getpid(), "boot": BOOT, "began": 1}
DAMAGED = ["", "x", "null", "[]", '"s3"', '{"s3": {}}', '{"s3": 5}', '{"other": {}}']
DAMAGED += [json.dumps({"s3": ENTRY | wrong}) for wrong in ({"pid": 0}, {"pid": "a"}, {"port": 0})]


def record(home: Path, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / services.STATE).write_text(text)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_is_told_and_nothing_is_ended(text: str, tmp_path: Path) -> None:
    record(tmp_path, text)
    for act in (services.down, lambda home, names: services.up(home, names, {})):
        with pytest.raises(ServiceError, match=r"services\.json is damaged"):
            act(tmp_path, ["s3"])
    assert (tmp_path / services.STATE).read_text() == text


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_the_sessions_of_the_system_are_nobodys(pid: int) -> None:
    assert members(Started(pid, BOOT, 1)) == []


def test_down_makes_nothing_where_nothing_was_started(tmp_path: Path) -> None:
    assert services.down(tmp_path, ["s3"]) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["x", "{}", '{"identities": []}'])
def test_damaged_keys_are_told(text: str, tmp_path: Path) -> None:
    keys_path(tmp_path).parent.mkdir(parents=True)
    keys_path(tmp_path).write_text(text)
    with pytest.raises(ServiceError, match="remove it, and the store gets new keys"):
        store_keys(tmp_path)


def test_the_store_is_not_moved_from_under_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "alive", lambda _: True)
    record(tmp_path, json.dumps({"mlflow": ENTRY | {"port": 21002}}))
    with pytest.raises(ServiceError, match=f"seeks its store on port 21001.*--home {tmp_path}"):
        services.up(tmp_path, ["s3"], {"s3": 21003})
    with pytest.raises(ServiceError, match=f"already runs on port 21002.*--home {tmp_path}"):
        services.up(tmp_path, ["mlflow"], {"s3": 21001, "mlflow": 21004})


@pytest.mark.parametrize("text", ["s3=1,mlflow=1", "s3=0", "s3", "x=5"])
def test_ports_are_checked_when_they_are_read(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        services._port_choices(text)
