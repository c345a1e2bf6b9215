"""Atropos' HTTP endpoints: the happy path in upstream's wire form, and the right behaviour where upstream's was not."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import struct
import threading
import time
from typing import Any

import grpc
import pytest

pytestmark = pytest.mark.wire


def wait_until(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class TestHappyPath:
    def test_a_run_as_upstream_clients_see_it(self, server: Any) -> None:
        assert server.get("/") == {"message": "AtroposLib API"}
        assert server.get("/wandb_info") == {"group": None, "project": None}
        assert server.get("/info") == {"batch_size": -1, "max_token_len": -1}
        assert server.register_env() == {"status": "wait for trainer to start"}
        assert isinstance(server.register()["uuid"], int)
        assert server.register_env() == {"status": "wait for trainer to start"}
        assert server.get("/batch") == {"batch": None}
        assert server.register_env("gsm8k") == {
            "status": "success", "env_id": 0, "wandb_name": "gsm8k_0", "checkpoint_dir": "ckpt", "starting_step": 0,
            "checkpoint_interval": 5, "num_steps": 100,
        }  # fmt: skip
        assert server.get("/wandb_info") == {"group": "g", "project": "p"}
        assert server.get("/info") == {"batch_size": 16, "max_token_len": 4096}
        status = server.get("/status-env", {"env_id": 0})
        assert status == {
            "current_step": 0, "queue_size": 0, "unallocated_fraction": 1.0, "self_queue_size": 0, "max_group_size": 4,
            "env_weight": 1.0,
        }  # fmt: skip
        posted = [server.group(number) for number in range(5)]
        for item in posted[:3]:
            assert server.post("/scored_data", item) == {"status": "received"}
        assert server.post("/scored_data_list", posted[3:]) == {"status": "received", "groups_processed": 2}
        assert server.get("/latest_example")["tokens"] == posted[4]["tokens"]
        batch = server.get("/batch")["batch"]
        assert [item["tokens"] for item in batch] == [item["tokens"] for item in posted[:4]]
        assert set(batch[0]) == {
            "tokens", "masks", "scores", "advantages", "ref_logprobs", "messages", "generation_params",
            "inference_logprobs", "overrides", "group_overrides", "images", "env_id", "distill_token_ids",
            "distill_logprobs",
        }  # fmt: skip
        assert (batch[0]["masks"], batch[0]["env_id"]) == (posted[0]["masks"], 0)
        assert batch[0]["inference_logprobs"][3] == pytest.approx(posted[0]["inference_logprobs"][3], rel=1e-6)
        assert server.get("/status")["current_step"] == 0
        assert server.get("/batch") == {"batch": None}
        assert server.get("/status")["current_step"] == 1
        assert server.post("/disconnect-env", {"env_id": 0}) == {"status": "success"}

    @pytest.mark.parametrize("sizes", [[None], [100, None], [0, 7, 300, None]], ids=["one", "two", "four"])
    @pytest.mark.parametrize("level", [0, 9])
    def test_gzip_bodies(self, server: Any, sizes: list[int | None], level: int) -> None:
        """One member or several, stored or compressed."""
        text, begin, members = json.dumps(server.group(1)).encode(), 0, []
        for size in sizes:
            part = text[begin:] if size is None else text[begin : begin + size]
            members.append(gzip.compress(part, level))
            begin += len(part)
        assert server.call("POST", "/scored_data", b"".join(members), {"Content-Encoding": "gzip"})[0] == 200
        assert server.get("/status")["queue_size"] == 1

    def test_many_requests_on_one_connection(self, server: Any) -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            one = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
            body = json.dumps(server.group(1)).encode()
            post = b"POST /scored_data HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            connection.sendall(one + post + one + post + one)
            received = b""
            while received.count(b"HTTP/1.1 200 OK") < 5 or not received.endswith(b"}"):
                received += connection.recv(65536)
        order = [b"AtroposLib" in part for part in received.split(b"HTTP/1.1 200 OK")[1:]]
        assert order == [True, False, True, False, True]

    def ask(self, server: Any, *parts: bytes) -> bytes:
        """Send raw bytes, piece by piece, and read until the server closes."""
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            for part in parts:
                connection.sendall(part)
                time.sleep(0.05)
            received = b""
            while data := connection.recv(65536):
                received += data
        return received

    def test_a_body_in_chunks(self, server: Any) -> None:
        body = json.dumps(server.group(1)).encode()
        head = b"POST /scored_data HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:100], body[100:])]
        assert self.ask(server, head, *chunks, b"0\r\n\r\n").endswith(b'{"status":"received"}')

    def test_a_head_in_pieces_and_a_large_body(self, server: Any) -> None:
        body = json.dumps(server.group(1, length=20_000)).encode()
        head = b"POST /scored_data HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        answer = self.ask(server, head[:30], head[30:] + body[:70_000], body[70_000:])
        assert answer.endswith(b'{"status":"received"}')

    def test_a_client_that_asks_before_it_sends(self, server: Any) -> None:
        body = json.dumps(server.group(1)).encode()
        head = b"POST /scored_data HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\n"
        head += b"Content-Length: %d\r\n\r\n"
        answer = self.ask(server, head % len(body), body)
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")

    def test_an_old_client_gets_its_batch_in_one_piece(self, server: Any) -> None:
        server.register(batch_size=8)
        server.post("/scored_data_list", [server.group(number) for number in range(2)])
        answer = self.ask(server, b"GET /batch HTTP/1.0\r\n\r\n")
        head, _, text = answer.partition(b"\r\n\r\n")
        assert b"chunked" not in head and b"Connection: close" in head
        assert server.numbers(json.loads(text)) == [0, 1]

    def test_any_order_works(self, server: Any) -> None:
        """AP-7: posts before a trainer is there, then registration, then batches."""
        server.post("/scored_data_list", [server.group(number) for number in range(4)])
        server.register_env()
        server.register()
        assert server.numbers(server.get("/batch")) == [0, 1, 2, 3]
        assert server.register_env()["status"] == "success"


class TestRegistration:
    def test_again_takes_effect(self, server: Any) -> None:
        """AP-6."""
        server.register(batch_size=16, starting_step=1)
        answer = server.register(batch_size=8, starting_step=4, max_token_len=99)
        assert (answer["epoch"], answer["queue"]) == (2, "kept")
        assert server.get("/info") == {"batch_size": 8, "max_token_len": 99}
        assert server.get("/status")["current_step"] == 4

    def test_the_uuid_survives_readers_that_know_only_doubles(self, server: Any) -> None:
        """AP-19."""
        number = server.register()["uuid"]
        assert int(float(number)) == number

    def test_an_environment_that_restarts_keeps_id_and_name(self, server: Any) -> None:
        server.register()
        server.get("/batch")
        first = server.register_env("e")
        assert server.register_env("other")["env_id"] == 1
        assert server.register_env("e") == first

    def test_instances_keep_their_own_ids_by_what_the_relay_says(self, server: Any) -> None:
        server.register()
        server.get("/batch")
        headers = [
            {"X-Tinker-Atropos-Environment": "gsm8k", "X-Tinker-Atropos-Instance": f"gsm8k-{number}"}
            for number in (0, 1, 0)
        ]
        answers = [server.register_env("gsm8k", headers=fields) for fields in headers]
        assert [(answer["env_id"], answer["wandb_name"]) for answer in answers] == [
            (0, "gsm8k_0"),
            (1, "gsm8k_1"),
            (0, "gsm8k_0"),
        ]

    def test_ids_survive_a_restart(self, server: Any) -> None:
        server.register()
        server.get("/batch")
        server.register_env("a")
        server.register_env("b")
        server.restart()
        assert server.register_env("b")["env_id"] == 1
        assert server.get("/status-env", {"env_id": 1})["max_group_size"] == 4
        assert server.get("/info")["batch_size"] == 16

    @pytest.mark.parametrize(
        ("path", "body", "message"),
        [
            ("/register", {"batch_size": 0}, "batch_size is 0; it must be at least 1"),
            ("/register", {"batch_size": -1}, "batch_size is -1; it must be at least 1"),
            ("/register", {"batch_size": "4"}, 'batch_size is "4"; it must be an integer'),
            ("/register", {"num_steps": None}, "num_steps is missing"),
            ("/register", {"starting_step": -1}, "starting_step is -1; it must not be negative"),
            ("/register-env", {"group_size": 0}, "group_size is 0; it must be at least 1"),
            ("/register-env", {"min_batch_allocation": 1.5}, "min_batch_allocation is 1.5; it must be between 0 and 1"),
            ("/register-env", {"desired_name": 3}, "desired_name must be a string"),
            ("/disconnect-env", {"env_id": "x"}, 'env_id is "x"; it must be an integer'),
        ],
    )
    def test_what_cannot_work_is_refused(self, server: Any, path: str, body: dict[str, Any], message: str) -> None:
        """AP-17."""
        good = {
            "/register": server.REGISTRATION,
            "/register-env": {"max_token_length": 1, "desired_name": "e", "weight": 1.0, "group_size": 4},
            "/disconnect-env": {},
        }[path]
        status, answer = server.call("POST", path, {**good, **body})
        assert (status, answer["message"]) == (422, message)

    def test_an_environment_without_a_name_registers(self, server: Any) -> None:
        """AP-28."""
        server.register()
        server.get("/batch")
        assert server.register_env(None)["status"] == "success"

    @pytest.mark.parametrize("env_id", [5, -1])
    def test_disconnecting_a_stranger_is_answered(self, server: Any, env_id: int) -> None:
        server.register()
        server.get("/batch")
        server.register_env()
        assert server.post("/disconnect-env", {"env_id": env_id})["status"] == "failure"


class TestStatusOfAnEnvironment:
    @pytest.mark.parametrize("body", [{"env_id": 99}, {"env_id": -1}, {}, None])
    def test_is_always_answered(self, server: Any, body: Any) -> None:
        """AP-9, AP-20: a GET with a body; three failures in a row end an unmodified environment."""
        if body == {}:
            status, answer = server.call("GET", "/status-env", {"env_id": 0, "more": 1})
        else:
            status, answer = server.call("GET", "/status-env", body)
        assert status == 200
        assert (answer["queue_size"], answer["self_queue_size"], answer["env_weight"]) == (0, 0, 1.0)

    def test_the_queue_looks_empty_however_long_it_is(self, server: Any) -> None:
        """AP-31: a queue that grows makes atroposlib cancel running rollouts."""
        server.register(batch_size=1000)
        server.get("/batch")
        server.register_env()
        server.post("/scored_data_list", [server.group(number) for number in range(50)])
        assert server.get("/status-env", {"env_id": 0})["queue_size"] == 0
        assert server.get("/status")["queue_size"] == 50


class TestPosts:
    def test_one_bad_item_does_not_fail_the_others(self, server: Any) -> None:
        """AP-18."""
        bad = server.group(2)
        bad["scores"] = bad["scores"][:1]
        answer = server.post("/scored_data_list", [server.group(1), bad, server.group(3)])
        assert answer["groups_processed"] == 2
        assert answer["rejected"] == [{"index": 1, "message": "scores: 1 scores for 4 sequences", "loc": [1, "scores"]}]
        assert server.get("/status")["queue_size"] == 2

    def test_a_list_of_bad_items_only_is_refused(self, server: Any) -> None:
        status, answer = server.call("POST", "/scored_data_list", [{"tokens": [[1]]}])
        assert status == 422 and answer["rejected"][0]["message"] == "masks: missing"

    def test_what_an_environment_makes_of_a_mapping_is_refused_by_name(self, server: Any) -> None:
        """AP-27: with transformers 5 a chat template gives a mapping, and atroposlib posts it as tokens."""
        group = server.group(1)
        group["tokens"] = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in group["tokens"]]
        status, answer = server.call("POST", "/scored_data", group)
        assert status == 422 and answer["message"].startswith("tokens[0]"), answer

    @pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
    def test_numbers_that_are_none_are_refused_and_the_rest_goes_on(self, server: Any, value: str) -> None:
        """AP-15: upstream accepts them and loses the batch that holds them."""
        server.register(batch_size=4)
        server.get("/batch")
        text = json.dumps(server.group(1)).replace("1.0, 1.0, 1.0, 1.0]", f"1.0, {value}, 1.0, 1.0]", 1)
        status, answer = server.call("POST", "/scored_data", text.encode())
        assert status == 422 and "is not a finite number" in answer["message"]
        server.post("/scored_data", server.group(2))
        assert server.numbers(server.get("/batch")) == [2]

    @pytest.mark.parametrize(
        ("damage", "status", "message"),
        [
            ("cut", 400, "the gzip body is cut short"),
            ("flip", 400, "the gzip body is damaged"),
            ("wrong size", 400, "the gzip body is damaged"),
            ("wrong sum", 400, "the gzip body is damaged"),
            ("more behind it", 400, "the gzip body is"),
            ("none", 400, "the gzip body is"),
        ],
    )
    def test_damaged_gzip_is_refused(self, server: Any, damage: str, status: int, message: str) -> None:
        """AP-16."""
        whole = server.zipped(server.group(1))
        body = {
            "cut": whole[:-12],
            "flip": whole[:20] + bytes(byte ^ 255 for byte in whole[20:40]) + whole[40:],
            "wrong size": whole[:-4] + b"\1\0\0\0",
            "wrong sum": whole[:-8] + bytes(4) + whole[-4:],
            "more behind it": whole + b"more",
            "none": b"abcdefgh",
        }[damage]
        found, answer = server.call("POST", "/scored_data", body, {"Content-Encoding": "gzip"})
        assert found == status and message in answer["message"]

    def test_other_encodings_are_named(self, server: Any) -> None:
        assert server.call("POST", "/scored_data", b"x", {"Content-Encoding": "deflate"})[0] == 415

    def test_a_body_that_inflates_without_end_is_refused(self, make_server: Any) -> None:
        server = make_server(max_body_mb=1)
        bomb = server.zipped([0] * 2_000_000)
        assert len(bomb) < 100_000
        assert server.call("POST", "/scored_data", bomb, {"Content-Encoding": "gzip"})[0] == 413
        assert server.call("POST", "/scored_data", b" " * 3_000_000)[0] == 413
        assert server.get("/") == {"message": "AtroposLib API"}

    def test_a_group_larger_than_the_batch_is_refused_at_the_door(self, server: Any) -> None:
        """AP-11."""
        server.register(batch_size=16)
        status, answer = server.call("POST", "/scored_data", server.group(1, sequences=32))
        assert status == 422 and answer["message"] == "tokens: a group of 32 sequences does not fit in a batch of 16"

    def test_the_same_post_id_is_stored_once(self, server: Any) -> None:
        headers = {
            "X-Tinker-Atropos-Instance": "e-0",
            "X-Tinker-Atropos-Environment": "e",
            "Idempotency-Key": "17",
        }
        assert server.post("/scored_data", server.group(1), headers) == {"status": "received"}
        assert server.post("/scored_data", server.group(1), headers) == {"status": "received", "duplicate": True}
        server.restart()
        assert server.post("/scored_data", server.group(1), headers)["duplicate"]
        other = {**headers, "X-Tinker-Atropos-Instance": "e-1"}
        assert "duplicate" not in server.post("/scored_data", server.group(1), other)
        assert server.get("/status")["queue_size"] == 2

    def send_and_hang_up(self, server: Any, content: Any) -> None:
        """Post on a connection that is reset before the answer is read."""
        body = json.dumps(content).encode()
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(b"POST /scored_data HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: server.get("/status")["queue_size"] > 0)
        time.sleep(0.1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def test_the_same_again_after_a_lost_answer_is_stored_once(self, server: Any) -> None:
        self.send_and_hang_up(server, server.group(1))
        time.sleep(0.2)
        assert server.post("/scored_data", server.group(2)) == {"status": "received"}
        assert server.post("/scored_data", server.group(1)) == {"status": "received", "duplicate": True}
        assert server.post("/scored_data", server.group(1)) == {"status": "received"}
        assert server.get("/status")["queue_size"] == 3

    def test_after_a_crash_the_last_answer_may_have_been_lost(self, process_server: Any) -> None:
        server = process_server
        server.post("/scored_data", server.group(1))
        server.restart()
        assert server.post("/scored_data", server.group(1)) == {"status": "received", "duplicate": True}
        assert server.post("/scored_data", server.group(1)) == {"status": "received"}
        assert server.get("/status")["queue_size"] == 2

    def test_a_full_queue_holds_posts_back_until_there_is_room(self, make_server: Any) -> None:
        """AP-10."""
        server = make_server(max_queue_mb=1)
        epoch = server.take_over(batch_size=16).epoch
        for number in range(8):
            server.post("/scored_data", server.group(number, length=4000))
        answered: list[int] = []
        thread = threading.Thread(
            target=lambda: answered.append(server.call("POST", "/scored_data", server.group(9))[0])
        )
        thread.start()
        batch = server.lease(epoch, 1)
        time.sleep(0.3)
        assert answered == []
        server.ack(epoch, batch)
        server.cover(epoch, 1)
        thread.join(20)
        assert answered == [200]

    def test_equal_posts_without_an_id_are_different_groups(self, server: Any) -> None:
        for _ in range(3):
            server.post("/scored_data", server.group(1))
        assert server.get("/status")["queue_size"] == 3

    def test_an_environment_that_never_registered_here_is_taken_and_named(self, server: Any) -> None:
        server.post("/scored_data", server.group(1, env_id=42))
        assert [entry["environment"] for entry in server.ledger()] == ["unregistered-42"]

    @pytest.mark.parametrize(
        ("method", "path", "status"), [("GET", "/nothing", 404), ("GET", "/scored_data", 405), ("POST", "/batch", 405)]
    )
    def test_other_paths(self, server: Any, method: str, path: str, status: int) -> None:
        assert server.call(method, path)[0] == status

    def test_what_is_not_http_is_refused(self, server: Any) -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 400")


class TestBatches:
    def test_come_first_in_first_out(self, server: Any) -> None:
        """AP-3."""
        server.register(batch_size=16)
        server.post("/scored_data_list", [server.group(number) for number in range(12)])
        batches = [server.numbers(server.get("/batch")) for _ in range(3)]
        assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]

    def test_the_step_counts_what_was_trained(self, server: Any) -> None:
        """AP-4: not what could have been cut."""
        server.register(batch_size=16)
        server.post("/scored_data_list", [server.group(number) for number in range(64)])
        steps = []
        for _ in range(4):
            server.get("/batch")
            steps.append(server.get("/status")["current_step"])
        assert steps == [0, 1, 2, 3]

    def test_an_answer_that_did_not_arrive_is_given_back(self, server: Any) -> None:
        """AP-2."""
        server.register(batch_size=64)
        server.post("/scored_data_list", [server.group(number, length=4000) for number in range(32)])
        for _ in range(2):
            connection = socket.create_connection(("127.0.0.1", server.port))
            connection.sendall(b"GET /batch HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            wait_until(lambda: server.get("/status")["ledger"]["leased"] == 0)
        assert server.numbers(server.get("/batch")) == list(range(16))
        assert server.numbers(server.get("/batch")) == list(range(16, 32))

    def test_registering_gives_back_what_is_outstanding(self, server: Any) -> None:
        server.register(batch_size=16)
        server.post("/scored_data_list", [server.group(number) for number in range(8)])
        assert server.numbers(server.get("/batch")) == [0, 1, 2, 3]
        assert server.register(batch_size=16)["given_back"] == 1
        assert server.numbers(server.get("/batch")) == [0, 1, 2, 3]

    def test_a_batch_that_arrived_stays_outstanding_over_a_restart(self, server: Any) -> None:
        server.register(batch_size=16)
        server.post("/scored_data_list", [server.group(number) for number in range(8)])
        server.get("/batch")
        time.sleep(0.3)
        server.restart()
        assert server.numbers(server.get("/batch")) == [4, 5, 6, 7]
        assert server.get("/status")["current_step"] == 1

    def test_a_batch_that_a_kept_connection_carried_stays_outstanding_over_a_crash(self, process_server: Any) -> None:
        """The server dies before such a trainer's next request: what it has, and trains, is not handed out again."""
        server = process_server
        server.register(batch_size=16)
        server.post("/scored_data_list", [server.group(number) for number in range(8)])
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as kept:
            kept.request("GET", "/batch")
            assert server.numbers(json.loads(kept.getresponse().read())) == [0, 1, 2, 3]
            time.sleep(0.3)
            server.restart()
        assert server.numbers(server.get("/batch")) == [4, 5, 6, 7]
        assert server.get("/status")["current_step"] == 1

    def test_a_trainer_that_is_gone_before_it_read_what_its_kernel_has_did_not_get_it(self, server: Any) -> None:
        server.register(batch_size=4)
        server.post("/scored_data", server.group(1))
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"GET /batch HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(0.3)  # all of it is in the kernel, and unread: closing resets the connection
        wait_until(lambda: server.get("/status")["ledger"]["leased"] == 0)
        assert server.numbers(server.get("/batch")) == [1]

    def test_before_registration_and_after_a_reset_it_says_so(self, server: Any) -> None:
        """AP-8."""
        assert server.get("/batch") == {
            "status": "error",
            "message": "Trainer not registered. Call /register first.",
            "batch": [],
        }
        server.register(batch_size=16)
        server.post("/scored_data", server.group(1))
        assert server.call("GET", "/reset_data", raw=True) == (200, b"Reset successful")
        assert server.get("/batch")["status"] == "error"
        assert server.get("/status-env", {"env_id": 0})["current_step"] == 0
        assert server.get("/status")["queue_size"] == 0
        server.register(batch_size=4)
        server.post("/scored_data", server.group(2))
        assert server.numbers(server.get("/batch")) == [2]

    def test_a_client_that_does_not_read_blocks_nobody(self, server: Any) -> None:
        """AP-21."""
        server.register(batch_size=64, max_token_len=20_000)
        server.post("/scored_data_list", [server.group(number, length=20_000) for number in range(16)])
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            slow.sendall(b"GET /batch HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_until(lambda: server.get("/status")["ledger"]["leased"] == 16)
            for number in range(16, 20):
                server.post("/scored_data", server.group(number))
            assert server.get("/status")["ledger"]["queued"] == 4
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += slow.recv(1 << 20)
        assert received.count(b'"tokens"') == 16

    def test_sizes_that_cannot_sum_are_named(self, server: Any) -> None:
        """AP-12: 6 into 16."""
        server.register(batch_size=16)
        for number in range(4):
            server.post("/scored_data", server.group(number, sequences=6))
        assert server.get("/batch") == {"batch": None}
        expected = "no choice of the queued groups sums to 16 sequences exactly (groups by size: 4 of 6)"
        assert server.get("/status")["waiting_for"] == expected

    def test_a_run_that_leases_over_grpc_is_not_for_plain_trainers(self, server: Any) -> None:
        server.take_over()
        assert server.call("GET", "/batch")[0] == 409
        assert server.call("GET", "/reset_data")[0] == 409

    def test_sizes_that_upstream_starves(self, server: Any) -> None:
        """AP-12: 3 beside 4, and parts of groups, pack."""
        server.register(batch_size=16)
        for number in range(8):
            server.post("/scored_data", server.group(number, sequences=3 if number % 2 else 4))
        assert [len(item["tokens"]) for item in server.get("/batch")["batch"]] == [4, 3, 3, 3, 3]


def test_a_crash_loses_nothing(process_server: Any) -> None:
    """AP-1: queue, batches that are out, registrations, step and settings."""
    server = process_server
    server.register(batch_size=16, starting_step=3)
    server.get("/batch")
    server.register_env("a")
    server.register_env("b", group_size=8)
    server.post("/scored_data_list", [server.group(number) for number in range(10)])
    server.get("/batch")
    server.get("/batch")
    time.sleep(0.3)  # the server hears that the answer arrived
    before = {path: server.get(path) for path in ("/info", "/wandb_info", "/ledger", "/latest_example")}
    status = server.get("/status")
    server.restart()
    assert {path: server.get(path) for path in before} == before
    after = server.get("/status")
    assert [after[key] for key in ("current_step", "ledger", "epoch")] == [
        status[key] for key in ("current_step", "ledger", "epoch")
    ]
    assert server.get("/status-env", {"env_id": 1})["max_group_size"] == 8


def test_no_other_origin_is_let_in(server: Any) -> None:
    """AP-23."""
    server.call("GET", "/status", headers={"Origin": "http://elsewhere"})
    assert not [name for name in server.answer_headers if name.lower().startswith("access-control")]
    assert server.call("OPTIONS", "/scored_data", headers={"Origin": "http://elsewhere"})[0] == 405


class TestToken:
    def test_every_route_but_health_needs_it(self, make_server: Any) -> None:
        server = make_server(token="secret")
        for method, path in (
            ("GET", "/"),
            ("GET", "/status"),
            ("POST", "/scored_data"),
            ("GET", "/metrics"),
            ("GET", "/ledger"),
        ):
            for header in ("", "Bearer wrong", "secret"):
                assert server.call(method, path, headers={"Authorization": header})[0] == 401
        assert server.call("GET", "/healthz", headers={"Authorization": ""})[0] == 200
        assert server.call("GET", "/readyz", headers={"Authorization": ""})[0] == 200
        assert server.get("/status")["current_step"] == 0

    def test_grpc_needs_it_too(self, make_server: Any) -> None:
        server = make_server(token="secret")
        request = server.pb.LeaseRequest(epoch=1, for_step=1)
        for metadata in ([], [("authorization", "Bearer wrong")]):
            with pytest.raises(grpc.RpcError) as caught:
                server.rpc.Lease(request, metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as caught:
            server.rpc.Lease(request, metadata=[("authorization", "Bearer secret")])
        assert caught.value.code() is grpc.StatusCode.ABORTED


class TestLookingIn:
    def test_the_ledger_is_paged(self, server: Any) -> None:
        server.post("/scored_data_list", [server.group(number) for number in range(25)])
        page = server.get("/ledger?limit=10")
        assert ([entry["id"] for entry in page["entries"]], page["next"]) == (list(range(1, 11)), 10)
        assert [entry["id"] for entry in server.ledger()] == list(range(1, 26))
        assert page["sums"]["stored"] == 25

    def test_metrics(self, server: Any) -> None:
        server.post("/scored_data", server.group(1))
        server.call("POST", "/scored_data", {"tokens": [[1]]})
        _, text = server.call("GET", "/metrics", raw=True)
        assert b'tinker_atropos_trajectories_groups{environment="unregistered-0",state="queued"} 1.0' in text
        assert b'tinker_atropos_trajectories_tokens{environment="unregistered-0",state="queued"} 32.0' in text
        assert b'tinker_atropos_trajectories_request_seconds_count{path="/scored_data"} 2.0' in text
        assert b"tinker_atropos_trajectories_sync_seconds_count 1.0" in text
        assert b"tinker_atropos_trajectories_queue_age_seconds" in text
        assert b'tinker_atropos_trajectories_refused_posts_total{field="masks"} 1.0' in text

    @pytest.mark.parametrize("path", ["/scored_data", "/scored_data_list"])
    @pytest.mark.parametrize(
        ("headers", "name"),
        [({"X-Tinker-Atropos-Environment": "e", "X-Tinker-Atropos-Instance": "e-0"}, "e"), ({}, "unregistered-0")],
    )
    def test_refused_posts_are_told_to_the_trainer_and_in_the_status(
        self, server: Any, path: str, headers: dict[str, str], name: str
    ) -> None:
        epoch = server.take_over().epoch
        group = server.group(1, scores=[float("nan")] * 4)
        where = "[0].scores[0]" if path.endswith("list") else "scores[0]"
        for _ in range(2):
            status, _ = server.call("POST", path, [group] if path.endswith("list") else group, headers)
            assert status == 422
        answer = server.rpc.Lease(server.pb.LeaseRequest(epoch=epoch, for_step=1))
        reason = f"{where}: nan is not a finite number"
        assert answer.waiting_for == f"0 of 16 sequences are queued; posts of environment {name} are refused: {reason}"
        sentence = f"2 posts of environment {name} were refused and none taken; the last refusal: {reason}"
        told = [(warning.reason, warning.environment, warning.message) for warning in answer.warnings]
        assert told == [("PostsRefused", name, sentence)]
        status = server.get("/status")
        (environment,) = status["environments"]
        refused = environment["refused_posts"]
        assert (environment["name"], refused["count"], refused["last"]) == (name, 2, reason)
        assert status["complaints"] == [sentence]

    def test_prompts_that_several_replicas_work_on_are_counted(self, server: Any) -> None:
        def post(number: int, instance: str) -> None:
            identity = {"X-Tinker-Atropos-Environment": "e", "X-Tinker-Atropos-Instance": instance}
            server.post("/scored_data", server.group(number), identity)

        for number, instance in ((1, "e-0"), (1, "e-0"), (2, "e-1"), (1, "e-1")):
            post(number, instance)
        (environment,) = server.get("/status")["environments"]
        assert (environment["name"], environment["duplicate_prompts"]) == ("e", 1)

    def test_it_ends_in_order(self, process_server: Any) -> None:
        process_server.post("/scored_data", process_server.group(1))
        assert process_server.stop() == 0
        log = process_server.log.read_text()
        assert '"message": "ready on http://127.0.0.1:' in log
        assert "Traceback" not in log
