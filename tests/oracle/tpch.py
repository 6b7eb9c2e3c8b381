"""TPC-H: its schema, its 22 queries over small data, and its refresh functions, after the specification.

Constants are chosen so that a few hundred rows have an answer to every query, and each ORDER BY is total.
"""

from __future__ import annotations

import random

from tests.oracle.generate import History, TableSpec

__all__ = ["QUERIES", "tpch_history"]

TABLES = (
    TableSpec("region", (
        ("r_regionkey", "INT"), ("r_name", "STRING"), ("r_comment", "STRING"),
    ), ("r_regionkey",)),
    TableSpec("nation", (
        ("n_nationkey", "INT"), ("n_name", "STRING"), ("n_regionkey", "INT"), ("n_comment", "STRING"),
    ), ("n_nationkey",)),
    TableSpec("supplier", (
        ("s_suppkey", "INT"), ("s_name", "STRING"), ("s_address", "STRING"), ("s_nationkey", "INT"),
        ("s_phone", "STRING"), ("s_acctbal", "DECIMAL(15,2)"), ("s_comment", "STRING"),
    ), ("s_suppkey",)),
    TableSpec("customer", (
        ("c_custkey", "INT"), ("c_name", "STRING"), ("c_address", "STRING"), ("c_nationkey", "INT"),
        ("c_phone", "STRING"), ("c_acctbal", "DECIMAL(15,2)"), ("c_mktsegment", "STRING"),
        ("c_comment", "STRING"),
    ), ("c_custkey",)),
    TableSpec("part", (
        ("p_partkey", "INT"), ("p_name", "STRING"), ("p_mfgr", "STRING"), ("p_brand", "STRING"),
        ("p_type", "STRING"), ("p_size", "INT"), ("p_container", "STRING"),
        ("p_retailprice", "DECIMAL(15,2)"), ("p_comment", "STRING"),
    ), ("p_partkey",)),
    TableSpec("partsupp", (
        ("ps_partkey", "INT"), ("ps_suppkey", "INT"), ("ps_availqty", "INT"),
        ("ps_supplycost", "DECIMAL(15,2)"), ("ps_comment", "STRING"),
    ), ("ps_partkey", "ps_suppkey",)),
    TableSpec("orders", (
        ("o_orderkey", "INT"), ("o_custkey", "INT"), ("o_orderstatus", "STRING"),
        ("o_totalprice", "DECIMAL(15,2)"), ("o_orderdate", "DATE"), ("o_orderpriority", "STRING"),
        ("o_clerk", "STRING"), ("o_shippriority", "INT"), ("o_comment", "STRING"),
    ), ("o_orderkey",)),
    TableSpec("lineitem", (
        ("l_orderkey", "INT"), ("l_partkey", "INT"), ("l_suppkey", "INT"), ("l_linenumber", "INT"),
        ("l_quantity", "DECIMAL(15,2)"), ("l_extendedprice", "DECIMAL(15,2)"),
        ("l_discount", "DECIMAL(15,2)"), ("l_tax", "DECIMAL(15,2)"), ("l_returnflag", "STRING"),
        ("l_linestatus", "STRING"), ("l_shipdate", "DATE"), ("l_commitdate", "DATE"),
        ("l_receiptdate", "DATE"), ("l_shipinstruct", "STRING"), ("l_shipmode", "STRING"),
        ("l_comment", "STRING"),
    ), ("l_orderkey", "l_linenumber",)),
)  # fmt: skip

QUERIES: dict[int, str] = {
    1: """
        SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS
        sum_base_price, sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price, sum(l_extendedprice *
        (1 - l_discount) * (1+l_tax)) AS sum_charge, avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS
        avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order FROM lineitem WHERE l_shipdate
        <= DATE '1998-09-02' GROUP BY l_returnflag, l_linestatus
    """,
    2: """
        SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment, s_suppkey
        FROM part, supplier, partsupp, nation, region WHERE p_partkey = ps_partkey AND s_suppkey =
        ps_suppkey AND p_size < 25 AND p_type LIKE '%BRASS' AND s_nationkey = n_nationkey AND
        n_regionkey = r_regionkey AND r_name = 'EUROPE' AND ps_supplycost = (SELECT min(ps_supplycost)
        FROM partsupp, supplier, nation, region WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey
        AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE') ORDER BY
        s_acctbal DESC, n_name, s_name, p_partkey, s_suppkey LIMIT 100
    """,
    3: """
        SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate,
        o_shippriority FROM customer, orders, lineitem WHERE c_mktsegment = 'BUILDING' AND c_custkey =
        o_custkey AND l_orderkey = o_orderkey AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE
        '1995-03-15' GROUP BY l_orderkey, o_orderdate, o_shippriority ORDER BY revenue DESC,
        o_orderdate, l_orderkey LIMIT 10
    """,
    4: """
        SELECT o_orderpriority, count(*) AS order_count FROM orders WHERE o_orderdate >= DATE
        '1993-07-01' AND o_orderdate < DATE '1997-10-01' AND EXISTS (SELECT * FROM lineitem WHERE
        l_orderkey = o_orderkey AND l_commitdate < l_receiptdate) GROUP BY o_orderpriority
    """,
    5: """
        SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue FROM customer, orders,
        lineitem, supplier, nation, region WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND
        l_suppkey = s_suppkey AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND
        n_regionkey = r_regionkey AND r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01' GROUP BY
        n_name
    """,
    6: """
        SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem WHERE l_shipdate >= DATE
        '1994-01-01' AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24
    """,
    7: """
        SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue FROM (SELECT n1.n_name AS
        supp_nation, n2.n_name AS cust_nation, extract(year FROM l_shipdate) AS l_year, l_extendedprice
        * (1 - l_discount) AS volume FROM supplier, lineitem, orders, customer, nation n1, nation n2
        WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey AND
        s_nationkey = n1.n_nationkey AND c_nationkey = n2.n_nationkey AND ((n1.n_name = 'FRANCE' AND
        n2.n_name = 'GERMANY') OR (n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE'))) AS shipping GROUP
        BY supp_nation, cust_nation, l_year
    """,
    8: """
        SELECT o_year, sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume) AS
        mkt_share FROM (SELECT extract(year FROM o_orderdate) AS o_year, l_extendedprice * (1 -
        l_discount) AS volume, n2.n_name AS nation FROM part, supplier, lineitem, orders, customer,
        nation n1, nation n2, region WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND
        l_orderkey = o_orderkey AND o_custkey = c_custkey AND c_nationkey = n1.n_nationkey AND
        n1.n_regionkey = r_regionkey AND r_name = 'AMERICA' AND s_nationkey = n2.n_nationkey) AS
        all_nations GROUP BY o_year
    """,
    9: """
        SELECT nation, o_year, sum(amount) AS sum_profit FROM (SELECT n_name AS nation, extract(year
        FROM o_orderdate) AS o_year, l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS
        amount FROM part, supplier, lineitem, partsupp, orders, nation WHERE s_suppkey = l_suppkey AND
        ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey AND o_orderkey =
        l_orderkey AND s_nationkey = n_nationkey AND p_name LIKE '%green%') AS profit GROUP BY nation,
        o_year
    """,
    10: """
        SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name,
        c_address, c_phone, c_comment FROM customer, orders, lineitem, nation WHERE c_custkey =
        o_custkey AND l_orderkey = o_orderkey AND o_orderdate >= DATE '1993-10-01' AND l_returnflag =
        'R' AND c_nationkey = n_nationkey GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name,
        c_address, c_comment ORDER BY revenue DESC, c_custkey LIMIT 20
    """,
    11: """
        SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value FROM partsupp, supplier, nation
        WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY' GROUP BY
        ps_partkey HAVING sum(ps_supplycost * ps_availqty) > (SELECT sum(ps_supplycost * ps_availqty) *
        0.01 FROM partsupp, supplier, nation WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey
        AND n_name = 'GERMANY')
    """,
    12: """
        SELECT l_shipmode, sum(CASE WHEN o_orderpriority = '1-URGENT' OR o_orderpriority = '2-HIGH' THEN
        1 ELSE 0 END) AS high_line_count, sum(CASE WHEN o_orderpriority <> '1-URGENT' AND
        o_orderpriority <> '2-HIGH' THEN 1 ELSE 0 END) AS low_line_count FROM orders, lineitem WHERE
        o_orderkey = l_orderkey AND l_shipmode IN ('MAIL','SHIP') AND l_commitdate < l_receiptdate GROUP
        BY l_shipmode
    """,
    13: """
        SELECT c_count, count(*) AS custdist FROM (SELECT c_custkey, count(o_orderkey) AS c_count FROM
        customer LEFT OUTER JOIN orders ON c_custkey = o_custkey AND o_comment NOT LIKE
        '%special%requests%' GROUP BY c_custkey) AS c_orders GROUP BY c_count
    """,
    14: """
        SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE
        0 END) / sum(l_extendedprice * (1 - l_discount)) AS promo_revenue FROM lineitem, part WHERE
        l_partkey = p_partkey AND l_shipdate >= DATE '1995-09-01'
    """,
    15: """
        WITH revenue AS (SELECT l_suppkey AS supplier_no, sum(l_extendedprice * (1 - l_discount)) AS
        total_revenue FROM lineitem WHERE l_shipdate >= DATE '1996-01-01' GROUP BY l_suppkey) SELECT
        s_suppkey, s_name, s_address, s_phone, total_revenue FROM supplier, revenue WHERE s_suppkey =
        supplier_no AND total_revenue = (SELECT max(total_revenue) FROM revenue)
    """,
    16: """
        SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt FROM partsupp, part
        WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%'
        AND p_size IN (1, 2, 3, 4, 5, 6, 7, 8) AND ps_suppkey NOT IN (SELECT s_suppkey FROM supplier
        WHERE s_comment LIKE '%Customer%Complaints%') GROUP BY p_brand, p_type, p_size
    """,
    17: """
        SELECT sum(l_extendedprice) / 7.0 AS avg_yearly FROM lineitem, part WHERE p_partkey = l_partkey
        AND p_brand = 'Brand#23' AND l_quantity < (SELECT 0.9 * avg(l_quantity) FROM lineitem WHERE
        l_partkey = p_partkey)
    """,
    18: """
        SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS q FROM
        customer, orders, lineitem WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY
        l_orderkey HAVING sum(l_quantity) > 30) AND c_custkey = o_custkey AND o_orderkey = l_orderkey
        GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice ORDER BY o_totalprice DESC,
        o_orderdate, o_orderkey LIMIT 100
    """,
    19: """
        SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue FROM lineitem, part WHERE (p_partkey =
        l_partkey AND p_brand = 'Brand#12' AND l_quantity >= 1 AND p_size BETWEEN 1 AND 5) OR (p_partkey
        = l_partkey AND p_brand = 'Brand#23' AND l_quantity >= 10 AND p_size BETWEEN 1 AND 10) OR
        (p_partkey = l_partkey AND p_brand = 'Brand#34' AND l_quantity >= 20 AND p_size BETWEEN 1 AND
        15)
    """,
    20: """
        SELECT s_suppkey, s_name, s_address FROM supplier, nation WHERE s_suppkey IN (SELECT ps_suppkey
        FROM partsupp WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE 'forest%') AND
        ps_availqty > (SELECT 0.5 * sum(l_quantity) FROM lineitem WHERE l_partkey = ps_partkey AND
        l_suppkey = ps_suppkey AND l_shipdate >= DATE '1994-01-01')) AND s_nationkey = n_nationkey AND
        n_name = 'CANADA'
    """,
    21: """
        SELECT s_name, count(*) AS numwait FROM supplier, lineitem l1, orders, nation WHERE s_suppkey =
        l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F' AND l1.l_receiptdate >
        l1.l_commitdate AND EXISTS (SELECT * FROM lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND
        l2.l_suppkey <> l1.l_suppkey) AND NOT EXISTS (SELECT * FROM lineitem l3 WHERE l3.l_orderkey =
        l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey AND l3.l_receiptdate > l3.l_commitdate) AND
        s_nationkey = n_nationkey AND n_name = 'SAUDI ARABIA' GROUP BY s_name ORDER BY numwait DESC,
        s_name LIMIT 100
    """,
    22: """
        SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal FROM (SELECT
        substring(c_phone, 1, 2) AS cntrycode, c_acctbal FROM customer WHERE substring(c_phone, 1, 2) IN
        ('13','31','23','29','30','18','17') AND c_acctbal > (SELECT avg(c_acctbal) FROM customer WHERE
        c_acctbal > 0.00 AND substring(c_phone, 1, 2) IN ('13','31','23','29','30','18','17')) AND NOT
        EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey)) AS custsale GROUP BY cntrycode
    """,
}

NATIONS = ("FRANCE", "GERMANY", "BRAZIL", "CANADA", "SAUDI ARABIA", "INDIA")
REGIONS = ("EUROPE", "AMERICA", "ASIA")
OF_REGION = (0, 0, 1, 1, 2, 2)
BRANDS = ("Brand#12", "Brand#23", "Brand#34", "Brand#45")
TYPES = ("PROMO BRASS", "STANDARD BRASS", "MEDIUM POLISHED TIN", "PROMO TIN")
WORDS = ("quick", "special requests", "Customer Complaints", "even deposits")


def tpch_history(seed: int, queries: tuple[int, ...], commits: int = 6) -> History:
    """Initial rows, then transactions: orders with lines come and go (RF1, RF2), and rows of other tables change."""
    draw = _Rows(random.Random(seed))
    steps = tuple(draw.transaction(n) for n in range(commits))
    return History(TABLES, draw.initial, steps, tuple(" ".join(QUERIES[q].split()) for q in queries), seed)


class _Rows:
    def __init__(self, random_: random.Random) -> None:
        self.random = random_
        self.order = 0
        self.live: list[int] = []
        self.initial = (
            *(f"INSERT INTO region VALUES ({i}, '{name}', '')" for i, name in enumerate(REGIONS)),
            *(f"INSERT INTO nation VALUES ({i}, '{n}', {OF_REGION[i]}, '')" for i, n in enumerate(NATIONS)),
            *(self.supplier(i) for i in range(6)),
            *(self.customer(i) for i in range(8)),
            *(self.part(i) for i in range(8)),
            *(self.partsupp(i, (i + j) % 6) for i in range(8) for j in range(3)),
            *(s for _ in range(12) for s in self.new_order()),
        )

    def one(self, *values: object) -> object:
        return self.random.choice(values)

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def date(self) -> str:
        return f"DATE '{self.number(1993, 1998)}-{self.number(1, 12):02}-{self.number(1, 28):02}'"

    def supplier(self, key: int) -> str:
        nation = self.number(0, 5)
        return (
            f"INSERT INTO supplier VALUES ({key}, 'Supplier{key}', 'a{key}', {nation}, '1{nation}-555',"
            f" {self.number(-50, 900)}.50, '{self.one(*WORDS)}')"
        )

    def customer(self, key: int) -> str:
        phone = f"{self.one(13, 31, 23, 29, 11)}-{key}"
        return (
            f"INSERT INTO customer VALUES ({key}, 'Customer{key}', 'b{key}', {self.number(0, 5)}, '{phone}',"
            f" {self.number(-90, 900)}.25, '{self.one('BUILDING', 'MACHINERY')}', '{self.one(*WORDS)}')"
        )

    def part(self, key: int) -> str:
        name = self.one("forest green", "forest navy", "dark green")
        return (
            f"INSERT INTO part VALUES ({key}, '{name}', 'M{key % 3}', '{self.one(*BRANDS)}', '{self.one(*TYPES)}',"
            f" {self.number(1, 10)}, 'BOX', {900 + key}.00, '')"
        )

    def partsupp(self, part: int, supplier: int) -> str:
        return f"INSERT INTO partsupp VALUES ({part}, {supplier}, {self.number(1, 90)}, {self.number(1, 9)}.75, '')"

    def line(self, order: int, number: int) -> str:
        part, supplier = self.number(0, 7), self.number(0, 5)
        return (
            f"INSERT INTO lineitem VALUES ({order}, {part}, {supplier}, {number}, {self.number(1, 40)}.00,"
            f" {self.number(1, 900)}.10, 0.0{self.number(0, 9)}, 0.0{self.number(0, 8)}, '{self.one('R', 'N', 'A')}',"
            f" '{self.one('O', 'F')}', {self.date()}, {self.date()}, {self.date()}, 'NONE',"
            f" '{self.one('MAIL', 'SHIP', 'AIR')}', '')"
        )

    def new_order(self) -> list[str]:
        self.order += 1
        self.live.append(self.order)
        order = (
            f"INSERT INTO orders VALUES ({self.order}, {self.number(0, 7)}, '{self.one('F', 'O', 'P')}',"
            f" {self.number(100, 999)}.00, {self.date()}, '{self.one('1-URGENT', '2-HIGH', '5-LOW')}', 'C', 0,"
            f" '{self.one(*WORDS)}')"
        )
        return [order, *(self.line(self.order, n) for n in range(1, self.number(1, 4) + 1))]

    def transaction(self, number: int) -> tuple[str, ...]:
        statements = [s for _ in range(self.number(0, 2)) for s in self.new_order()]
        for _ in range(self.number(0, 2)):
            gone = self.live.pop(self.number(0, len(self.live) - 1))
            statements += [
                f"DELETE FROM lineitem WHERE l_orderkey = {gone}",
                f"DELETE FROM orders WHERE o_orderkey = {gone}",
            ]
        others = (
            f"UPDATE lineitem SET l_quantity = l_quantity + 7 WHERE l_orderkey % 5 = {number % 5}",
            f"UPDATE lineitem SET l_suppkey = (l_suppkey + 1) % 6 WHERE l_orderkey % 4 = {number % 4}",
            f"UPDATE customer SET c_acctbal = c_acctbal - 300, c_nationkey = {self.number(0, 5)} WHERE c_custkey = {self.number(0, 7)}",
            f"UPDATE supplier SET s_comment = '{self.one(*WORDS)}', s_nationkey = {self.number(0, 5)} WHERE s_suppkey = {self.number(0, 5)}",
            f"DELETE FROM partsupp WHERE ps_partkey = {self.number(0, 7)} AND ps_suppkey < 3",
            f"UPDATE partsupp SET ps_supplycost = ps_supplycost + {self.number(-2, 2)} WHERE ps_partkey % 3 = {number % 3}",
            f"UPDATE part SET p_brand = '{self.one(*BRANDS)}', p_type = '{self.one(*TYPES)}' WHERE p_partkey = {self.number(0, 7)}",
            f"UPDATE orders SET o_orderstatus = '{self.one('F', 'O')}' WHERE o_orderkey % 3 = {number % 3}",
            f"UPDATE nation SET n_regionkey = {self.number(0, 2)} WHERE n_nationkey = {self.number(0, 5)}",
        )
        return (*statements, *self.random.sample(others, 3))
