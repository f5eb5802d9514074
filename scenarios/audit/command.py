"""``dpdd-sim audit``: one release of a simulated silo attacked, its noise measured; and builds that must fail."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdd.common.cli import Commands, print_json, table
from dpdd.common.errors import ConfigError, DpddError
from dpdd.scenarios.options import whole_number

if TYPE_CHECKING:
    from dpdd.client.auditing.one_run import AuditPlan, AuditResult
    from dpdd.client.records.records import Records
    from dpdd.common.progress import Console
    from dpdd.common.wire.request import ReleaseRequest
    from dpdd.scenarios.audit.noise import SegmentNoise
    from dpdd.server.run.scenario import Scenario


def add_to(commands: Commands) -> None:
    """Register `audit`."""
    parser = commands.add(
        "audit",
        _run,
        "attack one release of a scenario's method, and measure its noise: a lower bound on ε beside the claimed one",
        "A silo of canaries, each included by a fair coin, answers the scenario's request; the coins are guessed from "
        "the release. --prove shows that builds with less noise fail.",
    )
    parser.add_argument("scenario", help="a shipped scenario's name (see `dpdd-sim list`) or a .toml file")
    parser.add_argument("--canaries", type=whole_number, default=2000, help="how many: more give higher bounds")
    parser.add_argument("--confidence", type=float, default=0.95, help="of each bound on ε")
    parser.add_argument(
        "--seed", type=int, default=0, help="of coins, canaries and noise: the same one audits the same"
    )
    parser.add_argument("--epsilon", type=float, help="the budget, instead of the scenario's")
    parser.add_argument("--family", help="the kind of canaries (default: those that stand out most)")
    parser.add_argument("--stages", type=whole_number, metavar="N", help="look at the first N stages only")
    parser.add_argument(
        "--records", type=int, default=0, metavar="N", help="so many of the scenario's records beside the canaries"
    )
    parser.add_argument("--releases", type=whole_number, default=1, help="over how many the noise is measured")
    parser.add_argument(
        "--prove", action="store_true", help="also audit builds with half and a quarter of the noise, which must fail"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where audit.json goes (default: runs/audit-NAME)")
    parser.add_argument("--json", action="store_true", help="print audit.json instead of a summary")
    parser.add_argument("--quiet", action="store_true", help="no progress")


@dataclass(frozen=True, eq=False)
class Build:
    """One build's audit; `factor` is what its noise was multiplied by."""

    factor: float
    attack: AuditResult
    noise: list[SegmentNoise]
    left_out: list[str]

    @property
    def noise_passes(self) -> bool:
        """Whether every segment may have the noise that is stated."""
        return all(each.test.passes for each in self.noise)

    @property
    def passes(self) -> bool:
        """Whether nothing contradicts what is claimed."""
        return self.noise_passes and not self.attack.refuted


def audited(
    request: ReleaseRequest,
    plan: AuditPlan,
    releases: int,
    factor: float = 1.0,
    others: Records | None = None,
    console: Console | None = None,
) -> Build:
    """The audit of this build, or of one whose noise is multiplied by a factor below 1."""
    from dpdd.client.auditing.one_run import audit
    from dpdd.common.progress import silent
    from dpdd.scenarios.audit.less_noise import less_noise
    from dpdd.scenarios.audit.noise import noise_of_segments

    progress = silent if console is None else console
    with less_noise(factor) if factor < 1.0 else nullcontext():
        attack = audit(request, plan, others, progress)
        noise, left_out = noise_of_segments(request, releases, plan.seed, plan.stages, progress)
    return Build(factor, attack, noise, left_out)


def _run(options: argparse.Namespace) -> None:
    from dpdd.client.auditing.one_run import AuditPlan
    from dpdd.common.progress import Console
    from dpdd.scenarios.audit.less_noise import FACTORS
    from dpdd.server.run.requests import make_request
    from dpdd.server.run.scenario import load_scenario

    scenario = load_scenario(options.scenario, None)
    epsilon = scenario.privacy.epsilon if options.epsilon is None else options.epsilon
    request = make_request(scenario, epsilon=epsilon)
    console = Console(quiet=options.quiet or options.json)
    plan = AuditPlan(
        options.canaries, options.confidence, options.seed, options.family, options.stages, noise_seed=options.seed
    )
    others = _records(scenario, options.records) if options.records else None
    builds = []
    for factor in (1.0, *(FACTORS if options.prove else ())):
        if options.prove:
            console.say(f"with {factor:g} times the noise")
        builds.append(audited(request, plan, options.releases, factor, others, console))
    console.finish()
    folder: Path = options.out or Path("runs") / f"audit-{scenario.name}"
    folder.mkdir(parents=True, exist_ok=True)
    found = {"scenario": scenario.name, "seed": options.seed, "builds": [_as_json(build) for build in builds]}
    (folder / "audit.json").write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.json:
        print_json(found)
    else:
        print("\n\n".join(as_text(build) for build in builds))
        print(f"\nwritten: {folder / 'audit.json'}")
    check(builds)


def check(builds: list[Build]) -> None:
    """A DpddError where this build fails, or one with less noise passes."""
    if not builds[0].passes:
        raise DpddError("the audit contradicts what this build claims")
    passing = [f"{build.factor:g}" for build in builds[1:] if build.passes]
    if passing:
        raise DpddError(
            f"the audit does not see that only {' and '.join(passing)} of the noise is there; take more --canaries or "
            "more --releases"
        )


def as_text(build: Build) -> str:
    """An audit in words."""
    from dpdd.client.auditing.report import as_text as attack_as_text

    rows = [
        [
            str(each.stage),
            each.segment,
            f"{each.test.numbers:,}",
            f"{each.test.scale:.4f}",
            f"{each.test.p_value:.2g}",
            f"{100.0 * each.test.finds:.1f} %" if each.test.finds < 1.0 else "too few",
            "passes" if each.test.passes else "FAILS",
        ]
        for each in build.noise
    ]
    title = f"{build.attack.method}" + ("" if build.factor == 1.0 else f", a build with {build.factor:g} of the noise")
    lines = [title, "", attack_as_text(build.attack), ""]
    lines.append(table(["stage", "segment", "numbers", "noise / stated σ", "p", "finds errors of", "test"], rows))
    if build.left_out:
        lines.append(f"not measured: {', '.join(build.left_out)}")
    return "\n".join(lines)


def _as_json(build: Build) -> dict[str, Any]:
    from dpdd.client.auditing.report import as_json

    return {
        "noise_factor": build.factor,
        "passes": build.passes,
        "attack": as_json(build.attack),
        "noise": [
            {
                "stage": each.stage,
                "segment": each.segment,
                "numbers": each.test.numbers,
                "scale": each.test.scale,
                "p_value": each.test.p_value,
                "passes": each.test.passes,
            }
            for each in build.noise
        ],
        "not_measured": build.left_out,
    }


def _records(scenario: Scenario, count: int) -> Records:
    from dpdd.client.records.records import Records
    from dpdd.server.run.own_data import silo_records

    whole, held = silo_records(scenario.data, scenario.seed)
    if not 0 < count <= len(held):
        raise ConfigError(f"--records: the scenario has {len(held)} records")
    some = whole.subset(held[:count])
    return Records(some.features[:], some.labels)
