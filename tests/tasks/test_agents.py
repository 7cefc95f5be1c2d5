"""Text environments: the calculator with its tools, room-quest with its exact distances; both through the turn loop."""

import dataclasses
import json
import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rollout.scripted import ScriptedPolicy, context

from gainstage.ops.tools import ToolRegistry, ToolRunner
from gainstage.registry import RecipeError, build
from gainstage.rollout.agents.multi_turn import MultiTurn
from gainstage.tasks.agents.room_quest import GridSpec, KeyDoor, QuestEnv, RoomQuest
from gainstage.tasks.agents.room_world import Door, State, Thing, World, distances, essence, milestones
from gainstage.tasks.agents.tool_env import Calculator, ToolEnv
from gainstage.types import Author, Request, Stop, TextEnv

SMALL = {"train_size": 40, "heldout_size": 12}
FEW = {"train_size": 40, "heldout_size": 4}
QUESTS = {
    "w2-o3-q4": RoomQuest(**SMALL),
    "w4-o6-q8": RoomQuest(rooms=4, objects=6, quest=8, **FEW),
    "w3-o4-q5": RoomQuest(rooms=3, objects=4, quest=5, locked_doors=1, **FEW),
    "w2-o2-q4": KeyDoor(**SMALL),
}


# -- the calculator --------------------------------------------------------------------------------------------------


def play_text(env, *actions):
    return [env.step(action) for action in actions]


def test_calculator_worked_episode():
    task = Calculator(steps=(2,), **SMALL)
    problem = dataclasses.replace(task.problems("train")[0], answer="1788", meta={"expression": "37*48+12"})
    env = task.open(problem)
    assert isinstance(env, TextEnv)
    said = play_text(env, "<calc 37*48>", "<calc 1776+12>", "=1788")
    assert [step.observation for step in said] == ["1776\n", "1788\n", ""]
    assert [step.done for step in said] == [False, False, True] and said[2].reward is None
    assert task.check(problem, "=1788").reward == 1 and task.check(problem, "=1787").reward == 0
    assert task.check(problem, "<calc 37*48>").reward == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<calc 37*48+12>", "Malformed: at most 1 operation(s) a call"),
        ("<calc 7/0>", "Malformed: division by zero"),
        ("<calc __import__('os')>", "Malformed: unexpected"),
        ("<calc 9**9**9>", "Malformed"),
        ("<calc 99999999999*2>", "Malformed: unexpected"),
        ("<calc >", "takes expression; got 0"),
        ("<calc 1+", "cut"),
        ("<calc " + "(" * 500 + ">", "longer than"),
        ("hello", "neither an answer nor a call; the tools: calc"),
        ("==", "neither"),
        ("", "neither"),
        ("=1=2", "neither"),
    ],
)
def test_hostile_calls_become_observations(text, told):
    task = Calculator(**SMALL)
    env = task.open(task.problems("train")[0])
    step = env.step(text)
    assert told in step.observation and not step.done and step.observation.endswith("\n")
    assert len(step.observation) < 250
    assert env.step("<calc 1+1>").observation == "2\n"


def test_calculator_step_limit_cost_and_counts():
    task = Calculator(cost=0.1, step_limit=3, **SMALL)
    env = task.open(task.problems("train")[0])
    said = play_text(env, "<calc 2*3><calc 1+1>", "<calc 2*>", "oops")
    assert said[0].observation == "6\n2\n" and said[0].reward == pytest.approx(-0.2)
    assert said[1].reward == pytest.approx(-0.1)  # it ran, and failed
    assert said[2].done and said[2].info["truncated"] and said[2].info["malformed"]
    assert env.parts == {"answered": 0.0, "calls": 3.0, "invalid_calls": 0.0}


@pytest.mark.parametrize("style", ["tag", "json"])
def test_calculator_demonstrations_are_right_without_noise(style):
    task = Calculator(steps=(1, 2, 3), style=style, **SMALL)
    wrong = 0
    for problem in task.problems("train")[:12]:
        segments = task.segments(problem, random.Random(0))
        actions = [text for author, text in segments if author is Author.POLICY]
        assert len(actions) == problem.difficulty + 1 and task.check(problem, actions[-1]).reward == 1
        assert "error" not in task.demonstrate(problem, random.Random(0))
        noisy = task.segments(problem, random.Random(1), noise=0.7)
        assert len([1 for author, _ in noisy if author is Author.POLICY]) <= task.max_turns
        wrong += task.check(problem, noisy[-1][1]).reward == 0
    assert wrong >= 3


def test_calculator_room_for_turns_and_tokens():
    for task in (Calculator(steps=(1, 4), digits=4, **SMALL), Calculator(steps=(3,), per_call=2, digits=1, **SMALL)):
        for problem in task.problems("train")[:20]:
            segments = task.segments(problem, random.Random(2))
            assert max(len(text) for author, text in segments if author is Author.POLICY) < task.max_new
            assert sum(author is Author.POLICY for author, _ in segments) <= task.max_turns


def test_calculator_json_prompt_names_the_tool():
    task = Calculator(style="json", per_call=2, **SMALL)
    system, user = task.problems("test")[0].prompt
    assert '"name": "calc"' in system["content"] and "at most 2 operations" in user["content"]
    env = task.open(task.problems("test")[0])
    call = {"name": "calc", "arguments": json.dumps({"expression": "1+1"})}  # encoded twice
    step = env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
    assert "call_1" in step.observation and "string" in step.observation and step.info["malformed"]


def test_tool_env_with_hidden_state():
    memory = {}

    def put(key: str, value: str) -> str:
        memory[key] = value
        return "ok"

    def get(key: str) -> str:
        return memory[key]

    env = ToolEnv("remember", ToolRunner(ToolRegistry([put, get])), step_limit=9, tagged=True)
    said = play_text(env, "<put a,1>", "<get a>", "<get b>", "done")
    assert [step.observation for step in said] == ["ok\n", "1\n", "error 3: KeyError: 'b'\n", ""]
    assert said[3].done and env.parts["answered"] == 1.0
    with pytest.raises(ValueError, match="step_limit"):
        ToolEnv("", ToolRunner(ToolRegistry([])), step_limit=0)


# -- room-quest ------------------------------------------------------------------------------------------------------


def brute_distance(world, state):
    """Breadth first from one state over every command, nothing left out."""
    queue, seen = deque([(state, 0)]), {state}
    while queue:
        state, depth = queue.popleft()
        if world.reached(state):
            return depth
        for _, after in world.moves(state):
            if after not in seen:
                seen.add(after)
                queue.append((after, depth + 1))
    return None


def solvable_without(world, thing=None, lock=None):
    queue, seen = deque([world.start]), {world.start}
    while queue:
        state = queue.popleft()
        if world.reached(state):
            return True
        for _, after in world.moves(state):
            if after not in seen and thing not in after.done and lock not in after.unlocked:
                seen.add(after)
                queue.append(after)
    return False


@pytest.mark.parametrize("name", QUESTS)
def test_shortest_solution_has_the_quest_length(name):
    task = QUESTS[name]
    assert task.spec.name == name
    for problem in task.problems("train")[:8]:
        world = World.from_record(json.loads(json.dumps(problem.meta["world"])))
        assert len(task.solution(problem)) == task.quest == brute_distance(world, world.start)
        assert task.check(problem, "\n".join(task.solution(problem))).reward == 1
        assert len(world.rooms) == task.rooms and len(world.things) == task.objects
        assert sum(door.lock != "" for door in world.doors) == 2 * task.locked_doors


@pytest.mark.parametrize("name", QUESTS)
def test_distance_is_exact_everywhere_a_game_can_go(name):
    task, rng = QUESTS[name], random.Random(5)
    for problem in task.problems("validation")[:4]:
        env = task.open(problem)
        for _ in range(12):
            assert env.distance(env.state) == brute_distance(env.world, env.state)
            command, after = rng.choice(list(env.world.moves(env.state)))
            if env.world.reached(after):
                break
            env.step(command)


@pytest.mark.parametrize("name", QUESTS)
def test_milestones_are_what_no_solution_can_do_without(name):
    for problem in QUESTS[name].problems("train")[:8]:
        world = World.from_record(problem.meta["world"])
        needed = milestones(world)
        assert needed.done == {i for i in range(len(world.things)) if not solvable_without(world, thing=i)}
        locks = {door.lock for door in world.doors if door.lock}
        assert needed.unlocked == {lock for lock in locks if not solvable_without(world, lock=lock)}


def test_unreachable_goal_has_no_distance():
    things = (Thing("red key", "key", 0, 1, "red"), Thing("blue box", "box", 0, lock="blue"), Thing("egg", "item", 0))
    world = World(("den",), (), things, goal=0)
    assert distances(world) == {} and brute_distance(world, world.start) is None
    assert distances(dataclasses.replace(world, goal=2))[essence(State(0), milestones(world))] == 1


def hand_made():
    """den -n- hall -e(red door)- yard; the key lies in the den, the egg in a box in the yard."""
    doors = (Door(0, "n", 1), Door(1, "s", 0), Door(1, "e", 2, "red"), Door(2, "w", 1, "red"))
    things = (
        Thing("red key", "key", 0, lock="red"),
        Thing("tan box", "box", 2),
        Thing("egg", "item", 2, 1),
        Thing("cup", "item", 1),
    )
    return World(("den", "hall", "yard"), doors, things, goal=2)


def test_a_game_by_hand():
    env = QuestEnv(hand_made(), limit=20)
    assert env.start() == "goal: take egg\nden: red key; n\n>"
    script = {
        "go n": "hall: cup; s, e red door\n>",
        "go e": "no: locked\n>",
        "open red door": "no: it is locked\n>",
        "go s": "den: red key; n\n>",
        "take egg": "no: not here\n>",
        "take red key": "ok\n>",
        "take  RED key": "no: not here\n>",
        "open red key": "no: not here\n>",
        "go  N\n": "hall: cup; s, e red door\n>",
        "open cup": "no: cannot open it\n>",
        "open  red door": "ok\n>",
        "open red  door": "no: it is open\n>",
        "go e ": "yard: tan box; w\n>",
        "take tan box": "no: cannot take it\n>",
        "open tan box": "ok: egg\n>",
        "open  tan box": "no: it is open\n>",
        "dance": "what? go, take, open\n>",
        "go": "what? go, take, open\n>",
        "take egg\n": "done\n",
    }
    said = {command: env.step(command) for command in script}
    assert {command: step.observation for command, step in said.items()} == script
    last = said["take egg\n"]
    assert last.done and last.info["success"] and not last.info.get("truncated") and last.reward == 1.0
    malformed = [command for command, step in said.items() if step.info["malformed"]]
    assert malformed == ["dance", "go"]
    assert env.parts == {"success": 1.0, "progress": 1.0, "invalid_commands": pytest.approx(11 / 19)}


def walk(density, commands, limit=20):
    env = QuestEnv(hand_made(), limit, density)
    return [env.step(command).reward for command in commands]


BEST = ["take red key", "go n", "open red door", "go e", "open tan box", "take egg"]


def test_reward_densities_of_the_shortest_way():
    assert walk("single", BEST) == [0, 0, 0, 0, 0, 1]
    assert walk("sub_goal", BEST) == [0.25, 0, 0.25, 0, 0.25, 0.25]
    assert walk("turn", BEST) == pytest.approx([1 / 6] * 6)


def test_detours_cannot_be_farmed():
    detour = ["go n", "go s", "go n", "take cup", "go s", *BEST[:2], "go s", "go n", *BEST[2:]]
    for density in ("single", "sub_goal", "turn"):
        rewards = walk(density, detour)
        assert sum(rewards) == pytest.approx(1) and min(rewards) == 0
    assert walk("turn", detour)[:5] == [0] * 5


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([*BEST, "go s", "go w", "take cup", "open red key", "jump"]), max_size=25),
    st.sampled_from(["sub_goal", "turn"]),
)
def test_rewards_sum_to_the_progress_made(commands, density):
    env, total = QuestEnv(hand_made(), 100, density), 0.0
    for command in commands:
        step = env.step(command)
        total += step.reward
        if step.done:
            break
    assert 0 <= total <= 1 + 1e-9
    assert (abs(total - 1) < 1e-9) == bool(env.parts["success"])
    if density == "turn":
        assert total == pytest.approx(env.parts["progress"])


def test_budget_cuts_off_a_game():
    env = QuestEnv(hand_made(), limit=2)
    step = [env.step("go n"), env.step("go s")][-1]
    assert step.done and step.info["truncated"] and step.observation == "den: red key; n\n>"
    assert RoomQuest(budget=1.5, quest=3).max_turns == 5
    with pytest.raises(ValueError, match="budget"):
        RoomQuest(budget=0.5)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_any_command_is_answered(text):
    step = QuestEnv(hand_made(), 10).step(text)
    assert not step.done and step.observation.endswith(">") and len(step.observation) < 60


@pytest.mark.parametrize("task", [*QUESTS.values(), Calculator(**SMALL)], ids=lambda task: task.name)
def test_problems_are_deterministic_and_splits_disjoint(task):
    again = dataclasses.replace(task)
    splits = {split: task.problems(split) for split in ("train", "validation", "test")}
    for split, problems in splits.items():
        assert [p.id for p in problems[:6]] == [p.id for p in again.problems(split)[:6]]
        assert problems[0].prompt == again.problems(split)[0].prompt
    ids = {split: {p.meta["key"] for p in problems[:12]} for split, problems in splits.items()}
    assert len(ids["train"] | ids["validation"] | ids["test"]) == sum(map(len, ids.values()))
    other = dataclasses.replace(task, seed=1).problems("train")
    assert [p.id for p in other[:6]] != [p.id for p in splits["train"][:6]]


def test_calculator_twins_share_a_split():
    from gainstage.tasks.agents.tool_env import _ordered

    assert _ordered("48*37+5") == _ordered("37*48+5") and _ordered("9-3") != _ordered("3-9")
    assert _ordered("9+10") == "9+10"


@pytest.mark.parametrize("name", QUESTS)
def test_quest_demonstrations(name):
    task = QUESTS[name]
    won = 0
    for index, problem in enumerate(task.problems("train")[:20]):
        segments = task.segments(problem, random.Random(0))
        actions = [text for author, text in segments if author is Author.POLICY]
        assert len(actions) == task.quest and all(action.endswith("\n") for action in actions)
        assert max(map(len, actions)) <= task.max_new
        noisy = [t for a, t in task.segments(problem, random.Random(index), 0.5) if a is Author.POLICY]
        assert len(noisy) <= task.max_turns
        won += task.check(problem, "".join(noisy)).reward
    assert 0 < won < 20


def test_settings_that_allow_no_game():
    with pytest.raises(ValueError, match="shorter quest"):
        RoomQuest(quest=9).problems("train")[0]
    for wrong in ({"rooms": 0}, {"rooms": 99}, {"objects": 0}, {"quest": 0}, {"locked_doors": 2}, {"density": "dense"}):
        with pytest.raises((ValueError, RecipeError)):
            build("task", "room_quest", wrong)
    for wrong in (
        {"steps": ()},
        {"steps": (9,)},
        {"digits": 0},
        {"operations": ("/",)},
        {"per_call": 0},
        {"step_limit": 1},
        {"cost": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Calculator(**wrong)
    assert GridSpec(4, 6, 8).name == "w4-o6-q8"


# -- both through the turn loop --------------------------------------------------------------------------------------


def replay(task, problems, noise=0.0):
    """A policy that plays the demonstrations, and the rows of two samples each."""
    scripts = {}
    for problem in problems:
        policy_texts = [t for a, t in task.segments(problem, random.Random(4), noise) if a is Author.POLICY]
        scripts[problem.prompt] = policy_texts

    class Player(ScriptedPolicy):
        def generate(self, requests, *, max_new, stop=(), want=()):
            self.played = getattr(self, "played", -1) + 1
            self.script = lambda text, key: scripts[next(p for p in scripts if text.startswith(p))][self.played]
            return super().generate(requests, max_new=max_new, stop=stop, want=want)

    policy = Player(None)
    requests = [Request(problem, 2, group) for group, problem in enumerate(problems)]
    logged = {}
    return MultiTurn().collect(requests, context(policy, task, logged)), logged


@pytest.mark.parametrize("name", QUESTS)
def test_quests_through_the_turn_loop(name):
    task = dataclasses.replace(QUESTS[name], density="turn")
    problems = task.problems("train")[:3]
    rows, logged = replay(task, problems)
    assert len(rows) == 6 and logged["failures/env"] == 0
    for row in rows:
        assert row.stop is Stop.TERMINATED and row.parts["success"] == 1 and row.parts["env"] == pytest.approx(1)
        assert row.info["transcript"] == row.problem.prompt + task.demonstrate(row.problem, random.Random(4)) + "done\n"
        assert len(row.columns["turn_rewards"]) == task.quest
        trained = row.columns["tokens"][row.columns["mask"]].tolist()
        assert len(trained) == sum(len(action) + 1 for action in row.info["actions"])


def test_calculator_through_the_turn_loop():
    task = Calculator(steps=(2,), cost=0.1, **SMALL)
    rows, _ = replay(task, task.problems("train")[:4])
    for row in rows:
        assert row.stop is Stop.TERMINATED and row.columns["turn_rewards"].tolist() == pytest.approx([-0.1, -0.1, 0])
        assert task.check(row.problem, row.info["completion"]).reward == 1
        assert row.parts == {"answered": 1.0, "calls": 2.0, "invalid_calls": 0.0, "env": pytest.approx(-0.2)}
        env_tokens = row.columns["author"] == Author.ENV
        assert env_tokens.any() and not row.columns["mask"][env_tokens].any()
