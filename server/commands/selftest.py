"""`selftest`: whether a device computes what the CPU does, and how fast."""

from __future__ import annotations

import argparse


def selftest(options: argparse.Namespace) -> None:
    """Do small work on both, print a table, and fail where they disagree."""
    from dpdd.common.cli import table
    from dpdd.common.errors import DpddError
    from dpdd.server.selftest import LIMIT, compare, device_called, disagreeing

    device = device_called(options.device)
    done = list(compare(device))
    rows = [
        [
            each.what,
            f"{each.cpu:.2f}",
            f"{each.other:.2f}",
            f"{each.cpu / max(each.other, 1e-9):.1f}",
            f"{each.apart:.4f}",
        ]
        for each in done
    ]
    print(table(["", "seconds, cpu", f"seconds, {options.device}", "times as fast", "apart"], rows))
    print(f"apart: difference in the objective, over what the cpu gained; up to {LIMIT:g} is agreement")
    if wrong := disagreeing(done):
        raise DpddError(
            f"{options.device} and cpu disagree in {' and '.join(wrong)}: do not make images on {options.device} with "
            "this version of torch and its driver"
        )
