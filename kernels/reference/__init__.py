"""Torch bodies on any device: slow, obvious, the oracle of the compiled ones."""
