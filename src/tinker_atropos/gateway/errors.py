"""What a client did wrong, in the form in which OpenAI's servers say it."""

from __future__ import annotations


class RequestError(Exception):
    """The request cannot be served as it is. param: the JSON field, "" = none in particular."""

    def __init__(self, message: str, *, param: str = "", status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code

    def body(self) -> dict[str, object]:
        return error_body(self.message, self.status, param=self.param or None, code=self.code)


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def error_body(message: str, status: int, *, param: str | None = None, code: str | None = None) -> dict[str, object]:
    """OpenAI's error object."""
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
