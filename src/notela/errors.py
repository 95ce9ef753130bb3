"""The one exception for mistakes that a user can mend: it names the value, the reason and the way out."""

import numbers


class NotelaError(ValueError):
    """Something handed to notela cannot be used as it is; the message says what to change."""


def check_integer(name: str, value: object, least: int) -> None:
    """Refuse anything but a whole number of at least `least`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise NotelaError(f"{name}={value!r} must be a whole number of at least {least}")


def check_at_least(name: str, value: object, least: float) -> None:
    """Refuse anything but a number of at least `least`; NaN too."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not float(value) >= least:
        raise NotelaError(f"{name}={value!r} must be a number of at least {least}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value outside `choices`, naming both."""
    if value not in choices:
        raise NotelaError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}")
