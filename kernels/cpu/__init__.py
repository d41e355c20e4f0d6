"""Compiled CPU bodies (`_C`): optional, loaded only through `decodex.kernels.backend`."""
