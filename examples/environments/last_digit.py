"""The quick start's environment: small additions, rewarded when the answer's last digit is 7.

An ordinary Atropos environment. It shows the whole pattern: ask for `group_size` completions of one prompt through
`managed_server` (which keeps tokens, masks and logprobs aligned), score each, return the group.

    python last_digit.py serve --config environment.yaml     # what a run does
    python last_digit.py process --env.total_steps 3 …       # rollouts into a file, no trainer needed
"""

from __future__ import annotations

import random
import re
from typing import Any

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataGroup
from pydantic import Field

LAST_DIGIT = "7"


def reward(completion: str) -> float:
    """1 when the first line of the completion is a number that ends in 7, else 0."""
    line = completion.split("\n", maxsplit=1)[0].strip()
    number = re.fullmatch(r"\d+", line)
    return 1.0 if number and line.endswith(LAST_DIGIT) else 0.0


class LastDigitConfig(BaseEnvConfig):
    """Configuration keys of this environment beside Atropos' own."""

    largest: int = Field(default=49, ge=1, description="Largest summand.")
    seed: int | None = Field(default=None, description="Seed of the prompts; by default each instance draws its own.")


class LastDigitEnv(BaseEnv):
    """One prompt is `a+b=`."""

    name = "last-digit"
    env_config_cls = LastDigitConfig

    def __init__(
        self, config: LastDigitConfig, server_configs: list[APIServerConfig], slurm: bool = False, testing: bool = False
    ) -> None:
        super().__init__(config, server_configs, slurm, testing)
        self._largest = config.largest
        self._random = random.Random(config.seed)

    @classmethod
    def config_init(cls) -> tuple[LastDigitConfig, list[APIServerConfig]]:
        config = LastDigitConfig(
            tokenizer_name="tinker-atropos/tiny", group_size=16, max_token_length=8, use_wandb=False
        )
        return config, [
            APIServerConfig(model_name="tinker-atropos/tiny", base_url="http://127.0.0.1:8001/v1", api_key="x")
        ]

    async def setup(self) -> None:
        """Nothing to load: prompts are drawn, not read."""

    async def get_next_item(self) -> dict[str, Any]:
        a, b = self._random.randint(0, self._largest), self._random.randint(0, self._largest)
        return {"prompt": f"{a}+{b}="}

    async def collect_trajectories(self, item: dict[str, Any]) -> tuple[ScoredDataGroup, list[Any]]:
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            answer = await managed.completion(
                prompt=item["prompt"],
                n=self.config.group_size,
                max_tokens=self.config.max_token_length,
                temperature=1.0,
            )
            nodes = managed.get_state()["nodes"]
        group = ScoredDataGroup()
        group["tokens"] = [node.tokens for node in nodes]
        group["masks"] = [node.masked_tokens for node in nodes]
        group["inference_logprobs"] = [node.logprobs for node in nodes]
        group["scores"] = [reward(choice.text) for choice in answer.choices]
        return group, []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """The reward of training says it all."""


if __name__ == "__main__":
    LastDigitEnv.cli()
