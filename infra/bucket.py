"""Make the bucket of FST_STORE where it is not there yet: `python -m infra.bucket`."""

import os
import sys
from urllib.parse import urlsplit

from fst_core.storage import StorageError, make_bucket


def main() -> None:
    """Make the bucket, with the address and keys that clients of the store read."""
    bucket = urlsplit(os.environ.get("FST_STORE", "")).netloc
    if not bucket:
        sys.exit("error: FST_STORE names no bucket; set it to s3://BUCKET/PREFIX")
    try:
        make_bucket(bucket, os.environ)
    except KeyError as missing:
        sys.exit(f"error: {missing.args[0]} is not set; the store at FST_STORE needs it")
    except StorageError as error:
        sys.exit(f"error: the bucket {bucket} cannot be made: {error}")


if __name__ == "__main__":
    main()
