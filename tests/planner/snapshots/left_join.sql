-- SELECT o, city FROM orders LEFT JOIN customers ON cust = c
-- INCREMENTAL, key ('o',)
-- LEFT JOIN on cust = c: INCREMENTAL, by the rows that change, and those that a changed row can match
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
            `_v`,
            `_w`
          FROM (
            SELECT
              `o_1`,
              `cust_2`,
              `c_4`,
              `city_5`,
              `_v`,
              `_w`
            FROM (
              SELECT
                `o_1`,
                `cust_2`,
                `_v`,
                `_w`,
                `c_4`,
                `city_5`,
                `from_8`,
                `to_9`
              FROM (
                SELECT
                  `o` AS `o_1`,
                  `cust` AS `cust_2`,
                  _v,
                  _w
                FROM changes_of_orders
              )
              LEFT OUTER JOIN (
                SELECT
                  `c_4`,
                  `city_5`,
                  _from AS `from_8`,
                  _to AS `to_9`
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
                  from_8 <= _v
                ) AND (
                  _v < to_9
                )
            )
          )
          UNION ALL
          SELECT
            `o_1`,
            `cust_2`,
            `c_4`,
            `city_5`,
            `_v`,
            `_w`
          FROM (
            SELECT
              `o_1`,
              `cust_2`,
              `c_4`,
              `city_5`,
              s_10 AS `_v`,
              w_11 AS `_w`
            FROM (
              SELECT
                `o_1`,
                `cust_2`,
                `s_10`,
                `w_11`,
                `c_4`,
                `city_5`,
                `from_15`,
                `to_16`
              FROM (
                SELECT
                  `o_1`,
                  `cust_2`,
                  `s_10`,
                  `w_11`
                FROM (
                  SELECT
                    `o_1`,
                    `cust_2`,
                    `s_10`
                  FROM (
                    SELECT
                      `pk_12`,
                      `s_10`,
                      `o_1`,
                      `cust_2`,
                      `from_13`,
                      `to_14`
                    FROM (
                      SELECT DISTINCT
                        `pk_12`,
                        `s_10`
                      FROM (
                        SELECT
                          `pk_12`,
                          `s_10`
                        FROM (
                          SELECT
                            c_4 AS `pk_12`,
                            _v AS `s_10`
                          FROM (
                            SELECT
                              `c` AS `c_4`,
                              `city` AS `city_5`,
                              _v,
                              _w
                            FROM changes_of_customers
                          )
                        )
                        WHERE
                          NOT pk_12 IS NULL
                      )
                    )
                    JOIN (
                      SELECT
                        `o_1`,
                        `cust_2`,
                        _from AS `from_13`,
                        _to AS `to_14`
                      FROM (
                        SELECT
                          `o` AS `o_1`,
                          `cust` AS `cust_2`,
                          _from,
                          _to
                        FROM history_of_orders
                      )
                    )
                      ON (
                        (
                          cust_2
                        ) = pk_12
                      ) AND (
                        from_13 < s_10
                      ) AND (
                        s_10 <= to_14
                      )
                  )
                )
                CROSS JOIN (
                  SELECT
                    *
                  FROM VALUES
                    (1),
                    (-1) AS t1(`w_11`)
                )
              )
              LEFT OUTER JOIN (
                SELECT
                  `c_4`,
                  `city_5`,
                  _from AS `from_15`,
                  _to AS `to_16`
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
                )
                AND (
                  (
                    w_11 = 1 AND from_15 <= s_10 AND s_10 < to_16
                  )
                  OR (
                    NOT (
                      w_11 = 1
                    ) AND from_15 < s_10 AND s_10 <= to_16
                  )
                )
            )
          )
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
