"""What keeps batches from being made as the run asks: refused posts, environments short of their share, groups that do
not pack.

It judges by what the ledger knows and by what this process saw being cut; nothing of it is durable, for it shows again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tinker_atropos.trajectories.ledger import Ledger
from tinker_atropos.trajectories.packing import Candidate, Queue
from tinker_atropos.trajectories.refusals import Refusals, named

PASSED_OVER = 10
"""So many batches in a row that took younger groups of the same environment make a starving group."""

SHARE = "CannotSupplyShare"
PACKING = "GroupsDoNotPack"
REFUSED = "PostsRefused"


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that somebody should know of."""

    reason: str
    environment: str
    """"" = the whole run."""
    message: str

    @property
    def key(self) -> tuple[str, str]:
        return self.reason, self.environment


class Starvation:
    """What starves now, and what was known to starve before."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self.warnings: tuple[Complaint, ...] = ()
        self._passed: dict[tuple[str, int], tuple[int, int]] = {}
        """Oldest group of each environment and size, and how many batches passed it over."""

    def batch_cut(self, queue: Queue, taken: Iterable[Candidate]) -> None:
        """A new batch was made of these groups; `queue` is what is left."""
        newest: dict[str, int] = {}
        for candidate in taken:
            newest[candidate.environment] = max(candidate.number, newest.get(candidate.environment, 0))
        before, self._passed = self._passed, {}
        for key, head in queue.heads().items():
            known, times = before.get(key, (head, 0))
            if known != head:
                times = 0
            self._passed[key] = (head, times + (head < newest.get(key[0], 0)))

    def look(self, ledger: Ledger, now: float) -> list[Complaint]:
        """Bring `warnings` up to date; those that are new."""
        known = {warning.key for warning in self.warnings}
        short = {environment for reason, environment in known if reason == SHARE}
        size = ledger.settings.group_size or 1
        found = self._refused(ledger)
        found += [
            Complaint(SHARE, name, message)
            for name, message in sorted(ledger.mix.complaints(ledger.shares(), size, short).items())
        ]
        if ledger.blocked_since is not None and now - ledger.blocked_since >= ledger.patience:
            found.append(Complaint(PACKING, "", ledger.waiting_for()))
        found += self._starving(ledger)
        self.warnings = tuple(found)
        return [warning for warning in found if warning.key not in known]

    def _refused(self, ledger: Ledger) -> list[Complaint]:
        return [
            Complaint(
                REFUSED,
                name,
                f"{refused.count} post{'s' if refused.count > 1 else ''} of {named(name)} "
                f"{'were' if refused.count > 1 else 'was'} refused and {ledger.posted_by(name) or 'none'} taken; the "
                f"last refusal: {refused.last}",
            )
            for name, refused in sorted(self._refusals.current().items())
        ]

    def _starving(self, ledger: Ledger) -> list[Complaint]:
        sizes = ledger.queue.sizes()
        stuck: dict[str, list[int]] = {}
        for (environment, size), (_, times) in self._passed.items():
            if times >= PASSED_OVER and (environment, size) in sizes:
                stuck.setdefault(environment, []).append(size)
        return [
            Complaint(
                PACKING,
                environment,
                f"groups of environment {environment or '(no name)'} wait while younger ones are trained, because no "
                f"choice with them sums to {ledger.settings.batch_size} sequences: "
                + ", ".join(f"{sizes[environment, size]} of {size}" for size in sorted(found)),
            )
            for environment, found in sorted(stuck.items())
        ]
