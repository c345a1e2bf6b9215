"""Tests on a cluster that are told side by side: most of a run's minute is waiting for programs that start.

    @story
    def test_a_run_of_some_kind(space: Namespace) -> None: ...

The function gets a namespace of its own and runs in a thread. The fixture `stories` of tests/cluster/conftest.py begins
all stories of the session at once; the test then only waits for its own end and fails as it failed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable

from real_cluster import Namespace, RealCluster

Tell = Callable[[Namespace], None]
_TELL = "tell"


class Stories:
    """Those of one session."""

    def __init__(self, cluster: RealCluster, tells: Iterable[Tell]) -> None:
        self._cluster = cluster
        self._failed: dict[Tell, BaseException] = {}
        # Daemons: an interrupted session takes the cluster away under them and does not wait.
        self._threads = {tell: threading.Thread(target=self._run, args=(tell,), daemon=True) for tell in tells}
        for thread in self._threads.values():
            thread.start()

    def _run(self, tell: Tell) -> None:
        try:
            with self._cluster.namespace() as space:
                try:
                    tell(space)
                except Exception as error:
                    error.add_note(space.state())  # which is gone when somebody reads the report
                    raise
        except BaseException as error:
            self._failed[tell] = error

    def end(self, tell: Tell) -> None:
        """Wait for it, and fail (or be skipped) as it did."""
        self._threads[tell].join()
        if tell in self._failed:
            raise self._failed[tell]

    def all_over(self) -> None:
        """Wait for all, however they end."""
        for thread in self._threads.values():
            thread.join()


def story(tell: Tell) -> Callable[[Stories], None]:
    """The test of a story."""

    def test(stories: Stories) -> None:
        stories.end(tell)

    functools.update_wrapper(test, tell)
    del test.__wrapped__  # type: ignore[attr-defined]  # pytest would look there for the fixtures
    test.__annotations__ = {"stories": Stories}
    setattr(test, _TELL, tell)
    return test


def told_by(functions: Iterable[object]) -> list[Tell]:
    """The stories among test functions."""
    return [getattr(function, _TELL) for function in functions if hasattr(function, _TELL)]
