"""Errors for the user: one message, no traceback."""


class UserError(Exception):
    """Something the user can fix. The message names field, value, what is allowed and where to change it."""


class ConfigError(UserError):
    """The configuration is not usable; raised before any job starts."""


class DataError(UserError):
    """Input data is missing, broken or not the data that the manifest describes."""


class CheckpointError(UserError):
    """No checkpoint can be trusted, or one belongs to another run."""
