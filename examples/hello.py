"""Three steps that survive a crash: `perdure run examples/hello.py --input name=Ada`."""
from perdure import node, workflow

@node
def greeting(name: str) -> str:
    return f"Hello, {name}!"

@node(retries=3)
async def count(text: str) -> int:
    return len(text)

@node
def card(text: str, size: int) -> str:
    return f"{text}\n{'=' * size}"

@workflow
def hello(name: str = "world") -> str:
    text = greeting(name)
    return card(text, count(text))
