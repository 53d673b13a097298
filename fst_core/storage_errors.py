"""What the errors of an S3 store mean to a user, each in a sentence with the remedy."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from boto3.exceptions import Boto3Error
from botocore.exceptions import (
    ClientError,
    ConnectionError,
    EndpointResolutionError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    SSLError,
)

from fst_core.addresses import without_password

KEYS_REFUSED = {"403", "AccessDenied", "ExpiredToken", "Forbidden", "InvalidAccessKeyId"}
KEYS_REFUSED |= {"InvalidToken", "SignatureDoesNotMatch"}
REGION_REFUSED = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
REGION_REFUSED |= {"InvalidLocationConstraint", "InvalidRegion", "PermanentRedirect"}
ABSENT = {"404", "NoSuchKey", "NotFound"}
WHOLE = {"ListBuckets", "ListMultipartUploads", "ListObjectsV2", "PutObject"}
"""Operations on a bucket, not on an object that could be absent."""
CA_BUNDLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
"""Variables with a file of certificates; boto3 takes the first that is set."""
TOO_LONG = {"KeyTooLong", "KeyTooLongError"}
PASSING = {"OperationAborted", "RequestTimeout", "SlowDown", "Throttling"}
PASSING_STATUS = {408, 409, 429, 500, 502, 503, 504}
"""Refusals that another time may not bring; every other one stays until its cause is gone."""
OF_ADDRESSES = ("Invalid endpoint", "URL", "netloc")
"""What one of these is in, of the errors in settings, is about the server's address."""
NO_BUCKET = {"InvalidBucketName", "NoSuchBucket"}
BUCKET = re.compile(r"(?!\d+(\.\d+){3}$)[a-z0-9]([a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
"""S3's rules for the name of a bucket."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in which store something was tried."""

    url: str
    bucket: str
    address: Callable[[], str]
    """The server's, without a password; asked of a client that may not be there."""


def refused(error: ClientError, at: Place) -> str:
    """What to tell of a store's refusal."""
    code, said = code_of(error), error.response.get("Error", {}).get("Message", "")
    if code in KEYS_REFUSED:
        return (
            f"the store refuses {at.url} with these keys ({code}); set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY to keys that may read and write there"
        )
    if code in ABSENT and error.operation_name in WHOLE:
        return f"what answers at {at.address()} is no S3 store; correct AWS_ENDPOINT_URL_S3"
    if code in ABSENT:
        return f"an object that {at.url} should hold is not there; archive the run again"
    if code in REGION_REFUSED:
        return f"the store refuses the region ({said or code}); correct AWS_DEFAULT_REGION"
    if code == "NoSuchBucket" and BUCKET.fullmatch(at.bucket):
        return (
            f"there is no bucket {at.bucket} in the store; correct FST_STORE, or make it: "
            f"FST_STORE=s3://{at.bucket} python -m infra.bucket"
        )
    if code in NO_BUCKET:
        return _no_name(at.bucket)
    if code in TOO_LONG:
        return (
            f"{at.url} is too long for the store ({code}); shorten FST_STORE, or the run "
            "folder's name"
        )
    return (
        f"the store does not do {error.operation_name} in {at.url} ({code}: {said}); what is "
        f"local is intact, so {'try' if _may_pass(error) else 'put that right, then do'} the "
        f"same again{' later' if _may_pass(error) else ''}"
    )


def unreached(error: Exception, at: Place) -> str:
    """What to tell of a store that no answer came from."""
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return f"there are no keys for {at.url}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if isinstance(error, ParamValidationError):
        return _no_name(at.bucket)
    if isinstance(error, EndpointResolutionError):
        return no_endpoint(error)
    if isinstance(error, SSLError):
        return _insecure(error, at.address())
    if isinstance(error, ConnectionError | HTTPClientError | Boto3Error):
        aws = "AWS_DEFAULT_REGION, or " if ".amazonaws.com" in at.address() else ""
        return (
            f"the store of {at.url} does not answer at {at.address()}; start it (`make "
            f"services`) or correct {aws}AWS_ENDPOINT_URL_S3; what is local is intact, and the "
            "same again goes on where this stopped"
        )
    return f"the store of {at.url} cannot be used: {error}"


def _no_name(bucket: str) -> str:
    return (
        f"{bucket!r} is no bucket's name; correct the store's address: S3 takes 3 to 63 "
        "lowercase letters, digits, dots and hyphens, with a letter or digit at both ends, but "
        "no IP address"
    )


def _insecure(error: SSLError, address: str) -> str:
    given = [name for name in CA_BUNDLES if os.environ.get(name)]
    if given and not Path(bundle := os.environ[given[0]]).is_file():
        return f"{given[0]} = {bundle!r} is no file; correct it, or unset it"
    return (
        f"there is no secure connection to {address} ({error.kwargs['error']}); set "
        "AWS_CA_BUNDLE to a file with the certificate of who signed the store's, or "
        "AWS_ENDPOINT_URL_S3 to its http:// address"
    )


def no_endpoint(error: Exception) -> str:
    """What to tell of an address of the server that is none."""
    return (
        f"AWS_ENDPOINT_URL_S3 is no address ({without_password(str(error))}); write "
        "http://HOST:PORT or https://HOST:PORT"
    )


def _may_pass(error: ClientError) -> bool:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return code_of(error) in PASSING or status in PASSING_STATUS


def code_of(error: ClientError) -> str:
    """The code by which a store says why it refused."""
    return str(error.response.get("Error", {}).get("Code", ""))
