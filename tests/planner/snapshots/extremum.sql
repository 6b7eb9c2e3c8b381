-- SELECT cust, max(amt) AS top FROM orders GROUP BY cust
-- AFFECTED KEYS, key ('cust',)
-- aggregate by cust: affected groups are recomputed (max)
-- the delta
WITH shared_1 AS (
  SELECT DISTINCT
    `pk_10`,
    `p_11`
  FROM (
    SELECT
      cust_4 AS `pk_10`,
      _v AS `p_11`
    FROM (
      SELECT
        cust_2 AS `cust_4`,
        `o_1`,
        `cust_2`,
        `amt_3`,
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
SELECT
  `cust_6` AS `cust`,
  `top_7` AS `top`,
  _change_type,
  _commit_version,
  _sequence,
  _duplicate
FROM (
  SELECT
    `cust_6`,
    `top_7`,
    CASE
      WHEN _w > 0
      THEN CASE WHEN _old > 0 THEN 'update_postimage' ELSE 'insert' END
      ELSE CASE WHEN _new > 0 THEN 'update_preimage' ELSE 'delete' END
    END AS _change_type,
    _v AS _commit_version,
    CAST(DENSE_RANK() OVER (PARTITION BY _v ORDER BY `cust_6`) AS BIGINT) AS _sequence,
    (
      _new > 1 OR _old > 1 OR _most > 1
    ) AS _duplicate
  FROM (
    SELECT
      *,
      COUNT_IF(_w > 0) OVER (PARTITION BY _v, `cust_6`) AS _new,
      COUNT_IF(_w < 0) OVER (PARTITION BY _v, `cust_6`) AS _old,
      MAX(ABS(_w)) OVER (PARTITION BY _v, `cust_6`) AS _most
    FROM (
      SELECT
        `cust_6`,
        `top_7`,
        _v,
        SUM(_w) AS _w
      FROM (
        SELECT
          cust_4 AS `cust_6`,
          max_5 AS `top_7`,
          `_v`,
          `_w`
        FROM (
          SELECT
            `cust_4`,
            `max_5`,
            t1.e.v AS _v,
            t1.e.w AS _w
          FROM (
            SELECT
              `cust_4`,
              `max_5`,
              `_from`,
              `_to`
            FROM (
              SELECT
                pk_10 AS `cust_4`,
                `rows_8`,
                `max_5`,
                p_11 AS `_from`,
                until_12 AS `_to`
              FROM (
                SELECT
                  `pk_10`,
                  `p_11`,
                  `until_12`,
                  COUNT(_from) AS `rows_8`,
                  MAX(amt_3) AS `max_5`
                FROM (
                  SELECT
                    `pk_10`,
                    `p_11`,
                    `until_12`,
                    `cust_4`,
                    `o_1`,
                    `cust_2`,
                    `amt_3`,
                    `_from`,
                    `_to`,
                    `k_9`
                  FROM (
                    SELECT
                      `pk_10`,
                      `p_11`,
                      COALESCE(
                        LEAD(p_11) OVER (PARTITION BY pk_10 ORDER BY p_11),
                        CAST(9223372036854775807 AS BIGINT)
                      ) AS `until_12`
                    FROM (
                      SELECT
                        `pk_10`,
                        `p_11`
                      FROM shared_1
                      UNION ALL
                      SELECT
                        `pk_10`,
                        `p_11`
                      FROM (
                        SELECT DISTINCT
                          `pk_10`,
                          `p_11`
                        FROM (
                          SELECT
                            `pk_10`,
                            CAST(-1 AS BIGINT) AS `p_11`
                          FROM shared_1
                        )
                      )
                    )
                  )
                  LEFT OUTER JOIN (
                    SELECT
                      `cust_4`,
                      `o_1`,
                      `cust_2`,
                      `amt_3`,
                      `_from`,
                      `_to`,
                      cust_4 AS `k_9`
                    FROM (
                      SELECT
                        cust_2 AS `cust_4`,
                        `o_1`,
                        `cust_2`,
                        `amt_3`,
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
                      pk_10 IS NOT DISTINCT FROM k_9
                    ) AND (
                      _from <= p_11
                    ) AND (
                      p_11 < _to
                    )
                )
                GROUP BY
                  pk_10,
                  p_11,
                  until_12
              )
            )
            WHERE
              rows_8 > 0
          )
          LATERAL VIEW
          EXPLODE(ARRAY(STRUCT(_from AS v, 1 AS w), STRUCT(_to AS v, -1 AS w))) t1 AS e
          WHERE
            t1.e.v > -1 AND t1.e.v < 9223372036854775807
        )
      )
      GROUP BY
        `cust_6`,
        `top_7`,
        _v
      HAVING
        SUM(_w) <> 0
    )
  )
)
