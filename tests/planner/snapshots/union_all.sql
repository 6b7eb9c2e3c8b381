-- SELECT cust FROM orders UNION ALL SELECT c FROM customers
-- INCREMENTAL, key None
-- rows of orders, customers: INCREMENTAL, by the rows that change
-- the delta
SELECT
  `cust_8` AS `cust`,
  _change_type,
  _commit_version,
  _sequence,
  _duplicate
FROM (
  SELECT
    `cust_8`,
    CASE WHEN _w > 0 THEN 'insert' ELSE 'delete' END AS _change_type,
    _v AS _commit_version,
    CAST(ROW_NUMBER() OVER (PARTITION BY _v ORDER BY _w) AS BIGINT) AS _sequence,
    FALSE AS _duplicate
  FROM (
    SELECT
      *
    FROM (
      SELECT
        `cust_8`,
        _v,
        SUM(_w) AS _w
      FROM (
        SELECT
          `cust_4` AS `cust_8`,
          `_v`,
          `_w`
        FROM (
          SELECT
            cust_2 AS `cust_4`,
            `_v`,
            `_w`
          FROM (
            SELECT
              `o` AS `o_1`,
              `cust` AS `cust_2`,
              _v,
              _w
            FROM changes_of_orders
          )
        )
        UNION ALL
        SELECT
          `c_7`,
          `_v`,
          `_w`
        FROM (
          SELECT
            c_5 AS `c_7`,
            `_v`,
            `_w`
          FROM (
            SELECT
              `c` AS `c_5`,
              _v,
              _w
            FROM changes_of_customers
          )
        )
      )
      GROUP BY
        `cust_8`,
        _v
      HAVING
        SUM(_w) <> 0
    )
    LATERAL VIEW
    EXPLODE(SEQUENCE(1, CAST(ABS(_w) AS INT))) r AS _r
  )
)
