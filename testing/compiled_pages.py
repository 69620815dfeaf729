"""Imported, it has compiled the console's templates: in the process that gateways are forked from, and not in each of them."""

from oncegate.app.operators.console import console  # noqa: F401  # with all that its pages import
from oncegate.app.operators.console.frame import Templates

Templates("", ())
