"""The steps by which a secret and an encryption key are introduced and replaced (docs/operations.md), as gateways' settings."""

import base64
import os
from typing import Any, Final

OLD: Final = "an old secret of 32 bytes or more"
NEW: Final = "a new secret of 32 bytes or more"
_K1, _K2 = (f"{name}:{base64.b64encode(os.urandom(32)).decode()}" for name in ("1", "2"))
STEPS: Final[list[dict[str, Any]]] = [
    {},
    {"secret": ("none", OLD), "encryption_keys": ("none", _K1)},
    {"secret": (OLD, "none"), "encryption_keys": (_K1,)},
    {"secret": OLD, "encryption_keys": (_K1, _K2)},
    {"secret": (OLD, NEW), "encryption_keys": (_K2, _K1)},
    {"secret": (NEW, OLD), "encryption_keys": (_K2, _K1)},
    {"secret": NEW, "encryption_keys": (_K2,)},
]
