"""JSON that is given on the command line or in a file."""

from __future__ import annotations

import json

from toril.errors import InvalidOption


def parse_json(text: str, field: str, remedy: str = 'quote it like \'{"to": "a@b.c"}\'') -> object:
    """Returns the value; raises InvalidOption for `field` if the text is not JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidOption(field, f"is not JSON: {error}", remedy) from None
