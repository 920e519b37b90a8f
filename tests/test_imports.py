"""Who may import whom, what ``import hvdlite`` loads, where state and the environment are."""

import ast
import importlib
import pkgutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(p for folder in ("hvdlite", "compression") for p in (ROOT / folder).rglob("*.py") if "hvdlite/compression" not in p.as_posix())
LIBRARIES = {"numpy", "cloudpickle", "ml_dtypes", "msgspec", "click", "psutil", "tqdm"}

# layer (a module or folder of hvdlite) -> the layers it may import; its own it always may
CORE = {
    "errors",
    "settings",
    "arrays",
    "compression",
    "transports",
    "members",
    "negotiation",
    "submissions",
    "orders",
    "running",
    "telemetry",
    "stalls",
    "attendance",
    "channel",
    "registry",
    "engine",
    "operations",
    "tuning",
    "world",
    "process_sets",
    "buckets",
}
MAY_IMPORT = {
    "errors": set(),
    "version": set(),
    "settings": {"errors"},
    "link": {"errors"},
    "arrays": {"errors", "settings"},
    "compression": {"arrays", "errors"},
    "_promptness": set(),
    "transports": {"arrays", "compression", "errors", "settings"},
    "telemetry": {"arrays", "compression", "errors", "settings"},
    "members": set(),
    "negotiation": {"arrays", "compression", "errors", "members"},
    "stalls": {"errors", "members", "settings", "transports"},
    "submissions": {"compression", "errors", "members", "negotiation", "transports"},
    "orders": {"compression", "errors", "members", "negotiation", "submissions", "transports"},
    "attendance": {"transports"},
    "running": {"compression", "submissions", "telemetry", "transports"},
    "channel": {"attendance", "errors", "members", "negotiation", "orders", "running", "settings", "stalls", "submissions", "telemetry", "transports"},
    "registry": {"channel", "errors", "members", "transports"},
    "engine": {"_promptness", "channel", "errors", "registry", "settings", "submissions", "telemetry", "transports"},
    "operations": {"arrays", "compression", "errors", "members", "negotiation", "submissions", "transports"},
    "seeding": set(),
    "world": {"version", "arrays", "channel", "engine", "errors", "seeding", "settings", "telemetry", "transports"},
    "tuning": set(),
    "residuals": {"arrays", "compression", "world"},
    "shadow": {"arrays", "channel", "compression", "errors", "operations", "settings", "world"},
    "buckets": {
        "arrays",
        "compression",
        "errors",
        "operations",
        "orders",
        "residuals",
        "settings",
        "shadow",
        "submissions",
        "telemetry",
        "tuning",
        "world",
    },
    "process_sets": {"errors", "operations", "orders", "transports", "world"},
    "collectives": {"arrays", "channel", "compression", "errors", "operations", "process_sets", "submissions", "world"},
    "reporting": {"collectives", "world"},
    "elastic": {"collectives", "errors", "launch", "settings", "world"},
    "api": CORE | {"capabilities", "collectives", "launch", "reporting"},
    "capabilities": {"transports", "world"},
    "as_horovod": {"", "as_horovod", "elastic", "errors", "settings", "torch", "tensorflow", "keras"},
    "agreement": {"arrays", "collectives", "process_sets", "compression", "errors", "world"},
    "": {"api"} | {"version"},  # hvdlite/__init__.py
    "__main__": {"cli"},
    "launch": {"launch", "as_horovod", "errors", "link", "settings"},
    "abtest": {"abtest", "launch", "link", "errors", "settings", "compression", "telemetry", "version"},
    "predict": CORE - {"engine", "stalls", "world"} | {"abtest", "api", "launch", "link", "submissions", "version"},
    "cli": {"", "cli", "launch", "link", "abtest", "predict", "errors", "settings", "compression"},
    "torch": {"", "torch", "agreement", "elastic", "errors", "arrays", "compression", "operations", "settings", "world"},
    "tensorflow": {"", "tensorflow", "agreement", "elastic", "errors", "arrays", "compression", "operations", "settings", "world"},
    "keras": {"", "keras", "agreement", "elastic", "errors", "arrays", "compression", "operations", "settings", "world"},
}
EXCEPTIONS = {
    "launch.check": {""},  # a program that ranks run, as a user's is
    "keras._backends.tensorflow": {"tensorflow"},  # a backend of Keras stands on that framework's adapter
    "keras._backends.torch": {"torch"},
    "tensorflow.keras": {"keras"},  # another name of it
    "tensorflow.optimizer": {"keras"},  # TensorFlow's optimizers are Keras'
    "tensorflow.elastic": {"keras"},  # and so are its models
}
DRAWS = "abtest/page/"  # the verb imports it when there is a page to make
FOREIGN = {
    "mpi4py": {"transports/mpi.py", "launch/probe.py"},
    "torch": {"torch/", "keras/_backends/torch.py"},
    "tensorflow": {"tensorflow/", "keras/_backends/tensorflow.py"},
    "keras": {"keras/"},
    "jax": {"keras/_backends/jax.py"},
    "scipy": {"abtest/"},
    "rich": {"abtest/"},
    "jinja2": {"abtest/page/"},
    "markupsafe": {"abtest/page/"},
    "matplotlib": {"abtest/page/figures/"},
    "tensorboardX": {"abtest/tensorboard.py"},
}


def name_of(path: Path) -> str:
    """``hvdlite/torch/optimizer.py`` -> ``torch.optimizer``, ``compression/topk.py`` -> ``compression.topk``."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts = parts[1:] if parts[0] == "hvdlite" else parts
    return ".".join(p for p in parts if p != "__init__")


def layer_of(module: str) -> str:
    return module.split(".")[0]


def imports_of(path: Path):
    """``(line, absolute module, is at module level)`` of every import that is not for type checkers only."""
    package = ["hvdlite", *name_of(path).split(".")] if name_of(path) else ["hvdlite"]
    if path.name != "__init__.py":
        package = package[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_checkers = {id(n) for i in ast.walk(tree) if isinstance(i, ast.If) and getattr(i.test, "id", "") == "TYPE_CHECKING" for n in ast.walk(i)}
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)}
    for node in ast.walk(tree):
        if id(node) in for_checkers:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, id(node) not in inside
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            if module in ("hvdlite", "hvdlite.compression"):  # "from . import settings": each name may be a module
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}" if exists(f"{module}.{alias.name}") else module, id(node) not in inside
            else:
                yield node.lineno, module, id(node) not in inside


def exists(module: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_layers(path):
    layer = layer_of(name_of(path))
    assert layer in MAY_IMPORT, f"{path.name} belongs to no layer; add it to the table, as low as it can be"
    for line, module, at_top in imports_of(path):
        top, _, rest = module.partition(".")
        if top == "hvdlite":
            target = layer_of(rest)
            assert target == layer or target in MAY_IMPORT[layer] | EXCEPTIONS.get(name_of(path), set()), (
                f"{path.name}:{line}: {layer or 'hvdlite'} imports {module}"
            )
        elif top in FOREIGN:
            where = path.relative_to(ROOT).as_posix().removeprefix("hvdlite/")
            assert where.startswith(tuple(FOREIGN[top])), f"{path.name}:{line}: only {FOREIGN[top]} may import {top}"
            assert layer == top or path.stem == top or where.startswith(DRAWS) or not at_top, f"{path.name}:{line}: {top} is imported in functions only"
        else:
            assert top in sys.stdlib_module_names or top in LIBRARIES, f"{path.name}:{line}: {top} is no dependency"


def test_the_walk_sees_relative_and_absolute_imports():
    seen = {module for _, module, _ in imports_of(ROOT / "hvdlite" / "world.py")}
    assert {"hvdlite.settings", "hvdlite.engine", "hvdlite.telemetry.last", "hvdlite.transports", "atexit"} <= seen
    assert "hvdlite.arrays" in {module for _, module, _ in imports_of(ROOT / "compression" / "topk.py")}


@pytest.mark.parametrize("heavy", ["torch", "tensorflow", "keras", "jax", "mpi4py", "matplotlib"])
def test_importing_hvdlite_loads_no(heavy, python):
    done = python(f"import sys, hvdlite, hvdlite.cli; hvdlite.init; assert not [m for m in sys.modules if m.split('.')[0] == {heavy!r}]")
    assert done.returncode == 0, done.stderr


def test_importing_hvdlite_does_nothing(python):
    done = python("import os, threading; e = dict(os.environ)\nimport hvdlite\nassert threading.active_count() == 1 and dict(os.environ) == e")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _public_packages():
    import hvdlite

    yield "hvdlite.api"
    for module in pkgutil.iter_modules(hvdlite.__path__):
        if module.ispkg and module.name not in ("torch", "tensorflow", "keras"):
            yield f"hvdlite.{module.name}"


@pytest.mark.parametrize("name", [*_public_packages(), "hvdlite.torch", "hvdlite.tensorflow"])
def test_all_is_sorted_and_complete(name):
    import hvdlite

    assert hvdlite.__all__ == importlib.import_module("hvdlite.api").__all__
    assert set(hvdlite.__all__) <= set(dir(hvdlite))
    if name in ("hvdlite.torch", "hvdlite.tensorflow"):
        pytest.importorskip(name.removeprefix("hvdlite."))
    module = importlib.import_module(name)
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    reexported = {a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.level or n.module == "hvdlite") for a in n.names}
    if not hasattr(module, "__all__"):
        assert name in ("hvdlite.cli", "hvdlite.launch", "hvdlite.telemetry", "hvdlite.abtest", "hvdlite.predict"), f"{name} has no __all__"
        return
    exported = module.__all__
    assert len(set(exported)) == len(exported)
    assert sorted(exported, key=_isort_key) == exported
    assert {n for n in reexported if not n.startswith("_")} <= set(exported)
    assert all(hasattr(module, n) for n in exported)


def _isort_key(name: str) -> tuple[int, str]:
    """CONSTANTS, then Classes, then the rest, as ruff sorts."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2, name)


def _environment_reads(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb", "putenv") and getattr(node.value, "id", "") == "os":
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "os" and {a.name for a in node.names} & {"environ", "getenv"}:
            yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_settings_reads_the_environment(path):
    if name_of(path) == "settings":
        assert list(_environment_reads(path))
    else:
        assert list(_environment_reads(path)) == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_world_has_state(path):
    """No ``global``, and no lower-case or empty container at module level: tables are in capitals and full."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if name_of(path) == "world":
        assert any(isinstance(n, ast.Global) for n in ast.walk(tree))
        return
    assert not [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Global)]
    for node in tree.body:
        value = getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign) else None
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        is_container = isinstance(value, ast.List | ast.Dict | ast.Set) or (
            isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("list", "dict", "set", "deque", "defaultdict", "OrderedDict")
        )
        is_empty = not (getattr(value, "elts", None) or getattr(value, "keys", None) or getattr(value, "args", None))
        for target in targets:
            name = getattr(target, "id", "")
            if is_container and not name.startswith("__"):
                assert name.isupper(), f"{path.name}:{node.lineno}: {name} looks like state"
                assert not is_empty, f"{path.name}:{node.lineno}: {name} looks like state"
