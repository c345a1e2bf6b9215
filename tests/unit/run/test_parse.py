"""What a run file may say, and what is answered when it may not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tinker_atropos.run.parse import parse_spec
from tinker_atropos.run.problems import InvalidRunError

GOOD: dict[str, Any] = {
    "config": {
        "env": {"group_size": 4, "batch_size": 16, "tokenizer_name": "Qwen/Qwen3-8B"},
        "tinker": {"lora_rank": 8, "learning_rate": 1e-3, "loss_fn": "ppo"},
    },
    "tinkerAPI": {"keySecretRef": {"name": "tinker", "key": "api-key"}},
    "environments": [{"name": "gsm8k", "command": ["python", "env.py"]}],
}


def changed(path: str, value: object) -> dict[str, Any]:
    spec = copy.deepcopy(GOOD)
    *parents, last = path.split("/")
    target: Any = spec
    for part in parents:
        target = target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
    if isinstance(target, list):
        target[int(last)] = value
    else:
        target[last] = value
    return spec


def test_a_good_file_gives_no_warning() -> None:
    spec, warnings = parse_spec(GOOD)
    assert warnings == ()
    assert (spec.base_model, spec.checkpoint_interval, spec.max_steps_off_policy) == ("Qwen/Qwen3-8B", 0, 3)


REFUSED = {
    "batch size is no multiple of group size": (
        "config/env/batch_size",
        18,
        "config.env.batch_size: 18 is not a multiple of group_size 4; "
        "batch_size counts sequences and must be whole groups; use 16 or 20",
    ),
    "batch smaller than one group": ("config/env/batch_size", 2, "use 4"),
    "misspelt tinker key": (
        "config/tinker/learning_rat",
        1e-4,
        "config.tinker.learning_rat: unknown key; did you mean 'learning_rate'?",
    ),
    "far-off tinker key": ("config/tinker/zzz", 1, "config.tinker.zzz: unknown key; known keys: "),
    "misspelt top key": ("environmnts", [], "environmnts: unknown key; did you mean 'environments'?"),
    "snake case beside config": ("api_server", {}, "api_server: unknown key; did you mean 'apiServer'?"),
    "misspelt section": ("config/tinkr", {}, "config.tinkr: unknown key; did you mean 'tinker'?"),
    "misspelt environment key": (
        "environments/0/replica",
        2,
        "environments[0].replica: unknown key; did you mean 'replicas'?",
    ),
    "misspelt key of the Tinker API": (
        "tinkerAPI/baseUrl",
        "http://x",
        "tinkerAPI.baseUrl: unknown key; did you mean 'baseURL'?",
    ),
    "misspelt loss": (
        "config/tinker/loss_fn",
        "pppo",
        "config.tinker.loss_fn: 'pppo' is not known; did you mean 'ppo'?",
    ),
    "loss with its nearest name": (
        "config/tinker/loss_fn",
        "importance-sampling",
        "did you mean 'importance_sampling'?",
    ),
    "text for a number": ("config/env/group_size", "many", "config.env.group_size: 'many' is not a whole number"),
    "zero steps": ("config/env/total_steps", 0, "config.env.total_steps: 0 is too small; it must be at least 1"),
    "negative learning rate": (
        "config/tinker/learning_rate",
        -1.0,
        "config.tinker.learning_rate: -1.0 is too small; it must be more than 0",
    ),
    "a number that YAML does not know": (
        "config/tinker/learning_rate",
        "nan",
        "config.tinker.learning_rate: 'nan' is not a number",
    ),
    "no number": ("config/tinker/learning_rate", float("nan"), "config.tinker.learning_rate: nan is not a number"),
    "a number in quotes": ("config/tinker/learning_rate", "1e-3", "is not a number; write it without quotes"),
    "a whole number in quotes": ("config/env/group_size", "4", "'4' is not a whole number; write it without quotes: 4"),
    "true for a number": ("config/env/batch_size", True, "config.env.batch_size: true is not a whole number"),
    "yes for true": ("config/env/use_wandb", "yes", "'yes' is neither true nor false; write true or false"),
    "one letter wrong in a short name": ("config/tinker/loss_fn", "pp0", "'pp0' is not known; did you mean 'ppo'?"),
    "two letters swapped in a short name": ("config/evn", {}, "config.evn: unknown key; did you mean 'env'?"),
    "one letter too many": ("config/tinker/seeed", 1, "did you mean 'seed'?"),
    "a program in one text": (
        "environments/0/command",
        "python 'my env.py' --fast",
        "environments[0].command: \"python 'my env.py' --fast\" is text, not a list; write [python, my env.py, --fast]",
    ),
    "a number among the program's words": (
        "environments/0/command",
        ["sleep", 5],
        'environments[0].command[1]: 5 is not text; put it in quotes: "5"',
    ),
    "one environment instead of a list": (
        "environments",
        {"name": "a", "command": ["x"]},
        "environments: a mapping (key: value) is not a list; write '- ' before each of its items",
    ),
    "text for a section": ("config/env", "fast", "config.env: 'fast' is not a mapping (key: value)"),
    "a list for a section": ("config/tinker", [{}], "config.tinker: a list is not a mapping (key: value)"),
    "no endpoint": ("tinkerAPI", {}, "tinkerAPI: names no endpoint; give keySecretRef: {name: tinker}"),
    "a local model that is none": (
        "tinkerAPI",
        {"local": {"model": "tinny"}},
        "tinkerAPI.local.model: 'tinny' is no built-in model; did you mean 'tiny'?",
    ),
    "a folder without a slash": ("tinkerAPI", {"local": {"model": "mymodel"}}, "or a folder, such as ./mymodel"),
    "one text for the local server": ("tinkerAPI", {"local": "tiny"}, "write local: {model: tiny}"),
    "one text for the key": ("tinkerAPI", {"keySecretRef": "tinker"}, "write keySecretRef: {name: tinker}"),
    "one text for a claim": (
        "apiServer",
        {"store": {"volume": {"persistentVolumeClaim": "mine"}}},
        "write persistentVolumeClaim: {claimName: mine}",
    ),
    "an unknown volume": (
        "apiServer",
        {"store": {"volume": {"emptydir": {}}}},
        "apiServer.store.volume.emptydir: unknown key; did you mean 'emptyDir'?",
    ),
    "environment without command": ("environments/0", {"name": "a"}, "environments[0].command: is missing"),
    "environment with a bad name": (
        "environments/0/name",
        "A_b",
        "environments[0].name: 'A_b' is not valid; use lower-case letters, digits and, between them, '-'",
    ),
    "no environment": ("environments", [], "environments: "),
    "environment twice": (
        "environments",
        [{"name": "a", "command": ["x"]}, {"name": "a", "command": ["y"]}],
        "environments[1].name: 'a' stands twice; give each environment its own name",
    ),
    "local and a key": ("tinkerAPI/local", {"model": "tiny"}, "tinkerAPI: both local and keySecretRef are given"),
    "base URL that is none": (
        "tinkerAPI/baseURL",
        "example.org",
        "tinkerAPI.baseURL: 'example.org' is not valid; begin it with http:// or https://",
    ),
    "duration that is none": (
        "deadlines",
        {"startup": "soon"},
        "deadlines.startup: 'soon' is no duration; write it like",
    ),
    "two volumes": (
        "apiServer",
        {"store": {"volume": {"emptyDir": {}, "persistentVolumeClaim": {"claimName": "x"}}}},
        "apiServer.store.volume: holds emptyDir and persistentVolumeClaim; give exactly one",
    ),
    "Redis without an address": (
        "apiServer",
        {"store": {"type": "Redis"}},
        "apiServer.store.url: is missing for type Redis",
    ),
    "an address for the embedded store": (
        "apiServer",
        {"store": {"url": "redis://r"}},
        "apiServer.store.url: is given for type Embedded",
    ),
    "a password in the address": (
        "apiServer",
        {"store": {"type": "Redis", "url": "redis://:pw@r"}},
        "apiServer.store.url: 'redis://:pw@r' is not valid",
    ),
    "a number that 64 bits do not hold": (
        "config/env/total_steps",
        10**20,
        "config.env.total_steps: 100000000000000000000 is too large for a whole number",
    ),
    "half a step": ("config/env/total_steps", 2.5, "2.5 is not a whole number; write 2 or 3"),
    "a share in percent": ("environments/0/minBatchShare", "50%", "'50%' is not a number; write 0.5"),
    "a deadline as a number": ("deadlines", {"startup": 600}, "600 is no duration; write 600s, or like 10m or 1h30m"),
    "no time to start": ("deadlines", {"startup": "0s"}, "deadlines.startup: '0s' leaves no time; write it like 90s"),
    "a start that takes for ever": ("deadlines", {"startup": "9999999d"}, "'9999999d' is more than a year"),
    "a rank beyond reason": ("config/tinker/lora_rank", 5000000, "5000000 is too large; it must be at most 1024"),
    "an environment that begins nothing": (
        "config/env/max_num_workers",
        0,
        "config.env.max_num_workers: 0 lets no rollout begin; give the groups in flight of one instance, such as 24",
    ),
    "a Secret of a name that none can have": (
        "tinkerAPI",
        {"keySecretRef": {"name": "My Secret"}},
        "tinkerAPI.keySecretRef.name: 'My Secret' is no name of a Secret; use lower-case letters, digits, '-' and '.', "
        "such as my-secret",
    ),
    "a key that no Secret can have": (
        "tinkerAPI",
        {"keySecretRef": {"name": "tinker", "key": "api/key"}},
        "tinkerAPI.keySecretRef.key: 'api/key' is no key of a Secret; use letters, digits",
    ),
    "a claim of a name that none can have": (
        "apiServer",
        {"store": {"volume": {"persistentVolumeClaim": {"claimName": "My_Claim"}}}},
        "apiServer.store.volume.persistentVolumeClaim.claimName: 'My_Claim' is no name of a claim; use lower-case "
        "letters, digits, '-' and '.', such as my-claim",
    ),
    "an address without a host": ("tinkerAPI/baseURL", "http://", "tinkerAPI.baseURL: 'http://' names no host"),
    "an image with a scheme": (
        "environments/0/image",
        "https://ghcr.io/x/y:1",
        "environments[0].image: 'https://ghcr.io/x/y:1' is no name of an image; did you mean 'ghcr.io/x/y:1'?",
    ),
    "an image in capitals": ("environments/0/image", "ghcr.io/Me/Env:V1", "did you mean 'ghcr.io/me/env:V1'?"),
    "an image with a space": ("environments/0/image", "my image:1", "write it like registry.example.com/team/image:1"),
    "a program without a name": (
        "environments/0/command",
        ["", "x"],
        "environments[0].command: begins with empty text; name the program first, such as python",
    ),
    "an export to a volume and a bucket": (
        "apiServer",
        {"store": {"export": {"bucket": "s3://archive", "volume": {"persistentVolumeClaim": {"claimName": "a"}}}}},
        "apiServer.store.export: both volume and bucket are given; keep one",
    ),
    "an export to a folder of a bucket": (
        "apiServer",
        {"store": {"export": {"bucket": "s3://archive/", "path": "runs"}}},
        "apiServer.store.export.path: is only for volume; put it behind the bucket: s3://archive/runs",
    ),
    "an export to a volume with a Secret": (
        "apiServer",
        {"store": {"export": {"volume": {"persistentVolumeClaim": {"claimName": "a"}}, "secretRef": {"name": "s"}}}},
        "apiServer.store.export.secretRef: is only for bucket; leave it out, or give bucket: s3://my-bucket/runs",
    ),
    "a bucket alone": (
        "apiServer",
        {"store": {"export": "s3://archive/runs"}},
        "apiServer.store.export: 's3://archive/runs' is not a mapping (key: value); "
        "write export: {bucket: s3://archive/runs}",
    ),
    "a bucket of another scheme": (
        "apiServer",
        {"store": {"export": {"bucket": "gs://archive"}}},
        "apiServer.store.export.bucket: 'gs://archive' is not valid; write it like s3://my-bucket/runs",
    ),
    "a key of a Secret with all keys": (
        "apiServer",
        {"store": {"export": {"bucket": "s3://archive", "secretRef": {"name": "s", "key": "k"}}}},
        "apiServer.store.export.secretRef.key: unknown key; known keys: name",
    ),
    "minimum above maximum": (
        "environments/0",
        {"name": "a", "command": ["x"], "minBatchShare": 0.5, "maxBatchShare": 0.25},
        "environments[0].maxBatchShare: 0.25 is below the environment's minBatchShare 0.5; raise the one",
    ),
    "a share above 1": (
        "environments/0/minBatchShare",
        1.5,
        "environments[0].minBatchShare: 1.5 is ",
    ),
    "minimum shares above 1": (
        "environments",
        [{"name": "a", "command": ["x"], "minBatchShare": 0.7}, {"name": "b", "command": ["y"], "minBatchShare": 0.5}],
        "environments: the minimum shares (a 0.7, b 0.5) sum to 1.2; they may be at most 1",
    ),
    "minimum shares that do not fit in whole groups": (
        "environments",
        [{"name": n, "command": ["x"], "minBatchShare": 0.3} for n in ("a", "b", "c")],
        "environments: in whole groups of 4 the minimum shares need 24 sequences of each batch of 16 (a 8, b 8, c 8)",
    ),
    "maximum shares below a whole batch": (
        "environments",
        [{"name": n, "command": ["x"], "maxBatchShare": 0.34} for n in ("a", "b", "c")],
        "environments: in whole groups of 4 the maximum shares allow 12 sequences of a batch of 16 (a 4, b 4, c 4)",
    ),
    "a minimum said twice": (
        "environments/0",
        {"name": "a", "command": ["x"], "minBatchShare": 0.5, "config": {"min_batch_allocation": 0.25}},
        "environments[0].minBatchShare: 0.5 and environments[0].config.min_batch_allocation 0.25 differ; they are one",
    ),
    "a minimum that is no number": (
        "environments/0/config",
        {"min_batch_allocation": "half"},
        "environments[0].config.min_batch_allocation: 'half' is no share; give a number from 0 to 1",
    ),
    "text for a number in one environment": (
        "environments/0/config",
        {"max_num_workers": "many"},
        "environments[0].config.max_num_workers: 'many' is not a whole number",
    ),
    "too small a number in one environment": (
        "environments/0/config",
        {"max_batches_offpolicy": -1},
        "environments[0].config.max_batches_offpolicy: -1 is too small; it must be at least 0",
    ),
    "another group size in one environment": (
        "environments/0/config",
        {"group_size": 8},
        "environments[0].config.group_size: 8 differs from",
    ),
}


@pytest.mark.parametrize(("path", "value", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_with_field_value_and_fix(path: str, value: object, message: str) -> None:
    with pytest.raises(InvalidRunError) as caught:
        parse_spec(changed(path, value))
    assert message in str(caught.value)


def test_one_setting_given_twice_and_different_is_refused() -> None:
    spec = changed("config/tinker/save_checkpoint_interval", 5)
    spec["checkpoints"] = {"every": 10}
    with pytest.raises(InvalidRunError, match="they are one setting; keep one"):
        parse_spec(spec)
    spec["checkpoints"] = {"every": 5}
    assert parse_spec(spec)[0].checkpoint_interval == 5


def test_every_problem_is_named_at_once() -> None:
    spec = changed("config/tinker/lora_rnk", 4)
    spec["config"]["env"]["batch_size"] = "x"
    with pytest.raises(InvalidRunError) as caught:
        parse_spec(spec)
    assert [problem.field for problem in caught.value.problems] == ["config.tinker.lora_rnk", "config.env.batch_size"]


def test_a_model_that_the_local_server_does_not_have_is_refused() -> None:
    spec = changed("config/openai", [{"model_name": "Qwen/Qwen3-8B"}])
    spec["tinkerAPI"] = {"local": {"model": "tiny"}}
    with pytest.raises(InvalidRunError) as caught:
        parse_spec(spec)
    assert str(caught.value) == (
        "config.openai[0].model_name: 'Qwen/Qwen3-8B' is not what tinkerAPI.local serves; "
        "leave it out (the run then trains 'tinker-atropos/tiny'), or name the endpoint of that model"
    )


@pytest.mark.parametrize(
    ("model", "name"),
    [("tiny", "tinker-atropos/tiny"), ("./models/mine", "local/mine"), ("/models/mine/", "local/mine")],
)
def test_a_local_model_names_itself(model: str, name: str) -> None:
    assert parse_spec(changed("tinkerAPI", {"local": {"model": model}}))[0].base_model == name
    spec = changed("config/openai", [{"model_name": name}])
    spec["tinkerAPI"] = {"local": {"model": model}}
    assert parse_spec(spec)[0].base_model == name


WARNED = {
    "no config": ("config", None, "config: is missing, so every setting has its default"),
    "near miss of an environment key": (
        "config/env/ensure_scores_not_the_same",
        True,
        "did you mean 'ensure_scores_are_not_same'?",
    ),
    "near miss in one environment": (
        "environments/0/config",
        {"max_token_lenght": 9},
        "did you mean 'max_token_length'?",
    ),
    "W&B of a pasted file": ("config/tinker/wandb_project", "p", "Weights & Biases is off without a key"),
}


@pytest.mark.parametrize(("path", "value", "message"), WARNED.values(), ids=WARNED)
def test_accepted_with_a_warning(path: str, value: object, message: str) -> None:
    _, warnings = parse_spec(changed(path, value))
    assert len(warnings) == 1 and message in str(warnings[0])


ACCEPTED = {
    "an environment's own key": ("config/env/difficulties", ["easy"]),
    "a key of the environment alone": ("environments/0/config", {"my_setting": 1}),
    "server type in a pasted file": (
        "config/openai",
        [{"model_name": "m", "base_url": "http://x/v1", "server_type": "sglang"}],
    ),
    "slurm switch of a pasted file": ("config/slurm", False),
    "a Redis store": (
        "apiServer",
        {"store": {"type": "Redis", "url": "redis://redis:6379/0", "secretRef": {"name": "redis"}}},
    ),
    "shares of a batch": (
        "environments",
        [
            {"name": "a", "command": ["x"], "minBatchShare": 0.25, "maxBatchShare": 0.25},
            {"name": "b", "command": ["y"], "weight": 2, "minBatchShare": 0.75},
        ],
    ),
    "a claim as volume": ("apiServer", {"store": {"volume": {"persistentVolumeClaim": {"claimName": "x"}}}}),
}


@pytest.mark.parametrize(("path", "value"), ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_without_a_warning(path: str, value: object) -> None:
    assert parse_spec(changed(path, value))[1] == ()


def test_settings_that_two_halves_speak_of() -> None:
    spec = changed("config/env/inference_weight", 3.0)
    parsed, _ = parse_spec(spec)
    assert parsed.weight_of(parsed.environments[0]) == 3.0
    spec["environments"][0]["weight"] = 1.0
    parsed, _ = parse_spec(spec)
    assert parsed.weight_of(parsed.environments[0]) == 1.0

    spec = changed("config/env/min_batch_allocation", 0.25)
    spec["environments"] = [
        {"name": "common", "command": ["x"]},
        {"name": "entry", "command": ["x"], "minBatchShare": 0.25},
        {"name": "own", "command": ["x"], "config": {"min_batch_allocation": 0}},
    ]
    parsed, _ = parse_spec(spec)
    assert [parsed.min_batch_share_of(entry) for entry in parsed.environments] == [0.25, 0.25, 0.0]

    parsed, _ = parse_spec(changed("config/tinker/max_steps_off_policy", 7))
    assert parsed.max_steps_off_policy == 7

    parsed, _ = parse_spec(changed("config/openai", [{"model_name": "Qwen/Qwen3-4B"}]))
    assert parsed.base_model == "Qwen/Qwen3-4B"

    parsed, _ = parse_spec(changed("tinkerAPI", {"local": {"model": "tiny"}}))
    assert parsed.base_model == "tinker-atropos/tiny"
