"""JSON schemas: parsed, bounded, rewritten exactly to one canonical form, and routed to a backend that honours it.

The door is `prepare.py`; each other file owns one kind of rewrite. Whatever cannot be expressed exactly is refused.
"""
