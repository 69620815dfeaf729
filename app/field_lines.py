"""A field of HTTP as a line of a head, made by fewest instructions in each build; a head has five to ten of them.

Compiled, a format takes a third of a ``join``, for which the pair would be made a tuple again; from source it takes half as much
again as a ``join``, and a call in between would take more than either.
"""
# Compiled: docs/decisions/0012-compiled.md


def line_of(field: tuple[bytes, bytes]) -> bytes:
    """The line of a field, by its name and value, without the line's end."""
    return b"%b: %b" % (field[0], field[1])


if __file__.endswith(".py"):
    globals()["line_of"] = b": ".join
