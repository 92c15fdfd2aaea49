"""An environment of many turns: a calculator. The model may write calc(EXPRESSION), and gets the value as the next
message. An answer without calc(...) ends the conversation. The reward is 1 if its last number is the solution, else 0.

A line of JSON on stdin for each answer, and a line on stdout for each of them, in the same order:
    {"id": "0.0.3", "turn": 0, "prompt": "...", "solution": "408", "answer": "calc(17 * 24)", "end": null}
      {"observation": "408", "role": "user"}
    {"id": "0.0.3", "turn": 1, "prompt": "...", "solution": "408", "answer": "It is 408.", "end": null}
      {"reward": 1}
An `end` says why no further answer is possible: the reply must be a reward."""

import ast
import json
import operator
import re
import sys

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value(node):  # never eval(): the text comes from a model
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](value(node.left), value(node.right))
    raise ValueError("wanted are numbers, + - * / and brackets")


def calculated(text):
    try:
        return f"{value(ast.parse(text.strip(), mode='eval').body):.12g}"
    except (ValueError, ArithmeticError, SyntaxError, RecursionError, MemoryError) as error:
        return f"error: {error}"


def last_number(text):
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return float(numbers[-1]) if numbers else None


for line in sys.stdin:
    sent = json.loads(line)
    call = re.search(r"calc\((.*)\)", sent["answer"])
    if call and not sent["end"]:
        reply = {"observation": calculated(call[1]), "role": "user"}
    else:
        number = None if call else last_number(sent["answer"])
        reply = {"reward": int(number is not None and number == last_number(sent["solution"]))}
    print(json.dumps(reply), flush=True)
