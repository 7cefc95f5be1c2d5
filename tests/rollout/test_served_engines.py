"""Engines outside this process: an OpenAI-compatible server on 127.0.0.1 and a stand-in for vLLM."""

import contextlib
import json
import math
import sys
import threading
import time
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch

from gainstage.ops.extras import MissingExtra
from gainstage.registry import RecipeError, build, names
from gainstage.rollout.engines.openai import OpenAIEngine
from gainstage.rollout.engines.vllm import VllmEngine
from gainstage.types import Prompt, Sampling, Stop


class Letters:
    """One id a letter: 97 is "a"."""

    def decode(self, ids, skip_special_tokens=True):
        return "".join(map(chr, ids))

    def encode(self, text, add_special_tokens=True):
        return [ord(letter) for letter in text]


class Server:
    """Answers by `script(path, payload, number) -> (status, body)` and keeps what it was asked."""

    def __init__(self, script):
        self.seen, self.headers, lock, outer = [], [], threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.seen.append((self.path, payload))
                    outer.headers.append(dict(self.headers))
                    number = len(outer.seen)
                status, body = script(self.path, payload, number)
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                with contextlib.suppress(ConnectionError):  # the engine did not wait for the answer
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.http.shutdown()
        self.http.server_close()


def engine(server, **settings):
    return OpenAIEngine(base_url=server.url, model="m", **settings).bind(None, Letters())


def choice(text, ids=None, finish="stop", **more):
    logprobs = {"tokens": list(text), "token_logprobs": [-0.5] * len(text)}
    return {"choices": [{"text": text, "finish_reason": finish, "logprobs": logprobs, "token_ids": ids, **more}]}


@pytest.fixture
def quick(monkeypatch):
    """No waiting between tries; the pauses asked for."""
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


def test_completions_keep_order_ids_and_logprobs():
    def script(path, payload, number):
        time.sleep(0.01 * (number % 3))
        return 200, choice("xy", [payload["seed"], 5])

    with Server(script) as server:
        prompts = [Prompt([97, 98], (7, 2**64 - 1), Sampling(temperature=0.5, top_k=3)), Prompt([99], (9,))]
        rows = engine(server).generate(prompts, max_new=4, stop=["!"])
    assert [[c.ids for c in row] for row in rows] == [[[7, 5], [2**63 - 1, 5]], [[9, 5]]]
    assert rows[0][0].logprobs == [-0.5, -0.5] and rows[0][0].stop is Stop.EOS and rows[0][0].text == "xy"
    path, payload = next(item for item in server.seen if item[1]["seed"] == 7)
    assert path == "/v1/completions" and payload["prompt"] == [97, 98] and payload["stop"] == ["!"]
    assert payload["temperature"] == 0.5 and payload["top_k"] == 3 and payload["max_tokens"] == 4


def test_ids_written_as_strings_are_read():
    body = choice("xy", None)
    body["choices"][0]["logprobs"]["tokens"] = ["token_id:120", "token_id:3"]
    with Server(lambda *asked: (200, body)) as server:
        completion = engine(server).generate([Prompt([97], (1,))], max_new=2)[0][0]
    assert completion.ids == [120, 3] and completion.logprobs == [-0.5, -0.5] and completion.extras == {}


def test_a_server_that_takes_text_only_gets_text():
    def script(path, payload, number):
        if not isinstance(payload["prompt"], str) or "return_token_ids" in payload:
            return 400, {"error": "unknown field"}
        body = choice("xyz")
        body["choices"][0]["logprobs"] = None
        return 200, body

    with Server(script) as server:
        served = engine(server, concurrency=1)
        first = served.generate([Prompt([97, 98], (1,))], max_new=4)[0][0]
        asked = len(server.seen)
        served.generate([Prompt([97, 98], (2,))], max_new=4)
    assert asked == 3 and len(server.seen) == 4, "what the server refuses is remembered"
    assert server.seen[-1][1]["prompt"] == "ab"
    assert first.ids == [120, 121, 122] and all(map(math.isnan, first.logprobs)) and first.extras["retokenised"]


@pytest.mark.parametrize(
    ("finish", "stop"),
    [("stop", Stop.EOS), ("length", Stop.LENGTH), ("abort", Stop.FAILED), (None, Stop.FAILED)],
)
def test_reasons(finish, stop):
    with Server(lambda *asked: (200, choice("xy", [1, 2], finish))) as server:
        assert engine(server).generate([Prompt([97], (1,))], max_new=2)[0][0].stop is stop


def test_length_below_the_limit_means_a_full_context():
    with Server(lambda *asked: (200, choice("xy", [1, 2], "length"))) as server:
        assert engine(server).generate([Prompt([97], (1,))], max_new=3)[0][0].stop is Stop.CONTEXT


def test_a_prompt_that_is_too_long_ends_its_row_alone():
    def script(path, payload, number):
        if len(payload["prompt"]) > 2:
            return 400, {"error": "This model's maximum context length is 2 tokens."}
        return 200, choice("x", [1])

    with Server(script) as server:
        rows = engine(server).generate([Prompt([97] * 3, (1,)), Prompt([97], (2,))], max_new=3)
    assert [row[0].stop for row in rows] == [Stop.CONTEXT, Stop.EOS]
    assert all("return_token_ids" in payload for _, payload in server.seen)


def test_busy_servers_are_tried_again(quick):
    def script(path, payload, number):
        troubles = [(503, {"error": "loading"}), (429, {}), (200, b"{")]
        return troubles[number - 1] if number <= 3 else (200, choice("x", [1]))

    with Server(script) as server:
        completion = engine(server, retries=3).generate([Prompt([97], (1,))], max_new=1)[0][0]
    assert completion.ids == [1] and len(server.seen) == 4
    assert len(quick) == 3 and quick[0] < quick[2], "pauses grow"


def test_a_dead_server_is_a_typed_failure_of_its_rows_alone(quick):
    def script(path, payload, number):
        return (500, {"error": "boom"}) if payload["seed"] == 2 else (200, choice("x", [1]))

    with Server(script) as server:
        rows = engine(server, retries=1).generate([Prompt([97], (1, 2, 3))], max_new=1)[0]
    assert [c.stop for c in rows] == [Stop.EOS, Stop.FAILED, Stop.EOS]
    assert rows[1].ids == rows[1].logprobs == [] and "boom" in rows[1].extras["error"]
    gone = engine(server, retries=1).generate([Prompt([97], (1,))], max_new=1)[0][0]
    assert gone.stop is Stop.FAILED and "did not answer" in gone.extras["error"]


def test_a_hanging_server_fails_at_the_deadline():
    release = threading.Event()

    def script(path, payload, number):
        release.wait(5)
        return 200, choice("x", [1])

    with Server(script) as server:
        started = time.monotonic()
        rows = engine(server, deadline=0.3, concurrency=2).generate([Prompt([97], (1, 2, 3, 4))], max_new=1)[0]
        took = time.monotonic() - started
        release.set()
    assert {c.stop for c in rows} == {Stop.FAILED} and took < 3


def test_an_answer_without_choices_is_a_failure():
    with Server(lambda *asked: (200, {"object": "error"})) as server:
        completion = engine(server).generate([Prompt([97], (1,))], max_new=1)[0][0]
    assert completion.stop is Stop.FAILED and "choices" in completion.extras["error"]


@pytest.mark.parametrize(("status", "names"), [(401, "OPENAI_API_KEY"), (404, "model"), (400, "no such field")])
def test_what_the_user_has_to_change_is_said(status, names):
    def script(path, payload, number):
        return status, {"error": "no such field"}

    with Server(script) as server, pytest.raises(ValueError, match=names):
        engine(server).generate([Prompt([97], (1, 2, 3))], max_new=1)


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Server(lambda *asked: (200, choice("x", [1]))) as server:
        engine(server, api_key_env="MY_KEY").generate([Prompt([97], (1,))], max_new=1)
        engine(server).generate([Prompt([97], (1,))], max_new=1)
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert "Authorization" not in server.headers[1]


def test_chat_sends_messages_to_the_servers_own_template():
    def script(path, payload, number):
        said = payload["messages"][-1]["content"]
        return 200, {"choices": [{"message": {"content": said.upper()}, "finish_reason": "stop"}]}

    with Server(script) as server:
        talks = [[{"role": "user", "content": text}] for text in ("one", "two")]
        answers = engine(server).chat(talks, max_new=8, stop=["x"])
    assert [a.text for a in answers] == ["ONE", "TWO"] and {a.stop for a in answers} == {Stop.EOS}
    assert {path for path, _ in server.seen} == {"/v1/chat/completions"}
    assert server.seen[0][1]["temperature"] == 0


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="base_url"):
        OpenAIEngine(base_url="localhost:8000", model="m")
    with pytest.raises(ValueError, match="concurrency"):
        OpenAIEngine(base_url="http://h", model="m", concurrency=0)
    with pytest.raises(ValueError, match="entropy"):
        OpenAIEngine(base_url="http://h", model="m").bind(None, Letters()).generate([], max_new=1, want=["entropy"])
    with pytest.raises(ValueError, match="tokenizer"):
        OpenAIEngine(base_url="http://h", model="m").generate([], max_new=1)


def test_engines_are_found_by_name():
    assert {"torch", "openai", "vllm"} <= set(names("engine"))
    assert build("engine", "torch", {"max_batch_tokens": 100}).max_batch_tokens == 100
    with pytest.raises(RecipeError, match="max_batch_tokens"):
        build("engine", "torch", {"max_batch_tokens": 0})
    with pytest.raises(RecipeError, match="max_batch_tokens"):
        build("engine", "torch", {"max_batch_token": 10})


class FakeVllm(types.ModuleType):
    """Continues every prompt by its first id, as often as the weight `w` says."""

    class SamplingParams(SimpleNamespace):
        pass

    def __init__(self):
        super().__init__("vllm")
        outer = self
        self.events = []

        class Served:
            repeats = 0

            def load_weights(self, pairs):
                self.repeats = int(dict(pairs)["w"])
                outer.names = [name for name, _ in pairs]

        class LLM:
            def __init__(self, **settings):
                outer.events.append("start")
                outer.settings, self.served = settings, Served()

            def apply_model(self, function):
                outer.events.append("weights")
                return [function(self.served)]

            def reset_prefix_cache(self):
                outer.events.append("reset")

            def generate(self, prompts, params, use_tqdm):
                outer.params = params
                return [self.answer(p, s) for p, s in zip(prompts, params, strict=True)]

            def answer(self, prompt, params):
                ids = [prompt["prompt_token_ids"][0]] * self.served.repeats
                logprobs = [{i: SimpleNamespace(logprob=-0.25)} for i in ids]
                finish = {0: "stop", 1: "length", 2: "abort"}[params.seed % 3]
                output = SimpleNamespace(token_ids=ids, logprobs=logprobs, text="t", finish_reason=finish)
                return SimpleNamespace(outputs=[output])

        self.LLM = LLM


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(2.0))
        self.config = SimpleNamespace(_name_or_path="folder")


def test_vllm_draws_with_the_present_weights(monkeypatch):
    fake = FakeVllm()
    monkeypatch.setitem(sys.modules, "vllm", fake)
    model = Weighted()
    served = VllmEngine(max_model_len=64).bind(model, None)
    prompts = [Prompt([7, 8], (3, 4), Sampling(temperature=0.7, top_p=0.9)), Prompt([9], (5,))]
    rows = served.generate(prompts, max_new=2, stop=["#"])
    assert [[c.ids for c in row] for row in rows] == [[[7, 7], [7, 7]], [[9, 9]]]
    assert rows[0][0].logprobs == [-0.25, -0.25] and rows[0][0].text == "t"
    assert [c.stop for row in rows for c in row] == [Stop.EOS, Stop.LENGTH, Stop.FAILED]
    assert fake.settings["model"] == "folder" and fake.settings["logprobs_mode"] == "processed_logprobs"
    first = fake.params[0]
    assert (first.seed, first.n, first.temperature, first.top_p, first.top_k, first.stop) == (3, 1, 0.7, 0.9, -1, ["#"])
    with torch.no_grad():
        model.w.fill_(3)
    assert served.generate(prompts, max_new=4)[1][0].ids == [9, 9, 9]
    assert fake.events == ["start", "weights", "reset", "weights", "reset"]
    assert served.generate(prompts, max_new=4)[0][1].stop is Stop.CONTEXT


def test_vllm_gets_adapters_merged_under_the_plain_names(monkeypatch):
    fake = FakeVllm()
    monkeypatch.setitem(sys.modules, "vllm", fake)
    model = Weighted()
    model.merged = []
    model.merge_adapter = lambda: model.merged.append(True)
    model.unmerge_adapter = lambda: model.merged.append(False)
    named = {
        "base_model.model.w": model.w,
        "base_model.model.q.base_layer.weight": model.w,
        "base_model.model.q.lora_A.default.weight": model.w,
    }
    model.named_parameters = lambda: iter(named.items())
    VllmEngine().bind(model, None).generate([Prompt([7], (3,))], max_new=2)
    assert model.merged == [True, False]
    assert fake.names == ["w", "q.weight"]


def test_a_missing_vllm_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[scale\]"):
        VllmEngine(model="m").generate([], max_new=1)
    with pytest.raises(ValueError, match="gpu_memory"):
        VllmEngine(gpu_memory_utilization=2)


def test_vllm_needs_something_to_start_from(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", FakeVllm())
    with pytest.raises(ValueError, match="model"):
        VllmEngine().generate([Prompt([1], (1,))], max_new=1)
