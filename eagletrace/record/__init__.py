"""Runs inside the server: must never block it, raise into it or lose its place."""
