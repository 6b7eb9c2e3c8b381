"""An online shop at any scale: customers, orders and order lines, and the transactions that go on happening.

Scale 1 is 100 000 customers, 1 000 000 orders and 10 000 000 order lines.

    from estore import load, transactions, change_tables, QUERIES
"""

from estore.bulk import Loaded, load
from estore.schema import QUERIES, TABLES, Sizes, create_queries
from estore.stream import STREAM_A, STREAM_B, Change, Shop, Transaction, change_tables, transactions

__all__ = [
    "QUERIES",
    "STREAM_A",
    "STREAM_B",
    "TABLES",
    "Change",
    "Loaded",
    "Shop",
    "Sizes",
    "Transaction",
    "change_tables",
    "create_queries",
    "load",
    "transactions",
]
