#!/usr/bin/env python3
"""Checks the prose of the tree. Usage: scripts/prose.py [--fill FILE...]

Without arguments it checks every tracked file and exits with 1 if a rule is broken:

  columns     no line of Markdown over 100 columns outside tables, code blocks and bare links
  lengths     sentences and paragraphs of ARCHITECTURE.md
  doc starts  doc comments of *.rs that begin with What, How, Whether, ...: no more than there are
  links       relative links of Markdown lead to files, and their anchors to headings
  comments    no comment of *.rs over 100 columns outside tables and links
  dead files  every document is linked from another
  tests       every test that docs/assurance.md names is there, and every filter of a command that
              runs tests finds one

With --fill it wraps the paragraphs and lists of the files at 100 columns, in place.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100

# Files that are allowed long lines. Each has a reason; the list only shrinks.
LONG_LINES: dict[str, str] = {
    "docs/simfabric/results-flowtune.md": "a program writes it",
    "docs/simfabric/results-rpm.md": "a program writes it",
    "docs/simfabric/results-fncc.md": "a program writes it",
    "docs/simfabric/results-sird.md": "a program writes it",
    "docs/simfabric/results-dart.md": "a program writes it",
    "docs/simfabric/results-feeds.md": "a program writes it",
    "docs/simfabric/results-dart-long.md": "a program writes it",
    "docs/simfabric/results-rpm-long.md": "a program writes it",
    "docs/simfabric/results-fncc-long.md": "a program writes it",
    "docs/simfabric/results-sird-long.md": "a program writes it",
}
# A notebook entry keeps what was written down when it was measured.
NOTEBOOK = "docs/notebook/"

# Words per paragraph and per sentence: 90th percentile, maximum.
LENGTHS = {
    "ARCHITECTURE.md": {"words": 3000, "paragraph": (90, 120), "sentence": (25, 40)},
}

# Doc comments that begin with one of these words say nothing when they are read alone. The count may
# fall, and then this number falls with it.
DOC_START = re.compile(r"^\s*//[/!] (What|How|Whether|Where|Who|The same)\b")
DOC_COMMENT = re.compile(r"^\s*//[/!]")
DOC_STARTS = 2


def tracked(*patterns):
    """Paths of the files that git knows, or would add, relative to the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted({path for path in listed.stdout.splitlines() if (ROOT / path).is_file()})


def blocks(text):
    """Yields (first line number, kind, lines). Kinds: code, table, heading, list, text, other."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        start = at
        fence = re.match(r"\s*(```|~~~)", line)
        if not line.strip():
            at += 1
            continue
        if fence:
            at += 1
            while at < len(lines) and not lines[at].lstrip().startswith(fence.group(1)):
                at += 1
            at += 1
            kind = "code"
        elif line.lstrip().startswith("|"):
            while at < len(lines) and lines[at].lstrip().startswith("|"):
                at += 1
            kind = "table"
        elif line.startswith("#"):
            at += 1
            kind = "heading"
        elif re.match(r"\[[^]]+\]: |!\[|<|---", line) or line.startswith("    "):
            at += 1
            kind = "other"
        else:
            kind = "list" if re.match(r"\s*([-*+]|\d+\.)\s", line) else "text"
            at += 1
            while at < len(lines) and lines[at].strip() and not re.match(
                r"\s*(```|~~~|\||#|([-*+]|\d+\.)\s)", lines[at]
            ):
                at += 1
        yield start + 1, kind, lines[start:at]


def plain(text):
    """Markdown without links' targets and marks, for counting words."""
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`([^`]*)`", lambda code: code.group(1).replace(". ", " "), text)
    return re.sub(r"[*_]{1,2}", "", text)


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0


def check_columns(path, text):
    allowed = LONG_LINES.get(path)
    found = []
    for first, kind, lines in blocks(text):
        if kind in ("code", "table", "other"):
            continue
        for number, line in enumerate(lines, first):
            # A line whose length is one link or URL cannot be wrapped.
            rest = re.sub(r"\[[^]]*\]\([^)]*\)\S*|https?://\S+|`[^`]*`\S*", "", line).strip()
            if len(line) > COLUMNS and len(rest) > 12:
                found.append(f"{path}:{number}: {len(line)} columns; at most {COLUMNS}")
    if allowed and not found:
        print(f"prose: {path} has no long lines any more; take it out of LONG_LINES")
    return [] if allowed or path.startswith(NOTEBOOK) else found


def check_lengths(path, text):
    bounds = LENGTHS.get(path)
    if not bounds:
        return []
    found = []
    words = len(text.split())
    if words > bounds["words"]:
        found.append(f"{path}: {words} words; at most {bounds['words']}")
    paragraphs, sentences = [], []
    for first, kind, lines in blocks(text):
        if kind not in ("text", "list"):
            continue
        prose = plain(" ".join(lines))
        prose = re.sub(r"^\s*([-*+]|\d+\.)\s+", "", prose)
        paragraphs.append((len(prose.split()), first))
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z0-9`(])", prose):
            sentences.append((len(sentence.split()), first))
    for what, values in (("paragraph", paragraphs), ("sentence", sentences)):
        most_p90, most = bounds[what]
        p90 = percentile([count for count, _ in values], 0.9)
        longest, line = max(values)
        print(f"prose: {path}: {what}s p90 {p90}, longest {longest} words (line {line})")
        if p90 > most_p90:
            found.append(f"{path}: p90 of {what}s is {p90} words; at most {most_p90}")
        if longest > most:
            found.append(f"{path}:{line}: a {what} of {longest} words; at most {most}")
    return found


def check_doc_starts():
    starts, comments, places = 0, 0, []
    for path in tracked("*.rs"):
        inside = False
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            is_doc = bool(DOC_COMMENT.match(line))
            if is_doc and not inside:
                comments += 1
                if DOC_START.match(line):
                    starts += 1
                    places.append(f"{path}:{number}")
            inside = is_doc
    share = 100 * starts / max(comments, 1)
    print(f"prose: {starts} of {comments} doc comments begin with a wh-word ({share:.1f} %)")
    if starts > DOC_STARTS:
        return [
            f"{starts} doc comments begin with What, How, Whether, Where, Who or The same; "
            f"at most {DOC_STARTS}. Begin with a noun or a verb. Find them: "
            r"git grep -nE '^ *//[/!] (What|How|Whether|Where|Who|The same)\b' '*.rs'"
        ]
    if starts < DOC_STARTS:
        print(f"prose: set DOC_STARTS in scripts/prose.py to {starts}, so that it only falls")
    return []


def anchors(text):
    """The anchors that a forge gives to headings."""
    found, seen = set(), {}
    for _, kind, lines in blocks(text):
        if kind == "heading":
            title = plain(lines[0].lstrip("#").strip()).lower()
            anchor = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            count = seen.get(anchor, 0)
            seen[anchor] = count + 1
            found.add(f"{anchor}-{count}" if count else anchor)
    return found


def check_links(path, text):
    found = []
    for first, kind, lines in blocks(text):
        if kind == "code":
            continue
        for number, line in enumerate(lines, first):
            for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                file = (ROOT / path).parent / name if name else ROOT / path
                if not file.exists():
                    found.append(f"{path}:{number}: no such file: {target}")
                elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
                    found.append(f"{path}:{number}: no such heading: {target}")
    return found


def fill(path):
    """Wraps paragraphs and list entries of a file; leaves the rest as it is."""
    lines = path.read_text().splitlines()
    out, at = [], 0
    for first, kind, block in blocks("\n".join(lines)):
        out.extend(lines[at : first - 1])
        at = first - 1 + len(block)
        if kind not in ("text", "list") or all(len(line) <= COLUMNS for line in block):
            out.extend(block)
            continue
        indent = re.match(r"\s*", block[0]).group()
        mark = re.match(r"\s*(?:(?:[-*+]|\d+\.)\s+)?", block[0]).group()
        rest = " " * len(mark) if kind == "list" else indent
        # Code and links stay whole.
        text = " ".join(line.strip() for line in [block[0][len(mark) :], *block[1:]])
        parts = re.findall(r"(?:`[^`]*`|\[[^]]*\]\([^)]*\)|[^\s`\[]|[`\[])+", text)
        line = mark + parts[0]
        for part in parts[1:]:
            # A line must not begin like a list entry or a heading.
            begins = re.match(r"([-*+#|]|\d+\.)$", part)
            if len(line) + 1 + len(part) > COLUMNS and not begins:
                out.append(line)
                line = rest + part
            else:
                line += " " + part
        out.append(line)
    out.extend(lines[at:])
    path.write_text("\n".join(out) + "\n")


def check_comments():
    """Comments of the source: their columns, but for tables and links."""
    found = []
    for path in tracked("*.rs"):
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            long = len(line) > COLUMNS and re.match(r"\s*//", line)
            if long and "|" not in line and "http" not in line:
                found.append(f"{path}:{number}: {len(line)} columns; at most {COLUMNS}")
    return found


def check_dead(paths):
    """Documents that no other document links."""
    linked = set()
    for path in paths:
        for target in re.findall(r"\]\(([^)\s#]+)", (ROOT / path).read_text()):
            file = ((ROOT / path).parent / target).resolve()
            linked.add(file)
    # A forge shows these by themselves.
    shown = re.compile(r"(^README|^CHANGELOG|^\.github/)")
    return [
        f"{path}: no document links it"
        for path in paths
        if not shown.search(path) and (ROOT / path).resolve() not in linked
    ]


def test_names():
    """(package, True for a unit test, name as nextest prints it) of each test, by the sources."""
    packages = {}
    for manifest in tracked("*Cargo.toml"):
        name = re.search(r'^name = "(.+)"', (ROOT / manifest).read_text(), re.MULTILINE)
        if name:
            packages[str(Path(manifest).parent)] = name.group(1)
    names = []
    for path in tracked("*.rs"):
        folder = next((str(at) for at in Path(path).parents if str(at) in packages), None)
        if folder is None:
            continue
        kind, *modules = Path(path).relative_to(folder).with_suffix("").parts
        if kind == "tests" and modules:
            modules = modules[1:]  # the program
        if modules and modules[-1] in ("lib", "main", "mod"):
            modules.pop()
        inline, attribute = [], False
        for line in (ROOT / path).read_text().splitlines():
            # Modules within a file, by their indentation.
            if found := re.match(r"( *)(?:pub(?:\(.*?\))? )?mod (\w+) \{", line):
                inline.append((len(found.group(1)), found.group(2)))
            elif inline and line.rstrip() == " " * inline[-1][0] + "}":
                inline.pop()
            elif re.match(r"\s*#\[(\w+::)?test\b", line):
                attribute = True
            elif attribute and (found := re.match(r"\s*(?:pub )?(?:async )?fn (\w+)", line)):
                name = "::".join([*modules, *(entry[1] for entry in inline), found.group(1)])
                names.append((packages[folder], kind == "src", name))
                attribute = False
    return names


def check_tests(documents, page="docs/assurance.md"):
    """Tests that documents name and nobody has: after a rename they would show nothing.

    The page of findings names them by module and function, the commands by nextest's filters.
    """
    found, names = [], test_names()
    whole = [f"{package.replace('-', '::')}::{name}" for package, _, name in names]
    for named in sorted(set(re.findall(r"`((?:[a-z]\w*::)+\w+)`", (ROOT / page).read_text()))):
        if not any(name.endswith(f"::{named}") for name in whole):
            found.append(f"{page}: no test is called {named}")
    for path in documents:
        if path.startswith(NOTEBOOK):
            continue
        text = (ROOT / path).read_text().replace("\\|", "|")
        for command in re.findall(r"cargo nextest run[^`\n]*", text):
            of = re.findall(r"-p (\S+)", command)
            nightly = "--profile nightly" in command
            run = [
                name
                for package, is_unit, name in names
                if (not of or package in of)
                and (is_unit or "--lib" not in command)
                and nightly == bool(re.search(r"(^|::)nightly::", name))
            ]
            for regex, part in re.findall(r"\btest\((?:/(.+?)/|([^/)]+))\)", command):
                matches = re.compile(regex or re.escape(part)).search
                if not any(matches(name) for name in run):
                    found.append(f"{path}: {command} has no test({regex or part})")
    return found


def main(arguments):
    if arguments[:1] == ["--fill"]:
        for name in arguments[1:]:
            fill(Path(name))
        return 0
    documents = tracked("*.md")
    problems = check_doc_starts() + check_comments() + check_dead(documents)
    problems += check_tests(documents)
    for path in documents:
        text = (ROOT / path).read_text()
        problems += check_columns(path, text)
        problems += check_lengths(path, text)
        problems += check_links(path, text)
    for problem in problems:
        print(f"prose: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
