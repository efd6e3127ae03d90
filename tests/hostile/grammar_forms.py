"""Random grammars in two spellings, a regular expression and EBNF, and random JSON schemas."""

from dataclasses import dataclass
from random import Random
from typing import Any

_LETTERS = "abcxyz019 "

# Each of these once took long, or a lot of memory, in some engine.
HOSTILE = (
    {"regex": "((a{1,500}){1,500}){1,500}"},
    {"regex": "(a*)*b"},
    {"regex": "(a|aa)+$"},
    {"regex": "(?=a)b"},
    {"regex": "(a)\\1"},
    {"regex": "[" + "a-z" * 2000 + "]"},
    {"regex": "(" * 300 + "a" + ")" * 300},
    {"regex": "a{100000}"},
    {"regex": "[z-a]"},
    {"regex": "(?P<x>a"},
    {"regex": "\\p{L}+"},
    {"regex": "|".join(f"a{{1,{n}}}b{{1,{n}}}" for n in range(200, 240))},
    {"grammar": "root ::= root root | root"},
    {"grammar": 'root ::= s\ns ::= s s s s | s s s | s s | "#" | ""'},
    {"grammar": 'root ::= "y" s | [^y] [^y]*\ns ::= s s s s s s | s s s | s s | "#" | ""'},
    {"grammar": "root ::= nothing"},
    {"grammar": 'root ::= ("a"*)*'},
    {"grammar": 'root ::= "a"{1000000}'},
    {"grammar": "\x00"},
    {"grammar": "".join(f"r{n} ::= r{n + 1} r{n + 1}\n" for n in range(40)) + "root ::= r0\n"},
    {"json": {"type": "string", "minLength": 10**6}},
    {"json": {"type": "integer", "minimum": 10**30}},
    {"json": {"$ref": "#"}},
    {"json": {"$ref": "#/$defs/gone"}},
    {"json": {"type": "array", "items": {"$ref": "#"}, "minItems": 10**5}},
    {"json": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
    {"json": {"type": "string", "pattern": "(a*)*$"}},
    {"json": {"enum": []}},
    {"json": {"not": {}}},
    {"json": False},
    {"choice": []},
    {"choice": [""]},
    {"choice": ["a" * 20_000]},
    {"choice": ["\ud7ff", "a\nb", '"', "\\"]},
)


@dataclass(frozen=True)
class Form:
    """One language, in the words of Python's `re` and of the engine's EBNF."""

    regex: str
    ebnf: str


def draw_form(rng: Random, depth: int = 0) -> Form:
    """A language without recursion; both spellings mean the same."""
    kind = rng.randrange(5 if depth < 3 else 2)
    if kind == 0:
        text = "".join(rng.choices(_LETTERS, k=rng.randint(1, 4)))
        return Form(regex=text, ebnf=f'"{text}"')
    if kind == 1:
        first, last = sorted(rng.sample("abcdefghij", 2))
        sign = rng.choice(["", "", "^"])
        return Form(regex=f"[{sign}{first}-{last}]", ebnf=f"[{sign}{first}-{last}]")
    inner = [draw_form(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    if kind == 2:
        ebnf = " ".join(f"({each.ebnf})" for each in inner)
        return Form(regex="".join(f"(?:{each.regex})" for each in inner), ebnf=ebnf)
    if kind == 3:
        ebnf = " | ".join(f"({each.ebnf})" for each in inner)
        return Form(regex="|".join(f"(?:{each.regex})" for each in inner), ebnf=ebnf)
    count = rng.choice(["?", "*", "+", "{2}", "{1,3}", "{0,20}"])
    return Form(regex=f"(?:{inner[0].regex}){count}", ebnf=f"({inner[0].ebnf}){count}")


def draw_schema(rng: Random, depth: int = 0) -> dict[str, Any]:
    """A schema that has values."""
    kind = rng.randrange(7 if depth < 2 else 5)
    if kind == 0:
        return {"enum": rng.sample([1, "a", None, True, "b c", 2.5, '"', "\n"], rng.randint(1, 4))}
    if kind == 1:
        return {"type": rng.choice(["boolean", "null", "integer", ["null", "boolean"]])}
    if kind == 2:
        least = rng.randint(-20, 20)
        return {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 300)}
    if kind == 3:
        return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 8)}
    if kind == 4:
        return {"type": "string", "pattern": f"^{draw_form(rng, 2).regex}$"}
    if kind == 5:
        items = draw_schema(rng, depth + 1)
        return {"type": "array", "items": items, "minItems": rng.randint(0, 2), "maxItems": 3}
    names = rng.sample(["a", "b", "long name", '"'], rng.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: draw_schema(rng, depth + 1) for name in names},
        "required": rng.sample(names, rng.randint(0, len(names))),
        "additionalProperties": False,
    }
