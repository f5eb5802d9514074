"""Coverage-guided inputs for one decoder: ``python -m tests.attacks.guided_fuzz "signed release" --seconds 60``.

Needs atheris, which nothing else here does (``pip install atheris``). It starts from 200 inputs of the seeded fuzzer,
and keeps what reaches new lines of dpdd. A finding ends it with a traceback and the input as a file. It helps with
messages, at thousands of inputs a second; decoders that read a file or a database take a hundred times as long.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import tempfile
import warnings
from pathlib import Path


def main() -> None:
    """Fuzz until the time is over, or until something is found; libFuzzer ends the process."""
    atheris = importlib.import_module("atheris")
    parser = argparse.ArgumentParser(description="Coverage-guided inputs for one decoder.")
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with atheris.instrument_imports(include=["dpdd"]):
        targets = importlib.import_module("tests.attacks.fuzz_targets").targets
    scratch = Path(tempfile.mkdtemp())
    target = next(each for each in targets(scratch / "files") if each.name == options.target)
    corpus = scratch / "corpus"
    corpus.mkdir()
    for number in range(200):
        (corpus / str(number)).write_bytes(target.make(random.Random(f"{options.seed} {number}")))

    def one(data: bytes) -> None:
        try:
            target.decode(data)
        except (json.JSONDecodeError, UnicodeDecodeError):
            pass  # some targets take JSON, and their decoders its values
        except target.errors as error:
            text = str(error)
            if not (text and text.isprintable() and len(text) < 1000):
                raise AssertionError("the error is not one readable line") from error

    warnings.simplefilter("ignore")
    limits = [f"-max_total_time={options.seconds}", f"-seed={options.seed}", "-max_len=16384", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1", str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
