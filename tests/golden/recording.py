"""How a golden result is written down and compared.

A result becomes JSON in which every array is a digest of its bits beside a few of its numbers, and
every other number stands as it is. On the kind of machine that wrote the file, digests must be
equal and other numbers agree to 1e-12: an accountant's sums depend in the last bit on where its
arrays lie in memory. Elsewhere another BLAS or FFT adds in another order, so there numbers are
compared to 1e-6 and digests are left alone; the file says which machine it was.
"""

import hashlib
import json
import math
import platform
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from tests.golden.catalogue import CATALOGUE, SEARCHED

from noisewise.privacy import Statement

FILE = Path(__file__).parent / "values.json"
HERE, ELSEWHERE = 1e-12, 1e-6
#: How far the rounding of an FFT moves a probability from one kind of machine to another. It says
#: nothing on the machine that wrote the file, and the accountant puts more than this aside for it.
FFT = 1e-14
_SHOWN = 8
_LIBRARIES = ("torch", "numpy", "scipy", "dp-accounting", "scikit-learn")


def machine():
    """What decides the last bits of a result: processor, libraries, compiled kernels."""
    processor = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").partition("\n\n")[0].splitlines()
        known = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
        # A virtual machine may hide its model's name; what it can do decides which kernels run.
        flags = hashlib.sha256(known.get("flags", "").encode()).hexdigest()[:12]
        names = [known.get(key, "") for key in ("model name", "cpu family", "model")]
        processor = ", ".join([*names, flags])
    except OSError:
        pass
    return {
        "processor": processor,
        "python": platform.python_version(),
        "compiled": _version("numba"),
        **{name: _version(name) for name in _LIBRARIES},
    }


def _version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def plain(value):
    """Return a result as JSON knows it."""
    if isinstance(value, Statement):
        # Versions change with every release, and the digest with them.
        content = json.loads(value.to_json())
        return {k: v for k, v in content.items() if k not in ("versions", "digest")}
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"a golden result holds numbers, texts and statements, got {type(value)}")


def _array(value):
    held = np.ascontiguousarray(value)
    flat = held.astype(np.float64).ravel()
    shown = (
        flat[np.unique(np.linspace(0, flat.size - 1, _SHOWN).astype(int))] if flat.size else flat
    )
    return {
        "shape": list(held.shape),
        "dtype": str(held.dtype),
        "digest": hashlib.sha256(held.tobytes()).hexdigest()[:32],
        "some": [plain(float(number)) for number in shown],
    }


def run(name):
    """Run one entry on one thread, so that sums are added in one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return plain(CATALOGUE[name]())
    finally:
        torch.set_num_threads(threads)


def differences(stored, found, exact, where=""):
    """Where two results differ, in words."""
    if isinstance(stored, dict) and isinstance(found, dict):
        for key in sorted(set(stored) | set(found)):
            if key not in stored or key not in found:
                yield f"{where}.{key} is only {'stored' if key in stored else 'found'}"
            elif exact or key != "digest":
                yield from differences(stored[key], found[key], exact, f"{where}.{key}")
    elif isinstance(stored, list) and isinstance(found, list) and len(stored) == len(found):
        for index, pair in enumerate(zip(stored, found, strict=True)):
            yield from differences(*pair, exact, f"{where}[{index}]")
    elif stored != found and not _near(stored, found, where, HERE if exact else ELSEWHERE):
        yield f"{where}: stored {stored!r}, found {found!r}"


def _near(stored, found, where, tolerance):
    if not (isinstance(stored, float) and isinstance(found, float)):
        return False
    # What an array holds is about 1: a small entry may be what was left when large ones cancelled.
    absolute = tolerance if ".some[" in where else FFT if tolerance == ELSEWHERE else 0.0
    return math.isclose(stored, found, rel_tol=tolerance, abs_tol=absolute)


def compared(name, content):
    """Run one entry and return where it differs from the stored results."""
    exact = content["machine"] == machine() and name not in SEARCHED
    return list(differences(content["results"][name], run(name), exact))


def load():
    return json.loads(FILE.read_text("utf-8"))


def rewrite(names):
    """Run the named entries, or all, store them, and say what changed."""
    unknown = sorted(set(names) - set(CATALOGUE))
    if unknown:
        raise SystemExit(f"no golden runs {unknown}; there are {sorted(CATALOGUE)}")
    before = load() if FILE.exists() else {"machine": machine(), "results": {}}
    if names and before["machine"] != machine():
        raise SystemExit("the file is of another machine: write all of it again, without names")
    results = {name: run(name) for name in names or sorted(CATALOGUE)}
    old = before["results"]
    for name in sorted(results):
        if name not in old:
            yield f"new: {name}"
        else:
            exact = before["machine"] == machine() and name not in SEARCHED
            found = differences(old[name], results[name], exact)
            yield from (f"changed: {name}{difference}" for difference in found)
    kept = {name: value for name, value in old.items() if name in CATALOGUE}
    content = {"machine": machine(), "results": dict(sorted({**kept, **results}.items()))}
    FILE.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
