#!/usr/bin/env python3
"""Fails when prose has more obscure turns of phrase, or code more obscure names, than style_allowed.txt allows.

usage: tests/docs/style.py            checks docs, comments, messages, test names and commit subjects
       tests/docs/style.py --list     shows every place that is counted
       tests/docs/style.py --write    lowers the allowed counts to what there is; it never raises one

The list allows a count per file and pattern. It only shrinks: rewrite a new text instead of adding a line. If a text
moved to a file that is not in the list, what its old file was allowed covers it.
"""

import re
import sys
from collections import Counter
from pathlib import Path

from texts import ROOT, all_texts, git

ALLOWED = Path(__file__).with_name("style_allowed.txt")
LENGTH_MAX = 72
# And each folder of src/.
AREAS = "ledger leases formats prices console events payments edge config cli deploy docs tests benches layers".split()
AREAS += sorted({folder.name for folder in (ROOT / "src").iterdir() if folder.is_dir()} - set(AREAS))

PROSE = {
    "what-subject": (r"(?:^|[.] |^[a-z]+: )(?:[Ww]hat|[Ww]ho|[Ww]hose|[Ww]hoever)\b(?![^.:;]*\?)",
                     "a relative clause as the subject: name the thing"),
    "whoever": (r"\b(?:whoever|whomever|(?:that|the other) one(?! [a-z]))\b", "the component's name"),
    "so-many": (r"\b(?:so many|so much|so long|each so often)\b(?! as\b)", "at most N, every N seconds"),
    "of-start": (r"^Of (?:a|an|the|all|each|its)\b", "a noun before it: \"Requests per second, per key\""),
    "told": (r"\b(?:told|tells?|telling|said|says?|asked|asks|heard|knows)\b",
             "the protocol's verb: acknowledge, report, return, request, receive, cache"),
    "stands": (r"\b(?:stands?|lies|goes? round|comes? to|let go|looked at)\b",
               "is, is stored, is reused, equals, is dropped, is checked"),
    "anew": (r"\banew\b", "again"),
    "beside": (r"\bbeside\b", "compared with, next to"),
    "none": (r"\b(?:that is none|There is none|(?<![Tt]here )is no (?!longer|more|other)[a-z]+)\b", "invalid X, \"not an X\", what happens"),
}
CODE_OR_LINK = re.compile(r"`[^`]*`|(?<=\])\([^)]*\)")
SHORT = re.compile(r"^(?:(?:The|Its|An?) )?[a-zA-Z`_-]+\.$")
NAMES = {
    "what-test": (r"\bfn (?:what|who|whoever|whose|where)_\w+", "name the test by its promise"),
    "of-function": (r"\bfn of\b", "new, from_*, for_*"),
    "vague-name": (r"\b(?:struct|enum|trait|type) (?:Told|Branch|Branches|Undecided|Feed|Telling|Happening|Shelf|Standing|Seen"
                   r"|Hurry|Occasion|Odd|Wrong|Heard|Kept|Desk|Wish|Reach|Ear)\b"
                   r"|\bfn (?:decided|note|put_note|tell|heed|meant|weigh|dress_bytes)\b|\bmod (?:apart|latest|room|capsule)\b",
                   "the field's word"),
}


def main():
    args = sys.argv[1:]
    if args not in ([], ["--list"], ["--write"]):
        sys.exit(__doc__)
    found = Counter()
    for path, line, pattern, text in places():
        found[path, pattern] += 1
        if args == ["--list"]:
            print(f"{path}:{line}: {pattern}: {' '.join(text.split())[:160]}")
    if args == ["--list"]:
        return 0
    allowed = read() if ALLOWED.exists() else found
    if args == ["--write"]:
        lowered = {key: min(count, found[key]) for key, count in allowed.items()}
        lowered.update(moved(found, allowed))
        write(lowered)
        return 0
    grown = [key for key in found if found[key] > max(allowed.get(key, 0), moved(found, allowed).get(key, 0))]
    for path, pattern in sorted(grown):
        print(f"{path}: {pattern}: {found[path, pattern]}, allowed {allowed.get((path, pattern), 0)}: {why(pattern)}")
    if grown:
        print("see the places with: tests/docs/style.py --list")
    spare = sum(count - found[key] for key, count in allowed.items() if count > found[key])
    print(f"{sum(found.values())} places, {len(grown)} files with more than allowed"
          + (f"; {spare} fewer than allowed: lower the list with tests/docs/style.py --write" if spare else ""))
    return 1 if grown else 0


def places():
    """File, line, pattern and text of each place that matches."""
    for text in all_texts():
        path = "commits" if text.kind == "commit subject" else text.path
        # A page may say something: that is no verb for a machine.
        exempt = {"commit subject": ["told"], "test name": PROSE}.get(text.kind, ())
        for pattern, (regex, _) in PROSE.items():
            for _ in () if pattern in exempt else re.finditer(regex, CODE_OR_LINK.sub("`x`", text.text)):
                yield path, text.line, pattern, text.text
        if text.kind == "doc comment" and SHORT.match(text.text):
            yield path, text.line, "short", text.text
        if text.kind == "commit subject" and not good_subject(text.text):
            yield path, text.line, "subject", f"{text.path} {text.text}"
    for path in git("ls-files", "-z", "*.rs").split("\0"):
        if path and (ROOT / path).is_file():
            for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
                for pattern, (regex, _) in NAMES.items():
                    if re.search(regex, line.partition("//")[0]):
                        yield path, number, pattern, line.strip()


def good_subject(subject):
    return len(subject) <= LENGTH_MAX and re.match(rf"(?:{'|'.join(AREAS)}): [a-z]", subject)


def why(pattern):
    if pattern == "short":
        return "a doc comment that repeats the name: purpose, unit or invariant"
    if pattern == "subject":
        return f"area: imperative summary, at most {LENGTH_MAX} characters; areas: {', '.join(AREAS)}"
    return {**PROSE, **NAMES}[pattern][1]


def moved(found, allowed):
    """Counts of files that are not in the list, as far as other files have fewer than they are allowed."""
    files = {path for path, _ in allowed}
    spare = Counter()
    for (path, pattern), count in allowed.items():
        if path != "commits":
            spare[pattern] += max(0, count - found[path, pattern])
    covered = {}
    for (path, pattern), count in sorted(found.items()):
        if path not in files and path != "commits" and count <= spare[pattern]:
            covered[path, pattern] = count
            spare[pattern] -= count
    return covered


def read():
    rows = (line.split() for line in ALLOWED.read_text(encoding="utf-8").splitlines() if line and line[0] != "#")
    return {(path, pattern): int(count) for path, pattern, count in rows}


def write(allowed):
    rows = [f"{path} {pattern} {count}\n" for (path, pattern), count in sorted(allowed.items()) if count]
    ALLOWED.write_text("# FILE PATTERN COUNT: at most this many; see style.py.\n" + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
