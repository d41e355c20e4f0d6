"""The grammar room: JSON schema, regex, EBNF, choice and structural tags, compiled to token bitmasks.

Imports kernels only. Empty so far: a request that asks for structured output is refused until then.
"""
