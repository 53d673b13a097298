"""Make the bucket of FST_STORE where it is not there yet: `python -m infra.bucket`."""

import os
import sys

from fst_core.storage import StorageError, Store


def main() -> None:
    """Make the bucket, with the address and keys that clients of the store read."""
    named = os.environ.get("FST_STORE", "")
    if not named:
        sys.exit("error: FST_STORE is not set; set it to s3://BUCKET/PREFIX")
    try:
        store = Store(named)
    except StorageError as error:
        sys.exit(f"error: FST_STORE names no bucket: {error}")
    try:
        store.make_bucket()
    except StorageError as error:
        sys.exit(f"error: the bucket {store.bucket} cannot be made: {error}")


if __name__ == "__main__":
    main()
