"""Every text of the repository that people read, by kind: what style.py checks and sample.py draws from."""

import re
import subprocess
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = ["doc comment", "comment", "doc sentence", "message", "commit subject", "test name", "console text"]

# `context` is what a page or an editor shows next to the text: the head of its table, the words before its list, the code
# below its comment, or the code around its string.
Text = namedtuple("Text", "kind path line text context", defaults=[""])

COMMENT = re.compile(r"^\s*(//[/!]|//)(?: (.*)|)$")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)
TEST = re.compile(r"#\[(?:tokio::)?test[^\n]*\n(?:\s*#\[[^\n]*\n)*\s*(?:async )?fn (\w+)")
SQL = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|PRAGMA|DROP|WITH|AND|FROM)\b")
WORD = re.compile(r"[A-Za-zА-Яа-яё]{2,}")
SUBJECTS = 50


def all_texts():
    for path in git("ls-files", "-z").split("\0"):
        file = ROOT / path
        if not path or not file.is_file() or file.is_symlink():
            continue
        if path.endswith(".md"):
            yield from markdown(path, file.read_text(encoding="utf-8"))
        elif path.endswith(".rs"):
            yield from rust(path, file.read_text(encoding="utf-8"))
        elif path.endswith(".html"):
            yield from template(path, file.read_text(encoding="utf-8"))
    yield from subjects()


def subjects():
    """Subjects of the newest commits: since the last tag, or else since the commit that added this check."""
    start = git("describe", "--tags", "--abbrev=0", check=False).strip()
    start = start or git("log", "--diff-filter=A", "--format=%h", "-n", "1", "--", "tests/docs/style.py").strip()
    commits = f"{start}..HEAD" if start else "HEAD"
    for line in git("log", "--no-merges", "--format=%h %s", "-n", str(SUBJECTS), commits).splitlines():
        commit, _, subject = line.partition(" ")
        yield Text("commit subject", commit, 1, subject)


def markdown(path, text):
    """Paragraphs, list items, headings and rows of tables; no code between fences."""
    fenced, start, block, head, lead = False, 0, [], "", ""
    lines = text.splitlines()
    for number, line in enumerate([*lines, ""], 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        ends = fence or fenced or not line.strip() or re.match(r"\s*(#|\||[-*] |\d+\. )", line)
        if re.match(r"\s*\|[-:| ]+\|\s*$", line) and not fenced:
            # The head of a table is the context of its rows.
            head, block = lines[number - 2].strip(), []
        if ends and block and (len(WORD.findall(re.sub(r"`[^`]*`", "", " ".join(block)))) < 3 or figures(block[0])):
            block = []
        if ends and block:
            is_item = re.match(r"[-*] |\d+\. ", block[0])
            yield Text("doc sentence", path, start, " ".join(block), head if block[0][0] == "|" else lead if is_item else "")
            lead = lead if is_item else re.split(r"(?<=[.:]) ", " ".join(block))[-1]
            block = []
        if not fence and not fenced and re.search(r"\w", line):
            start = start if block else number
            block.append(line.strip())


def figures(line):
    """Whether it is a row of a table with numbers in most of its cells."""
    cells = line.strip("|").split("|")
    return line.startswith("|") and 2 * sum(not re.search(r"[A-Za-zА-Яа-я]", cell) for cell in cells) > len(cells)


def rust(path, text):
    """Comments as paragraphs; names of tests; strings of three words or more outside tests."""
    lines = text.splitlines()
    for number, mark, paragraph in comments(lines):
        below = next((line.strip() for line in lines[number:] if line.strip() and not re.match(r"\s*(//|#\[)", line)), "")
        yield Text("comment" if mark == "//" else "doc comment", path, number, paragraph, "" if mark == "//!" else below)
    for found in TEST.finditer(text):
        yield Text("test name", path, text.count("\n", 0, found.start(1)) + 1, found[1])
    if re.search(r"(^|/)(tests?|testing|benches|examples)(/|\.rs$)|_tests\.rs$", path):
        return
    code = "\n".join("" if COMMENT.match(line) else line for line in lines)
    code = re.split(r"#\[cfg\(test\)\]\n(?:pub(?:\(\w+\))? )?mod\b", code)[0]
    for found in STRING.finditer(code.replace("'\"'", "' '")):
        message = re.sub(r"\\\n\s*", "", found[1])
        if len(WORD.findall(message)) > 2 and re.search(r"\w \w", message) and not SQL.match(message):
            begin = code[: found.start()].splitlines()[-1:] or [""]
            around = begin[0].strip() + '"…"' + code[found.end() :].split("\n", 1)[0].strip()
            yield Text("message", path, code.count("\n", 0, found.start()) + 1, message, around)


def comments(lines):
    """Line, mark and words of each paragraph of comments; no code between fences."""
    mark, start, block, fenced = None, 0, [], False
    for number, line in enumerate([*lines, ""], 1):
        found = COMMENT.match(line)
        words = (found[2] or "") if found else ""
        fence = words.lstrip().startswith("```")
        fenced = bool(found) and fenced ^ fence
        if block and (not found or found[1] != mark or not words or fence or re.match(r"\s*([-*|] |#)", words)):
            yield start, mark, " ".join(block)
            block = []
        if words and not fence and not fenced:
            mark, start = found[1], start if block else number
            block.append(words.strip())


def template(path, text):
    """What a page shows, without its tags and expressions."""
    # Texts of the console, which has them in Russian too.
    text = re.sub(r"\{\{ *page\.t\(\"([^\"]*)\"\) *\}\}", r"\1", text)
    text = re.sub(r"<(script|style|pre)\b.*?</\1>|<!--.*?-->|\{#.*?#\}", lambda cut: "\n" * cut[0].count("\n"), text, flags=re.S)
    for number, line in enumerate(re.sub(r"\{\{.*?\}\}", "…", re.sub(r"\{%.*?%\}", "\n", text)).splitlines(), 1):
        words = re.sub(r"<[^>]*>|[\w-]+=\"[^\"]*\"?|[<>]", " ", line).strip()
        if len(WORD.findall(words)) > 2:
            yield Text("console text", path, number, re.sub(r"\s+", " ", words))


def git(*args, check=True):
    return subprocess.run(["git", *args], cwd=ROOT, check=check, capture_output=True, text=True).stdout
