"""What `python -m infra.bucket` says of an address; a store makes buckets in tests/e2e."""

import pytest

pytest.importorskip("boto3")

from fst_core.storage import Store
from infra import bucket


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "FST_STORE is not set; set it to s3://BUCKET/PREFIX"),
        ("nonsense", "FST_STORE names no bucket: 'nonsense' is no address of a store"),
        ("s3:///runs", "FST_STORE names no bucket: 's3:///runs' is no address of a store"),
        ("http://a/runs", "FST_STORE names no bucket: 'http://a/runs' is no address of a store"),
        (
            "s3://me:secret@a/runs",
            "FST_STORE names no bucket: the address of a store holds no keys",
        ),
        ("s3://[::1/runs", "the bucket [::1 cannot be made: the store of s3://[::1/runs does not"),
    ],
)
def test_what_is_no_bucket_is_told(url: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FST_STORE", url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "a-key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with pytest.raises(SystemExit) as ended:
        bucket.main()
    assert str(ended.value).startswith(f"error: {said}")
    assert "secret" not in str(ended.value)


def test_the_bucket_is_that_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setenv("FST_STORE", "s3://lab#1/runs/of/mine")
    monkeypatch.setattr(Store, "make_bucket", lambda store: made.append(store.bucket))
    bucket.main()
    assert made == ["lab#1"]
