"""A posted group: from Atropos' JSON to the compact form that is stored, or to one message that names what is wrong.

Numbers go straight from the JSON text into typed arrays; nothing here makes a Python object per token.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import simdjson

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trajectories.lineage import Version
from tinker_atropos.trajectories.wire import join_fields

try:
    from tinker_atropos.trajectories.flat import loss_mask, take
except ImportError:  # it was installed where no compiler is

    def take(body: bytes | memoryview, /) -> tuple[bytes | memoryview, dict[str, tuple[bytes, list[int]]]]:
        return body, {}

    def loss_mask(tokens: Any, masks: Any, /) -> tuple[bytes, int, bool, int]:
        loss = masks != MASKED
        odd = bool(((masks != tokens) & loss).any())
        return loss.tobytes(), int(np.count_nonzero(loss)), odd, int(tokens.max(initial=0))


MASKED = -100
_Stored = pb.StoredGroup
np.seterr(over="ignore")  # numbers that do not fit in 32 bits are found and refused, not warned of
_PARSER = simdjson.Parser()
"""Used again and again: its buffers stay warm."""
INT32_MAX = 2**31 - 1

Kind = Literal["i", "d"]
_NUMPY: dict[Kind, type] = {"i": np.int64, "d": np.float64}
_NARROW: dict[Kind, type] = {"i": np.int32, "d": np.float32}
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class InvalidPostError(ValueError):
    """What is wrong with a post: where (field and indexes) and why."""

    def __init__(self, where: tuple[str | int, ...], why: str) -> None:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).lstrip(".")
        super().__init__(f"{path}: {why}" if path else why)
        self.where = where
        self.why = why

    @property
    def field(self) -> str:
        """Name of the field without places in it; "body" = all of it."""
        return next((part for part in self.where if isinstance(part, str) and part != "sequences"), "body")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the run takes; -1 = not known yet."""

    batch_size: int = -1
    max_token_length: int = -1
    vocabulary: int = -1


@dataclass(slots=True)
class Post:
    """A valid group, ready to be stored."""

    payload: bytes
    """pb.StoredGroup."""
    env_id: int | None
    sequences: int
    tokens: int
    sampled: int
    oldest: Version | None
    unknown: int
    """Completions whose version is not on record."""
    prompt: bytes = b""
    """Digest of the tokens before the first that was sampled; the same for all rollouts of a prompt."""


FindVersions = Callable[[Ints, Bytes, Floats], list[Version | None]]
"""tokens, loss mask, logprobs of a sequence -> version of each completion in it."""

Taken = Mapping[str, tuple[bytes, list[int]]]
"""Fields that are taken out of the text already: int32 or float32 values of all rows, and the rows' lengths."""
_NOTHING: Taken = {}


def parse_group(body: bytes | memoryview) -> tuple[Any, Taken]:
    """JSON text of one group as a simdjson element, with what `flat` could take out of it before."""
    rest, taken = take(body)
    try:
        return parse(rest), taken
    except InvalidPostError:
        if taken:
            parse(body)  # says where in the whole text
        raise


def parse(body: bytes | memoryview) -> Any:
    """JSON text as a simdjson element; raises InvalidPostError with the best explanation there is."""
    try:
        try:
            return _PARSER.parse(body)
        except RuntimeError:  # an element of the last text is still in use
            return simdjson.Parser().parse(body)
    except (ValueError, UnicodeDecodeError) as error:
        _explain(bytes(body))
        raise InvalidPostError((), f"the body is not JSON ({error})") from None


def _explain(body: bytes) -> None:
    """Why the fast parser refused it, as far as the standard one understands the text (NaN, numbers beyond 64 bits)."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidPostError((), f"the body is not JSON: {error}") from None
    found = _first_odd_number((), content)
    if found is not None:
        raise InvalidPostError(*found)


def _first_odd_number(where: tuple[str | int, ...], value: Any) -> tuple[tuple[str | int, ...], str] | None:
    if isinstance(value, float) and not math.isfinite(value):
        return where, f"{value} is not a finite number"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return where, f"{value} does not fit in 64 bits"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found = _first_odd_number((*where, key), item)
        if found is not None:
            return found
    return None


def read_post(
    element: Any, limits: Limits, find: FindVersions | None, *, taken: Taken = _NOTHING, prompts: bool = True
) -> Post:
    """One ScoredData object (a simdjson element) as a Post; `prompts` = with the digest of its prompt."""
    if not isinstance(element, simdjson.Object):
        raise InvalidPostError((), f"a group must be an object, not {_kind(element)}")
    reader = _Reader(element, taken)
    env_id = reader.env_id()
    tokens, lengths = reader.rows("tokens", "i")
    if tokens is None:
        raise InvalidPostError(("tokens",), "missing")
    count = len(lengths)
    if count == 0:
        raise InvalidPostError(("tokens",), "the group is empty")
    if 0 in lengths:
        raise InvalidPostError(("tokens", lengths.index(0)), "the sequence is empty")
    if limits.batch_size > 0 and count > limits.batch_size:
        raise InvalidPostError(
            ("tokens",), f"a group of {count} sequences does not fit in a batch of {limits.batch_size}"
        )
    longest = max(lengths)
    if 0 < limits.max_token_length < longest:
        raise InvalidPostError(
            ("tokens", lengths.index(longest)), f"{longest} tokens; the trainer takes at most {limits.max_token_length}"
        )
    masks, mask_lengths = reader.rows("masks", "i")
    if masks is None:
        raise InvalidPostError(("masks",), "missing")
    _check_lengths("masks", mask_lengths, lengths)
    top = limits.vocabulary - 1 if limits.vocabulary > 0 else INT32_MAX
    if tokens.dtype != np.int32:  # those that were taken out of the text are not negative, and fit
        _check_range("tokens", tokens, lengths, 0, top)
    if masks.dtype != np.int32:
        _check_range("masks", masks, lengths, -(2**31), INT32_MAX)
    ids, masks = tokens.astype(np.int32, copy=False), masks.astype(np.int32, copy=False)
    loss, sampled, odd, largest = loss_mask(ids, masks)
    if largest > top:
        _check_range("tokens", ids, lengths, 0, top)

    scores = reader.numbers("scores")
    if len(scores) != count:
        raise InvalidPostError(("scores",), f"{len(scores)} scores for {count} sequences")

    logprobs = reader.floats("inference_logprobs", lengths)
    reference = reader.floats("ref_logprobs", lengths)
    payload = join_fields(
        {
            _Stored.LENGTHS_FIELD_NUMBER: struct.pack(f"<{count}I", *lengths),
            _Stored.TOKENS_FIELD_NUMBER: ids,
            _Stored.LOSS_MASK_FIELD_NUMBER: loss,
            _Stored.SCORES_FIELD_NUMBER: struct.pack(f"<{count}d", *scores),
            _Stored.LOGPROBS_FIELD_NUMBER: b"" if logprobs is None else logprobs,
            _Stored.MASKS_FIELD_NUMBER: masks if odd else b"",
            _Stored.REF_LOGPROBS_FIELD_NUMBER: b"" if reference is None else reference,
            _Stored.ATROPOS_FIELD_NUMBER: reader.extras(env_id).encode(),
        },
        _rare_fields(reader, lengths),
    )

    mask = np.frombuffer(loss, np.uint8)
    found: list[Version | None] = []
    if logprobs is not None and find is not None:
        start = 0
        for length in lengths:
            end = start + length
            found += find(ids[start:end], mask[start:end], logprobs[start:end])
            start = end
    known = [version for version in found if version is not None]
    return Post(
        payload=payload,
        env_id=env_id,
        sequences=count,
        tokens=len(ids),
        sampled=sampled,
        oldest=min(known) if known else None,
        unknown=len(found) - len(known),
        prompt=prompt_digest(ids[: lengths[0]], mask[: lengths[0]]) if prompts else b"",
    )


def _rare_fields(reader: _Reader, lengths: list[int]) -> bytes:
    """What most groups do not have; "" = none of it."""
    overrides, group_overrides = reader.overrides(len(lengths)), reader.text("group_overrides")
    advantages, advantage_lengths = reader.rows("advantages", "d")
    distill = reader.distillation(lengths)
    if not overrides and not group_overrides and advantages is None and distill is None:
        return b""
    group = pb.StoredGroup(overrides=overrides, group_overrides=group_overrides)
    if advantages is not None:
        _check_lengths("advantages", advantage_lengths, lengths, scalar=True)
        group.advantages = reader.finite("advantages", advantages, advantage_lengths).tobytes()
        group.advantage_lengths = np.array(advantage_lengths, "<u4").tobytes()
    if distill is not None:
        group.distill_k = np.array([k for k, _, _ in distill], "<i4").tobytes()
        group.distill_token_ids = b"".join([candidates for _, candidates, _ in distill])
        group.distill_logprobs = b"".join([values for _, _, values in distill])
    return group.SerializeToString()


def prompt_digest(tokens: Ints, loss_mask: Bytes) -> bytes:
    """tokens [T], loss_mask [T] of a group's first sequence."""
    return hashlib.blake2b(tokens[: int(np.argmax(loss_mask))].tobytes(), digest_size=8).digest()


class _Reader:
    """Fields of one object, each as the array that it must be."""

    def __init__(self, element: simdjson.Object, taken: Taken) -> None:
        self._element = element
        self._taken = taken
        self._fields = frozenset(element.keys())

    def _get(self, field: str) -> Any:
        return self._element[field] if field in self._fields else None

    def env_id(self) -> int | None:
        value = self._get("env_id")
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidPostError(("env_id",), f"{value!r} is not an environment's id")
        return value

    def rows(self, field: str, of_type: Kind) -> tuple[npt.NDArray[Any] | None, list[int]]:
        """A list of lists of numbers, flat, with the lengths of its rows; None when it was not sent or is empty."""
        if field in self._taken:
            values, lengths = self._taken[field]
            return np.frombuffer(values, _NARROW[of_type]), lengths
        value = self._get(field)
        if value is None:
            return None, []
        if not isinstance(value, simdjson.Array):
            raise InvalidPostError((field,), f"must be a list of lists, not {_kind(value)}")
        try:
            rows: Any = value
            lengths = [len(row) for row in rows]
            flat: npt.NDArray[Any] = np.frombuffer(value.as_buffer(of_type=of_type), _NUMPY[of_type])
        except TypeError:
            raise _find_fault(field, value, of_type) from None
        if len(flat) != sum(lengths):
            raise _find_fault(field, value, of_type)
        if not lengths and field != "tokens":
            return None, []
        return flat, lengths

    def numbers(self, field: str) -> list[float]:
        value = self._get(field)
        if not isinstance(value, simdjson.Array):
            raise InvalidPostError(
                (field,), "missing" if value is None else f"must be a list of numbers, not {_kind(value)}"
            )
        numbers: list[Any] = list(value)
        if not {int, float}.issuperset(map(type, numbers)):
            index = next(index for index, number in enumerate(numbers) if type(number) not in (int, float))
            raise InvalidPostError((field, index), f"must be a number, not {_kind(numbers[index])}")
        return numbers

    def floats(self, field: str, lengths: list[int]) -> Floats | None:
        values, rows = self.rows(field, "d")
        if values is None:
            return None
        _check_lengths(field, rows, lengths)
        return self.finite(field, values, rows)

    @staticmethod
    def finite(field: str, values: npt.NDArray[Any], rows: list[int]) -> Floats:
        if values.dtype == np.float32:  # taken out of the text, and so finite
            return values
        single: Floats = values.astype(np.float32)
        # One pass that any nan or infinity spoils; only then is looked closer.
        if not math.isfinite(np.dot(single, single)) and not np.isfinite(single).all():
            position = int(np.flatnonzero(~np.isfinite(single))[0])
            raise InvalidPostError(_place(field, rows, position), f"{values[position]} does not fit in 32 bits")
        return single

    def text(self, field: str) -> str:
        """An object that is kept as its JSON text."""
        value = self._get(field)
        if value is None:
            return ""
        if not isinstance(value, simdjson.Object):
            raise InvalidPostError((field,), f"must be an object, not {_kind(value)}")
        return _text(value)

    def overrides(self, count: int) -> list[str]:
        value = self._get("overrides")
        if value is None or (isinstance(value, simdjson.Array) and not len(value)):
            return []
        if not isinstance(value, simdjson.Array):
            raise InvalidPostError(("overrides",), f"must be a list of objects, not {_kind(value)}")
        if len(value) != count:
            raise InvalidPostError(("overrides",), f"{len(value)} overrides for {count} sequences")
        texts = []
        for index, item in enumerate(value):
            if item is not None and not isinstance(item, simdjson.Object):
                raise InvalidPostError(("overrides", index), f"must be an object, not {_kind(item)}")
            texts.append("" if item is None else _text(item))
        return texts

    def extras(self, env_id: int | None) -> str:
        """What only plain trainers read, as one JSON object."""
        self._check_messages()
        parts = []
        for field in ("messages", "generation_params", "images"):
            value = self._get(field)
            if value is not None:
                text = _text(value) if isinstance(value, simdjson.Array | simdjson.Object) else json.dumps(value)
                parts.append(f'"{field}":{text}')
        if env_id is not None:
            parts.append(f'"env_id":{env_id}')
        return "{" + ",".join(parts) + "}" if parts else ""

    def _check_messages(self) -> None:
        messages = self._get("messages")
        if messages is None:
            return
        if not isinstance(messages, simdjson.Array):
            raise InvalidPostError(("messages",), f"must be a list of lists, not {_kind(messages)}")
        for index, conversation in enumerate(messages):
            if not isinstance(conversation, simdjson.Array):
                raise InvalidPostError(("messages", index), f"must be a list of messages, not {_kind(conversation)}")
            for position, message in enumerate(conversation):
                if not isinstance(message, simdjson.Object):
                    raise InvalidPostError(("messages", index, position), f"must be an object, not {_kind(message)}")
                for key in ("role", "content"):
                    if key not in message:
                        raise InvalidPostError(("messages", index, position, key), "missing")

    def distillation(self, lengths: list[int]) -> list[tuple[int, bytes, bytes]] | None:
        ids, logprobs = self._get("distill_token_ids"), self._get("distill_logprobs")
        if ids is None and logprobs is None:
            return None
        rows = []
        for field, value in (("distill_token_ids", ids), ("distill_logprobs", logprobs)):
            if not isinstance(value, simdjson.Array):
                other = "distill_logprobs" if field == "distill_token_ids" else "distill_token_ids"
                raise InvalidPostError((field,), f"must be sent together with {other}, as a list of lists of lists")
            if len(value) == 0:
                continue
            if len(value) != len(lengths):
                raise InvalidPostError((field,), f"{len(value)} rows for {len(lengths)} sequences")
            rows.append([self._positions(field, index, row, lengths[index]) for index, row in enumerate(value)])
        if len(rows) < 2:
            return None
        result = []
        for index, ((k, id_values), (k_logprobs, logprob_values)) in enumerate(zip(*rows, strict=True)):
            if k != k_logprobs:
                raise InvalidPostError(("distill_logprobs", index), f"{k_logprobs} for each position, {k} token ids")
            _check_range("distill_token_ids", id_values, [len(id_values)], 0, INT32_MAX)
            single = self.finite("distill_logprobs", logprob_values, [len(logprob_values)])
            result.append((k, id_values.astype(np.int32).tobytes(), single.tobytes()))
        return result

    @staticmethod
    def _positions(field: str, index: int, row: Any, length: int) -> tuple[int, npt.NDArray[Any]]:
        of_type: Kind = "i" if field == "distill_token_ids" else "d"
        if not isinstance(row, simdjson.Array) or len(row) != length:
            raise InvalidPostError((field, index), f"must be a list with one list for each of the {length} tokens")
        try:
            rows: Any = row
            widths = {len(position) for position in rows}
            flat: npt.NDArray[Any] = np.frombuffer(row.as_buffer(of_type=of_type), _NUMPY[of_type])
        except TypeError:
            raise InvalidPostError((field, index), "must be a list of lists of numbers") from None
        if len(widths) != 1 or len(flat) != length * (k := next(iter(widths))):
            raise InvalidPostError((field, index), "every position must have the same number of candidates")
        return k, flat


def _text(value: Any) -> str:
    text: bytes = value.mini
    return text.decode()


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value)) or ("a list" if isinstance(value, simdjson.Array) else "an object")


def _place(field: str, lengths: list[int], position: int) -> tuple[str | int, ...]:
    """Field, row and column of a position in a flat array."""
    for row, length in enumerate(lengths):
        if position < length:
            return field, row, position
        position -= length
    return (field,)


def _check_range(field: str, values: npt.NDArray[Any], lengths: list[int], low: int, high: int) -> None:
    if not len(values):
        return
    if low == 0 and high == INT32_MAX:  # one pass: any negative or larger number leaves its bits
        if 0 <= int(np.bitwise_or.reduce(values)) <= INT32_MAX:
            return
    elif int(values.min()) >= low and int(values.max()) <= high:
        return
    position = int(np.flatnonzero((values < low) | (values > high))[0])
    raise InvalidPostError(_place(field, lengths, position), f"{values[position]} is not within {low} and {high}")


def _check_lengths(field: str, rows: list[int], lengths: list[int], *, scalar: bool = False) -> None:
    if rows == lengths:
        return
    if len(rows) != len(lengths):
        raise InvalidPostError((field,), f"{len(rows)} rows for {len(lengths)} sequences")
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if row != length and not (scalar and row == 1):
            raise InvalidPostError((field, index), f"{row} values for {length} tokens")


def _find_fault(field: str, value: Any, of_type: Kind) -> InvalidPostError:
    """The first element that keeps a field from being a list of lists of numbers."""
    wanted = "an integer" if of_type == "i" else "a number"
    for index, row in enumerate(value):
        if not isinstance(row, simdjson.Array):
            return InvalidPostError((field, index), f"must be a list, not {_kind(row)}")
        for position, number in enumerate(row):
            whole = isinstance(number, int) and not isinstance(number, bool)
            if not (whole or (of_type == "d" and isinstance(number, float))):
                shown = f"{number!r}" if isinstance(number, float | str) else _kind(number)
                return InvalidPostError((field, index, position), f"{shown} is not {wanted}")
    return InvalidPostError((field,), f"must be a list of lists of {wanted.split()[1]}s")
