"""Data sets of every shape become problems, and no problem is on two sides of a split."""

from __future__ import annotations

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gainstage import registry
from gainstage.tasks.resolve import resolve
from gainstage.tasks.text.datasets import load_problems, normalised, overlap, split_by_hash
from gainstage.tasks.text.readers import DataError
from gainstage.types import Problem

CHAT = [{"role": "user", "content": "2+2?"}]
ANSWER = [{"role": "assistant", "content": "4"}]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def sums(count):
    return [{"prompt": f"{i}+{i}?", "answer": str(2 * i)} for i in range(count)]


def one(tmp_path, row, **keywords):
    data = load_problems(write(tmp_path / "one.jsonl", [row]), "train", **keywords)
    return data.layout, data[0]


@pytest.mark.parametrize("chat", [False, True])
def test_prompt_only(tmp_path, chat):
    prompt = CHAT if chat else "2+2?"
    layout, problem = one(tmp_path, {"prompt": prompt, "answer": "4", "level": "Level 3", "source": "me"})
    assert (layout.kind, layout.gold) == ("prompt_only", "answer")
    assert (problem.prompt, problem.answer, problem.difficulty) == (prompt, "4", 3.0)
    assert problem.meta["source"] == "me" and problem.meta["answer"] == "4"


@pytest.mark.parametrize("name", ["question", "problem", "instruction", "query", "input"])
def test_usual_names_of_the_prompt(tmp_path, name):
    assert one(tmp_path, {name: "2+2?", "answer": "4"})[1].prompt == "2+2?"


@pytest.mark.parametrize(("prompt", "completion"), [("2+2?", "4"), (CHAT, ANSWER)])
def test_prompt_completion(tmp_path, prompt, completion):
    layout, problem = one(tmp_path, {"prompt": prompt, "completion": completion})
    assert layout.kind == "prompt_completion" and layout.gold is None
    assert (problem.prompt, problem.meta["completion"], problem.answer) == (prompt, completion, None)


def test_language_modelling(tmp_path):
    layout, problem = one(tmp_path, {"text": "once upon"})
    assert (layout.kind, problem.prompt, problem.meta["completion"]) == ("language_modelling", "", "once upon")
    layout, problem = one(tmp_path, {"messages": CHAT + ANSWER})
    assert (layout.kind, problem.prompt, problem.meta["completion"]) == ("language_modelling", CHAT, ANSWER)
    layout, problem = one(tmp_path, {"messages": CHAT, "answer": "4"})
    assert (layout.kind, problem.prompt, problem.answer) == ("prompt_only", CHAT, "4")


def test_preference_with_explicit_and_implicit_prompt(tmp_path):
    layout, problem = one(tmp_path, {"prompt": "2+2?", "chosen": "4", "rejected": "5"})
    assert layout.kind == "preference" and layout.prompt == "prompt"
    assert (problem.prompt, problem.meta["chosen"], problem.meta["rejected"]) == ("2+2?", "4", "5")
    layout, problem = one(tmp_path, {"chosen": "The sky is blue.", "rejected": "The sky is green."})
    assert layout.prompt is None
    assert (problem.prompt, problem.meta["chosen"], problem.meta["rejected"]) == ("The sky is", " blue.", " green.")
    wrong = [{"role": "assistant", "content": "5"}]
    layout, problem = one(tmp_path, {"chosen": CHAT + ANSWER, "rejected": CHAT + wrong})
    assert (problem.prompt, problem.meta["chosen"], problem.meta["rejected"]) == (CHAT, ANSWER, wrong)
    # a plain prompt beside whole conversations, as published preference sets have it
    layout, problem = one(tmp_path, {"prompt": "2+2?", "chosen": CHAT + ANSWER, "rejected": CHAT + wrong})
    assert (problem.prompt, problem.meta["chosen"], problem.meta["rejected"]) == (CHAT, ANSWER, wrong)


def test_unpaired_preference_and_stepwise(tmp_path):
    layout, problem = one(tmp_path, {"prompt": "2+2?", "completion": "4", "label": True})
    assert layout.kind == "unpaired_preference" and problem.meta["label"] is True
    layout, problem = one(tmp_path, {"prompt": "2+2?", "completions": ["a", "b"], "labels": [True, False]})
    assert layout.kind == "stepwise" and problem.meta["labels"] == [True, False]


def test_verl_rows(tmp_path):
    row = {
        "data_source": "openai/gsm8k",
        "prompt": CHAT,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 7, "answer": "long"},
    }
    file = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist([row]), file)
    data = load_problems(str(file))
    assert data.layout.gold == "reward_model.ground_truth"
    assert (data[0].prompt, data[0].answer) == (CHAT, "4")
    assert data[0].meta["data_source"] == "openai/gsm8k" and data[0].meta["extra_info"]["index"] == 7


@pytest.mark.parametrize("gold", ["answer", "solution", "ground_truth"])
def test_gold_column_is_found_and_reported(tmp_path, gold):
    layout, problem = one(tmp_path, {"prompt": "2+2?", gold: "4"})
    assert problem.answer == "4" and repr(gold) in layout.describe()


def test_several_gold_columns(tmp_path):
    layout, problem = one(tmp_path, {"prompt": "2+2?", "solution": "two and two", "answer": "4"})
    assert (problem.answer, layout.also) == ("4", ("solution",))
    assert "not from solution" in layout.describe()
    layout, problem = one(tmp_path, {"prompt": "2+2?", "solution": "s", "answer": "4"}, columns={"answer": "solution"})
    assert problem.answer == "s"


def test_messages_win_over_prompt_and_completion_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="'messages' is used"):
        _, problem = one(tmp_path, {"messages": CHAT + ANSWER, "prompt": "other", "completion": "thing"})
    assert problem.prompt == CHAT and problem.meta["completion"] == ANSWER


def test_column_mapping(tmp_path):
    row = {"q": "2+2?", "final": 4}
    problem = one(tmp_path, row, columns={"prompt": "q", "answer": "final"})[1]
    assert (problem.prompt, problem.answer) == ("2+2?", 4)
    with pytest.raises(DataError, match=r"columns.prompt: no column 'qq'.*one.jsonl:1"):
        one(tmp_path, row, columns={"prompt": "qq"})
    with pytest.raises(DataError, match="unknown role"):
        one(tmp_path, row, columns={"promt": "q"})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"prompt": "a"}\n{"prompt": \n', r"bad.jsonl:2: no valid JSON"),
        ('{"prompt": "a"}\n\n[1]\n', r"bad.jsonl:3: a row must be a JSON object, got list"),
        ('{"prompt": "a", "answer": "1"}\n{"prompt": "b"}\n', r"bad.jsonl:2: column 'answer'"),
        ('{"prompt": "a"}\n{"question": "b"}\n', r"bad.jsonl:2: column 'prompt'"),
        ('{"prompt": [1]}\n', r"bad.jsonl:1: column 'prompt' must be text"),
        ('{"x": 1}\n', r"bad.jsonl:1: no known type.*x"),
        ('{"prompt": "a", "completions": ["x"], "labels": []}\n', r"bad.jsonl:1.*equal length"),
        ('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "answer": NaN}\n', r"bad.jsonl:2: column 'answer'.*NaN"),
        ('{"prompt": "a\\ud800"}\n', r"bad.jsonl:1: '\\ud800' is half a character"),
        ('{"prompt": "a", "answer": ' + "9" * 5000 + "}\n", r"bad.jsonl:1: no readable JSON: .*digits"),
        ("[" * 100_000, r"bad.jsonl:1: no readable JSON: .*recursion"),
        ("", "no rows"),
    ],
)
def test_errors_name_file_line_and_column(tmp_path, text, match):
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(DataError, match=match):
        load_problems(str(tmp_path / "bad.jsonl"))


@pytest.mark.parametrize("text", ["5", "null", '"rows"', "[" * 100_000])
def test_json_that_is_no_list_of_objects(tmp_path, text):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(DataError, match=r"bad.json: (it must be a list of objects|no readable JSON)"):
        load_problems(str(tmp_path / "bad.json"))


def test_a_damaged_archive(tmp_path):
    (tmp_path / "bad.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "a"}')[:12] + b"\xff" * 60)
    with pytest.raises(DataError, match=r"bad.jsonl.gz: cannot be read"):
        load_problems(str(tmp_path / "bad.jsonl.gz"))


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "bad.jsonl").write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    with pytest.raises(DataError, match=r"bad.jsonl:2: not UTF-8"):
        load_problems(str(tmp_path / "bad.jsonl"))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"bad.parquet: cannot be read"):
        load_problems(str(tmp_path / "bad.parquet"))


def test_every_file_format_gives_the_same_problems(tmp_path):
    rows = sums(3)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text("\ufeff" + text)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.json").write_text(json.dumps({"version": 1, "data": rows}))
    (tmp_path / "c.json").write_text(text)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as out:
        out.write_table(table)
    expected = [(p.id, p.prompt, p.answer) for p in load_problems(str(tmp_path / "a.jsonl"))]
    for name in ("a.jsonl.gz", "a.json", "b.json", "c.json", "a.parquet", "a.arrow"):
        assert [(p.id, p.prompt, p.answer) for p in load_problems(str(tmp_path / name))] == expected, name


def test_folders_and_hub_layouts(tmp_path, monkeypatch):
    monkeypatch.setenv("GAINSTAGE_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data" / "owner" / "sums"
    (folder / "main").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(sums(4)[:2]), folder / "main" / "train-00000-of-00002.parquet")
    pq.write_table(pa.Table.from_pylist(sums(4)[2:]), folder / "main" / "train-00001-of-00002.parquet")
    test = pa.Table.from_pylist([{"prompt": "x", "answer": "y"}])
    pq.write_table(test, folder / "main" / "test-00000-of-00001.parquet")
    pq.write_table(pa.Table.from_pylist(sums(1)), folder / "main" / "train_sft-00000-of-00001.parquet")
    assert [len(load_problems("owner/sums", split)) for split in ("train", "test", "train_sft")] == [4, 1, 1]
    (folder / "other").mkdir()
    write(folder / "other" / "test.jsonl", sums(7))
    assert len(load_problems("owner/sums", "train")) == 4  # main is the default subset
    assert len(load_problems("owner/sums", "test", config="other")) == 7
    with pytest.raises(DataError, match="main, other"):
        load_problems("owner/sums", "test", config="third")
    with pytest.raises(DataError, match=r"no split 'validation'.*train_sft"):
        load_problems("owner/sums", "validation")


def test_caches_of_other_libraries_are_read_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("GAINSTAGE_DATA", str(tmp_path / "none"))
    for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    hub = tmp_path / "hub" / "datasets--owner--sums"
    (hub / "refs").mkdir(parents=True)
    (hub / "refs" / "main").write_text("abc")
    (hub / "snapshots" / "abc" / "data").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(sums(5)), hub / "snapshots" / "abc" / "data" / "train-00000-of-00001.parquet")
    assert len(load_problems("owner/sums")) == 5
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    splits = {"train": datasets.Dataset.from_list(sums(6)), "test": datasets.Dataset.from_list(sums(2))}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    assert [len(load_problems(str(tmp_path / "saved"), s)) for s in ("train", "test")] == [6, 2]


def test_missing_data_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("GAINSTAGE_DATA", str(tmp_path))
    monkeypatch.delenv("GAINSTAGE_ALLOW_HUB", raising=False)
    with pytest.raises(DataError, match=rf"{tmp_path}/owner/nothing.*GAINSTAGE_ALLOW_HUB=1.*hf download"):
        load_problems("owner/nothing")
    with pytest.raises(DataError, match=r"nothing.jsonl: looked for"):
        load_problems("nothing.jsonl")
    with pytest.raises(DataError, match="unknown kind of file"):
        (tmp_path / "a.csv").write_text("x")
        load_problems(str(tmp_path / "a.csv"))


def test_ids_depend_on_content_alone(tmp_path):
    rows = sums(5)
    first = {p.prompt: p.id for p in load_problems(write(tmp_path / "a.jsonl", rows))}
    random.Random(0).shuffle(rows)
    assert {p.prompt: p.id for p in load_problems(write(tmp_path / "b.jsonl", rows))} == first
    assert len(set(first.values())) == 5


def problems(prompts):
    return [Problem(str(i), prompt) for i, prompt in enumerate(prompts)]


def test_split_by_hash_is_exact_stable_and_disjoint():
    items = problems(f"question {i}" for i in range(1000))
    kept, held = split_by_hash(items)
    assert (len(kept), len(held)) == (990, 10)
    assert overlap(kept, held) == []
    shuffled = random.Random(1).sample(items, 1000)
    assert {p.id for p in split_by_hash(shuffled)[1]} == {p.id for p in held}
    assert {p.id for p in split_by_hash(items, salt="other")[1]} != {p.id for p in held}


def test_wordings_that_differ_in_blanks_and_case_stay_together():
    items = problems(text for i in range(100) for text in (f"What is {i}?", f"what  is {i}? "))
    kept, held = split_by_hash(items, 0.1)
    assert len(held) == 20 and overlap(kept, held) == []
    assert normalised("２+2?\t ") == "2+2?"


@pytest.mark.parametrize(("count", "held"), [(1, 0), (2, 1), (5, 1), (50, 5), (200, 10), (5000, 50)])
def test_sizes_of_small_and_large_splits(count, held):
    assert len(split_by_hash(problems(str(i) for i in range(count)))[1]) == held


def test_overlap_check_sees_a_trailing_space():
    assert len(overlap(problems(["2+2?", "1+1?"]), problems(["2+2? "]))) == 1


class TestTask:
    def build(self, path, name="jsonl", **settings):
        return registry.build("task", name, {"path": str(path), **settings})

    def test_a_single_file_is_divided(self, tmp_path):
        task = self.build(write(tmp_path / "sums.jsonl", sums(1000)))
        train, held = task.problems("train"), task.problems("validation")
        assert (len(train), len(held)) == (990, 10)
        assert not {p.id for p in train} & {p.id for p in held}
        assert task.problems("test") is held  # one held-out split serves as both
        assert task.name == "sums" and task.capabilities == {"answer", "check"}

    def test_one_row_gives_no_evaluation_and_says_so(self, tmp_path, caplog):
        task = self.build(write(tmp_path / "sums.jsonl", sums(1)))
        assert len(task.problems("train")) == 1 and "no evaluation" in caplog.text
        with pytest.raises(ValueError, match="no test split"):
            task.problems("test")

    def test_evaluation_rows_in_training_are_an_error_or_dropped_or_reported(self, tmp_path, caplog):
        train = write(tmp_path / "t.jsonl", [*sums(40), {"prompt": "2+2? ", "answer": "4"}])
        test = write(tmp_path / "e.jsonl", [{"prompt": "2+2?", "answer": "4"}, {"prompt": "new", "answer": "1"}])
        with pytest.raises(ValueError, match="1 of 2 test problems"):
            self.build(train, test=test).problems("train")
        dropped = self.build(train, test=test, overlap="drop")
        assert overlap(dropped.problems("train"), dropped.problems("test")) == []
        assert "1 of 2 test problems" in caplog.text
        kept = self.build(train, test=test, overlap="report")
        assert {p.prompt for p in kept.problems("test")} == {"2+2?", "new"}
        with pytest.raises(DataError, match="nothing to train on"):
            self.build(train, test=train, overlap="drop").problems("train")

    def test_three_splits_by_placeholder_and_by_name(self, tmp_path):
        for start, split in enumerate(("train", "dev", "test")):
            write(tmp_path / f"s_{split}.jsonl", [{"prompt": f"{split} {i}"} for i in range(start + 2)])
        task = self.build(tmp_path / "s_{split}.jsonl")
        assert [len(task.problems(s)) for s in ("train", "validation", "test")] == [2, 3, 4]
        renamed = self.build(tmp_path / "s_{split}.jsonl", splits={"train": "test", "test": "train"})
        assert len(renamed.problems("train")) == 4
        with pytest.raises(ValueError, match="no split 'tset'"):
            self.build(tmp_path / "s_{split}.jsonl", splits={"test": "tset"}).problems("test")

    def test_template_and_system_message(self, tmp_path):
        path = write(tmp_path / "a.jsonl", sums(3))
        plain = self.build(path, template="Q: {prompt}\nA:").problems("train")[0]
        assert plain.prompt.startswith("Q: ") and plain.prompt.endswith("?\nA:")
        chat = self.build(path, system="Be brief.").problems("train")[0].prompt
        assert [m["role"] for m in chat] == ["system", "user"]

    @pytest.mark.parametrize(
        ("verifier", "right", "wrong"),
        [
            ("math", r"so \boxed{\frac12}", "0.51"),
            ("number", "the answer is 0.50 metres.", "none"),
            ("exact", "1/2", "0.5"),
            ("contains", "it is 1/2, I think", "half"),
        ],
    )
    def test_verifiers(self, tmp_path, verifier, right, wrong):
        task = self.build(write(tmp_path / "a.jsonl", [{"prompt": "?", "answer": "1/2"}]), verifier=verifier)
        problem = task.problems("train")[0]
        assert task.check(problem, right).reward == 1
        assert task.check(problem, wrong).reward == 0
        assert task.check(problem, "").reward == 0

    def test_capabilities_follow_the_data(self, tmp_path):
        assert self.build(write(tmp_path / "a.jsonl", [{"prompt": "a"}])).capabilities == set()
        shown = self.build(write(tmp_path / "b.jsonl", [{"prompt": "a", "completion": "b"}]))
        assert shown.capabilities == {"demonstrations"}
        assert shown.demonstrate(shown.problems("train")[0], random.Random(0)) == "b"
        pairs = self.build(write(tmp_path / "c.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}]))
        assert pairs.capabilities == {"preferences"}
        assert pairs.preferences(pairs.problems("train")[0], random.Random(0)) == ("b", "c")
        problem = Problem("p", "a")
        assert shown.check(problem, "b").reward is None

    @pytest.mark.parametrize(
        "settings", [{"held_out": 0}, {"max_new": 0}, {"template": "x"}, {"splits": {"eval": "x"}}, {"verifier": "x"}]
    )
    def test_wrong_settings(self, tmp_path, settings):
        with pytest.raises(registry.RecipeError):
            self.build(write(tmp_path / "a.jsonl", sums(2)), **settings)


def benchmark(name, **settings):
    task = registry.build("task", name, settings)
    try:
        task.problems("test")
    except ValueError as error:
        pytest.skip(str(error)[:200])
    return task


def test_gsm8k():
    task = benchmark("gsm8k")
    sizes = [len(task.problems(split)) for split in ("train", "validation", "test")]
    assert sizes == [7398, 75, 1319]
    assert overlap(task.problems("train"), task.problems("test")) == []
    assert task.capabilities == {"answer", "check", "demonstrations"}
    first = task.problems("test")[0]
    assert first.answer == "18" and first.meta["answer"].endswith("#### 18")
    shown = task.demonstrate(first, random.Random(0))
    assert "<<" not in shown
    for answer in (shown, r"\boxed{18}", "That makes $18.00 a day.", "The answer is 18 dollars."):
        assert task.check(first, answer).reward == 1, answer
    for answer in (r"\boxed{81}", "18 or 19", ""):
        assert task.check(first, answer).reward == 0, answer
    sample = list(task.problems("test"))[::40]
    assert all(task.check(p, task.demonstrate(p, random.Random(0))).reward == 1 for p in sample)


def test_math500_is_for_evaluation_only():
    task = benchmark("math500")
    assert len(task.problems("test")) == 500
    with pytest.raises(ValueError, match="no train split"):
        task.problems("train")
    first = task.problems("test")[0]
    assert first.difficulty == 2.0
    assert task.check(first, rf"Thus \boxed{{{first.answer}}}.").reward == 1
    assert task.check(first, r"\boxed{(3, \pi)}").reward in (0.0, None)


def test_benchmark_without_its_data_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("GAINSTAGE_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("GAINSTAGE_ALLOW_HUB", raising=False)
    with pytest.raises(ValueError, match=r"openai/gsm8k.*hf download"):
        registry.build("task", "gsm8k").problems("train")


class TestReasoningGym:
    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("reasoning_gym")

    def build(self, dataset="chain_sum", **settings):
        settings = {"train_size": 40, "heldout_size": 20, "seconds": 60, **settings}
        return registry.build("task", "rg", {"dataset": dataset, **settings})

    def test_splits_share_no_question_for_any_seed(self):
        settings = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
        held, trained = set(), set()
        for seed in (0, 1):
            task = self.build(seed=seed, settings=settings, template=None, chat=False)
            trained |= {p.prompt for p in task.problems("train")}
            held |= {p.prompt for split in ("validation", "test") for p in task.problems(split)}
        assert trained and held and not trained & held

    def test_scores_of_the_data_set_are_the_verdict(self):
        task = self.build()
        problem = task.problems("test")[0]
        assert task.capabilities == {"answer", "check"} and task.name == "rg:chain_sum"
        assert task.check(problem, f"<answer>{problem.answer}</answer>").reward == 1
        assert task.check(problem, "<answer>no number</answer>").reward == 0
        assert task.check(problem, str(problem.answer)).reward == 0  # tags were asked for
        bare = self.build(template=None)
        assert bare.check(problem, str(problem.answer)).reward == 1

    def test_same_seed_same_problems(self):
        prompts = [[p.prompt for p in self.build(seed=seed).problems("test")] for seed in (0, 0, 1)]
        assert prompts[0] == prompts[1] != prompts[2]

    def test_wrong_names_and_settings(self):
        with pytest.raises(registry.RecipeError, match="chain_sum"):
            self.build("chain_summ")
        with pytest.raises(registry.RecipeError, match="settings"):
            self.build(settings={"no_such": 1})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("arithmetic", ("arithmetic", {})),
        ("jsonl:data/a.jsonl", ("jsonl", {"path": "data/a.jsonl"})),
        ("parquet:folder", ("parquet", {"path": "folder"})),
        ("dataset:owner/name", ("dataset", {"path": "owner/name"})),
        ("hf:owner/name", ("dataset", {"path": "owner/name"})),
        ("hf:owner/name:sub", ("dataset", {"path": "owner/name", "config": "sub"})),
        ("hf:openai/gsm8k", ("gsm8k", {})),
        ("hf:openai/gsm8k:main", ("gsm8k", {})),
        ("hf:openai/gsm8k:socratic", ("dataset", {"path": "openai/gsm8k", "config": "socratic"})),
        ("hf:HuggingFaceH4/MATH-500", ("math500", {})),
        ("hf:openai/openai_humaneval", ("humaneval", {})),
        ("rg:chain_sum", ("rg", {"dataset": "chain_sum"})),
        ("my/file.jsonl.gz", ("jsonl", {"path": "my/file.jsonl.gz"})),
        ("my/file.parquet", ("parquet", {"path": "my/file.parquet"})),
        ("my/file.json", ("dataset", {"path": "my/file.json"})),
        ({"arithmetic": {"digits": 3}}, ("arithmetic", {"digits": 3})),
        ({"rg:chain_sum": {"seed": 1}}, ("rg", {"dataset": "chain_sum", "seed": 1})),
        ({"gsm8k": None}, ("gsm8k", {})),
    ],
)
def test_resolve(spec, expected):
    assert resolve(spec) == expected


@pytest.mark.parametrize(
    ("spec", "match"), [("rg:", "after the colon"), ({"a": 1}, "mapping"), ({"a": {}, "b": {}}, "name")]
)
def test_resolve_errors(spec, match):
    with pytest.raises(ValueError, match=match):
        resolve(spec)
