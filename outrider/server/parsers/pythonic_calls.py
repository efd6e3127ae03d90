"""Pythonic, as of Llama 3.2 and 4: the answer is a list of calls, [name(key=value, ...), ...]."""

import ast

from outrider.server.parsers.call_block import Call, CallFormat, parse_json, written

_MAX_LENGTH = 1 << 16  # characters; parsing Python takes much memory


def _parse(block: str) -> list[Call] | None:
    if len(block) > _MAX_LENGTH:
        return None
    try:
        tree = ast.parse(block.strip(), mode="eval").body
        elements = tree.elts if isinstance(tree, ast.List) else []
        return [_call(element) for element in elements] or None
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    arguments = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
    text = written(arguments)
    if parse_json(text) is None or any(each.arg is None for each in node.keywords):
        raise ValueError("a value that JSON does not have")
    return ast.unparse(node.func), text


PYTHONIC = CallFormat(opens=("[",), close="", is_leading=True, parse=_parse)
