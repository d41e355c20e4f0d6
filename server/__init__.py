"""The server room: OpenAI-compatible HTTP server and its web page.

Imports decodex. Empty so far: the engine is used through the Python API and the command line.
"""
