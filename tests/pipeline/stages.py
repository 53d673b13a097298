"""The stages of dvc.yaml as DVC reads them, repeated ones filled in."""

from dataclasses import dataclass
from pathlib import Path

from dvc.dependency.param import ParamsDependency
from dvc.repo import Repo


@dataclass(frozen=True, slots=True)
class Declared:
    """What a stage runs, reads and writes; paths relative to the root."""

    commands: tuple[str, ...]
    deps: frozenset[str]
    params: dict[str, frozenset[str]]
    """Keys by file."""
    outs: frozenset[str]


def declared(root: Path) -> dict[str, Declared]:
    """Every stage of a tree's dvc.yaml by name."""
    with Repo(str(root)) as repo:
        stages = [stage for stage in repo.index.stages if stage.cmd]
        return {stage.name: _declared(stage) for stage in stages}


def _declared(stage) -> Declared:
    params = [dep for dep in stage.deps if isinstance(dep, ParamsDependency)]
    return Declared(
        commands=(stage.cmd,) if isinstance(stage.cmd, str) else tuple(stage.cmd),
        deps=frozenset(dep.def_path for dep in stage.deps if dep not in params),
        params={dep.def_path: frozenset(dep.params) for dep in params},
        outs=frozenset(out.def_path for out in stage.outs),
    )
