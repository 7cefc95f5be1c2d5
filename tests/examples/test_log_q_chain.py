"""Low discounts on a chain with shared features: ordinary values fail, their logarithms do not."""

import importlib.util
from pathlib import Path

FILE = Path(__file__).parents[2] / "examples" / "log_q_chain.py"


def example():
    spec = importlib.util.spec_from_file_location("log_q_chain", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_logarithms_find_the_best_actions_where_ordinary_values_do_not():
    chain = example()
    settings = {"width": 2, "gamma": 0.5, "sweeps": 2500, "seeds": 1, "length": 20}
    assert float(chain.share_solved(log=True, **settings)) > 0.9
    assert float(chain.share_solved(log=False, **settings)) < 0.1


def test_without_shared_features_both_do():
    chain = example()
    settings = {"width": 1, "gamma": 0.9, "sweeps": 1500, "seeds": 1, "length": 20}
    assert float(chain.share_solved(log=True, **settings)) > 0.9
    assert float(chain.share_solved(log=False, **settings)) > 0.9
