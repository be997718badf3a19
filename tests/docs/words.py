#!/usr/bin/env python3
"""Fails when code defines a name that docs/glossary.md gives up: a type, a trait, a function or a module.

Definitions alone are looked at: `well` is an English word too, and `Stop` may well be a variant's name.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
CODE = ["src/*.rs", "layers/*.rs"]

ROW = re.compile(r"\| `(\w+)`(?: \(in `(\w+)`\))? \| (.+) \|")
DEFINITION = re.compile(r"^\s*(?:\w+(?:\([^)]*\))?\s+)*?(struct|enum|union|trait|type|fn|mod)\s+(\w+)")


def main():
    given_up = words()
    files = tracked_files()
    found = 0
    for path in files:
        rooms = Path(path).with_suffix("").parts
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
            definition = DEFINITION.match(line)
            if not definition:
                continue
            for place, now in given_up.get(definition[2], []):
                if place is None or place in rooms:
                    found += 1
                    print(f"{path}:{number}: {definition[1]} {definition[2]} was given up for {now}")
    count = sum(map(len, given_up.values()))
    print(f"{count} words, {len(files)} files" + (f", {found} definitions" if found else ""))
    return 1 if found else 0


def words():
    """Where each name is given up (None: everywhere), and for what."""
    _, _, table = GLOSSARY.read_text(encoding="utf-8").partition("\n## Given up\n")
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    given_up = {}
    for row in rows:
        match = ROW.fullmatch(row)
        if not match:
            sys.exit(f"{GLOSSARY}: not a name, or a name and its place, and what it is now: {row}")
        given_up.setdefault(match[1], []).append((match[2], match[3]))
    if not given_up:
        sys.exit(f"{GLOSSARY}: no table of words that were given up")
    return given_up


def tracked_files():
    listed = subprocess.run(["git", "ls-files", "-z", *CODE], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    return [path for path in listed.decode().split("\0") if path and (ROOT / path).exists()]


if __name__ == "__main__":
    sys.exit(main())
