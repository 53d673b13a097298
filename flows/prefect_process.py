"""`prefect`, ending when the process that started it does, however that ends.

python -m flows.prefect_process server start ...
"""

import runpy

from fst_core.processes import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)
