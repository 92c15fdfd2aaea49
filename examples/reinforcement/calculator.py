"""An environment of many turns: a calculator. The model may write calc(EXPRESSION), and gets the value as the next
message. An answer without calc(...) ends the episode. The reward is 1 if its last number is the solution, else 0.

JSON lines on stdin, and one line on stdout for each, with the same id:
    {"protocol": 1}
      {"protocol": 1}
    {"id": "0.3", "turn": 1, "messages": [...], "solution": "408", "answer": "calc(17 * 24)", "finish_reason": "stop",
     "last": false}
      {"id": "0.3", "role": "user", "observation": "408"}
    {"id": "0.3", "turn": 2, "answer": "It is 408.", "finish_reason": "stop", "last": false}
      {"id": "0.3", "done": true, "reward": 1}
`last`: the episode has no room for another turn, so the reply must end it."""

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


solutions = {}
for line in sys.stdin:
    sent = json.loads(line)
    if "protocol" in sent:
        reply = {"protocol": 1}
    else:
        solution = solutions.setdefault(sent["id"], sent.get("solution"))
        call = re.search(r"calc\((.*)\)", sent["answer"])
        if call and not sent["last"]:
            reply = {"id": sent["id"], "role": "user", "observation": calculated(call[1])}
        else:
            number = None if call else last_number(sent["answer"])
            reward = int(number is not None and number == last_number(solution))
            reply = {"id": sent["id"], "done": True, "reward": reward}
            del solutions[sent["id"]]
    print(json.dumps(reply), flush=True)
