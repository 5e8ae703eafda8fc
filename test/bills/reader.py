# Reads bodies from stdin, each preceded by its length. For each it prints a line with what a server in Python would bill.
import json
import math
import struct
import sys


def number(v):
    try:
        if isinstance(v, (bool, int, float)):
            return min(math.ceil(v), 10**9)
        if isinstance(v, str):
            return min(int(v), 10**9)
    except (ValueError, OverflowError):
        pass
    return 0


def bill(body):
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(call, dict):
        return {}
    inner = lambda name: call[name] if isinstance(call.get(name), dict) else {}
    gemini, ollama = inner("generationConfig"), inner("options")
    limit = max(
        [number(call.get(k)) for k in ("max_tokens", "max_completion_tokens", "max_output_tokens")]
        + [number(gemini.get("maxOutputTokens")), number(ollama.get("num_predict"))]
    )
    choices = max(1, number(call.get("n")), number(call.get("best_of")), number(gemini.get("candidateCount")))
    model = call.get("model")
    return {"model": model if isinstance(model, str) else "", "tokens": min(max(limit, 0) * choices, 10**9)}


while head := sys.stdin.buffer.read(4):
    body = sys.stdin.buffer.read(struct.unpack(">I", head)[0])
    print(json.dumps(bill(body)), flush=True)
