"""The one exception that means: the user's input is wrong."""


class UserError(Exception):
    """Wrong input: a clear line with the numbers in it, and what to do. The command line exits with code 2."""
