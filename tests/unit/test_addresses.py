"""No password is shown, and nothing else of an address is lost."""

import pytest

from fst_core.addresses import without_password


@pytest.mark.parametrize("scheme", ["http", "https", "postgresql+psycopg", "s3"])
@pytest.mark.parametrize("secret", ["ann:hunter2", "ann", ":hunter2", "ann:hunter2@x", "token"])
@pytest.mark.parametrize("rest", ["host:80/api", "127.0.0.1", "[::1]:9/a@b?c=d@e"])
@pytest.mark.parametrize("mark", ["***@", ""])
def test_a_password_is_hidden(scheme: str, secret: str, rest: str, mark: str) -> None:
    shown = without_password(f"at {scheme}://{secret}@{rest}", mark)
    assert shown == f"at {scheme}://{mark}{rest}"


@pytest.mark.parametrize(
    "address",
    [
        *("http://host/a@b", "http://host:80/a@b", "http://[::1]:9/a@b", "http://host:80?c=d@e"),
        *("sqlite:////home/me@work/mlflow.db", "file:/home/me@work", "./me@work/mlruns", ""),
    ],
)
def test_what_holds_none_is_shown_whole(address: str) -> None:
    assert without_password(address) == address


@pytest.mark.parametrize("secret", ["p/w", "p/w/x", "p?w", "p#w", "/w", "a12/3/5@6", "123456/7"])
@pytest.mark.parametrize("start", ["http://", "at http://", ""])
@pytest.mark.parametrize("mark", ["***@", ""])
def test_a_password_with_a_slash_is_hidden(start: str, secret: str, mark: str) -> None:
    if start or not secret.startswith("/"):
        shown = without_password(f"{start}ann:{secret}@host:80/api", mark)
        assert shown == f"{start}{mark}host:80/api"


def test_an_address_without_its_scheme_is_no_place_for_one_either() -> None:
    assert without_password("ann:hunter2@host/api") == "***@host/api"
