"""A run and its study, read from a TOML file with an arm and overrides."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fst_core.config.explain import explain
from fst_core.config.model import ConfigError
from fst_core.config.overrides import override
from fst_core.config.run import RunConfig
from fst_core.config.study import ARMS, StudyConfig
from fst_core.config.sweeps import swept_arms
from fst_core.config.tables import merge


def _resolve(data: dict[str, Any], arm: Mapping[str, Any], overrides: list[str]) -> dict[str, Any]:
    """File, then overrides, then the arm; overrides of tables whose type the arm kept win again.

    So `--set fast.metric_calls=64` speaks to every arm with that fast part, and leaves alone the
    arms that have none.
    """
    for assignment in overrides:
        if assignment.partition("=")[0].strip() == "arm":
            raise ConfigError("an arm is chosen with --arm, not with --set arm=...")
        data = override(data, assignment)
    resolved = merge(data, arm)
    for assignment in overrides:
        table = assignment.partition("=")[0].strip().split(".")[0]
        if _type_of(resolved.get(table)) == _type_of(data.get(table)):
            resolved = override(resolved, assignment)
    own_seed = str(resolved.get("seed", 0))
    for holder in (resolved, resolved.get("contexts")):
        start = holder.get("start_from") if isinstance(holder, dict) else None
        if isinstance(holder, dict) and isinstance(start, str):
            holder["start_from"] = start.replace("{seed}", own_seed)
    return resolved


def _own_arms(path: str | Path, arms: Any) -> dict[str, dict[str, Any]]:
    """The file's [arms.NAME] tables, which may change anything but who a run is."""
    if not isinstance(arms, dict) or not all(isinstance(a, dict) for a in arms.values()):
        raise ConfigError(
            f"{path}: arms must be tables of settings, one for each arm, under [arms.NAME]"
        )
    for name, changes in arms.items():
        taken = sorted({"arm", "seed", "name", "study"} & changes.keys())
        if taken:
            raise ConfigError(
                f"{path}: [arms.{name}] cannot set {', '.join(taken)}, which no arm changes; write "
                "it above all tables, or give it on the command line"
            )
    return arms


def _type_of(table: Any) -> Any:
    return table.get("type") if isinstance(table, Mapping) else None


def _read(path: str | Path) -> dict[str, Any]:
    """What a file says; a byte order mark, which some editors write, is left out."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); name a TOML file of a run or a study"
        ) from error
    except ValueError as error:  # of the bytes, or of the path
        raise ConfigError(f"{path}: no text in UTF-8 ({error}); save it as that") from error
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        hint = (
            "; text stands in quotes, and a setting that is null is left out"
            if str(error).startswith("Invalid value")
            else ""
        )
        raise ConfigError(f"{path}: not valid TOML ({error}){hint}") from error


def load_config(
    path: str | Path, arm: str | None = None, overrides: Iterable[str] = ()
) -> tuple[RunConfig, StudyConfig]:
    """Read a TOML file, apply an arm and `key.path=value` overrides.

    Returns:
        The resolved run and the study the file describes, its sweeps' arms among its arms.

    Raises:
        ConfigError: with one sentence naming the file, the key and the reason.
    """
    data = _read(path)
    arms = {**ARMS, **_own_arms(path, data.pop("arms", {}))}
    changes = list(overrides)
    study = _study(path, _resolve(data, {}, changes).get("study", {}))
    try:
        swept = swept_arms(study.sweeps, arms)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    chosen = arm or data.get("arm", "fst")
    known = ", ".join(sorted({*arms, *swept}))
    if not isinstance(chosen, str) or chosen not in {*arms, *swept}:
        raise ConfigError(f"{path}: no arm {chosen!r}; known arms: {known}")
    unknown = [name for name in study.arms if name not in {*arms, *swept}]
    if unknown:
        raise ConfigError(
            f"{path}: study.arms names unknown arms: {', '.join(unknown)}; known arms: {known}"
        )
    if study.base not in arms:
        own = ", ".join(sorted(arms))
        raise ConfigError(
            f"{path}: study.base names an unknown arm: {study.base}; known arms: {own}"
        )

    def run_of(name: str) -> RunConfig:
        kept = arms[study.base if name in swept else name]
        resolved = _resolve({**data, "arm": name}, kept, changes)
        resolved.pop("study", None)
        source = f"{path}: arm {name}" if name in swept else str(path)
        return _run(source, merge(resolved, swept.get(name, {}), (RunConfig,)))

    return run_of(chosen), _with_sweeps(study, swept, run_of)


def _study(path: str | Path, data: Any) -> StudyConfig:
    try:
        return StudyConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, str(path), data, StudyConfig, "study")) from error


def _run(source: str, data: dict[str, Any]) -> RunConfig:
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, source, data, RunConfig)) from error


def _with_sweeps(
    study: StudyConfig, swept: Iterable[str], run_of: Callable[[str], RunConfig]
) -> StudyConfig:
    """The study with its base and every swept arm that is another run than the base's."""
    if not study.sweeps:
        return study
    base = run_of(study.base)
    runs = {name: run_of(name).model_copy(update={"arm": base.arm}) for name in swept}
    more = [study.base, *(name for name, run in runs.items() if run != base)]
    added = [name for name in more if name not in study.arms]
    return study.model_copy(update={"arms": (*study.arms, *added)})
