-- SELECT o, amt FROM orders ORDER BY amt DESC, o LIMIT 3
-- AFFECTED KEYS, key ('o',)
-- Limit: affected partitions are recomputed
-- the delta
SELECT
  `o_4` AS `o`,
  `amt_5` AS `amt`,
  _change_type,
  _commit_version,
  _sequence,
  _duplicate
FROM (
  SELECT
    `o_4`,
    `amt_5`,
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
        `amt_5`,
        _v,
        SUM(_w) AS _w
      FROM (
        SELECT
          `o_4`,
          `amt_5`,
          `ord_6`,
          `ord_7`,
          t1.e.v AS _v,
          t1.e.w AS _w
        FROM (
          SELECT
            `o_4`,
            `amt_5`,
            `ord_6`,
            `ord_7`,
            p_10 AS `_from`,
            until_11 AS `_to`
          FROM (
            SELECT
              `o_4`,
              `amt_5`,
              `ord_6`,
              `ord_7`,
              `p_10`,
              `until_11`
            FROM (
              SELECT
                `o_4`,
                `amt_5`,
                `ord_6`,
                `ord_7`,
                `p_10`,
                `until_11`,
                ROW_NUMBER() OVER (PARTITION BY `p_10` ORDER BY ord_6 DESC, ord_7) AS _n
              FROM (
                SELECT
                  `o_4`,
                  `amt_5`,
                  `ord_6`,
                  `ord_7`,
                  `p_10`,
                  `until_11`
                FROM (
                  SELECT
                    `p_10`,
                    `until_11`,
                    `o_4`,
                    `amt_5`,
                    `ord_6`,
                    `ord_7`,
                    `_from`,
                    `_to`
                  FROM (
                    SELECT
                      p_8 AS `p_10`,
                      until_9 AS `until_11`
                    FROM (
                      SELECT
                        `p_8`,
                        COALESCE(LEAD(p_8) OVER (ORDER BY p_8), CAST(9223372036854775807 AS BIGINT)) AS `until_9`
                      FROM (
                        SELECT
                          `p_8`
                        FROM (
                          SELECT DISTINCT
                            `p_8`
                          FROM (
                            SELECT
                              _v AS `p_8`
                            FROM (
                              SELECT
                                o_1 AS `o_4`,
                                amt_3 AS `amt_5`,
                                amt_3 AS `ord_6`,
                                o_1 AS `ord_7`,
                                `_v`,
                                `_w`
                              FROM (
                                SELECT
                                  `o` AS `o_1`,
                                  `cust` AS `cust_2`,
                                  `amt` AS `amt_3`,
                                  _v,
                                  _w
                                FROM changes_of_orders
                              )
                            )
                          )
                        )
                        UNION ALL
                        SELECT
                          `p_8`
                        FROM (
                          SELECT
                            *
                          FROM VALUES
                            (CAST(-1 AS BIGINT)) AS t2(`p_8`)
                        )
                      )
                    )
                  )
                  JOIN (
                    SELECT
                      `o_4`,
                      `amt_5`,
                      `ord_6`,
                      `ord_7`,
                      `_from`,
                      `_to`
                    FROM (
                      SELECT
                        o_1 AS `o_4`,
                        amt_3 AS `amt_5`,
                        amt_3 AS `ord_6`,
                        o_1 AS `ord_7`,
                        `_from`,
                        `_to`
                      FROM (
                        SELECT
                          `o` AS `o_1`,
                          `cust` AS `cust_2`,
                          `amt` AS `amt_3`,
                          _from,
                          _to
                        FROM history_of_orders
                      )
                    )
                  )
                    ON (
                      _from <= p_10
                    ) AND (
                      p_10 < _to
                    )
                )
              )
            )
            WHERE
              _n > 0 AND _n <= 3
          )
        )
        LATERAL VIEW
        EXPLODE(ARRAY(STRUCT(_from AS v, 1 AS w), STRUCT(_to AS v, -1 AS w))) t1 AS e
        WHERE
          t1.e.v > -1 AND t1.e.v < 9223372036854775807
      )
      GROUP BY
        `o_4`,
        `amt_5`,
        _v
      HAVING
        SUM(_w) <> 0
    )
  )
)
