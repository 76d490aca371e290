"""The language rules as patterns, and the places in the project that match one.

`findings` reads docstrings, comments, names of functions, classes and files, and the prose of README and
docs. Code in backticks and code blocks are left out.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).parent.parent
Kind = Literal["docstring", "prose", "function", "class", "file"]


class Pattern(NamedTuple):
    """A habit to drop, the regular expression that finds it, and the better way to write."""

    name: str
    kinds: tuple[Kind, ...]  # "docstring" is the first sentence of one; the other sentences are "prose"
    expression: str
    instead: str


class Finding(NamedTuple):
    """A place that matches a pattern."""

    pattern: str
    file: Path
    line: int
    text: str

    @property
    def room(self) -> str:
        """The top-level folder below src/kedge or tests; docs for README, CONTRIBUTING and docs."""
        inside = self.file.relative_to(ROOT).parts
        if self.file.suffix == ".md":
            return "docs"
        folders = inside[2:-1] if inside[0] == "src" else inside[1:-1]
        return "/".join((inside[0], *folders[:1]))


TEXT: tuple[Kind, ...] = ("docstring", "prose")
PEOPLE = "users?|[Yy]ou|people|someone|anyone|readers?|newcomers?|authors?|person"

PATTERNS = (
    Pattern(
        "clause as a docstring",
        ("docstring",),
        r"^(What|Who|Whom|Whose|Those|Where|How|Which|When|Why|That|As)\b",
        'Name the value with a noun: "Initial state of the clients", not "What the clients begin with".',
    ),
    Pattern(
        "what … as a noun",
        TEXT,
        r"(?:^[Ww]hat|(?:[,;:]|\b(?:and|of|with|by|for|from|in|at|than|as|but|to|on|is|are|all)) what)\b"
        r"(?! to do)",
        'Name the thing: "the batches of a round", not "what a round trains on".',
    ),
    Pattern(
        "those that, whatever",
        TEXT,
        r"\b[Tt]hose (?:that|which|who|whose|where)\b|\b[Ww]hatever (?!the\b)",
        'Repeat the noun: "clients that trained", not "those that trained".',
    ),
    Pattern(
        "who without a person",
        TEXT,
        r"(?:^|[,;:(] |\b(?:and|of|that|by|from|for|to|when|where|says?|Show|show) )"
        r"(?:[Ww]ho|[Ww]hom|[Ww]hoever)\b",
        'Name the subject: "the caller", "a client", "the sampled clients".',
    ),
    Pattern(
        "lie, stand",
        TEXT,
        r"\b(?:[Ll]ies?|lay|lain)\b(?! (?:between|within|above|below|outside|on the))"
        r"|\b[Ss](?:tands?|tood)\b(?!-)",
        'Write "is", "is stored", "is written", "means".',
    ),
    Pattern(
        "tell, hear, ask",
        TEXT,
        r"\b[Tt]ells?\b|\btold\b|\b[Hh]ears?\b|\bheard\b"
        rf"|(?<!user )(?<!users )(?<!you )\b[Aa]sk(?:s|ed|ing)?\b(?! (?:the )?(?:{PEOPLE}))",
        'Write "reports", "prints", "receives", "requests", "requires", "distinguishes".',
    ),
    Pattern(
        "come, go on",
        TEXT,
        r"\b(?:[Cc]omes?|came)\b(?! from)|\b(?:[Gg]oes?|went|going) on\b",
        'Write "arrives", "follows", "is called"; "continues", "resumes".',
    ),
    Pattern(
        "give back, take in, put back",
        TEXT,
        r"\b(?:[Gg]ives?|given|gave|[Hh]ands?|handed) back\b|\b(?:[Tt]akes?|taken|took) (?:in|up)\b"
        r"|\b[Pp]uts? (?:in|back|aside)\b|\b[Hh]old(?:s|ing)? on\b|\b[Ll]ets? go\b",
        'Write "returns", "adds", "resumes", "restores", "keeps", "frees".',
    ),
    Pattern(
        "machinery as a person",
        TEXT,
        r"\bat hand\b|\bknows? of\b|\bknown of\b|\b(?:[Nn]obody|[Ee]verybody|anybody)\b"
        rf"|(?<!user )(?<!users )(?<!you )\bwants?\b(?! (?:{PEOPLE}))",
        'Write "current", "available before"; "no client", "every thread"; "requires".',
    ),
    Pattern(
        "inverted order",
        TEXT,
        r"^Of\b|^(?:With|In|From|At|Behind|Under|Beside) [^,.;:]{1,60} (?:comes?|lies?|stands?|goes|go)\b"
        r"|^Only (?:then|there|here|where)\b",
        'Subject first: "The forward pass saves one of four values", not "Of four values one is saved".',
    ),
    Pattern(
        "so many",
        TEXT,
        r"\b[Ss]o (?:many|much)\b|\bof so (?:large|small|long)\b",
        'Name the parameter in backticks: "`samples` samples".',
    ),
    Pattern(
        "there, one as a placeholder",
        TEXT,
        r"\b(?:is|are|was|were) there\b(?! (?:a|an|no|any)\b)"
        r"|\bthere (?:is|are|was|were)(?: one| any| none)?[,.;:)]"
        r"|(?<!and )(?<!of )(?<!all )(?<!with )\bones\b|\b[Oo]ne (?:that|who|whose|which)\b",
        'Write "exists", "has", "if any", or repeat the noun.',
    ),
    Pattern(
        "where instead of if",
        TEXT,
        r"\b(?:None|[Rr]aises?|[Ee]mpty|[Ff]alse|[Tt]rue) where\b|\b[Ww]here there (?:is|are)\b",
        'Write "None if …", "raise if …".',
    ),
    Pattern(
        "no term of art",
        TEXT,
        r"\b[Pp]ictures?\b|\bwritten down\b|\b(?:broken|breaks?|broke) off\b|\bof ours\b"
        r"|\b(?:those|that|w) of before\b",
        'Use PyTorch\'s words: "image" or "plot", "traced", "captured", "aborted", "kedge\'s", "previous".',
    ),
    Pattern(
        "British spelling",
        TEXT,
        r"(?i)\b(?:whilst|amongst|\w*colour|behaviour|\w*centre|favour|neighbour|labelled|modelled|cancelled)\w*\b"
        r"|(?i:\b\w*(?:optim|initial|normal|general|summar|minim|maxim|recogn|serial|vector|quant|regular|organ|penal|token|special|stabil|visual)is"
        r"(?:e|ed|es|ers?|ing|ation)\b)",
        "American spelling, as in PyTorch: color, initialize, neighbor.",
    ),
    Pattern(
        "participle as a function name",
        ("function",),
        r"^(?:held|settled|begun|told|told_\w+|taken|taken_\w+|gathered|carried|carried_\w+|answered|asked|heard"
        r"|known|known_\w+|given|drawn|seen|kept|done|done_\w+|made|found|said|put|wanted|meant|effect:\w+)$",
        "A verb for an effect (`save_checkpoint`), a noun for a value (`weighted_mean`).",
    ),
    Pattern(
        "household word as a function name",
        ("function",),
        r"^(?:effect:)?(?:(?:tell|hear|ask|lie|stand|come|comes|look|give|hold)(?:_\w+)?|to_go_on|go_on|own|one|ones|some"
        r"|there|here|what|who|whose|those|these|alone|together|apart|bare|ahead|beside)$",
        "A verb that says what the function does, or a noun for what it returns.",
    ),
    Pattern(
        "riddle as a class name",
        ("class",),
        r"^(?:Asked|Ahead|Told|Begun|Coming|Known|Held|Heard|Together|Waiting|Wanted|Own)$",
        "A noun that a newcomer understands: `RoundStart`, `PreparedRound`.",
    ),
    Pattern(
        "riddle as a file name",
        ("file",),
        r"^(?:test_)?(?:utils?|common|helpers?|base|misc|begun|own|wanted|looking|asking|together|ahead|known|told"
        r"|held|settled|late|short|serving)$",
        "A noun that a newcomer understands; no catch-all.",
    ),
)  # fmt: skip

COMPILED = [(pattern, re.compile(pattern.expression)) for pattern in PATTERNS]
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`_*(0-9])|\n\s*\n|\n\s*(?=[|*#-] )|\n(?=\|)")
PARTICIPLE = re.compile(r"^(?!need|feed|seed|speed|embed|proceed)[a-z]{2,}ed(?:_\w+)?$")


def matches(text: str, kind: Kind = "docstring") -> Iterator[tuple[str, str]]:
    """The patterns that a sentence or name matches, each with the matching part."""
    text = re.sub(r"`[^`]*`", lambda code: "`" + "_" * (len(code[0]) - 2) + "`", text)
    for pattern, expression in COMPILED:
        if kind not in pattern.kinds:
            continue
        for match in expression.finditer(text):
            yield pattern.name, text[max(0, match.start() - 40) : match.end() + 40]


def findings() -> list[Finding]:
    """All places in the project that match a pattern."""
    code = [*(ROOT / "src" / "kedge").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    return [finding for file in sorted([*code, *pages]) for finding in findings_in(file)]


def findings_in(file: Path) -> Iterator[Finding]:
    """The places in one file that match a pattern."""
    content = file.read_text(encoding="utf-8")
    for line, kind, text in texts(file, content):
        for name, part in matches(text, kind):
            yield Finding(name, file, line, part)


def texts(file: Path, content: str) -> Iterator[tuple[int, Kind, str]]:
    """Every sentence and name of a file, with its line and kind."""
    if file.suffix == ".md":
        prose = re.sub(r"```.*?```", lambda code: "\n" * code[0].count("\n"), content, flags=re.DOTALL)
        yield from sentences(1, re.sub(r"\]\([^)]*\)", "]", prose), "prose")
        return
    yield 1, "file", file.stem
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            docstring = node.body[0] if node.body and ast.get_docstring(node, clean=False) else None
            if docstring:
                yield from sentences(
                    docstring.lineno, ast.get_docstring(node, clean=False) or "", "docstring"
                )
        if isinstance(node, ast.ClassDef):
            yield node.lineno, "class", node.name
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_"):
            yield node.lineno, "function", "effect:" * is_participle_with_effect(node) + node.name
    for line, text in comments(content):
        yield from sentences(line, text, "prose")


def is_participle_with_effect(function: ast.FunctionDef) -> bool:
    """Whether the function is named by a participle and returns None."""
    returns_none = isinstance(function.returns, ast.Constant) and function.returns.value is None
    return returns_none and bool(PARTICIPLE.match(function.name))


def comments(content: str) -> Iterator[tuple[int, str]]:
    """The comments of a file with their lines; comments on consecutive lines are one text."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type != tokenize.COMMENT:
            continue
        alone, line = not token.line[: token.start[1]].strip(), token.start[0]
        if block and not (alone and line == last + 1):
            yield first, "\n".join(block)
            block = []
        first = first if block else line
        block.append(token.string.lstrip("#: "))
        last = line if alone else 0
    if block:
        yield first, "\n".join(block)


def sentences(line: int, text: str, kind: Kind) -> Iterator[tuple[int, Kind, str]]:
    """The sentences of a text that starts at `line`; those after the first are of kind "prose"."""
    cuts = [(match.start(), match.end()) for match in SENTENCE_END.finditer(text)]
    starts, ends = [0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(text)]
    for start, end in zip(starts, ends, strict=True):
        part = text[start:end]
        before = start + len(part) - len(part.lstrip())
        if part.strip():
            yield line + text[:before].count("\n"), kind if start == 0 else "prose", " ".join(part.split())


def counts(found: Sequence[Finding]) -> dict[str, dict[str, int]]:
    """The number of findings by room and pattern."""
    result: dict[str, dict[str, int]] = {}
    for finding in found:
        room = result.setdefault(finding.room, {})
        room[finding.pattern] = room.get(finding.pattern, 0) + 1
    return {room: dict(sorted(result[room].items())) for room in sorted(result)}
