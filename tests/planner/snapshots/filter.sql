-- SELECT o, amt + 1 AS more FROM orders WHERE amt > 5
-- INCREMENTAL, key ('o',)
-- rows of orders: INCREMENTAL, by the rows that change
-- the delta
SELECT
  `o_4` AS `o`,
  `more_5` AS `more`,
  _change_type,
  _commit_version,
  _sequence,
  _duplicate
FROM (
  SELECT
    `o_4`,
    `more_5`,
    CASE
      WHEN _w > 0
      THEN CASE WHEN _old > 0 THEN 'update_postimage' ELSE 'insert' END
      ELSE CASE WHEN _new > 0 THEN 'update_preimage' ELSE 'delete' END
    END AS _change_type,
    _v AS _commit_version,
    CAST(DENSE_RANK() OVER (PARTITION BY _v ORDER BY `o_4`) AS BIGINT) AS _sequence,
    (
      _new > 1 OR _old > 1 OR _most > 1
    ) AS _duplicate
  FROM (
    SELECT
      *,
      COUNT_IF(_w > 0) OVER (PARTITION BY _v, `o_4`) AS _new,
      COUNT_IF(_w < 0) OVER (PARTITION BY _v, `o_4`) AS _old,
      MAX(ABS(_w)) OVER (PARTITION BY _v, `o_4`) AS _most
    FROM (
      SELECT
        `o_4`,
        `more_5`,
        _v,
        SUM(_w) AS _w
      FROM (
        SELECT
          o_1 AS `o_4`,
          amt_3 + 1 AS `more_5`,
          `_v`,
          `_w`
        FROM (
          SELECT
            `o` AS `o_1`,
            `amt` AS `amt_3`,
            _v,
            _w
          FROM changes_of_orders
        )
        WHERE
          amt_3 > 5
      )
      GROUP BY
        `o_4`,
        `more_5`,
        _v
      HAVING
        SUM(_w) <> 0
    )
  )
)
