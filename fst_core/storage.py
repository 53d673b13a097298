"""Objects in an S3 store: sent in parts that are taken up again, and checked on both ways.

The store's address and keys come from boto3's own variables (AWS_ENDPOINT_URL_S3,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_DEFAULT_REGION). boto3's transfer manager cannot go on
with an interrupted upload, so large ones are made here: what `list_parts` shows of the same content
is not sent again. The store checks every part against the SHA-256 taken of the file before.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, InvalidRegionError

from fst_core.addresses import without_password
from fst_core.content import PART_BYTES, Content, base64_of, ranges
from fst_core.storage_errors import (
    ABSENT,
    OF_ADDRESSES,
    Place,
    code_of,
    no_endpoint,
    refused,
    unreached,
)

AT_ONCE = 4
"""Parts in flight, each held in memory."""
CLIENT = Config(
    connect_timeout=5,
    read_timeout=60,
    retries={"mode": "standard", "total_max_attempts": 3},
    request_checksum_calculation="when_required",  # ours are given explicitly
    response_checksum_validation="when_required",
    max_pool_connections=2 * AT_ONCE,
)
GIVEN = {
    "endpoint_url": "AWS_ENDPOINT_URL_S3",
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "region_name": "AWS_DEFAULT_REGION",
}
UNKEPT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What the XML of a store's answers cannot hold, and what is no UTF-8."""
Progress = Callable[[int], None]
"""Told how many more bytes have gone over."""


class StorageError(RuntimeError):
    """A store that cannot be used; the message says why and what to do. Nothing is lost by it."""


class ManifestChanged(RuntimeError):
    """Another process has written the object since it was read."""


class Store:
    """The objects below one address.

    Args:
        env: where the store's address and keys stand, if not in this process's environment.
    Raises:
        StorageError: from every method, if the store cannot be used.
    """

    def __init__(self, url: str, env: Mapping[str, str] | None = None):
        scheme, _, rest = url.partition("://")
        bucket, _, path = rest.partition("/")
        if "@" in bucket or (":" in bucket and "@" in path):
            raise StorageError(
                "the address of a store holds no keys: write s3://BUCKET/PREFIX, and set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        if scheme != "s3" or not bucket:
            shown = without_password(url)
            raise StorageError(f"{shown!r} is no address of a store; write s3://BUCKET/PREFIX")
        if UNKEPT.search(url) or not {".", ".."}.isdisjoint(path.split("/")):
            raise StorageError(
                f"{url!r} is no address of a store: no part of it may be . or .., hold a control "
                "character or be other than UTF-8; correct FST_STORE, or the run folder's name"
            )
        self.bucket, self.prefix = bucket, path.strip("/")
        self.url = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        self._given = {} if env is None else {name: env.get(key) for name, key in GIVEN.items()}

    @cached_property
    def _client(self) -> Any:
        try:
            session = boto3.Session()  # the default one would keep the first keys for good
            return session.client("s3", config=CLIENT, **self._given)
        except InvalidRegionError as error:
            region = error.kwargs["region_name"]
            raise StorageError(
                f"{region!r} is no name of a region; set AWS_DEFAULT_REGION to one, say us-east-1"
            ) from error
        except ValueError as error:
            if any(word in str(error) for word in OF_ADDRESSES):
                raise StorageError(no_endpoint(error)) from error
            raise StorageError(
                f"boto3 makes no client for {self.url} ({error}); correct that value in the "
                "variables that begin with AWS_, or in AWS's config file"
            ) from error

    def read(self, name: str) -> tuple[bytes, str] | None:
        """An object and its version (ETag), or None."""
        with self._told():
            try:
                found = self._client.get_object(Bucket=self.bucket, Key=self._key(name))
                return found["Body"].read(), found["ETag"]
            except ClientError as error:
                if code_of(error) in ABSENT:
                    return None
                raise

    def write(self, name: str, data: bytes, version: str | None) -> None:
        """Replace the version that was read; None if there was none.

        Raises:
            ManifestChanged: if it is no longer the one in the store.
        """
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        checksum = base64_of(hashlib.sha256(data).digest())
        with self._told():
            try:
                self._client.put_object(
                    Bucket=self.bucket,
                    Key=self._key(name),
                    Body=data,
                    ChecksumSHA256=checksum,
                    **condition,
                )
            except ClientError as error:
                if code_of(error) in {"PreconditionFailed", "ConditionalRequestConflict", "412"}:
                    raise ManifestChanged(name) from error
                raise

    def names(self, below: str = "") -> dict[str, int]:
        """Every object whose name begins so, and its size."""
        start = self._key("")
        with self._told():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=self._key(below)
            )
            found = [entry for page in pages for entry in page.get("Contents", [])]
        return {entry["Key"].removeprefix(start): entry["Size"] for entry in found}

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects; those that are not there are no error."""
        for start in range(0, len(names), 1000):
            some = [{"Key": self._key(name)} for name in names[start : start + 1000]]
            with self._told():
                answer = self._client.delete_objects(
                    Bucket=self.bucket, Delete={"Objects": some, "Quiet": True}
                )
            for failed in answer.get("Errors", []):
                raise StorageError(f"{failed['Key']} cannot be removed: {failed['Message']}")

    def upload(
        self, stem: str, leaf: str, descriptor: int, content: Content, progress: Progress
    ) -> str:
        """Send an open file under a name of its own, STEM-XXXXXXXX/LEAF; check what arrived.

        An upload of the same stem that was interrupted is taken up where it stopped: one stem
        stands for one content.
        """
        name = f"{_fresh(stem)}/{leaf}"
        if len(content.parts) > 1:
            begun = self._unfinished(stem)
            name, upload = begun[0] if begun else (name, self._begin(name))
            try:
                with self._told():
                    self._send_parts(name, upload, descriptor, content, progress)
            except _UploadGone:  # another process has finished or ended it meanwhile
                if self.names(name).get(name) != content.size:
                    return self.upload(stem, leaf, descriptor, content, progress)
        else:
            with self._told():
                self._client.put_object(
                    Bucket=self.bucket,
                    Key=self._key(name),
                    Body=os.pread(descriptor, content.size, 0),
                    ChecksumSHA256=content.checksum,
                )
            progress(content.size)
        self._verify(name, content)
        return name

    def download(self, name: str, path: Path, sha256: str, progress: Progress) -> None:
        """Fetch an object into a file that is as it was sent, and on disk."""
        with self._told():
            self._client.download_file(
                self.bucket,
                self._key(name),
                str(path),
                Callback=progress,
                Config=TransferConfig(max_concurrency=AT_ONCE, multipart_chunksize=PART_BYTES),
            )
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        if found != sha256:
            path.unlink()
            self._refuse_damaged(name, f"SHA-256 {found}, sent was {sha256}")

    def forget_uploads(self, below: str, kept: Callable[[str], bool]) -> None:
        """End unfinished uploads whose name begins so and that nobody wants to go on with."""
        for name, upload in self._unfinished(below):
            if not kept(name):
                with self._told():
                    self._client.abort_multipart_upload(
                        Bucket=self.bucket, Key=self._key(name), UploadId=upload
                    )

    def make_bucket(self) -> None:
        """Make the bucket, if it is not there."""
        with self._told():
            if self.bucket not in [b["Name"] for b in self._client.list_buckets()["Buckets"]]:
                self._client.create_bucket(Bucket=self.bucket)

    def check(self) -> None:
        """Read, write and remove, so that what is wrong is found before a run needs it."""
        self.names(".check")
        name = _fresh(".check")
        self.write(name, b"", None)
        self.remove([name])

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def _begin(self, name: str) -> str:
        with self._told():
            answer = self._client.create_multipart_upload(
                Bucket=self.bucket, Key=self._key(name), ChecksumAlgorithm="SHA256"
            )
        return str(answer["UploadId"])

    def _unfinished(self, below: str) -> list[tuple[str, str]]:
        start = self._key("")
        with self._told():
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=self._key(below)
            )
            found = [entry for page in pages for entry in page.get("Uploads", [])]
        return sorted((entry["Key"].removeprefix(start), entry["UploadId"]) for entry in found)

    def _send_parts(
        self, name: str, upload: str, descriptor: int, content: Content, progress: Progress
    ) -> None:
        place = {"Bucket": self.bucket, "Key": self._key(name), "UploadId": upload}
        pages = self._client.get_paginator("list_parts").paginate(**place)
        there = {part["PartNumber"]: part for page in pages for part in page.get("Parts", [])}

        def send(number: int, start: int, length: int) -> dict[str, Any]:
            data, sha256 = os.pread(descriptor, length, start), content.parts[number - 1]
            part = there.get(number)
            if part is None or not _same(part, data, sha256):
                part = self._client.upload_part(
                    **place, PartNumber=number, Body=data, ChecksumSHA256=sha256
                )
            progress(length)
            return {"PartNumber": number, "ETag": part["ETag"], "ChecksumSHA256": sha256}

        pool = ThreadPoolExecutor(AT_ONCE)
        try:
            places = enumerate(ranges(content.size), 1)
            futures = [pool.submit(send, number, *place_) for number, place_ in places]
            parts = [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)
        self._client.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})

    def _verify(self, name: str, content: Content) -> None:
        place = {"Bucket": self.bucket, "Key": self._key(name)}
        with self._told():
            found = self._client.head_object(**place, ChecksumMode="ENABLED")
            checksum = found.get("ChecksumSHA256")
            if checksum is None:  # a store that keeps none: read it all back
                body = self._client.get_object(**place)["Body"]
                digest = hashlib.sha256()
                for data in body.iter_chunks(1 << 20):
                    digest.update(data)
                checksum = content.checksum if digest.hexdigest() == content.sha256 else "another"
        if found["ContentLength"] != content.size or checksum != content.checksum:
            self.remove([name])
            self._refuse_damaged(name, f"{found['ContentLength']} bytes, checksum {checksum}")

    def _refuse_damaged(self, name: str, found: str) -> NoReturn:
        raise StorageError(
            f"{self.url}/{name} is damaged ({found}); nothing local has changed: archive the run "
            "again from a folder that is whole"
        )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what boto3 raises into a sentence."""
        try:
            yield
        except ClientError as error:
            if code_of(error) == "NoSuchUpload":
                raise _UploadGone from error
            raise StorageError(refused(error, self._place)) from error
        except (BotoCoreError, Boto3Error) as error:
            raise StorageError(unreached(error, self._place)) from error

    @property
    def _place(self) -> Place:
        return Place(self.url, self.bucket, self._address)

    def _address(self) -> str:
        return without_password(self._client.meta.endpoint_url)


class _UploadGone(Exception):
    """The upload that was to be gone on with is not there."""


def make_bucket(bucket: str, env: Mapping[str, str]) -> None:
    """Make a bucket, if it is not there, with an address and keys as in the environment.

    Raises:
        StorageError: if it cannot be made.
    """
    Store(f"s3://{bucket}", env).make_bucket()


def _same(part: Mapping[str, Any], data: bytes, sha256: str) -> bool:
    """Whether a part in the store is this one; its ETag is an MD5, where it has no SHA-256."""
    if part["Size"] != len(data):
        return False
    if "ChecksumSHA256" in part:
        return bool(part["ChecksumSHA256"] == sha256)
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return bool(part["ETag"].strip('"') == md5)


def _fresh(stem: str) -> str:
    return f"{stem}-{secrets.token_hex(4)}"
