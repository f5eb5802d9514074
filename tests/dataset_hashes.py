"""Do today's programs still make the datasets of yesterday, byte for byte?

    python tests/dataset_hashes.py --record hashes.json    # before a change that should change nothing
    python tests/dataset_hashes.py hashes.json             # after it

Runs every shipped scenario that takes minutes, and small ones of every method, with a noise seed, on one thread, and
compares the hashes of datasets and classifiers and the accuracies. Both sides belong on one machine with one version of
torch: another processor rounds otherwise. Only the command `dpdd-sim` beside this interpreter is called, so the script
may be copied next to any version (`--program`). It takes about a quarter of an hour, and is no part of the tests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SHIPPED = ("quickstart", "noniid", "unequal-budgets", "fashion-continual", "fashion-continual-relay")

SMALL = """\
name = "small"
[data]
dataset = "fashion-slice"
silos = 2
records_per_silo = 1000
[method]
{method}
[synthesis]
images_per_class = 4
{synthesis}
[evaluation]
runs = 2
width = 8
steps = 20
{evaluation}
"""

MATCHING = "draws = 20\nnetworks = 5\nwidth = 16\nrate = 0.2\n"

CASES: dict[str, dict[str, str]] = {
    "dp-merf": {
        "method": 'name = "dp-merf"\nsettings = { features = 200 }',
        "synthesis": "settings = { steps = 60 }",
    },
    "dp-merf-decentralised": {
        "method": 'name = "dp-merf"\nmode = "decentralised"\nsettings = { features = 200 }',
        "synthesis": "settings = { steps = 60 }",
    },
    "sps-layers": {
        "method": 'name = "sps"\n[method.settings]\nbackbone = "gray28"\nfeatures = 64\nglobal_dimensions = 8\n'
        "class_dimensions = 8\nclass_layers = 2\nthumbnail = 4\nstages = 2\ngroups = 5\nclasses_per_group = 4",
        "synthesis": "settings = { steps = 20, batch_per_class = 4, jostling = 0.08, settle = 2, ema = 0.5 }",
        "evaluation": 'lessons = 500\ndownstream = ["convnet", "probe", "fine-tune", "ensemble"]\n'
        "fine_tune = { steps = 5 }",
    },
    "sps-decentralised": {
        "method": 'name = "sps"\nmode = "decentralised"\n[method.settings]\nfeatures = 64\nstages = 2',
        "synthesis": "settings = { steps = 20, portrait_weight = 2.0, jostling = 0.04 }",
        "evaluation": 'labels = "soft"\ndownstream = ["convnet"]',
    },
    "dosser": {
        "method": f'name = "dosser"\n[method.settings]\n{MATCHING}moments = 2\nwhitening = 0.5',
        "synthesis": "settings = { steps = 30 }",
    },
    "dosser-generated": {
        "method": f'name = "dosser"\n[method.settings]\n{MATCHING}auxiliary = "generated"\nauxiliary_images = 40\n'
        "dimensions = 16",
        "synthesis": 'settings = { steps = 20, parts = 2, start = "auxiliary" }',
    },
    "dosser-decentralised": {
        "method": f'name = "dosser"\nmode = "decentralised"\n[method.settings]\n{MATCHING}dimensions = 16',
        "synthesis": "settings = { steps = 20 }",
    },
    "ndpdc": {"method": 'name = "ndpdc"\nsettings = { draws = 20, width = 16 }'},
    "psg": {"method": 'name = "psg"\nsettings = { draws = 10, width = 8 }'},
    "dm": {"method": f'name = "dm"\n[method.settings]\n{MATCHING}\n[privacy]\nepsilon = inf'},
}


def run(program: Path, scenario: str, folder: Path) -> dict[str, Any]:
    """What one scenario makes."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [str(program), "run", scenario, "--out", str(folder), "--noise-seed", "7", "--workers", "1", "--json"]
    done = subprocess.run(command, env={**os.environ, **threads}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{scenario}: {done.stderr}")
    metrics = json.loads(done.stdout)
    teacher = folder / "dataset" / "teacher.safetensors"
    return {
        "dataset": metrics["dataset"]["sha256"],
        "teacher": hashlib.sha256(teacher.read_bytes()).hexdigest() if teacher.exists() else None,
        "accuracy": {name: score["runs"] for name, score in metrics["accuracy"].items()},
    }


def main() -> int:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--record", action="store_true", help="write the hashes instead of comparing with them")
    parser.add_argument("--program", type=Path, default=Path(sys.executable).with_name("dpdd-sim"))
    parser.add_argument("--only", nargs="+", default=[*SHIPPED, *CASES], metavar="NAME")
    options = parser.parse_args()
    recorded = json.loads(options.file.read_text()) if options.file.exists() else {}
    different = []
    for name in options.only:
        with tempfile.TemporaryDirectory() as home:
            scenario = name
            if name in CASES:
                blank = {"synthesis": "", "evaluation": 'downstream = ["convnet"]'}
                (Path(home) / "small.toml").write_text(SMALL.format(**{**blank, **CASES[name]}))
                scenario = str(Path(home) / "small.toml")
            result = run(options.program, scenario, Path(home) / "run")
        same = recorded.get(name) == result
        if options.record:
            recorded[name] = result
            options.file.write_text(json.dumps(recorded, indent=2, sort_keys=True) + "\n")
        elif not same:
            different.append(name)
        print(f"{name}: {'recorded' if options.record else 'the same' if same else f'DIFFERENT: {result}'}", flush=True)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
