"""The grammar room: JSON schema, regex, EBNF, choice and structural tags, compiled to token bitmasks.

Imports kernels only. `constraint` says what is asked, `plan` parses it and chooses a backend, `compiler` gives the
compiled grammar to any thread, `matcher` is what every backend's grammars do; `draft` and `budget` stand on matchers.
"""
