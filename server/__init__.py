"""The server room: the OpenAI-compatible HTTP server. Imports decodex.

One request: `app` (routes) -> `service` (body, limits, errors) -> an endpoint such as `chat` (its fields, and those of
the table in `sampling`) -> `generation` (the engine's requests and their outputs) -> JSON, or events (`chunks`, `sse`).
"""
