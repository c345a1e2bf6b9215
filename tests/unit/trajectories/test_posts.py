"""What a post may hold: each fault is refused with field and place; what is right survives unchanged (AP-14)."""

# ruff: noqa: E501 - a case is a line

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trajectories import batches, posts
from tinker_atropos.trajectories.ledger import Group
from tinker_atropos.trajectories.lineage import Version
from tinker_atropos.trajectories.post_messages import read_message
from tinker_atropos.trajectories.posts import InvalidPostError, Limits, Post, parse, parse_group, read_post

GOOD: dict[str, Any] = {
    "tokens": [[1, 2, 3], [4, 5]],
    "masks": [[-100, 2, 3], [-100, 5]],
    "scores": [1.0, 0.0],
    "inference_logprobs": [[1.0, -0.5, -0.25], [1.0, -2.0]],
    "env_id": 0,
}


@pytest.fixture(params=["as installed", "without a compiled module"], autouse=True)
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case holds also where no compiler was at installation."""
    if request.param == "without a compiled module":
        monkeypatch.setattr(posts, "take", lambda body: (body, {}))


def read(fields: dict[str, Any], limits: Limits | None = None) -> Post:
    return read_text(json.dumps(fields), limits)


def read_text(text: str, limits: Limits | None = None) -> Post:
    element, taken = parse_group(text.encode())
    return read_post(element, limits or Limits(), None, taken=taken)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, "tokens: missing"),
        ({"tokens": []}, "tokens: the group is empty"),
        ({"tokens": [[], []]}, "tokens[0]: the sequence is empty"),
        ({"tokens": [[1, 2, 3], []]}, "tokens[1]: the sequence is empty"),
        ({"tokens": "x"}, "tokens: must be a list of lists, not a string"),
        ({"tokens": [1, 2]}, "tokens[0]: must be a list, not a number"),
        ({"tokens": [[1, 2, 3.5], [4, 5]]}, "tokens[0][2]: 3.5 is not an integer"),
        ({"tokens": [[1, 2, 3], ["7", 5]]}, "tokens[1][0]: '7' is not an integer"),
        ({"tokens": [[1, 2, None], [4, 5]]}, "tokens[0][2]: null is not an integer"),
        ({"tokens": [[1, 2, True], [4, 5]]}, "tokens[0][2]: a boolean is not an integer"),
        ({"tokens": [[1, 2, [3, 4]], [4, 5]]}, "tokens[0][2]: a list is not an integer"),
        ({"tokens": [[1, 2, -5], [4, 5]]}, "tokens[0][2]: -5 is not within 0 and 2147483647"),
        ({"tokens": [[1, 2, 3], [4, 2**31]]}, "tokens[1][1]: 2147483648 is not within 0 and 2147483647"),
        ({"masks": None}, "masks: missing"),
        ({"masks": [[-100, 2, 3]]}, "masks: 1 rows for 2 sequences"),
        ({"masks": [[-100, 2, 3], [5]]}, "masks[1]: 1 values for 2 tokens"),
        ({"scores": None}, "scores: missing"),
        ({"scores": [1.0]}, "scores: 1 scores for 2 sequences"),
        ({"scores": 1.0}, "scores: must be a list of numbers, not a number"),
        ({"scores": [1.0, "0"]}, "scores[1]: must be a number, not a string"),
        ({"scores": [1.0, float("nan")]}, "scores[1]: nan is not a finite number"),
        ({"scores": [float("inf"), 0.0]}, "scores[0]: inf is not a finite number"),
        ({"inference_logprobs": [[1.0], [1.0, 2.0]]}, "inference_logprobs[0]: 1 values for 3 tokens"),
        ({"inference_logprobs": [[1.0, -1e300, 0], [1.0, 2.0]]}, "inference_logprobs[0][1]: -1e+300 does not fit in 32 bits"),
        ({"inference_logprobs": [[1.0, None, 0], [1.0, 2.0]]}, "inference_logprobs[0][1]: null is not a number"),
        ({"ref_logprobs": [[1.0, 2.0, 3.0]]}, "ref_logprobs: 1 rows for 2 sequences"),
        ({"advantages": [[1.0, 2.0], [1.0]]}, "advantages[0]: 2 values for 3 tokens"),
        ({"overrides": [{}]}, "overrides: 1 overrides for 2 sequences"),
        ({"overrides": [{}, 3]}, "overrides[1]: must be an object, not a number"),
        ({"group_overrides": []}, "group_overrides: must be an object, not a list"),
        ({"env_id": -3}, "env_id: -3 is not an environment's id"),
        ({"env_id": "a"}, "env_id: 'a' is not an environment's id"),
        ({"messages": [[{"role": "user"}], []]}, "messages[0][0].content: missing"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages[0]: must be a list of messages, not an object"),
        ({"distill_token_ids": [[[1], [2], [3]], [[4], [5]]]}, "distill_logprobs: must be sent together with distill_token_ids, as a list of lists of lists"),
        (
            {"distill_token_ids": [[[1], [2]], [[4], [5]]], "distill_logprobs": [[[0.1], [0.2]], [[0.4], [0.5]]]},
            "distill_token_ids[0]: must be a list with one list for each of the 3 tokens",
        ),
        (
            {"distill_token_ids": [[[1], [2], [3, 4]], [[4], [5]]], "distill_logprobs": [[[0.1]] * 3, [[0.4], [0.5]]]},
            "distill_token_ids[0]: every position must have the same number of candidates",
        ),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidPostError) as caught:
        read({**GOOD, **change})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(batch_size=1), "tokens: a group of 2 sequences does not fit in a batch of 1"),
        (Limits(max_token_length=2), "tokens[0]: 3 tokens; the trainer takes at most 2"),
        (Limits(vocabulary=5), "tokens[1][1]: 5 is not within 0 and 4"),
    ],
)
def test_the_runs_limits(limits: Limits, message: str) -> None:
    with pytest.raises(InvalidPostError) as caught:
        read(GOOD, limits)
    assert str(caught.value) == message


@pytest.mark.parametrize("body", [b"", b"{nope", b'{"a": 1} x', b"\xff\xfe", b'{"scores": [1e999]}'])
def test_what_is_not_json_is_said_so(body: bytes) -> None:
    with pytest.raises(InvalidPostError) as caught:
        parse(body)
    assert "JSON" in str(caught.value) or "finite" in str(caught.value)


def test_a_group_must_be_an_object() -> None:
    with pytest.raises(InvalidPostError, match="must be an object, not a list"):
        read_post(parse(b"[1]"), Limits(), None)


@pytest.mark.parametrize(
    ("behaviour", "fields"),
    [
        ("the usual fields", {}),
        ("no logprobs", {"inference_logprobs": None}),
        ("masks that are not the tokens", {"masks": [[0, 1, 1], [-100, 7]]}),
        ("reference logprobs", {"ref_logprobs": [[0.0, -0.5, -0.25], [0.0, -2.0]]}),
        ("advantages per token", {"advantages": [[0.0, 1.0, 1.5], [0.0, -1.0]]}),
        ("advantages per sequence", {"advantages": [[1.0], [-1.0]]}),
        ("overrides", {"overrides": [{"set_advantage_to_zero": True}, {}], "group_overrides": {"group": [1, "ü"]}}),
        ("empty group overrides", {"group_overrides": {}}),
        ("messages and more", {"messages": [[{"role": "a", "content": None}], []], "generation_params": {"t": 1}, "images": ["x"]}),
        ("no environment", {"env_id": None}),
        (
            "distillation",
            {
                "distill_token_ids": [[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10]]],
                "distill_logprobs": [[[-1.0, -2.0]] * 3, [[-0.5, -0.25]] * 2],
            },
        ),
    ],
)  # fmt: skip
def test_what_was_posted_comes_back_as_it_was(behaviour: str, fields: dict[str, Any]) -> None:
    keys = (
        "tokens", "masks", "scores", "advantages", "ref_logprobs", "messages", "generation_params", "inference_logprobs",
        "overrides", "group_overrides", "images", "env_id", "distill_token_ids", "distill_logprobs",
    )  # fmt: skip
    posted = {**dict.fromkeys(keys), **GOOD, **fields}
    assert json.loads(batches.to_json(read(posted).payload)) == posted, behaviour


def test_lists_of_nothing_are_as_good_as_null() -> None:
    post = read(
        {**GOOD, "advantages": [], "ref_logprobs": [], "overrides": [], "distill_token_ids": [], "distill_logprobs": []}
    )
    answer = json.loads(batches.to_json(post.payload))
    assert [answer[key] for key in ("advantages", "ref_logprobs", "overrides", "distill_token_ids")] == [None] * 4


def test_numbers_of_a_post() -> None:
    post = read(GOOD)
    assert (post.sequences, post.tokens, post.sampled, post.env_id) == (2, 5, 3, 0)


def leased(payload: bytes) -> pb.Group:
    group = Group(7, "e", "e-0", 2, 5, 3, Version(1, 2), 0.0)
    return batches.to_message(group, payload, 4)


def test_a_leased_group_has_compact_arrays_and_single_precision_logprobs() -> None:
    message = leased(read({**GOOD, "overrides": [{"x": 1}, {}], "advantages": [[0.5], [0.0, 1.0]]}).payload)
    assert (message.id, message.environment, message.instance, message.staleness) == (7, "e", "e-0", 4)
    assert (message.oldest.epoch, message.oldest.step) == (1, 2)
    (first, second) = message.sequences
    assert np.frombuffer(first.tokens, np.int32).tolist() == [1, 2, 3]
    assert np.frombuffer(second.tokens, np.int32).tolist() == [4, 5]
    assert np.frombuffer(first.loss_mask, np.uint8).tolist() == [0, 1, 1]
    assert np.frombuffer(first.logprobs, np.float32).tolist() == [0.0, -0.5, -0.25]
    assert np.frombuffer(second.logprobs, np.float32).tolist() == [0.0, -2.0]
    assert (first.score, first.overrides, second.overrides) == (1.0, '{"x":1}', "{}")
    assert np.frombuffer(first.advantages, np.float32).tolist() == [0.5]
    assert np.frombuffer(second.advantages, np.float32).tolist() == [0.0, 1.0]


def message(**changes: Any) -> pb.Group:
    """A group of two sequences; changes go to its first."""
    group = pb.Group()
    for tokens in ([1, 2, 3], [4, 5]):
        group.sequences.add(
            tokens=np.array(tokens, "<i4").tobytes(),
            loss_mask=bytes([0] + [1] * (len(tokens) - 1)),
            logprobs=np.zeros(len(tokens), "<f4").tobytes(),
            score=1.0,
        )
    for field, value in changes.items():
        setattr(group.sequences[0], field, value)
    return group


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tokens": b""}, "sequences[0].tokens: 0 bytes are no list of int32"),
        ({"tokens": b"abc"}, "sequences[0].tokens: 3 bytes are no list of int32"),
        ({"tokens": np.array([1, -2, 3], "<i4").tobytes()}, "sequences[0].tokens: -2 is not within 0 and 2147483647"),
        ({"loss_mask": b"\x01"}, "sequences[0].loss_mask: 1 bytes for 3 tokens"),
        ({"loss_mask": b"\x01\x02\x00"}, "sequences[0].loss_mask: must hold only 0 and 1"),
        ({"score": float("nan")}, "sequences[0].score: nan is not a finite number"),
        ({"logprobs": b"abcd"}, "sequences[0].logprobs: 4 bytes are not 3 times float32"),
        ({"logprobs": np.array([0, np.inf, 0], "<f4").tobytes()}, "sequences[0].logprobs: inf is not a finite number"),
        ({"ref_logprobs": b"abcd"}, "sequences[0].ref_logprobs: 4 bytes are not 3 times float32"),
        ({"advantages": b"abcdefgh"}, "sequences[0].advantages: 8 bytes are not 3 times float32"),
        (
            {"overrides": "{"},
            "sequences[0].overrides: is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        ({"overrides": "[]"}, "sequences[0].overrides: must be a JSON object"),
        ({"distill_k": 2}, "sequences[0].distill_token_ids: 0 bytes; 24 belong to 3 tokens"),
    ],
)
def test_a_fault_of_a_message_is_named_with_its_place(change: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidPostError) as caught:
        read_message(message(**change), Limits())
    assert str(caught.value) == text


def test_a_message_is_stored_as_it_came() -> None:
    group = message(
        advantages=np.array([0.5], "<f4").tobytes(),
        overrides='{"x":1}',
        distill_k=1,
        distill_token_ids=np.array([7, 8, 9], "<i4").tobytes(),
        distill_logprobs=np.array([-1, -2, -3], "<f4").tobytes(),
    )
    group.oldest.epoch, group.oldest.step = 2, 7
    post = read_message(group, Limits())
    assert (post.sequences, post.tokens, post.sampled, post.oldest) == (2, 5, 3, (2, 7))
    assert list(leased(post.payload).sequences) == list(group.sequences)


def test_what_only_some_sequences_have_is_refused() -> None:
    with pytest.raises(InvalidPostError) as caught:
        read_message(message(logprobs=b""), Limits())
    assert str(caught.value) == "sequences[0].logprobs: missing, and other sequences of the group have it"


@pytest.mark.parametrize(
    ("group", "limits", "text"),
    [
        (pb.Group(), Limits(), "sequences: the group is empty"),
        (message(), Limits(batch_size=1), "sequences: a group of 2 sequences does not fit in a batch of 1"),
        (message(), Limits(max_token_length=2), "sequences[0].tokens: 3 tokens; the trainer takes at most 2"),
        (message(), Limits(vocabulary=5), "sequences[1].tokens: 5 is not within 0 and 4"),
    ],
)
def test_the_runs_limits_hold_for_messages_too(group: pb.Group, limits: Limits, text: str) -> None:
    with pytest.raises(InvalidPostError) as caught:
        read_message(group, limits)
    assert str(caught.value) == text
