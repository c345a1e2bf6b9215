"""The gateway and the trajectory server name a prompt alike: by it a post is known to belong to a rollout."""

from __future__ import annotations

import json

import numpy as np

from tinker_atropos.protocol.versions import PROMPT_DIGEST_SIZE, prompt_digest
from tinker_atropos.trajectories.posts import Limits, parse, read_post


def test_a_posted_prompt_has_the_digest_that_the_gateway_told() -> None:
    prompt, completion = [5, 6, 70_000, 8], [9, 10]
    group = {
        "tokens": [[*prompt, *completion], [*prompt, 11]],
        "masks": [[-100] * 4 + completion, [-100] * 4 + [11]],
        "scores": [1.0, 0.0],
    }
    post = read_post(parse(json.dumps(group).encode()), Limits(-1, -1, -1), None)
    told = prompt_digest(np.asarray(prompt, np.int32))
    assert post.prompt == told and len(told) == PROMPT_DIGEST_SIZE
    assert prompt_digest(np.asarray([5, 6], np.int32)) != told
