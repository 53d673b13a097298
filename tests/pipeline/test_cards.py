"""Cards of a host: no two processes share one, and a dead one gives its card back."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prefect import flow, get_client

from tasks import cards
from tasks.tries import Refused
from tests.runs import tiny_config

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from prefect import flow
from tasks.cards import cards_for
from tests.runs import tiny_config

@flow(name="holds a card")
def hold():
    with cards_for(tiny_config(policy={"device": "cuda"}), COUNT) as names:
        import os
        print(",".join(names), os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
        sys.stdin.readline()

hold()
"""


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A host of two cards and this test's own, as its locks are; its name."""
    monkeypatch.setenv(cards.FAKED, "2")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tasks.cards.socket.gethostname", lambda: tmp_path.name)
    return tmp_path.name


@contextmanager
def holder(host: str, count: int = 1) -> Iterator["subprocess.Popen[str]"]:
    """A process of a host that waits for cards, and holds them until it is told a line."""
    code = f"import socket; socket.gethostname = lambda: {host!r}\nCOUNT = {count}\n{HOLD}"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def told(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_runs_hold_different_cards_and_a_third_waits_for_one(prefect_api: str, host: str) -> None:
    """Also where a process is killed."""
    assert cards.make_limit(3) == f"gpu-{host}"  # the card itself is what the third lacks
    with holder(host) as first, holder(host) as second:
        assert {told(first), told(second)} == {"0 0", "1 1"}
        with holder(host) as third:
            free = "0 0" if (held := _card(first)) == "0" else "1 1"
            first.send_signal(signal.SIGKILL)
            assert told(third) == free, held


def _card(process: "subprocess.Popen[str]") -> str:
    """The card whose lock a process has open."""
    files = Path(f"/proc/{process.pid}/fd").iterdir()
    (lock,) = [target for file in files if (target := os.readlink(file)).endswith(".lock")]
    return Path(lock).stem


def test_the_slots_of_a_limit_are_waited_for(prefect_api: str, host: str) -> None:
    cards.make_limit(1)
    with holder(host) as first:
        told(first)
        with holder(host) as second:
            assert first.stdin is not None
            first.stdin.write("\n")
            first.stdin.flush()
            assert told(second) in {"0 0", "1 1"}
            assert first.wait(60) == 0
    with get_client(sync_client=True) as client:
        assert client.read_global_concurrency_limit_by_name(cards.limit_name()).limit == 1


def test_a_run_of_two_processes_holds_two_cards_and_waits_for_both(
    prefect_api: str, host: str
) -> None:
    cards.make_limit(2)
    with holder(host) as first:
        told(first)
        with holder(host, 2) as both:
            assert first.stdin is not None
            first.stdin.write("\n")
            first.stdin.flush()
            assert told(both) == "0,1 0,1"


def test_more_processes_than_cards_are_refused(prefect_api: str, host: str) -> None:
    cards.make_limit(2)

    @flow(name="needs three cards")
    def needs() -> None:
        with cards.cards_for(tiny_config(policy={"device": "cuda"}), 3):
            raise AssertionError("two cards are no three")

    with pytest.raises(Refused, match=f"3 processes need a card each, and {host} has 2 for them"):
        needs()


def test_a_missing_limit_is_told_with_its_remedy(
    prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.cards.socket.gethostname", lambda: "unknown-host")

    @flow(name="needs a card")
    def needs() -> None:
        with cards.cards_for(tiny_config(policy={"device": "cuda"})):
            raise AssertionError("no card without a slot")

    with pytest.raises(Refused, match=r"'gpu-unknown-host'.*python -m tasks.cards"):
        needs()


def test_which_cards_a_run_could_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def wanted(device: str) -> list[str]:
        return cards.wanted_cards(tiny_config(policy={"device": device}))

    assert wanted("cpu") == []
    assert wanted("auto") == wanted("cuda") == ["0", "1"]
    assert wanted("cuda:1") == ["1"]
    monkeypatch.setenv(cards.FAKED, "0")
    assert wanted("auto") == wanted("cuda") == []
    monkeypatch.delenv(cards.FAKED)
    monkeypatch.setattr("tasks.cards._present", lambda: ["GPU-a", "GPU-b", "GPU-c"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-a")
    assert cards.cards() == ["GPU-c", "GPU-a"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert cards.cards() == []


def test_a_host_without_cards_gets_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cards.FAKED, "0")
    assert cards.make_limit() is None
