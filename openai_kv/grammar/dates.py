"""Dates that exist: the library's own formats let through the 29th of February of any year, and leap seconds."""

from collections.abc import Mapping
from typing import Any

LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
DATE = f"(?:[0-9]{{4}}-(?:(?:0[13-9]|1[0-2])-[0-9]{{2}}|02-(?:[01][0-9]|2[0-8]))|{LEAP_YEAR}-02-29)"
TIME = "[0-9]{2}:[0-9]{2}:[0-5]"
PATTERNS = {"date": f"^{DATE}$", "time": f"^{TIME}", "date-time": f"^{DATE}.{TIME}"}


def with_real_dates(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same schema, its formats of dates and times narrowed by a pattern."""
    pattern = PATTERNS.get(schema.get("format", ""))
    if pattern is None:
        return schema
    if "pattern" not in schema:
        return {**schema, "pattern": pattern}
    return {**schema, "allOf": [{"pattern": pattern}]}
