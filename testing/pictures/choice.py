"""Which part of oncegate one needs: a table, and its picture."""

from testing.pictures.drawing import box, document, text

CHOICES = (
    ("HTTP requests, to a service in any language", "gateway", "a process in front of it"),
    ("HTTP requests, to one FastAPI or Starlette app", "middleware", "around the app; no further process"),
    ("HTTP requests that may be answered 202, and done later", "asynchronous route", "a stream, and a worker for it"),
    ("Calls of a function: jobs, scripts, tasks", "function", "@idempotent around it"),
    ("Messages of a broker, with effects anywhere", "hook", "around the handler of a consumer"),
    ("Messages, or calls, that change a database", "inbox", "its key in the change's own transaction"),
)
"""What comes in, the part for it, and what that is."""
TITLE = "Which part do you need?"
_ROW, _WIDTH = 52, 940


def draw() -> str:
    """The picture: one screen."""
    parts = [text(20, 26, TITLE, "name start"), text(20, 56, "What can come twice", "start")]
    for number, (comes, part, what) in enumerate(CHOICES):
        y = 70 + number * _ROW
        middle = y + 19
        parts += [
            box(20, y, 400, 38),
            text(34, middle + 5, comes, "start"),
            f'<path class="arrow" d="M420 {middle}H466"/>',
            f'<path class="head" d="M470 {middle}l-9 -4v8z"/>',
            box(470, y, 160, 38, "act"),
            text(550, middle + 5, part, "name"),
            text(646, middle + 5, what, "start"),
        ]
    described = " ".join(f"{comes}: {part}, {what}." for comes, part, what in CHOICES)
    return document(TITLE, described, _WIDTH, 80 + _ROW * len(CHOICES), parts)
