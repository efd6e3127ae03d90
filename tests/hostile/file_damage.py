"""Ways to damage a file of a model folder."""

import json
from pathlib import Path
from random import Random

from hostile.odd_values import damage_json, nested

_HEADER = 4096  # bytes at the start of a file of weights, where each of them means something

TEMPLATES = (
    "{{ 'a' * 10**9 }}",
    "{% for i in range(10**9) %}{{ i }}{% endfor %}",
    "{% for i in range(3000) %}{% for j in range(3000) %}{{ i }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{{ m.content",
    "{{ messages.__class__.__mro__ }}",
    "{{ raise_exception('no') }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ messages[0]['content'] | indent(10**9) }}",
    "{{ '%0999999999d' % 1 }}",
    "{{ 10 ** 10 ** 8 }}",
    "{{ messages | tojson(indent=10**9) }}",
    "{{ lipsum(10**6) }}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.center(10**9) }}",
    "{{ [1] * 10**9 }}",
    "{% set ns = namespace(t='a') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}"
    "{% endfor %}{{ ns.t }}",
)


def damage_folder(rng: Random, folder: Path) -> str:
    """Damage one or two files of a folder; returns what was done."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return "; ".join(_damage(rng, path) for path in rng.sample(files, rng.choice([1, 1, 2])))


def _damage(rng: Random, path: Path) -> str:
    ways = [_flip, _flip, _cut, _replace]
    if path.suffix == ".json":
        ways = [_edit, _edit, _edit, _edit, _deepen, *ways]
    if path.name == "tokenizer_config.json":
        ways += [_write_template] * 4
    if path.suffix == ".safetensors":
        ways += [_edit_header] * 4
    way = rng.choice(ways)
    return f"{way.__name__} {path.name}: {way(rng, path)}"


def damage_weights(rng: Random, path: Path) -> str:
    """Damage a file of weights by its bytes."""
    way = rng.choice([_flip, _flip, _flip, _cut])
    return f"{way.__name__} {path.name}: {way(rng, path)}"


def _flip(rng: Random, path: Path) -> str:
    """Change some bytes, most often among the first."""
    content = bytearray(path.read_bytes())
    if not content:
        return "empty"
    end = min(len(content), rng.choice([64, _HEADER, _HEADER, len(content)]))
    places = [rng.randrange(end) for _ in range(rng.choice([1, 1, 2, 8]))]
    for place in places:
        content[place] = rng.choice([0, 255, rng.randrange(256), content[place] ^ 1])
    path.write_bytes(content)
    return f"bytes {places}"


def _cut(rng: Random, path: Path) -> str:
    content = path.read_bytes()
    size = rng.choice([0, rng.randint(0, len(content)), max(0, len(content) - 1)])
    path.write_bytes(content[:size])
    return f"{size} of {len(content)} bytes"


def _replace(rng: Random, path: Path) -> str:
    """Another thing of the same name."""
    path.unlink()
    what = rng.choice(["nothing", "folder", "loop", "noise", "nowhere"])
    if what == "folder":
        path.mkdir()
    elif what == "loop":
        path.symlink_to(path)
    elif what == "nowhere":
        path.symlink_to(path.parent / "gone")
    elif what == "noise":
        path.write_bytes(rng.randbytes(rng.choice([1, 100, 100_000])))
    return what


def _edit(rng: Random, path: Path) -> str:
    tree, done = json.loads(path.read_text()), []
    for _ in range(rng.choice([1, 1, 1, 3])):
        tree, what = damage_json(rng, tree)
        done.append(what)
    path.write_text(json.dumps(tree))
    return ", ".join(done)


def _deepen(rng: Random, path: Path) -> str:
    if rng.random() < 0.5:
        depth = rng.choice([200, 2000, 200_000])
        path.write_text("[" * depth + "]" * depth)
        return f"{depth} lists"
    tree = json.loads(path.read_text())
    tree[rng.choice(list(tree))] = nested(rng)
    path.write_text(json.dumps(tree))
    return "nested value"


def _write_template(rng: Random, path: Path) -> str:
    tree, template = json.loads(path.read_text()), rng.choice(TEMPLATES)
    path.write_text(json.dumps(tree | {"chat_template": template}))
    return template


def _edit_header(rng: Random, path: Path) -> str:
    """Another table of tensors over the same bytes."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, done = damage_json(rng, json.loads(content[8 : 8 + size]))
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    return done
