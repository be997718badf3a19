#!/usr/bin/env python3
"""Checks every relative link and every #anchor in the repository's Markdown, and that docs/SUMMARY.md lists each page
of docs/ once. Prints file and line of each dead link, and then exits with status 1.

The target of a link must be tracked by git (`git add` a new file first), because an untracked file exists only here.
"""

import collections
import html
import posixpath
import re
import subprocess
import sys
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOOK = "docs"
# Pages that crates.io shows must link to files of the repository by URL.
OWN = re.search(r'^repository = "(.*)"', (ROOT / "Cargo.toml").read_text(encoding="utf-8"), re.M)[1] + "/blob/main/"

FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
HEADING = re.compile(r" {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
# The text of a link may contain brackets, such as those of an image. A title may follow the address.
INLINE = re.compile(r"\]\(\s*(<[^>]*>|[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+(?:\"[^\"]*\"|'[^']*'))?\s*\)")
REFERENCE = re.compile(r" {0,3}\[(?!\^)[^\]]+\]:\s*(<[^>]*>|\S+)")
HTML = re.compile(r"""<(?:a|img)\b[^>]*?\b(?:href|src)\s*=\s*["']([^"']*)["']""", re.I)
NAMED = re.compile(r"""<\w+\b[^>]*?\b(?:id|name)\s*=\s*["']([^"']+)["']""", re.I)
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.I)
LINES_OF_CODE = re.compile(r"L\d+(-L\d+)?")


def main():
    tracked = tracked_files()
    pages = {path: lines_of(path) for path in tracked if path.endswith(".md")}
    anchors = {path: anchors_of(lines) for path, lines in pages.items()}
    there = tracked | {str(parent) for path in tracked for parent in Path(path).parents}
    found = dead = 0
    for path, lines in sorted(pages.items()):
        for number, target in links_of(lines):
            found += 1
            problem = why_dead(path, target, there, anchors)
            if problem:
                dead += 1
                print(f"{path}:{number}: {target}: {problem}")
    for problem in summary_problems(pages):
        dead += 1
        print(problem)
    print(f"{found} links in {len(pages)} files" + (f", {dead} dead or missing" if dead else ""))
    return 1 if dead else 0


def tracked_files():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    return {path for path in listed.decode().split("\0") if path and (ROOT / path).exists()}


def lines_of(path):
    """Number and text of each line that is not code between fences."""
    fence, lines = None, []
    for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
        mark = FENCE.match(line)
        if fence is None and mark:
            fence = mark[1]
        elif fence is None:
            lines.append((number, line))
        elif mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence = None
    return lines


def links_of(lines):
    """Line and target of each link that stays in the repository, by its path or its address there."""
    for number, line in lines:
        # The name of a reference may consist only of code.
        reference = REFERENCE.match(line)
        line = CODE.sub("", line)
        targets = [reference[1]] if reference else INLINE.findall(line)
        for target in targets + HTML.findall(line):
            target = html.unescape(target.strip("<>"))
            if target.startswith(OWN) or not SCHEME.match(target):
                yield number, target


def why_dead(path, target, there, anchors):
    if target.startswith(OWN):
        path, target = "README.md", target.removeprefix(OWN)
    elif path.startswith("layers/") and not target.startswith("#"):
        return "crates.io shows this page: name the file by its address"
    file, _, anchor = target.partition("#")
    file, anchor = urllib.parse.unquote(file), urllib.parse.unquote(anchor)
    if file.startswith("/"):
        return "not relative"
    to = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
    if to not in there:
        return "no such file in the repository"
    if not anchor:
        return "no target" if not target else None
    if to in anchors:
        return None if anchor in anchors[to] else f"no such heading in {to}"
    return None if LINES_OF_CODE.fullmatch(anchor) else "an anchor into a file that has no headings"


def anchors_of(lines):
    """The ids that GitHub gives to headings, and those written by hand."""
    seen, anchors = collections.Counter(), set()
    for _, line in lines:
        anchors.update(NAMED.findall(CODE.sub("", line)))
        heading = HEADING.match(line)
        if heading:
            slug = slug_of(heading[2])
            anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return anchors


def slug_of(heading):
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"(?<!\w)([*_]{1,3})(\S(?:.*?\S)?)\1(?!\w)", r"\2", text)
    text = html.unescape(re.sub(r"<[^>]*>", "", text)).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def summary_problems(pages):
    """Pages that mdbook would leave out, or for which it would create an empty page."""
    summary = f"{BOOK}/SUMMARY.md"
    if summary not in pages:
        return [f"{summary}: missing"]
    listed = collections.Counter(
        posixpath.normpath(f"{BOOK}/{target.partition('#')[0]}") for _, target in links_of(pages[summary])
    )
    book = {path for path in pages if path.startswith(f"{BOOK}/")} - {summary}
    return [f"{summary}: does not list {path}" for path in sorted(book - set(listed))] + [
        f"{summary}: lists {path} {count} times" for path, count in sorted(listed.items()) if count > 1
    ]


if __name__ == "__main__":
    sys.exit(main())
