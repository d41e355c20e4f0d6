"""The map of the house, enforced: every import between rooms is on the map, and no modules import in circles.

The syntax tree is read, nothing is imported, so an import inside a function counts like one at the top. An
import under `if TYPE_CHECKING:` must be on the map too, but cannot close a circle at run time.
"""

from __future__ import annotations

import ast
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

ROOMS = ("decodex", "spec", "grammar", "kernels", "server")
ALLOWED = {
    "server": {"decodex"},
    "decodex": {"spec", "grammar", "kernels"},
    "spec": {"kernels"},
    "grammar": {"kernels"},
    "kernels": set[str](),
}


@dataclass(frozen=True)
class Import:
    """One edge: `source` (a module) imports `target` (a module of ours) at `line`."""

    source: str
    target: str
    line: int
    type_checking: bool


def module_name(path: pathlib.Path, root: pathlib.Path) -> str:
    """The installed name of a file of a room: kernels/rng.py is decodex.kernels.rng."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    if parts[0] != "decodex":
        parts.insert(0, "decodex")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def room_of(module: str) -> str:
    """The room of an installed name: decodex.kernels.rng is in kernels, decodex.engine in decodex."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS[1:] else "decodex"


def room_files(root: pathlib.Path) -> dict[str, pathlib.Path]:
    """Installed name -> file, each file once (the links inside decodex/ are not followed)."""
    found = {}
    for room in ROOMS:
        for folder, subfolders, names in os.walk(root / room):
            here = pathlib.Path(folder)
            subfolders[:] = [name for name in subfolders if not (here / name).is_symlink()]
            found.update({module_name(here / name, root): here / name for name in names if name.endswith(".py")})
    return found


def nodes_of(tree: ast.AST, type_checking: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node with whether it stands under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in child.body:
                yield statement, True
                yield from nodes_of(statement, True)
            for statement in child.orelse:
                yield statement, type_checking
                yield from nodes_of(statement, type_checking)
            continue
        yield child, type_checking
        yield from nodes_of(child, type_checking)


def imports_of(module: str, path: pathlib.Path, known: dict[str, pathlib.Path]) -> Iterator[Import]:
    """The imports of our own modules in one file, `from package import module` resolved to the module."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node, type_checking in nodes_of(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*anchor, base]) if base else ".".join(anchor)
            targets = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names]
        elif is_dynamic_import(node):
            assert isinstance(node, ast.Call)
            targets = [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        for target in targets:
            first = target.split(".")[0]
            if first == "decodex" or first in ROOMS:
                yield Import(module, target, getattr(node, "lineno", 0), type_checking)


def is_dynamic_import(node: ast.AST) -> bool:
    """importlib.import_module(...), import_module(...) or __import__(...)."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in ("import_module", "__import__")


def forbidden_edges(imports: list[Import]) -> list[str]:
    """One line for each import that the map does not have, or that names a room as a top-level package."""
    faults = []
    for edge in imports:
        source, target = room_of(edge.source), room_of(edge.target)
        if edge.target.split(".")[0] != "decodex":
            faults.append(f"{edge.source}:{edge.line} imports {edge.target}: write decodex.{edge.target}")
        elif source != target and target not in ALLOWED[source]:
            faults.append(f"{edge.source}:{edge.line} imports {edge.target}: {source} may not import {target}")
    return faults


def import_circle(imports: list[Import], known: dict[str, pathlib.Path]) -> list[str]:
    """The modules of one import circle, in order, or an empty list. Parent packages do not count."""
    graph: dict[str, set[str]] = {module: set() for module in known}
    for edge in imports:
        if not edge.type_checking and edge.target in known and edge.target != edge.source:
            graph[edge.source].add(edge.target)
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> list[str]:
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module in done:
            return []
        for target in sorted(graph[module]):
            if circle := visit(target, [*trail, module]):
                return circle
        done.add(module)
        return []

    for module in sorted(graph):
        if circle := visit(module, []):
            return circle
    return []


def all_imports(root: pathlib.Path) -> tuple[list[Import], dict[str, pathlib.Path]]:
    """Every import between our modules under `root`, and our modules."""
    known = room_files(root)
    return [edge for module, path in sorted(known.items()) for edge in imports_of(module, path, known)], known


def test_imports_follow_the_map(repository: pathlib.Path) -> None:
    imports, known = all_imports(repository)
    assert {room_of(module) for module in known} == set(ROOMS)
    assert forbidden_edges(imports) == []


def test_no_import_circles(repository: pathlib.Path) -> None:
    imports, known = all_imports(repository)
    assert import_circle(imports, known) == []


def test_rooms_are_linked_into_the_namespace(repository: pathlib.Path) -> None:
    for room in ROOMS[1:]:
        link = repository / "decodex" / room
        assert link.is_symlink(), f"decodex/{room} must be a relative link to ../{room}"
        assert str(link.readlink()) == f"../{room}"


def write_tree(root: pathlib.Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("kernels/rng.py", "import decodex.errors", "kernels may not import decodex"),
        ("kernels/rng.py", "def f():\n    from decodex import errors", "kernels may not import decodex"),
        ("kernels/rng.py", "from .. import errors", "kernels may not import decodex"),
        ("kernels/rng.py", "from decodex.spec import tree", "kernels may not import spec"),
        ("spec/tree.py", "from decodex.grammar import x", "spec may not import grammar"),
        ("grammar/x.py", "__import__('decodex.spec')", "grammar may not import spec"),
        ("decodex/engine.py", "from decodex.server import app", "decodex may not import server"),
        ("decodex/engine.py", "import kernels.rng", "write decodex.kernels.rng"),
        (
            "spec/tree.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from decodex.engine import Engine",
            "spec may not import decodex",
        ),
    ],
)
def test_checker_finds_a_bad_edge(tmp_path: pathlib.Path, name: str, text: str, complaint: str) -> None:
    write_tree(tmp_path, {"decodex/__init__.py": "", "decodex/errors.py": "", "kernels/__init__.py": "", name: text})
    imports, _ = all_imports(tmp_path)
    [fault] = forbidden_edges(imports)
    assert complaint in fault


def test_checker_accepts_the_edges_of_the_map(tmp_path: pathlib.Path) -> None:
    write_tree(
        tmp_path,
        {
            "server/app.py": "from decodex.engine import Engine\nimport torch",
            "decodex/engine.py": "from .kernels import rng\nfrom . import errors\nimport decodex.spec.tree",
            "decodex/errors.py": "",
            "spec/tree.py": "from decodex.kernels.rng import noise",
            "grammar/mask.py": "import decodex.kernels",
            "kernels/rng.py": "from .reference import rng",
            "kernels/reference/rng.py": "",
        },
    )
    imports, known = all_imports(tmp_path)
    assert len(imports) == 7
    assert forbidden_edges(imports) == []
    assert import_circle(imports, known) == []


@pytest.mark.parametrize("guarded", [False, True])
def test_checker_finds_a_circle_unless_only_type_checking_closes_it(tmp_path: pathlib.Path, guarded: bool) -> None:
    line = "from decodex.a import A"
    closing = f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {line}" if guarded else line
    write_tree(
        tmp_path,
        {
            "decodex/__init__.py": "",
            "decodex/a.py": "from decodex.b import B",
            "decodex/b.py": "def f():\n    from decodex.c import C",
            "decodex/c.py": closing,
        },
    )
    imports, known = all_imports(tmp_path)
    expected = [] if guarded else ["decodex.a", "decodex.b", "decodex.c", "decodex.a"]
    assert import_circle(imports, known) == expected
