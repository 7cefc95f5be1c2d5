"""The turn loop against a scripted policy and scripted environments."""

import dataclasses

import pytest
import torch
from tests.rollout.scripted import END, ScriptedPolicy, ScriptedTask, characters, context, logprob

from gainstage.ops.noise import mix
from gainstage.registry import RecipeError, build
from gainstage.rollout.agents.multi_turn import MAX_TURNS, MultiTurn
from gainstage.rollout.text.generate import Generate
from gainstage.types import Author, EnvStep, Problem, Request, Sampling, Stop, collate


class Countdown:
    """Done after `meta["turns"]` turns; pays the turn's number; every odd turn carries no reward of its own."""

    def __init__(self, problem):
        self.turns, self.at = problem.meta.get("turns", 3), 0

    def start(self):
        return "go>"

    def step(self, text):
        self.at += 1
        done = self.at == self.turns
        return EnvStep(f"[{self.at}]", None if self.at % 2 else float(self.at), done, {"left": self.turns - self.at})

    @property
    def parts(self):
        return {"finished": float(self.at == self.turns)}


def problem(name="p", **meta):
    return Problem(name, "go>", meta=meta)


def play(script=lambda text, key: "ab", env=Countdown, requests=None, logged=None, policy=None, **settings):
    policy = policy or ScriptedPolicy(script)
    requests = requests or [Request(problem(), 1, 0)]
    return MultiTurn(**settings).collect(requests, context(policy, ScriptedTask(env), logged))


def test_the_turn_record():
    (row,) = play()
    ids = characters("go>") + characters("ab") + [END] + characters("[1]") + characters("ab") + [END]
    ids += characters("[2]") + characters("ab") + [END]
    assert row.columns["tokens"].tolist() == ids
    assert row.columns["turn"].tolist() == [-1] * 3 + [0] * 6 + [1] * 6 + [2] * 3
    authors = [Author.PROMPT] * 3 + ([Author.POLICY] * 3 + [Author.ENV] * 3) * 2 + [Author.POLICY] * 3
    assert row.columns["author"].tolist() == authors
    assert row.columns["mask"].tolist() == [author is Author.POLICY for author in authors]
    assert row.columns["turn_rewards"].tolist() == [0.0, 2.0, 0.0] and row.columns["turn_mask"].all()
    assert row.stop is Stop.TERMINATED and row.parts == {"finished": 1.0, "env": 2.0}
    assert row.info["actions"] == ["ab"] * 3 and row.info["completion"] == "ab" and row.info["turns"] == 3
    assert row.info["transcript"] == "go>ab[1]ab[2]ab[3]" and row.info["env"] == {"left": 0}


def test_every_action_that_an_environment_takes_is_charged():
    ctx = context(ScriptedPolicy(lambda text, key: "ab"), ScriptedTask(Countdown))
    asked = [Request(problem(), 2, 0), Request(problem("q", turns=1), 1, 1)]
    made = MultiTurn()
    made.collect(asked, ctx)
    assert ctx.meter.total("env_steps") == 2 * 3 + 1
    assert made.limit(ctx.task) == ctx.task.max_new * MAX_TURNS
    assert MultiTurn(max_new=5, max_turns=3).limit(ctx.task) == 15


def test_observations_carry_no_log_prob_and_every_turn_draws_fresh_noise():
    (row,) = play(requests=[Request(problem(), 1, 4, first=2)])
    key = 4002
    logprobs = row.columns["behaviour_logprobs"]
    assert logprobs[~row.columns["mask"]].abs().sum() == 0
    for turn, own in ((0, key), (1, mix(key, 1)), (2, mix(key, 2))):
        place = row.columns["mask"] & (row.columns["turn"] == turn)
        expected = [logprob(own, i, t) for i, t in enumerate([*characters("ab"), END])]
        assert logprobs[place].tolist() == pytest.approx(expected)


def test_ids_stay_as_sampled():
    """A tokenizer that would merge pairs of letters never sees sampled text again."""

    class Merging(ScriptedPolicy):
        def encode(self, prompt):
            return characters(prompt.replace("ab", "\u0100"))

        def encode_observation(self, text, *, chat=False, after=None):
            return self.encode(text)

        def decode(self, ids):
            return super().decode(ids).replace("\u0100", "ab")

    policy = Merging(lambda text, key: "abab")
    (row,) = play(policy=policy)
    sampled = row.columns["tokens"][row.columns["mask"]].tolist()
    assert sampled == ([*characters("abab"), END]) * 3
    for prompts, _, _ in policy.calls[1:]:
        assert prompts[0].ids == row.columns["tokens"].tolist()[: len(prompts[0].ids)]


def test_one_engine_call_a_turn_for_all_live_episodes():
    policy = ScriptedPolicy(lambda text, key: "ab")
    requests = [
        Request(problem("p", turns=1), 2, 0),
        Request(problem("q", turns=3), 2, 1),
        Request(problem("r", turns=2), 1, 2),
    ]
    rows = play(policy=policy, requests=requests)
    live = [sum(len(prompt.keys) for prompt in prompts) for prompts, _, _ in policy.calls]
    assert live == [5, 3, 2] and [row.info["turns"] for row in rows] == [1, 1, 3, 3, 2]
    assert len(policy.calls[0][0]) == 1  # all start alike: one prefill
    assert [(row.group, row.sample) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]


def varied(text, key):
    return f"{key % 7}{len(text)}"


def test_episodes_do_not_depend_on_the_batch():
    requests = [Request(problem(str(n), turns=n), 2, n) for n in (3, 1, 2)]
    together = {row.episode: row for row in play(varied, requests=requests)}
    backwards = {row.episode: row for row in play(varied, requests=requests[::-1])}
    alone = {row.episode: row for r in requests for row in play(varied, requests=[r])}
    split = [
        part
        for r in requests
        for part in (dataclasses.replace(r, samples=1), dataclasses.replace(r, samples=1, first=1))
    ]
    parted = {row.episode: row for row in play(varied, requests=split)}
    assert len(together) == 6
    for other in (backwards, alone, parted):
        for episode, row in together.items():
            assert row.info["transcript"] == other[episode].info["transcript"]
            for name, value in row.columns.items():
                assert torch.equal(value, other[episode].columns[name]), name


def test_one_turn_equals_single_turn_generation():
    requests = [Request(problem(turns=1), 3, 5)]
    policy = ScriptedPolicy(varied)
    single = Generate().collect(requests, context(policy))
    for row, other in zip(play(varied, requests=requests), single, strict=True):
        for name, value in other.columns.items():
            assert torch.equal(value, row.columns[name]), name
        assert row.info["completion"] == other.info["completion"] and row.episode == other.episode


def test_limits():
    endless = [Request(problem(turns=99), 1, 0)]
    (row,) = play(requests=endless, max_turns=2)
    assert row.stop is Stop.TURNS and row.info["turns"] == 2 and row.columns["turn"].max() == 1
    assert row.parts["finished"] == 0.0
    (row,) = play(requests=endless)
    assert row.info["turns"] == MAX_TURNS
    (row,) = play(lambda text, key: "abcdef", requests=endless, max_new=4)
    assert row.stop is Stop.LENGTH and row.columns["tokens"][row.columns["mask"]].tolist() == characters("abcd")
    assert row.info["env"] == {} and row.columns["turn_rewards"].tolist() == [0.0]


@pytest.mark.parametrize(
    ("limit", "turns", "sampled", "why"),
    [
        (3, 0, 0, "the prompt fills it"),
        (5, 1, 2, "the first turn is cut"),
        (6, 1, 3, "the turn fits, its answer does not"),
        (9, 1, 3, "the answer would leave no room"),
        (10, 2, 4, "one token of the second turn"),
    ],
)
def test_context_limit(limit, turns, sampled, why):
    for settings, policy in (({}, ScriptedPolicy(lambda t, k: "ab", context_limit=limit)), ({"context": limit}, None)):
        (row,) = play(policy=policy, **settings)
        assert row.stop is Stop.CONTEXT, why
        assert row.info["turns"] == turns and int(row.columns["mask"].sum()) == sampled
        assert len(row.columns["tokens"]) <= limit
        assert int(row.columns["turn_mask"].sum()) == turns and len(row.columns["turn_rewards"]) == max(turns, 1)


def test_environment_that_cuts_off():
    class Cut(Countdown):
        def step(self, text):
            return EnvStep("", 0.5, True, {"truncated": True})

    (row,) = play(env=Cut)
    assert row.stop is Stop.TIME_LIMIT and row.columns["turn_rewards"].tolist() == [0.5]
    assert bool(collate([row])["truncated"][0])


class Breaking(Countdown):
    where = "step"

    def __init__(self, problem):
        super().__init__(problem)
        self.fails = problem.meta.get("fails")
        if self.fails == "open":
            raise OSError("no socket")

    def start(self):
        if self.fails == "start":
            raise RuntimeError
        return super().start()

    def step(self, text):
        if self.fails == "step" and self.at == 1:
            raise KeyError("gone")
        step = super().step(text)
        if self.fails == "nan":
            return dataclasses.replace(step, reward=float("nan"))
        return None if self.fails == "none" else step

    @property
    def parts(self):
        if self.fails == "parts":
            raise ValueError("no parts")
        return super().parts


@pytest.mark.parametrize("fails", ["open", "start", "step", "nan", "none", "parts"])
def test_a_broken_environment_costs_only_its_own_episode(fails, caplog):
    logged = {}
    good = Request(problem("good"), 2, 1)
    rows = play(env=Breaking, requests=[Request(problem("bad", fails=fails), 1, 0), good], logged=logged)
    alone = play(env=Breaking, requests=[good])
    assert [row.stop for row in rows] == [Stop.FAILED, Stop.TERMINATED, Stop.TERMINATED]
    assert logged["failures/env"] == 1 and "1 of 3 episodes failed" in caplog.text
    assert not rows[0].columns["mask"].any() and rows[0].info["error"]
    assert all(torch.equal(a.columns["tokens"], b.columns["tokens"]) for a, b in zip(rows[1:], alone, strict=True))
    batch = collate(rows)
    assert batch["parts/finished"][1:].tolist() == [1.0, 1.0] and batch["mask"].sum() == 18


class Strict(Countdown):
    def step(self, text):
        bad = text != "go\n"
        return dataclasses.replace(super().step(text), info={"malformed": bad})


def test_malformed_turns_are_counted_and_may_end_the_episode():
    logged = {}
    requests = [Request(problem(turns=5), 1, 0)]
    (row,) = play(env=Strict, requests=requests, logged=logged)
    assert row.info["malformed"] == logged["failures/malformed_turn"] == 5 and row.stop is Stop.TERMINATED
    (row,) = play(env=Strict, requests=requests, max_malformed=2)
    assert row.info["turns"] == 2 and row.stop is Stop.TERMINATED


def test_turn_closing_strings_reach_the_environment_and_stay_in_the_ids():
    policy = ScriptedPolicy(lambda text, key: "go\nmore")
    task = ScriptedTask(Strict)
    task.turn_stop, task.max_turns = ("\n",), 2
    (row,) = MultiTurn().collect([Request(problem(), 1, 0)], context(policy, task))
    assert row.info["malformed"] == 0 and row.info["actions"] == ["go", "go"] and row.stop is Stop.TURNS
    assert row.columns["tokens"][row.columns["mask"]].tolist() == characters("go\n") * 2
    (row,) = MultiTurn(stop=["o"]).collect([Request(problem(), 1, 0)], context(policy, task))
    assert row.info["actions"] == ["g", "g"] and row.info["malformed"] == 2


def test_the_observation_that_ends_an_episode_is_not_appended():
    (row,) = play(requests=[Request(problem(turns=2), 1, 0)])
    assert row.columns["author"][-1] == Author.POLICY
    assert row.info["transcript"].endswith("[2]")


def test_greedy_hints_templates_and_actors():
    requests = [Request(problem(), 1, 0, actor="b", hint=characters("hm"), sampling=Sampling(temperature=0))]
    policies = {name: ScriptedPolicy(lambda t, k: "ab", role=name) for name in "ab"}
    (row,) = MultiTurn(template="Q {prompt}").collect(requests, context(policies, ScriptedTask(Countdown)))
    assert row.actor == "b" and row.info["prompt"] == "Q go>hm" and not row.columns["mask"].any()
    assert row.columns["author"].tolist()[3:8] == [0, 0, Author.HINT, Author.HINT, Author.POLICY]
    (row,) = MultiTurn(actor="a").collect(requests, context(policies, ScriptedTask(Countdown)))
    assert row.actor == "a"
    scratch = ScriptedPolicy(lambda t, k: "x", role="copy")
    (row,) = MultiTurn().collect(requests, context(policies, ScriptedTask(Countdown)), None, model=scratch)
    assert row.actor == "copy"


def test_rows_of_different_length_collate_and_keep_their_turns():
    rows = play(requests=[Request(problem(str(n), turns=n), 1, n) for n in (1, 4)])
    batch = collate(rows)
    assert batch["turn_rewards"].tolist() == [[0, 0, 0, 0], [0, 2, 0, 4]]
    assert batch["turn_mask"].tolist() == [[True, False, False, False], [True] * 4]
    assert batch.rewards_at("row").tolist() == [0.0, 6.0]
    step = batch.rewards_at("step")
    assert step.sum(1).tolist() == [0.0, 6.0] and not step[~batch["mask"]].any()
    ends = [int(torch.nonzero(batch["mask"][1] & (batch["turn"][1] == turn)).max()) for turn in (1, 3)]
    assert torch.nonzero(step[1]).flatten().tolist() == ends  # on the last policy token of the turn that earned it
    batch["reward"] = torch.tensor([1.0, 1.0])
    assert batch.rewards_at("step")[1, ends[1]] == 5.0


def test_nothing_sampled_at_all():
    (row,) = play(policy=ScriptedPolicy(lambda t, k: "ab", context_limit=2))
    assert row.stop is Stop.CONTEXT and row.info["completion"] == "" and not row.columns["mask"].any()
    assert collate([row]).rewards_at("step").sum() == 0


def test_settings_are_checked():
    for setting, value in {"max_turns": 0, "max_new": 0, "context": 0, "max_malformed": 0, "tool_calls": 0}.items():
        with pytest.raises(RecipeError, match=setting):
            build("rollout", "multi_turn", {setting: value})
    with pytest.raises(ValueError, match="greedily"):
        MultiTurn(temperature=0)
    with pytest.raises(ValueError, match="importance ratio"):
        MultiTurn(top_p=0.9)
    with pytest.raises(ValueError, match="no problem"):
        play(requests=[Request(None, 1, 0)])
    assert MultiTurn().requires == ("env",)


# -- with a real model -----------------------------------------------------------------------------------------------

CHAT = (
    "{% for m in messages %}<s>{{ m['role'] }}:{{ m['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def policy():
    from transformers import LlamaConfig, LlamaForCausalLM

    from gainstage.policies.language.causal_lm import CausalPolicy
    from gainstage.policies.language.micro_tokenizer import build_tokenizer
    from gainstage.rollout.engines.torch import TorchEngine

    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    tokenizer.chat_template = CHAT
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=512, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    return CausalPolicy(model, tokenizer, TorchEngine().bind(model, tokenizer))


def test_log_probs_of_every_turn_are_those_of_the_trainer(policy):
    requests = [Request(problem(str(n), turns=n), 3, n) for n in (1, 2, 4)]
    rows = play(policy=policy, requests=requests, max_new=6, stop=[chr(c) for c in range(33, 90)], temperature=0.8)
    batch = collate(rows)
    assert len({row.info["turns"] for row in rows}) >= 3
    with torch.no_grad():
        scored = policy.evaluate(batch).logprobs
    gap = ((scored - batch["behaviour_logprobs"]) * batch["mask"]).abs().max()
    assert gap < 1e-4
    assert (batch["behaviour_logprobs"][batch["mask"]] < 0).all()


def test_real_episodes_do_not_depend_on_the_batch(policy):
    settings = {"max_new": 6, "stop": [chr(c) for c in range(33, 90)]}
    requests = [Request(problem(str(n), turns=n), 2, n) for n in (3, 1, 2)]
    together = {row.episode: row for row in play(policy=policy, requests=requests, **settings)}
    for request in requests:
        for row in play(policy=policy, requests=[request], **settings):
            assert row.info["transcript"] == together[row.episode].info["transcript"]


class Chatting(Countdown):
    def start(self):
        return [{"role": "user", "content": "go"}]


def test_chat_contexts_are_what_the_template_renders(policy, monkeypatch):
    """A finished turn and one without end token both continue as the template writes a conversation."""
    end = policy.tokenizer.eos_token_id
    for written, closed in (("ab", True), ("ab", False)):
        ids = policy.tokenizer("ab")["input_ids"] + [end] * closed

        def generate(prompts, *, max_new, stop=(), want=(), ids=ids):
            from gainstage.types import Completion

            return [[Completion(ids, [-1.0] * len(ids), Stop.EOS, "ab") for _ in p.keys] for p in prompts]

        monkeypatch.setattr(policy.engine, "generate", generate)
        (row,) = play(policy=policy, env=Chatting)
        messages = [{"role": "user", "content": "go"}]
        for observation in ("[1]", "[2]"):
            messages += [{"role": "assistant", "content": written}, {"role": "user", "content": observation}]
        whole = policy.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        rendered = policy.tokenizer(whole, add_special_tokens=False)["input_ids"] + ids
        assert row.columns["tokens"].tolist() == rendered
        assert int(row.columns["mask"].sum()) == 3 * len(ids)
