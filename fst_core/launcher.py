"""`accelerate launch`, ending when the process that started it does, and its own ones with it.

What torch leaves in the folder for temporary files goes, too.

python -m fst_core.launcher --config_file FILE --num_processes N -m MODULE ...
"""

import os
import tempfile

from fst_core.processes import PARENT, end_with_parent
from fst_core.quiet import settle_environment


def main() -> None:
    """Launch what the command line says."""
    settle_environment()
    end_with_parent()
    os.environ[PARENT] = str(os.getpid())
    with tempfile.TemporaryDirectory(prefix="fst-launch-") as scratch:
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        from accelerate.commands.launch import main as launch  # noqa: PLC0415  (torch)

        launch()


if __name__ == "__main__":
    main()
