"""Imports of large libraries in threads, one at a time.

The Tinker SDK, transformers and the hub's client stand on the same libraries. Two threads that import them at the same
time may see half of a module, and the gateway would not start for it.
"""

from __future__ import annotations

import threading

IMPORTING = threading.Lock()
"""Held while one is imported, or while transformers imports the parts of itself that a tokenizer needs."""
