"""Errors that are told in one sentence, without a traceback. Loads none of their modules."""

import errno

KNOWN_ERRORS = frozenset(
    {
        "fst_core.checkpoint.CheckpointError",
        "fst_core.config.model.ConfigError",
        "fst_core.environments.errors.DataError",
        "fst_core.fast.reflection.ReflectionError",
        "fst_core.journal.JournalError",
        "fst_core.policy.base.ContextTooLong",
        "fst_core.policy.base.EngineError",
        "fst_core.policy.memory.MemoryFull",
        "fst_core.remote.RemoteFailed",
        "fst_core.rollouts.JudgeError",
        "fst_core.run_folder.RunBusy",
        "fst_core.run_folder.RunMismatch",
        "fst_core.slow.base.TrainingDiverged",
        "fst_core.storage.StorageError",
        "fst_core.tracking.TrackingError",
    }
)
"""Errors whose message is a sentence for the user, by name: their modules may not be loaded."""
DISK_ERRORS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.EFBIG,
        errno.EIO,
        errno.ESTALE,
    }
)
"""A full or read-only disk, or a path that is not what it should be."""
OUT_OF_MEMORY = (
    "the GPU's memory is full: lower slow.micro_batch or slow.token_budget (training) or "
    "policy.batch_size (generation), then run the same command again; the last checkpoint is intact"
)


def sentence_for(error: BaseException) -> str | None:
    """What to tell of an error instead of its traceback; None for one nobody foresaw."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if names & KNOWN_ERRORS:
        return str(error)
    if any(name.endswith("OutOfMemoryError") for name in names):
        return OUT_OF_MEMORY
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; what was written is intact, so the run can go on later"
    return None
