"""The one exception for mistakes that a user can mend: it names the value, the reason and the way out."""


class NotelaError(ValueError):
    """Something handed to notela cannot be used as it is; the message says what to change."""


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value outside `choices`, naming both."""
    if value not in choices:
        raise NotelaError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}")
