"""One module per grammar library: compile a constraint, and a matcher with the room's semantics on top of it."""
