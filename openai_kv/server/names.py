"""Names of models: exact ones, and patterns in which * and ? are wild."""

from fnmatch import fnmatchcase


def is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def matches(model: str, pattern: str) -> bool:
    """Brackets are no pattern: they stand for themselves."""
    return fnmatchcase(model, pattern.replace("[", "[[]"))
