"""Numeric operations: each is a check-and-dispatch file here with bodies of the same name in reference/ and cpu/."""
