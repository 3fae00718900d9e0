"""The one error that bad data raises, and the check of a flag."""


class DataError(ValueError):
    """Report a file, folder or recording that cannot be used; the message names it and says what to do.

    Example:
        >>> issubclass(DataError, ValueError)
        True
    """


def check_flag(name: str, value: object) -> None:
    """Raise ValueError unless ``value`` is True or False: any other word would count as true.

    Example:
        >>> check_flag("sparse", False)
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: True or False; write {name}=True")


__all__ = ["DataError", "check_flag"]
