"""What can't be trained on or with."""

__all__ = ["TrainingError"]


class TrainingError(ValueError):
    """Data, recipe or folder that can't be used, named by file, line or field."""
