"""An order that is paid once, however often anything fails.

perdure run examples/orders.py --input customer=ada --input item=lamp --input quantity=2

Nothing is ever undone. Each step can be repeated without harm, so a step that fails is simply tried again: reserving and
paying by an idempotency key, the label because it only depends on the order. The shop and the bank are files in a folder
here; put your services in their place.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from perdure import SyncContext, first, node, stage, unless, when, workflow

PRICES = {"lamp": 4900, "chair": 12900}
STOCK = {"lamp": 3, "chair": 0}


@dataclass
class Order:
    customer: str
    item: str
    quantity: int


class Ledger:
    """Stands for a service that knows idempotency keys: what is written under a key is written once."""

    def __init__(self, folder: str, name: str) -> None:
        self._folder = Path(folder) / name
        self._folder.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, entry: dict[str, object]) -> dict[str, object]:
        """Write an entry unless there is one under this key, and return the one that is there."""
        path = self._folder / f"{key.replace('/', '-')}.json"
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(entry), encoding="utf-8")
        try:
            os.link(part, path)
        except FileExistsError:
            pass
        finally:
            part.unlink()
        return dict(json.loads(path.read_text(encoding="utf-8")))


@node
def check(customer: str, item: str, quantity: int) -> Order:
    if item not in PRICES or quantity < 1:
        raise ValueError(f"there is no such order: {quantity} of {item!r}")
    return Order(customer, item, quantity)


@node
def is_in_stock(order: Order) -> bool:
    return STOCK[order.item] >= order.quantity


@node(retries=5)
def reserve(ctx: SyncContext, order: Order, folder: str) -> str:
    Ledger(folder, "reservations").put(ctx.idempotency_key, {"item": order.item, "quantity": order.quantity})
    return ctx.idempotency_key


@node(retries=5, timeout=30)
def pay(ctx: SyncContext, order: Order, reservation: str, folder: str) -> str:
    cents = PRICES[order.item] * order.quantity
    ledger = Ledger(folder, "payments")
    paid = ledger.put(ctx.idempotency_key, {"customer": order.customer, "cents": cents, "for": reservation})
    ctx.log.info("paid", cents=paid["cents"])
    if ctx.attempt == 1:
        raise ConnectionError("the bank has booked it, but its answer is lost")
    return f"{cents / 100:.2f}"


@node
def label(order: Order, paid: str) -> str:
    return f"{order.quantity} x {order.item} for {order.customer}, {paid} paid"


@node
def refuse(order: Order) -> str:
    return f"{order.item} is sold out"


@node(retries=3)
def notify(customer: str, message: str) -> str:
    return f"to {customer}: {message}"


@workflow
def place_order(customer: str, item: str, quantity: int = 1, folder: str = "shop") -> str:
    with stage("check"):
        order = check(customer, item, quantity)
        available = is_in_stock(order)
    with when(available), stage("fulfil"):
        shipped = label(order, pay(order, reserve(order, folder), folder))
    with unless(available):
        refused = refuse(order)
    return notify(customer, first(shipped, refused))


if __name__ == "__main__":
    print(place_order.run(customer="ada", item="lamp", quantity=2))
