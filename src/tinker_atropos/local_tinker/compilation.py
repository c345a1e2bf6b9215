"""Where compiled programs are kept between starts, and how many threads compute: settled before JAX is imported."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import MutableMapping
from importlib.metadata import version
from pathlib import Path

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def processors(quota: str | None, available: int) -> int:
    """Processors this process may really use: a container's quota counts, not the node's cores."""
    if quota is not None:
        limit, _, period = quota.partition(" ")
        if limit.isdigit() and period.strip().isdigit():
            return max(1, min(available, round(int(limit) / int(period))))
    return max(1, available)


def fingerprint(cpu_flags: str) -> str:
    """Compiled code is good for one JAX and one kind of processor only."""
    parts = (version("jax"), version("jaxlib"), platform.machine(), cpu_flags)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _cpu_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def cache_folder(model: Path, data: Path) -> Path:
    """Beside the model where that can be written, so that every start finds it; else a copy in the data folder."""
    name = f"compiled-{fingerprint(_cpu_flags())}"
    beside = model / name
    if os.access(model, os.W_OK):
        return beside
    own = data / name
    if beside.is_dir() and not own.exists():
        shutil.copytree(beside, own)
    return own


def prepare(environment: MutableMapping[str, str]) -> None:
    """Environment of JAX: CPU only, threads as many as there really are processors."""
    quota = _CGROUP_QUOTA.read_text() if _CGROUP_QUOTA.exists() else None
    environment.setdefault("JAX_PLATFORMS", "cpu")
    environment.setdefault("NPROC", str(processors(quota, len(os.sched_getaffinity(0)))))
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def use_cache(folder: Path) -> None:
    """Keep every program, however quickly it compiled. Call before the first program runs."""
    import jax

    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # A cache of GPU tuning beside it would put the folder's path into every key: a copied cache would never be used.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
