"""Generated text tasks: splits, demonstrations, exact verdicts."""

import random
from fractions import Fraction

import pytest

from gainstage import registry
from gainstage.tasks.text.arithmetic import written_digits
from gainstage.tasks.text.countdown import Malformed, evaluate, solve
from gainstage.tasks.text.generated import LONGEST, SPLITS, final_answer, split_of
from gainstage.tasks.text.maze import distances, locate

NAMES = [
    "arithmetic",
    "countdown",
    "sort_letters",
    "reverse",
    "count_letters",
    "key_value",
    "modular_chain",
    "maze",
]
HOSTILE = [
    "",
    " ",
    "\n\t\n",
    "=",
    "==",
    "=1=2",
    "1=1=1",
    "None",
    "nan",
    "-",
    "()",
    "(" * 1000,
    "9" * 5000,
    "=" + "9" * 100_000,
    "1+" * 3000,
    "9**9**9**9",
    "__import__('os')",
    "\x00",
    "\u0661\u0662",
    "\uff11\uff12",
    "\ud7ff",
    "UDLR" * 1000,
    "1/0",
    "=" + "\u00b2",
]


def make(name, **settings):
    return registry.build("task", name, settings)


@pytest.mark.parametrize("name", NAMES)
def test_splits_share_nothing_and_held_out_problems_never_repeat(name):
    task = make(name, heldout_size=100, train_size=400)
    splits = {split: task.problems(split) for split in SPLITS}
    keys = {split: [p.meta["key"] for p in problems] for split, problems in splits.items()}
    assert len(splits["train"]) == 400
    for split in ("validation", "test"):
        assert 0 < len(keys[split]) <= 100
        assert len(set(keys[split])) == len(keys[split])
    assert not set(keys["train"]) & set(keys["validation"])
    assert not set(keys["train"]) & set(keys["test"])
    assert not set(keys["validation"]) & set(keys["test"])
    assert all(task.split_of(p) == split for split in SPLITS for p in splits[split])


@pytest.mark.parametrize("name", NAMES)
def test_items_depend_on_settings_split_and_index_alone(name):
    one, two = make(name).problems("train"), make(name).problems("train")
    backwards = [two[i] for i in (7, 3, 0)]
    assert backwards == [one[i] for i in (7, 3, 0)]
    assert one[-1] == one[len(one) - 1]
    assert one[2:4] == [one[2], one[3]]
    assert [p.id for p in make(name, seed=1).problems("train")[:20]] != [p.id for p in one[:20]]
    with pytest.raises(IndexError):
        one[len(one)]


def test_another_seed_or_level_never_moves_a_problem_to_another_split():
    tests = {p.meta["key"] for p in make("arithmetic", levels=(2,)).problems("test")}
    trained = {p.meta["key"] for p in make("arithmetic", levels=(2, 3), seed=5).problems("train")[:4000]}
    assert tests and not tests & trained
    turned = {f"arithmetic {b}+{a}" for a, b in (k.split()[1].split("+") for k in tests if "+" in k)}
    assert turned and not turned & trained


def test_split_shares():
    counts = dict.fromkeys(SPLITS, 0)
    for i in range(20_000):
        counts[split_of(f"content {i}")] += 1
    for split, share in SPLITS.items():
        assert abs(counts[split] / 20_000 - share) < 0.01


@pytest.mark.parametrize("name", NAMES)
def test_demonstrations_are_right_and_fit(name):
    task, rng = make(name), random.Random(1)
    for problem in task.problems("train")[:200]:
        text = task.demonstrate(problem, rng)
        verdict = task.check(problem, text)
        assert verdict.reward == 1.0 and verdict.parts["format"] == 1.0
        assert len(text) + 1 <= task.max_new
        assert task.check(problem, f" {text}\n").reward == 1.0
        if "answer" in task.capabilities:
            assert task.extract(text) == problem.answer
            assert task.check(problem, problem.answer).reward == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_noise_makes_wrong_demonstrations(name):
    task, rng = make(name), random.Random(2)
    problems = task.problems("train")[:200]
    rights = [task.check(p, task.demonstrate(p, rng, noise=0.5)).reward for p in problems]
    assert 0 < sum(rights) < 160


@pytest.mark.parametrize("name", NAMES)
def test_preferences_are_certified(name):
    task, rng = make(name), random.Random(3)
    assert "preferences" in task.capabilities
    for problem in task.problems("train")[:100]:
        chosen, rejected = task.preferences(problem, rng)
        assert task.check(problem, chosen).reward == 1.0
        assert task.check(problem, rejected).reward == 0.0
        assert abs(len(chosen) - len(rejected)) <= 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("output", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_outputs_score_zero(name, output):
    task = make(name)
    for problem in task.problems("train")[:8]:
        verdict = task.check(problem, output)
        assert verdict.reward == 0.0
        assert verdict.feedback and len(verdict.feedback) < 120


@pytest.mark.parametrize("name", NAMES)
def test_padded_and_repeated_answers_score_zero(name):
    task, rng = make(name), random.Random(4)
    for problem in task.problems("train")[:50]:
        text = task.demonstrate(problem, rng)
        answer = task.extract(text) or text
        for wrong in (f"{text}=1={answer}", f"{text} {answer}", f"{text}.", f"{text}x", f"x{answer}", f"0{answer}"):
            assert task.check(problem, wrong).reward == 0.0, wrong


def test_final_answer():
    assert final_answer("3201=1023") == ("1023", "")
    assert final_answer("1023") == ("1023", "")
    assert final_answer(" 1023\n") == ("1023", "")
    assert final_answer("1=2=3")[0] is None
    assert final_answer("12=")[0] is None
    assert final_answer("1" * (LONGEST + 1)) == (None, f"longer than {LONGEST} characters")


def test_arithmetic_levels_come_in_equal_shares():
    problems = make("arithmetic", levels=(2, 3), ops=("+", "*")).problems("train")[:400]
    cells = [(p.difficulty, p.meta["op"]) for p in problems]
    assert {cell: cells.count(cell) for cell in set(cells)} == {
        (2.0, "+"): 100,
        (2.0, "*"): 100,
        (3.0, "+"): 100,
        (3.0, "*"): 100,
    }


def test_arithmetic_worked_digits():
    task = make("arithmetic", ops=("+", "*"))
    problem = task.problem("345+678", "345+678=", "1023", 3.0, result=1023, operands=[345, 678], op="+")
    assert task.demonstrate(problem, random.Random(0)) == "3201=1023"
    assert task.check(problem, "9999=1023").reward == 1.0
    assert task.check(problem, "3201=1024").reward == 0.0
    assert task.check(problem, "3201=01023").reward == 0.0
    assert task.check(problem, "+1023").reward == 0.0


def test_written_digits_are_right_and_forget_what_they_are_told_to():
    rng = random.Random(0)
    for _ in range(3000):
        op, top = rng.choice("+-*"), 10 ** rng.randint(1, 5) - 1
        a, b = rng.randint(0, top), rng.randint(0, 9 if op == "*" else top)
        if op == "-":
            a, b = max(a, b), min(a, b)
        result = {"+": a + b, "-": a - b, "*": a * b}[op]
        assert written_digits(a, b, op) == [int(digit) for digit in reversed(str(result))], (a, op, b)
    always = lambda: True  # noqa: E731
    assert written_digits(345, 678, "+", always) == [3, 1, 9]
    assert written_digits(1000, 1, "-", always) == [9, 0, 0, 1]
    assert written_digits(38, 7, "*", always) == [6, 1]


def test_noise_above_one_half_makes_the_wrong_procedure_the_likeliest():
    task, rng = make("arithmetic", ops=("+",), levels=(3,)), random.Random(0)
    carrying = [p for p in task.problems("train")[:400] if written_digits(*p.meta["operands"], "+", lambda: True) !=
                written_digits(*p.meta["operands"], "+")]  # fmt: skip
    assert len(carrying) > 200
    shown = [task.check(p, task.demonstrate(p, rng, noise=0.6)).reward for p in carrying for _ in range(5)]
    assert 0.1 < sum(shown) / len(shown) < 0.3


def test_arithmetic_question_and_impossible_share():
    task = make("arithmetic", question="What is {}? Answer with the number.", impossible=0.25)
    problems = task.problems("train")[:2000]
    assert problems[0].prompt.startswith("What is ") and "{" not in problems[0].prompt
    hopeless = [p for p in problems if p.answer is None]
    assert abs(len(hopeless) / 2000 - 0.25) < 0.04
    assert all(task.check(p, task.demonstrate(p, random.Random(0))).reward == 0.0 for p in hopeless)


@pytest.mark.parametrize(
    ("name", "settings", "setting"),
    [
        ("arithmetic", {"ops": ("/",)}, "ops"),
        ("arithmetic", {"levels": ()}, "levels"),
        ("arithmetic", {"question": "x"}, "question"),
        ("arithmetic", {"impossible": 2}, "impossible"),
        ("arithmetic", {"train_size": 0}, "train_size"),
        ("countdown", {"counts": (9,)}, "counts"),
        ("countdown", {"top": 0}, "top"),
        ("reverse", {"lengths": (0,)}, "lengths"),
        ("reverse", {"letters": 1}, "letters"),
        ("key_value", {"pairs": (1000,)}, "pairs"),
        ("key_value", {"position": 2.0}, "position"),
        ("modular_chain", {"lengths": (40,)}, "lengths"),
        ("modular_chain", {"modulus": 1}, "modulus"),
        ("maze", {"sizes": (1,)}, "sizes"),
        ("maze", {"walls": 0.9}, "walls"),
    ],
)
def test_wrong_settings_are_named(name, settings, setting):
    with pytest.raises(registry.RecipeError, match=setting):
        make(name, **settings)


def test_unknown_split_and_empty_split_are_errors():
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        make("reverse").problems("dev")
    with pytest.raises(ValueError, match="no problem for the split"):
        (
            make("reverse", lengths=(1,), letters=2).problems("validation"),
            make("reverse", lengths=(1,), letters=2).problems("test"),
        )


def test_evaluate_follows_precedence_exactly():
    assert evaluate("2+3*4") == (14, [2, 3, 4])
    assert evaluate("(2+3)*4") == (20, [2, 3, 4])
    assert evaluate("8-3-2") == (3, [8, 3, 2])
    assert evaluate("1/3") == (Fraction(1, 3), [1, 3])
    assert evaluate("8/(3-8/3)")[0] == 24
    for wrong in ("", "1+", "(1", "1)", "-1", "1 2", "1//2", "2**3", "1/(2-2)", "1.5", "a", "1e3", "1_0", "9" * 10):
        with pytest.raises(Malformed):
            evaluate(wrong)


def test_countdown_solver_agrees_with_brute_force():
    rng = random.Random(0)
    for _ in range(30):
        numbers = tuple(rng.randint(1, 6) for _ in range(3))
        for target in range(1, 30):
            for text in solve(tuple(sorted(numbers)), target):
                value, used = evaluate(text)
                assert value == target and sorted(used) == sorted(numbers)
            assert bool(solve(tuple(sorted(numbers)), target)) == (target in reachable(numbers))


def reachable(numbers):
    """All positive integers over the numbers with positive integer steps, the slow way."""
    if len(numbers) == 1:
        return set(numbers)
    found = set()
    for i, a in enumerate(numbers):
        for j, b in enumerate(numbers):
            if i != j:
                rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
                results = {a + b, a * b} | ({a - b} if a > b else set()) | ({a // b} if a % b == 0 else set())
                for result in results:
                    found |= reachable((*rest, result))
    return found


def test_countdown_verdicts():
    task = make("countdown")
    problem = task.problem("x", "3,5,7>26:", None, 3.0, numbers=(3, 5, 7), target=26)
    for right in ("7*3+5", "5+3*7", "(7*3)+5", "7*3+5=26", " 7 * 3 + 5 = 26 "):
        assert task.check(problem, right).reward == 1.0
    for wrong in ("7*3+5=27", "26", "21+5", "7*3+5+3-3", "7+3+5", "7*3", "7*3+5=", "7*3+5=26=26", "7*3+5;", "+7*3+5"):
        assert task.check(problem, wrong).reward == 0.0, wrong
    assert task.check(problem, "7+3+5").feedback == "gives 15, the target is 26"


def test_key_value_position():
    for share, at in ((0.0, 0), (0.5, 4), (1.0, 7)):
        task = make("key_value", pairs=(8,), position=share) if share else make("key_value", pairs=(8,), position=0.0)
        assert all(
            p.meta["position"] == at or (share == 0.5 and p.meta["position"] in (3, 4))
            for p in task.problems("train")[:20]
        )


def test_modular_chain_values_follow():
    task = make("modular_chain", lengths=(5,), distractors=2, shuffled=True, modulus=17)
    for problem in task.problems("train")[:50]:
        body, asked = problem.prompt.removeprefix("mod 17:").rsplit(";", 1)
        lines = dict(line.split("=") for line in body.split(";"))

        def value(name, lines=lines):
            text = lines[name]
            if text.isdigit():
                return int(text)
            left, op, right = text[0], text[1], int(text[2:])
            return {"+": value(left) + right, "-": value(left) - right, "*": value(left) * right}[op] % 17

        assert len(lines) == 7
        assert str(value(asked[0])) == problem.answer == str(problem.meta["values"][-1])


def test_maze_walks():
    task = make("maze")
    problem = task.problem("x", "", None, 4.0, grid=("S.#", "..#", "#.G"))
    assert distances(problem.meta["grid"], locate(problem.meta["grid"], "G"))[(0, 0)] == 4
    assert task.check(problem, "DRDR").reward == 1.0
    assert task.check(problem, "RDDR").reward == 1.0
    assert task.check(problem, "RLRDDR").reward == 1.0  # a detour is legal
    assert task.check(problem, "DRDRL").reward == 0.0
    assert task.check(problem, "DDRR").feedback == "move 2 (D) is blocked"
    assert task.check(problem, "DRD").feedback == "does not end on G"
    assert task.check(problem, "drdr").parts["format"] == 0.0
