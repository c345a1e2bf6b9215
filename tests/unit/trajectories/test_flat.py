"""Numbers that are taken out of a post's text by compiled code are those that a JSON parser reads, to the last bit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tinker_atropos.trajectories.posts import InvalidPostError, Limits, parse, parse_group, read_post

flat = pytest.importorskip("tinker_atropos.trajectories.flat", reason="the optional module is not compiled here")


def taken(field: str, text: str) -> tuple[list[Any], list[int]] | None:
    """What is taken out of one field, or None; the rest must be the same object with null in its place."""
    body = f'{{"before": "[[1]]", "{field}": {text}, "after": {{"{field}": [[7]]}}}}'
    rest, found = flat.take(body.encode())
    if not found:
        assert rest == body.encode()
        return None
    assert json.loads(rest) == {"before": "[[1]]", field: None, "after": {field: [[7]]}}
    values, lengths = found[field]
    kind = np.int32 if field in ("tokens", "masks") else np.float32
    return np.frombuffer(values, kind).tolist(), lengths


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[1, 2, 3], [4]]", ([1, 2, 3, 4], [3, 1])),
        ("[[1,2,3],[4]]", ([1, 2, 3, 4], [3, 1])),
        ("[ [ 1 ,\t2\n,  3 ] ,\r\n[4 ] ]", ([1, 2, 3, 4], [3, 1])),
        ("[[], [5], []]", ([5], [0, 1, 0])),
        ("[[0, 2147483647]]", ([0, 2147483647], [2])),
        ("[[1, -5]]", None),
        ("[[12345678, 123456789, 1234567890]]", ([12345678, 123456789, 1234567890], [3])),
        ("[[2147483648]]", None),
        ("[[99999999999999999999]]", None),
        ("[[01]]", None),
        ("[[-]]", None),
        ("[[--1]]", None),
        ("[[+1]]", None),
        ("[[1 2]]", None),
        ("[[1,]]", None),
        ("[[,1]]", None),
        ("[[1],]", None),
        ("[[1] [2]]", None),
        ("[[1.0]]", None),
        ("[[1e2]]", None),
        ("[[true]]", None),
        ("[[null]]", None),
        ('[["1"]]', None),
        ("[[1], 2]", None),
        ("[[[1]]]", None),
        ("[1, 2]", None),
        ("[]", None),
        ("{}", None),
        ("null", None),
    ],
)
def test_lists_of_whole_numbers(text: str, expected: Any) -> None:
    assert taken("tokens", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[1.0, -0.5], [0.25]]", ([1.0, -0.5, 0.25], [2, 1])),
        ("[[1, 0, -3, 10.5, 1e2, 1E-2, 2.5e+1]]", ([1.0, 0.0, -3.0, 10.5, 100.0, float(np.float32(0.01)), 25.0], [7])),
        ("[[ 1.5 , 2.5 ]]", ([1.5, 2.5], [2])),
        ("[[0.0001234567890123456789]]", ([float(np.float32(0.00012345678901234568))], [1])),
        ("[[0.1234567890123456789012]]", None),
        ("[[1e39]]", None),
        ("[[1e400]]", None),
        ("[[.5]]", None),
        ("[[5.]]", None),
        ("[[0x10]]", None),
        ("[[1e]]", None),
        ("[[1e+]]", None),
        ("[[-.5]]", None),
        ("[[00.5]]", None),
        ("[[1.2.3]]", None),
        ("[[NaN]]", None),
        ("[[-Infinity]]", None),
        ("[[1.5a]]", None),
    ],
)
def test_lists_of_numbers(text: str, expected: Any) -> None:
    assert taken("inference_logprobs", text) == expected


@pytest.mark.parametrize(
    ("tokens", "masks", "expected"),
    [
        ("[[1, 2, 3], [4, 5]]", "[[-100, 2, 3], [-100, 5]]", ([-100, 2, 3, -100, 5], [3, 2])),
        ("[[1, 2, 3], [4, 5]]", "[[1, 2, 3], [4, 5]]", ([1, 2, 3, 4, 5], [3, 2])),
        ("[[1, 2, 3, 4, 5]]", "[[-100, 2, -100, 4, 5]]", ([-100, 2, -100, 4, 5], [5])),
        ("[[1, 2, 3]]", "[[-100, 2, 4]]", ([-100, 2, 4], [3])),
        ("[[1, 2, 3]]", "[[-100, 2]]", ([-100, 2], [2])),
        ("[[1, 2, 3]]", "[[2, 3]]", ([2, 3], [2])),
        ("[[1, 2, 3]]", "[[-100, 2, 3, 3]]", ([-100, 2, 3, 3], [4])),
        ("[[1, 2, 33]]", "[[-100, 2, 3]]", ([-100, 2, 3], [3])),
        ("[[1, 2, 3]]", "[[-100, 2, 33]]", ([-100, 2, 33], [3])),
        ("[[1, 2, 3]]", "[[-100, 2, 3], [5]]", ([-100, 2, 3, 5], [3, 1])),
        ("[[1, 2], [3]]", "[[-100, 2]]", ([-100, 2], [2])),
        ("[[1,2,3]]", "[[-100, 2, 3]]", ([-100, 2, 3], [3])),
        ("[[1, 2, 3 ]]", "[[-100, 2, 3 ]]", ([-100, 2, 3], [3])),
        ("[[1, 2, 3 ]]", "[[-100, 2, 3]]", ([-100, 2, 3], [3])),
        ("[[1, -2, 3]]", "[[-100, -2, 3]]", ([-100, -2, 3], [3])),
        ("[[1], []]", "[[], [7]]", ([7], [0, 1])),
    ],
)
def test_masks_that_repeat_the_tokens_or_do_not(tokens: str, masks: str, expected: Any) -> None:
    _, found = flat.take(f'{{"tokens": {tokens}, "masks": {masks}}}'.encode())
    values, lengths = found["masks"]
    assert (np.frombuffer(values, np.int32).tolist(), lengths) == expected


@pytest.mark.parametrize(
    ("tokens", "masks", "expected"),
    [
        ([], [], (b"", 0, False, 0)),
        ([5, 6, 7], [-100, 6, 7], (b"\0\1\1", 2, False, 7)),
        ([9, 6, 7], [-100, -100, -100], (b"\0\0\0", 0, False, 9)),
        ([5, 6, 7], [-100, 6, 8], (b"\0\1\1", 2, True, 7)),
        ([5, 6, 7], [0, 1, 1], (b"\1\1\1", 3, True, 7)),
        ([2**31 - 1] * 70, [2**31 - 1] * 69 + [-100], (b"\1" * 69 + b"\0", 69, False, 2**31 - 1)),
        ([1] * 70, [-100] * 69 + [-(2**31)], (b"\0" * 69 + b"\1", 1, True, 1)),
    ],
)
def test_what_the_masks_say(tokens: list[int], masks: list[int], expected: Any) -> None:
    assert flat.loss_mask(np.array(tokens, np.int32), np.array(masks, np.int32)) == expected


def test_masks_for_other_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="one mask for each token"):
        flat.loss_mask(bytes(8), bytes(12))


def numbers(rng: random.Random) -> Iterator[str]:
    """Texts of numbers as programs write them, and such that lie on or beside the middle of two float32 values."""
    yield from ("0", "-0", "0.0", "-0.0", "0e5", "1e-45", "7e-46", "1e-46", "3.4028235e38", "1.17549435e-38")
    for _ in range(3000):
        number = -rng.random() * 10 ** rng.randint(-12, 2)
        yield repr(number)
        yield repr(float(np.float32(number)))
        yield f"{number:.{rng.randint(1, 18)}f}"
        yield f"{number:.{rng.randint(0, 17)}e}"
        yield str(rng.randint(-(10 ** rng.randint(1, 18)), 10**9))
    for _ in range(3000):
        low = np.float32(rng.random() * 10 ** rng.randint(-6, 1))
        middle = (Fraction(float(low)) + Fraction(float(np.nextafter(low, np.float32(np.inf))))) / 2
        for digits in (8, 15, 16, 17, 18):
            yield f"{float(middle):.{digits}f}"
            yield f"{round(middle * 10**digits) + rng.randint(-1, 1)}e-{digits}"


def test_every_number_is_read_to_the_last_bit() -> None:
    """A policy version is looked up by float32 logprobs: one wrong bit and it is not found."""
    left = total = 0
    for text in numbers(random.Random(1)):
        body = f'{{"inference_logprobs": [[{text}, 1.5]], "x": 0}}'.encode()
        _, found = flat.take(body)
        total += 1
        if not found:  # more digits than fit into 64 bits: the other parser's
            left += 1
            continue
        wanted = np.frombuffer(parse(body)["inference_logprobs"].as_buffer(of_type="d")).astype(np.float32)
        assert found["inference_logprobs"][0] == wanted.tobytes(), text
    assert left < total / 10


@pytest.mark.parametrize(
    ("behaviour", "body"),
    [
        ("a name twice: the first counts", b'{"tokens": [[1]], "tokens": [[2]], "masks": [[1]], "scores": [1]}'),
        ("a name twice, the first is odd", b'{"tokens": [["a"]], "tokens": [[2]], "masks": [[1]], "scores": [1]}'),
        ("a name with an escape", b'{"tok\\u0065ns": [[1]], "masks": [[1]], "scores": [1]}'),
        ("a quotation mark in a string", b'{"x": "\\"tokens\\": [[", "tokens": [[1]], "masks": [[1]], "scores": [1]}'),
        ("a name inside another object", b'{"group_overrides": {"tokens": [[5]]}, "masks": [[1]], "scores": [1]}'),
        ("a list at the top", b'[{"tokens": [[1]]}]'),
        ("text behind the object", b'{"tokens": [[1]], "masks": [[1]], "scores": [1]} x'),
        ("a body that is cut short", b'{"tokens": [[1]], "masks": [[1'),
        ("a body that is cut short in a name", b'{"tokens": [[1]], "mas'),
        ("a comma too many", b'{"tokens": [[1]], "masks": [[1]], "scores": [1],}'),
        ("a colon too few", b'{"tokens" [[1]], "masks": [[1]], "scores": [1]}'),
        ("space around everything", b' { "tokens" : [[1]] , "masks" : [[1]] , "scores" : [1] } '),
        ("no number at all", b"{}"),
        ("nothing", b""),
    ],
)
def test_a_body_is_read_as_the_parser_alone_reads_it(behaviour: str, body: bytes) -> None:
    def read(taking: bool) -> object:
        try:
            element, found = parse_group(body) if taking else (parse(body), {})
            return read_post(element, Limits(), None, taken=found).payload
        except InvalidPostError as error:
            return error.where, error.why

    assert read(taking=True) == read(taking=False)


def test_bodies_that_are_cut_or_changed_anywhere_are_read_alike() -> None:
    rng = random.Random(2)
    whole = json.dumps(
        {
            "masks": [[-100, 17, 123456], [-100, 99]],
            "tokens": [[5, 17, 123456], [1234567, 99]],
            "inference_logprobs": [[1.0, -0.12345678901234567, -1.25e-05], [1.0, -12.5]],
            "scores": [0.5, -1],
            "messages": None,
        }
    ).encode()
    for _ in range(4000):
        body = bytearray(whole)
        for _ in range(rng.randint(0, 2)):
            body[rng.randrange(len(body))] = rng.choice(b'0123456789-+.eE,[]{}": n\\\x00\xff')
        del body[rng.choice((len(body), rng.randrange(len(body)))) :]
        test_a_body_is_read_as_the_parser_alone_reads_it("", bytes(body))
