#!/usr/bin/env python3
"""Makes sure that lib/posix keeps to the sizes of CONTRIBUTING.md.

usage: sizes_test.py LIMITS FILE...

LIMITS says how many public methods a class may have, which functions may be above
60 lines, and which files above 600, each with a reason.  A line of LIMITS that is
not needed any more is a fault, too: so the lists only shrink.
"""

import os
import re
import sys

FUNCTION_LINES = 60
FILE_LINES = 600

# What begins a block that is no function.
OTHER = re.compile(
    r"^\s*(?:template\s*<.*>\s*)?(?:inline\s+)?"
    r"(?:namespace|class|struct|union|enum|extern\s*\"\")\b", re.S)
ACCESS = re.compile(r"\s*(public|private|protected)\s*:(?!:)")
# Words that may stand before a method's name, with or without arguments.
MARKS = re.compile(r"\[\[.*?\]\]|\bRC_\w+\s*\([^()]*(?:\([^()]*\)[^()]*)*\)"
                   r"|\balignas\s*\(\w+\)|\bRC_\w+\b", re.S)


def code_of(text):
    """The text without comments, literals and directives, line by line."""
    def blank(found):
        return re.sub(r"[^\n]", " ", found[0])
    text = re.sub(r'R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'',
                  lambda found: '""' + " " * (len(found[0]) - 2)
                  if "\n" not in found[0] else blank(found),
                  re.sub(r"//[^\n]*|/\*(?:.|\n)*?\*/", blank, text))
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)


def functions_of(code):
    """(name, lines) of each function that is defined in the code."""
    found, stack, head_at = [], [], 0
    for at, char in enumerate(code):
        if char == "{":
            head = code[head_at:at]
            inside = any(kind != "room" for kind, *_ in stack)
            kind = "block"
            if not inside and OTHER.match(ACCESS.sub("", head)):
                kind = "room"
            elif not inside and "(" in head and not re.search(r"=\s*$", head):
                kind = "function"
            stack.append((kind, head_at + len(head) - len(head.lstrip()), head))
            head_at = at + 1
        elif char == "}":
            kind, begin, head = stack.pop()
            head_at = at + 1
            if kind == "function":
                name = re.search(r"([~\w:]*(?:operator\s*[^\s(]+)?)\s*\(",
                                 MARKS.sub(" ", head))
                found.append((name[1] if name else head.strip(),
                              code.count("\n", begin, at) + 1))
        elif char == ";" and not any(k in ("function", "block") for k, *_ in stack):
            head_at = at + 1
    return found


def public_methods(code, name):
    """The public methods that the class declares: an overload counts for itself."""
    begin = re.search(rf"\b(?:class|struct)\s+(?:\w+\s*\([^)]*\)\s*)?{name}\b(?!::)[^;{{(]*\{{",
                      MARKS.sub(lambda found: " " * len(found[0]), code))
    if begin is None:
        return None
    depth, access, words, methods = 1, "private", "", []
    for char in code[begin.end():]:
        depth += (char == "{") - (char == "}")
        if depth == 0:
            break
        if depth == 1:
            words += char
            if (mark := ACCESS.fullmatch(words)):
                access, words = mark[1], ""
        if depth == 1 and char in ";}":
            plain = MARKS.sub(" ", words).strip()
            called = re.match(r"[^={]*?([~\w]+|operator\s*\S+)\s*\(", plain, re.S)
            if (access == "public" and called and not OTHER.match(plain)
                    and not re.match(r"(?:using|friend|static_assert)\b", plain)
                    and "= delete" not in plain):
                methods.append(called[1])
            words = ""
    return methods


def not_accessors(code, name):
    """The public methods of a class that do more than to return a part."""
    body = re.split(rf"\bclass\b[^;{{(]*(?:\([^)]*\)[^;{{(]*)?\b{name}\b[^;{{]*\{{", code)[-1]
    return [method for method in public_methods(code, name) or []
            if not re.search(rf"& {method}\(\)[^;{{}}]*\{{\s*return {method}_;\s*\}}", body)]


def read_limits(text):
    """{(what, name): (number, reason)}; lines are WHAT NAME NUMBER REASON."""
    limits = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            what, name, number, reason = line.split(None, 3)
            limits[what, name] = (int(number), reason)
    return limits


def judge(measured, limits):
    """Sentences about what is above its limit, and about limits to be lowered."""
    wrong = []
    for (what, name), number in sorted(measured.items()):
        usual = {"function": FUNCTION_LINES, "file": FILE_LINES}.get(what, 0)
        limit = limits.get((what, name), (usual, ""))[0]
        if number > limit:
            wrong.append(f"{what} {name}: {number}, and may have {limit}")
        elif (what, name) in limits and number < limit:
            wrong.append(f"{what} {name}: has {number} by now; lower its limit")
    for what, name in sorted(limits.keys() - measured.keys()):
        wrong.append(f"{what} {name}: there is none that needs a limit")
    return wrong


def measure(sources, limits):
    measured = {}
    for path, text in sources.items():
        measured["file", os.path.basename(path)] = text.count("\n")
        code = code_of(text)
        for name, lines in functions_of(code):
            key = "function", name
            measured[key] = max(measured.get(key, 0), lines)
        for what, name in limits:
            if what == "methods" and (methods := public_methods(code, name)) is not None:
                measured[what, name] = len(methods)
    return {key: number for key, number in measured.items()
            if key in limits or key[0] != "methods"}


def try_out():
    """Makes sure that the parser finds what it is for."""
    code = code_of("namespace a {\nclass B : C {\n public:\n  B();\n"
                   "  int X() const { return f(); }\n  int n{0};\n"
                   "  void Y(int) RC_REQUIRES(m);\n  struct Z { int q(); };\n"
                   "  friend void W();\n private:\n  void V();\n};\n"
                   "int B::Long(int n) {\n  if (n) {\n  }\n  // {\n  return 0;\n}\n}\n")
    assert public_methods(code, "B") == ["B", "X", "Y"], public_methods(code, "B")
    assert public_methods("class B::Z { };", "B") is None
    assert ("B::Long", 6) in functions_of(code), functions_of(code)
    code = ("class alignas(64) L : C {\n public:\n  P& p() { return p_; }\n"
            "  const P& p() const { return p_; }\n  Q& q() RC_REQUIRES(a, b) { return q_; }\n"
            "  R& r() { return s_; }\n  void t();\n};\n")
    assert not_accessors(code, "L") == ["r", "t"], not_accessors(code, "L")
    assert judge({("methods", "B"): 3}, {("methods", "B"): (2, "")})
    assert judge({("methods", "B"): 1}, {("methods", "B"): (2, "")})
    assert judge({}, {("function", "gone"): (70, "")})
    assert not judge({("function", "f"): 60}, {})
    assert judge({("function", "f"): 61}, {})


def main():
    try_out()
    limits = read_limits(open(sys.argv[1], encoding="utf-8").read())
    sources = {path: open(path, encoding="utf-8").read() for path in sys.argv[2:]
               if path.endswith((".h", ".cc"))}
    measured = measure(sources, limits)
    methods = measured.get(("methods", "Sock"), 0)
    functions = sum(what == "function" for what, _ in measured)
    if functions < 500 or methods == 0:
        sys.exit(f"{functions} functions in {len(sources)} sources cannot be all")
    wrong = judge(measured, limits)
    # What is inherited from there is not counted above.
    layout = [code_of(text) for path, text in sources.items()
              if os.path.basename(path) == "sock_layout.h"]
    if not layout or len(public_methods(layout[0], "SockLayout") or []) < 20:
        wrong.append("there is no SockLayout with the parts of Sock")
    else:
        wrong += [f"SockLayout::{method}: a public method there returns a part, and no more"
                  for method in not_accessors(layout[0], "SockLayout")]
    for sentence in wrong:
        print(sentence)
    print(f"{len(sources)} sources, {functions} functions, {methods} public methods of Sock")
    sys.exit(1 if wrong else 0)


main()
