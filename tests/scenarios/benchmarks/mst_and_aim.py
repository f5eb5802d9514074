"""MST and AIM as the library `dpmm` has them, on codes of a table: run by `bench_tables` with another interpreter.

    python mst_and_aim.py MECHANISM EPSILON DELTA SEED MEGABYTES RECORDS.npz ROWS.npz

`RECORDS.npz` holds `codes` (records, columns) and `sizes` (columns): the public domain. `ROWS.npz` gets as many
synthetic rows, and what they took. `MEGABYTES` bounds AIM's model (80 as published takes many hours). Nothing else of
the library is used: no bins of its own, no structural zeros.
"""

from __future__ import annotations

import json
import sys
import time


def main(arguments: list[str]) -> None:
    mechanism, epsilon, delta, seed, megabytes, source, target = arguments
    try:
        import numpy as np
        import pandas as pd
        from dpmm.pipelines.aim import AIMPipeline
        from dpmm.pipelines.mst import MSTPipeline
    except ImportError as error:
        sys.exit(f"{error}: install dpmm for this interpreter, in an environment of its own (pip install dpmm==0.1.9)")
    with np.load(source) as archive:
        codes, sizes = archive["codes"], archive["sizes"]
    names = [f"c{at}" for at in range(len(sizes))]
    table = pd.DataFrame(codes, columns=names)
    pipeline = {"mst": MSTPipeline, "aim": AIMPipeline}[mechanism](
        epsilon=float(epsilon), delta=float(delta), n_jobs=1, disable_processing=True, max_model_size=float(megabytes)
    )
    wall, cpu = time.monotonic(), time.process_time()
    pipeline.fit(table, domain=dict(zip(names, sizes.tolist(), strict=True)), random_state=int(seed))
    rows = pipeline.generate(n_records=len(codes), random_state=int(seed) + 1)
    took = {"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu}
    np.savez(target, codes=rows[names].to_numpy().astype(np.int32), took=json.dumps(took))


if __name__ == "__main__":
    main(sys.argv[1:])
