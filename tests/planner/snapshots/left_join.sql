-- SELECT o, city FROM orders LEFT JOIN customers ON cust = c
-- AFFECTED KEYS, key ('o',)
-- OuterJoin: affected partitions are recomputed
-- the delta
WITH shared_1 AS (
  SELECT DISTINCT
    `pk_8`,
    `p_9`
  FROM (
    SELECT
      `pk_8`,
      `p_9`
    FROM (
      SELECT
        cust_2 AS `pk_8`,
        _v AS `p_9`
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
    UNION ALL
    SELECT
      `pk_8`,
      `p_9`
    FROM (
      SELECT
        c_4 AS `pk_8`,
        _v AS `p_9`
      FROM (
        SELECT
          `c` AS `c_4`,
          `city` AS `city_5`,
          _v,
          _w
        FROM changes_of_customers
      )
    )
  )
), shared_2 AS (
  SELECT
    `pk_8`,
    `p_9`,
    COALESCE(
      LEAD(p_9) OVER (PARTITION BY pk_8 ORDER BY p_9),
      CAST(9223372036854775807 AS BIGINT)
    ) AS `until_10`
  FROM (
    SELECT
      `pk_8`,
      `p_9`
    FROM shared_1
    UNION ALL
    SELECT
      `pk_8`,
      `p_9`
    FROM (
      SELECT DISTINCT
        `pk_8`,
        `p_9`
      FROM (
        SELECT
          `pk_8`,
          CAST(-1 AS BIGINT) AS `p_9`
        FROM shared_1
      )
    )
  )
)
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
            `amt_3`,
            `c_4`,
            `city_5`,
            t1.e.v AS _v,
            t1.e.w AS _w
          FROM (
            SELECT
              `o_1`,
              `cust_2`,
              `amt_3`,
              `c_4`,
              `city_5`,
              COALESCE(p_13, p_17) AS `_from`,
              COALESCE(until_14, until_18) AS `_to`
            FROM (
              SELECT
                `o_1`,
                `cust_2`,
                `amt_3`,
                `k_11`,
                `p_13`,
                `until_14`,
                `c_4`,
                `city_5`,
                `k_15`,
                `p_17`,
                `until_18`
              FROM (
                SELECT
                  `o_1`,
                  `cust_2`,
                  `amt_3`,
                  `k_11`,
                  `p_13`,
                  `until_14`
                FROM (
                  SELECT
                    `pk_12`,
                    `p_13`,
                    `until_14`,
                    `o_1`,
                    `cust_2`,
                    `amt_3`,
                    `_from`,
                    `_to`,
                    `k_11`
                  FROM (
                    SELECT
                      pk_8 AS `pk_12`,
                      p_9 AS `p_13`,
                      until_10 AS `until_14`
                    FROM shared_2
                  )
                  JOIN (
                    SELECT
                      `o_1`,
                      `cust_2`,
                      `amt_3`,
                      `_from`,
                      `_to`,
                      cust_2 AS `k_11`
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
                    ON (
                      pk_12 IS NOT DISTINCT FROM k_11
                    ) AND (
                      _from <= p_13
                    ) AND (
                      p_13 < _to
                    )
                )
              )
              LEFT OUTER JOIN (
                SELECT
                  `c_4`,
                  `city_5`,
                  `k_15`,
                  `p_17`,
                  `until_18`
                FROM (
                  SELECT
                    `pk_16`,
                    `p_17`,
                    `until_18`,
                    `c_4`,
                    `city_5`,
                    `_from`,
                    `_to`,
                    `k_15`
                  FROM (
                    SELECT
                      pk_8 AS `pk_16`,
                      p_9 AS `p_17`,
                      until_10 AS `until_18`
                    FROM shared_2
                  )
                  JOIN (
                    SELECT
                      `c_4`,
                      `city_5`,
                      `_from`,
                      `_to`,
                      c_4 AS `k_15`
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
                      pk_16 IS NOT DISTINCT FROM k_15
                    ) AND (
                      _from <= p_17
                    ) AND (
                      p_17 < _to
                    )
                )
              )
                ON (
                  cust_2 = c_4
                ) AND (
                  p_13 IS NOT DISTINCT FROM p_17
                )
            )
          )
          LATERAL VIEW
          EXPLODE(ARRAY(STRUCT(_from AS v, 1 AS w), STRUCT(_to AS v, -1 AS w))) t1 AS e
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
