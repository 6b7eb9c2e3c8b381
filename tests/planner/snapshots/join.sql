-- SELECT o, city FROM orders JOIN customers ON cust = c
-- INCREMENTAL, key ('o',)
-- join on cust = c: INCREMENTAL, by the rows that change and those that join them
-- the delta
SELECT
  `o_6` AS `o`,
  `city_7` AS `city`,
  _change_type,
  _commit_version,
  _sequence,
  _duplicate
FROM (
  SELECT
    `o_6`,
    `city_7`,
    CASE
      WHEN _w > 0
      THEN CASE WHEN _old > 0 THEN 'update_postimage' ELSE 'insert' END
      ELSE CASE WHEN _new > 0 THEN 'update_preimage' ELSE 'delete' END
    END AS _change_type,
    _v AS _commit_version,
    CAST(DENSE_RANK() OVER (PARTITION BY _v ORDER BY `o_6`) AS BIGINT) AS _sequence,
    (
      _new > 1 OR _old > 1 OR _most > 1
    ) AS _duplicate
  FROM (
    SELECT
      *,
      COUNT_IF(_w > 0) OVER (PARTITION BY _v, `o_6`) AS _new,
      COUNT_IF(_w < 0) OVER (PARTITION BY _v, `o_6`) AS _old,
      MAX(ABS(_w)) OVER (PARTITION BY _v, `o_6`) AS _most
    FROM (
      SELECT
        `o_6`,
        `city_7`,
        _v,
        SUM(_w) AS _w
      FROM (
        SELECT
          o_1 AS `o_6`,
          city_5 AS `city_7`,
          `_v`,
          `_w`
        FROM (
          SELECT
            `o_1`,
            `cust_2`,
            `c_4`,
            `city_5`,
            t1.e.v AS _v,
            t1.e.w AS _w
          FROM (
            SELECT
              `o_1`,
              `cust_2`,
              `c_4`,
              `city_5`,
              GREATEST(from_8, from_10) AS `_from`,
              LEAST(to_9, to_11) AS `_to`
            FROM (
              SELECT
                `o_1`,
                `cust_2`,
                `from_8`,
                `to_9`,
                `c_4`,
                `city_5`,
                `from_10`,
                `to_11`
              FROM (
                SELECT
                  `o_1`,
                  `cust_2`,
                  _from AS `from_8`,
                  _to AS `to_9`
                FROM (
                  SELECT
                    `o` AS `o_1`,
                    `cust` AS `cust_2`,
                    _from,
                    _to
                  FROM history_of_orders
                )
              )
              JOIN (
                SELECT
                  `c_4`,
                  `city_5`,
                  _from AS `from_10`,
                  _to AS `to_11`
                FROM (
                  SELECT
                    `c` AS `c_4`,
                    `city` AS `city_5`,
                    _from,
                    _to
                  FROM history_of_customers
                )
              )
                ON (
                  cust_2 = c_4
                ) AND (
                  GREATEST(from_8, from_10) < LEAST(to_9, to_11)
                )
            )
          )
          LATERAL VIEW
          EXPLODE(ARRAY(NAMED_STRUCT('v', _from, 'w', 1), NAMED_STRUCT('v', _to, 'w', -1))) t1 AS e
          WHERE
            t1.e.v > -1 AND t1.e.v < 9223372036854775807
        )
      )
      GROUP BY
        `o_6`,
        `city_7`,
        _v
      HAVING
        SUM(_w) <> 0
    )
  )
)
