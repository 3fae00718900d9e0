"""The one error that bad data raises."""


class DataError(ValueError):
    """Report a file, folder or recording that cannot be used; the message names it and says what to do.

    Example:
        >>> issubclass(DataError, ValueError)
        True
    """
