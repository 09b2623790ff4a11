"""A table cleaned, enriched and added up.

perdure run examples/etl.py
perdure run examples/etl.py --input path=sales.csv --input report=report.json

Rows that cannot be used are not dropped in silence: they are an output of their own. The report is replaced as a whole, so
writing it twice does no harm.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from perdure import Outputs, SyncContext, node, stage, workflow

SAMPLE = """\
day,shop,currency,amount
2025-03-01,harbour,EUR,19.90
2025-03-01,harbour,NOK,230.00
2025-03-01,station,EUR,seven
2025-03-02,station,GBP,12.50
2025-03-02,station,XXX,1.00
2025-03-02,harbour,EUR,5.10
"""


@dataclass
class Sale:
    day: str
    shop: str
    currency: str
    amount: Decimal


class Cleaned(Outputs):
    sales: list[Sale]
    rejects: list[str]


@node
def read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if path else SAMPLE


@node(retries=3)
def rates() -> dict[str, Decimal]:
    """Stands for a request to a bank: that may fail, and is tried again."""
    return {"EUR": Decimal(1), "NOK": Decimal("0.086"), "GBP": Decimal("1.19")}


@node
def clean(ctx: SyncContext, table: str, currencies: dict[str, Decimal]) -> Cleaned:
    sales: list[Sale] = []
    rejects: list[str] = []
    for line, row in enumerate(csv.DictReader(io.StringIO(table)), start=2):
        try:
            sale = Sale(row["day"], row["shop"], row["currency"], Decimal(row["amount"]))
        except (KeyError, TypeError, InvalidOperation):
            rejects.append(f"line {line}: not a sale")
            continue
        if sale.currency in currencies:
            sales.append(sale)
        else:
            rejects.append(f"line {line}: no rate for {sale.currency}")
    ctx.log.info("cleaned", sales=len(sales), rejects=len(rejects))
    return Cleaned(sales=sales, rejects=rejects)


@node
def convert(sales: list[Sale], rates: dict[str, Decimal]) -> list[Sale]:
    return [
        Sale(sale.day, sale.shop, "EUR", (sale.amount * rates[sale.currency]).quantize(Decimal("0.01")))
        for sale in sales
    ]


@node
def add_up(sales: list[Sale]) -> dict[str, str]:
    totals: defaultdict[str, Decimal] = defaultdict(Decimal)
    for sale in sales:
        totals[sale.shop] += sale.amount
    return {shop: f"{total} EUR" for shop, total in sorted(totals.items())}


@node
def write(path: str, totals: dict[str, str], rejects: list[str]) -> str:
    beside = Path(path).with_suffix(".part")
    beside.write_text(json.dumps({"totals": totals, "rejected": len(rejects)}, indent=2), encoding="utf-8")
    os.replace(beside, path)
    return path


@workflow
def etl(path: str = "", report: str = "report.json") -> dict[str, object]:
    with stage("read"):
        table = read(path)
        today = rates()
    with stage("clean"):
        cleaned = clean(table, today)
    with stage("add up"):
        totals = add_up(convert(cleaned.sales, today))
    with stage("write"):
        written = write(report, totals, cleaned.rejects)
    return {"report": written, "totals": totals, "rejects": cleaned.rejects}


if __name__ == "__main__":
    print(etl.run())
