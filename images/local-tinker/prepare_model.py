"""At image build: make the tiny model and compile what its first run needs, so that a pod answers at once.

Compiled programs fit one kind of processor; a pod on another kind finds none for its own and compiles as usual.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from tinker_atropos.local_tinker import compilation


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    compilation.prepare(os.environ)

    from tinker_atropos.local_tinker import tiny_model, tokenizer
    from tinker_atropos.local_tinker.config import read_config
    from tinker_atropos.local_tinker.engine import Engine
    from tinker_atropos.local_tinker.weights import load_weights

    folder = tiny_model.ensure(tiny_model.cache_directory())
    compilation.use_cache(compilation.cache_folder(folder, Path("/nowhere")))
    config = read_config(folder)
    engine = Engine(config, load_weights(folder, config), tokenizer.Vocabulary(folder).decode)
    shapes = engine.buckets
    for rows in shapes.sample_rows:
        engine.warm_up(shapes.lengths[0] - 1, rows, shapes.generation[0])
    for rows in shapes.rows:
        if rows * shapes.lengths[0] >= shapes.floor_tokens:  # smaller batches are padded to this size
            engine.warm_up_training(rows, shapes.lengths[0])


if __name__ == "__main__":
    main()
