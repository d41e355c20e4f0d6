"""Tool calls: what a request may ask for, the constraint that makes it come true, and the parser that reads it."""
