"""What a caller did wrong, told apart from what broke here: only the first kind is the caller's to fix."""

from __future__ import annotations


class UserError(Exception):
    """The request can't be carried out as it is; the message names the field, the value and the fix."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
