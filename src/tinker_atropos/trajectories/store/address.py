"""Where a store is, as one text, and its password, which must stand on no command line."""

from __future__ import annotations

from urllib.parse import quote, urlsplit, urlunsplit


def with_password(address: str, password: str | None) -> str:
    """The address of a Redis store with a password put in; a folder's path comes back unchanged.

    A password that the address has already is kept.
    """
    try:
        parts = urlsplit(address)
    except ValueError:
        return address  # who opens the store says what is wrong with it
    if not password or parts.scheme not in ("redis", "rediss") or "@" in parts.netloc:
        return address
    return urlunsplit(parts._replace(netloc=f":{quote(password, safe='')}@{parts.netloc}"))
