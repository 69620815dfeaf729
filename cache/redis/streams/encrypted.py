"""Encrypts a command in its stream's entry and in its dead letter: all but what workers and scripts need to route it.

In clear stay the command's id, the fingerprint, method, route and times. An entry can't be read as another command's: its id is
part of the address.
"""

from collections.abc import Mapping

import orjson

from oncegate.cache.encryption import Encryption
from oncegate.cache.errors import RecordUnreadable
from oncegate.cache.redis.streams.letter import ERROR
from oncegate.cache.redis.streams.stream import Fields, NotACommand

_TEXTS = (b"key", b"target", b"content-type", b"correlation", b"traceparent", b"headers", b"aggregate")
_ENCRYPTED, _BODY = b"encrypted", b"body"
_ERROR_ENCRYPTED = b"dead.encrypted"


def encrypted(fields: Fields, encryption: Encryption | None) -> Fields:
    """An entry's ``fields`` as they are written."""
    if encryption is None or not encryption.encrypts:
        return fields
    command = fields[b"command"]
    texts = {name.decode(): fields[name].decode("latin-1") for name in _TEXTS if name in fields}
    clear = {name: value for name, value in fields.items() if name not in _TEXTS}
    return clear | {
        _ENCRYPTED: encryption.encrypt(orjson.dumps(texts), _ENCRYPTED, command),
        _BODY: encryption.encrypt(fields[_BODY], _BODY, command),
    }


def encrypted_death(death: Fields, command: str, encryption: Encryption | None) -> Fields:
    """The fields that describe a death: its error's text may quote the command."""
    if encryption is None or not encryption.encrypts:
        return death
    kept = {name: value for name, value in death.items() if name != ERROR}
    return kept | {_ERROR_ENCRYPTED: encryption.encrypt(death[ERROR], ERROR, command.encode())}


def decrypted(fields: Mapping[bytes, bytes], encryption: Encryption | None) -> Fields:
    """The fields in clear, of an entry or of a dead letter. Raises `NotACommand` for what can't be opened."""
    opened = dict(fields)
    command = opened.get(b"command", b"")
    try:
        if (texts := opened.pop(_ENCRYPTED, None)) is not None:
            read: dict[str, str] = orjson.loads(_given(encryption).decrypt(texts, _ENCRYPTED, command))
            opened |= {name.encode(): value.encode("latin-1") for name, value in read.items()}
            opened[_BODY] = _given(encryption).decrypt(opened.get(_BODY, b""), _BODY, command)
        if (error := opened.pop(_ERROR_ENCRYPTED, None)) is not None:
            opened[ERROR] = _given(encryption).decrypt(error, ERROR, command)
    except RecordUnreadable as error:
        raise NotACommand(f"the entry can't be read: {error}") from None
    return opened


def shown(fields: Mapping[bytes, bytes], encryption: Encryption | None) -> Fields:
    """The same for people, who see the rest of what can't be opened."""
    try:
        return decrypted(fields, encryption)
    except NotACommand:
        return {name: value for name, value in fields.items() if name not in (_ENCRYPTED, _ERROR_ENCRYPTED, _BODY)}


def _given(encryption: Encryption | None) -> Encryption:
    if encryption is None:
        raise RecordUnreadable("it is encrypted, and encryption_keys are not set")
    return encryption
