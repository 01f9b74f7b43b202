"""Peers' own functions, timed in the environment they need: `python peers.py TASK FILE.npy` prints seconds and value.

`make peers` builds the two environments; benchmarks/geometry.py calls this file in them.
"""

import importlib.util
import sys
import time
import types

import numpy as np


def llm_microscope_dimension(x: np.ndarray) -> float:
    import torch

    return float(_llm_microscope().intrinsic_dimension(torch.from_numpy(x), "cpu"))


def llm_microscope_anisotropy(x: np.ndarray) -> float:
    import torch

    return float(_llm_microscope().calculate_anisotropy_torch(torch.from_numpy(x)))


def _llm_microscope() -> object:
    # The package itself fails to import; the file with its functions does not.
    folder = importlib.util.find_spec("llm_microscope").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("functions", f"{folder}/functions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def faiss_neighbours(x: np.ndarray) -> float:
    import faiss

    index = faiss.IndexFlatL2(x.shape[1])
    index.add(x)
    squares, _ = index.search(x, 3)
    return float((len(x) - 1) / np.log(np.sqrt(squares[:, 2] / squares[:, 1])).sum())


def scikit_dimension(x: np.ndarray) -> float:
    import skdim

    return float(skdim.id.TwoNN().fit(x).dimension_)


def isoscore(x: np.ndarray) -> float:
    from IsoScore import IsoScore

    return float(IsoScore.IsoScore(x))


def dadapy(x: np.ndarray) -> float:
    from dadapy import Data

    data = Data(x)
    data.compute_distances(maxk=2)
    return float(data.compute_id_2NN()[0])


def overcomplete_16(x: np.ndarray) -> float:
    return _overcomplete(x, 16)


def overcomplete_64(x: np.ndarray) -> float:
    return _overcomplete(x, 64)


def _overcomplete(x: np.ndarray, k: int) -> float:
    """The relative error of its fit."""
    import torch

    # The package imports torchvision; its factorisations alone do not.
    if "overcomplete" not in sys.modules:
        folder = importlib.util.find_spec("overcomplete").submodule_search_locations[0]
        for name, path in (("overcomplete", folder), ("overcomplete.optimization", f"{folder}/optimization")):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [path]
    from overcomplete.optimization.semi_nmf import SemiNMF

    torch.manual_seed(0)
    rows = torch.from_numpy(x)
    codes, dictionary = SemiNMF(k).fit(rows)
    return float((rows - codes @ dictionary).square().sum() / rows.square().sum())


def main() -> None:
    task, file = sys.argv[1:]
    run = globals()[task]
    # What is imported on first use is not part of the time.
    run(np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32))
    x = np.load(file)
    start = time.perf_counter()
    value = run(x)
    print(time.perf_counter() - start, value)


if __name__ == "__main__":
    main()
