"""The error of a request, in the form that clients of OpenAI's API read."""

from typing import Any


class Refusal(Exception):
    """The request is answered with this HTTP status and message.

    `code` is OpenAI's name of the error where it has one, `parameter` the field of the request at fault.
    """

    def __init__(self, status: int, message: str, *, code: str = "", parameter: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.parameter = status, code, parameter

    def body(self) -> dict[str, Any]:
        """Return the error as JSON."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": str(self),
                "type": kind,
                "param": self.parameter or None,
                "code": self.code or None,
            }
        }
