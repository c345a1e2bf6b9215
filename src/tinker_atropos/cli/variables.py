"""Environment variables that look like options of a program and are read by nothing: a slip that would go unseen.

Kubernetes puts variables of its own into pods, named after Services (`..._SERVICE_HOST`, `..._PORT=tcp://…`); those are
nobody's slip, and one that has the name of an option must not be taken for it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, MutableMapping

import click

from tinker_atropos.run.problems import nearest

PREFIX = "TINKER_ATROPOS_"
RUN_API = "RUN_API_"
"""The same for `run-api`."""
_OPERATOR = "operator"
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def drop_service_links(environ: MutableMapping[str, str], prefix: str = PREFIX) -> None:
    """Take Kubernetes' variables out, so that none of them is read as an option."""
    for name in [name for name, value in environ.items() if name.startswith(prefix) and _is_link(name, value)]:
        del environ[name]


def unread(
    environ: Mapping[str, str], subcommand: str, command: click.Command, subcommands: Iterable[str]
) -> list[str]:
    """A sentence for each variable that was meant for this program, as far as one can tell, and is not read by it."""
    others = [prefix_of(name) for name in (*subcommands, _OPERATOR) if name != subcommand]
    return unread_of(environ, prefix_of(subcommand), f"tinker-atropos {subcommand}", command, others)


def unread_of(
    environ: Mapping[str, str], own: str, program: str, command: click.Command, others: Iterable[str] = ()
) -> list[str]:
    """The same for a program whose variables begin with `own`, those of other programs with one of `others`."""
    known = _known(own, command)
    said = []
    for name in sorted(environ):
        if name in known or _is_link(name, environ[name]) or name.startswith(tuple(others)):
            continue
        meant = _meant(name, own, known)
        if meant:
            said.append(f"the variable {name} is read by nothing; did you mean {meant}?")
        elif name.startswith(own):
            said.append(f"the variable {name} is read by nothing; see {program} --help for the options")
    return said


def prefix_of(subcommand: str) -> str:
    """How the variables of a subcommand's options begin."""
    return f"{PREFIX}{subcommand.replace('-', '_').upper()}_"


def _known(own: str, command: click.Command) -> set[str]:
    found: set[str] = set()
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name:
            found.add(f"{own}{parameter.name.upper()}")
            given = parameter.envvar or ()
            found.update([given] if isinstance(given, str) else given)
    return found


def _meant(name: str, own: str, known: set[str]) -> str | None:
    options = {variable.removeprefix(own): variable for variable in known if variable.startswith(own)}
    if name.startswith(own):
        near = nearest(name.removeprefix(own), options)
        return options[near] if near else None
    if name.startswith(PREFIX) and name.removeprefix(PREFIX) in options:
        return options[name.removeprefix(PREFIX)]  # without the program's name
    if not name.startswith(own.partition("_")[0]):
        return None
    close = difflib.get_close_matches(name, [variable for variable in known if variable.startswith(own)], 1, 0.92)
    return close[0] if close else None


def _is_link(name: str, value: str) -> bool:
    return bool(_SERVICE_LINK.search(name) or _ADDRESS.match(value))
