"""All published tables that the bundled artefacts are fitted on: also those of recurrent and sparse layers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from infercast.bundled import read_data
from infercast.lab.fit import samples, tables, train
from infercast.lab.fit.tables import Rows
from training.recurrent_tables import RECURRENT_FILES, read_recurrent
from training.sparse_tables import MODULE_FILES, SPARSE_FILES, read_module, read_sparse

FAMILIES: tuple[str, ...] = read_data(Path(__file__).with_name("tables.toml"))["families"]
FILES = {**tables.FILES, **SPARSE_FILES, **MODULE_FILES, **RECURRENT_FILES}


def read_table(path: Path, family: str) -> Iterator[Rows]:
    for files, read in ((SPARSE_FILES, read_sparse), (RECURRENT_FILES, read_recurrent), (MODULE_FILES, read_module)):
        if family in files:
            yield from read(path, family)
            return
    yield from tables.read_table(path, family)


read_samples = partial(samples.read_samples, files=FILES, read=read_table)
table_hashes = partial(train.table_hashes, files=FILES)
