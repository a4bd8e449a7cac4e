"""The one exception that means: the user's input is wrong; and any exception in one line."""


class UserError(Exception):
    """Wrong input: a clear line with the numbers in it, and what to do. The command line exits with code 2."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text that says anything; the name of its type where none does."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
