-- SELECT cust, sum(amt) AS total FROM orders GROUP BY cust HAVING sum(amt) < 0
-- INCREMENTAL, key ('cust',)
-- GROUP BY cust (sum): INCREMENTAL, sums and counts are kept per group
-- block_block_1: k0, _n, a0, a1, _from, _to
WITH shared_1 AS (
  SELECT
    cust_2 AS `cust_4`,
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
SELECT
  `cust_4` AS `k0`,
  `cust_4_n` AS `_n`,
  `cust_4_a0` AS `a0`,
  `cust_4_a1` AS `a1`,
  `_from` AS `_from`,
  `_to` AS `_to`
FROM (
  SELECT
    `cust_4`,
    CAST((
      cust_4_n_9
    ) AS BIGINT) AS `cust_4_n`,
    CAST((
      cust_4_a0_10
    ) AS BIGINT) AS `cust_4_a0`,
    CAST((
      cust_4_a1_11
    ) AS DECIMAL(38, 2)) AS `cust_4_a1`,
    `_from`,
    until_12 AS `_to`
  FROM (
    SELECT
      `cust_4`,
      `_from`,
      `cust_4_n`,
      `cust_4_a0`,
      `cust_4_a1`,
      SUM(cust_4_n) OVER (
        PARTITION BY cust_4
        ORDER BY _from
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
      ) AS `cust_4_n_9`,
      SUM(cust_4_a0) OVER (
        PARTITION BY cust_4
        ORDER BY _from
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
      ) AS `cust_4_a0_10`,
      SUM(cust_4_a1) OVER (
        PARTITION BY cust_4
        ORDER BY _from
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
      ) AS `cust_4_a1_11`,
      COALESCE(
        LEAD(_from) OVER (PARTITION BY cust_4 ORDER BY _from),
        CAST(9223372036854775807 AS BIGINT)
      ) AS `until_12`
    FROM (
      SELECT
        `cust_4`,
        `_from`,
        `cust_4_n`,
        `cust_4_a0`,
        `cust_4_a1`
      FROM (
        SELECT
          `cust_4`,
          _v AS `_from`,
          SUM(CAST((
            _w
          ) AS BIGINT)) AS `cust_4_n`,
          CAST((
            COALESCE(
              SUM(
                CASE
                  WHEN _w > 0
                  THEN CAST((
                    CASE WHEN NOT (
                      amt_3
                    ) IS NULL THEN 1 END
                  ) AS BIGINT)
                  ELSE -(
                    CAST((
                      CASE WHEN NOT (
                        amt_3
                      ) IS NULL THEN 1 END
                    ) AS BIGINT)
                  )
                END
              ),
              0
            )
          ) AS BIGINT) AS `cust_4_a0`,
          CAST((
            COALESCE(
              SUM(
                CASE
                  WHEN _w > 0
                  THEN CAST((
                    (
                      amt_3
                    )
                  ) AS DECIMAL(38, 2))
                  ELSE -(
                    CAST((
                      (
                        amt_3
                      )
                    ) AS DECIMAL(38, 2))
                  )
                END
              ),
              0
            )
          ) AS DECIMAL(38, 2)) AS `cust_4_a1`
        FROM shared_1
        GROUP BY
          cust_4,
          _v
      )
      UNION ALL
      SELECT
        `cust_4`,
        `_from`,
        `cust_4_n`,
        `cust_4_a0`,
        `cust_4_a1`
      FROM (
        SELECT
          `cust_4`,
          CAST(-1 AS BIGINT) AS `_from`,
          `cust_4_n`,
          `cust_4_a0`,
          `cust_4_a1`
        FROM (
          SELECT
            `cust_4`,
            `cust_4_n`,
            `cust_4_a0`,
            `cust_4_a1`
          FROM state_block_1
          LEFT SEMI JOIN (
            SELECT DISTINCT
              `k_8`
            FROM (
              SELECT
                cust_4 AS `k_8`
              FROM shared_1
            )
          )
            ON (
              cust_4 <=> k_8
            )
        )
      )
    )
  )
)
-- the delta
SELECT
  `cust_6` AS `cust`,
  `total_7` AS `total`,
  _change_type,
  _commit_version,
  _sequence,
  _duplicate
FROM (
  SELECT
    `cust_6`,
    `total_7`,
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
        `total_7`,
        _v,
        SUM(_w) AS _w
      FROM (
        SELECT
          cust_4 AS `cust_6`,
          sum_5 AS `total_7`,
          `_v`,
          `_w`
        FROM (
          SELECT
            `cust_4`,
            `sum_5`,
            t1.e.v AS _v,
            t1.e.w AS _w
          FROM (
            SELECT
              `cust_4`,
              CASE WHEN cust_4_a0 > 0 THEN CAST(cust_4_a1 AS DECIMAL(38, 2)) END AS `sum_5`,
              `_from`,
              `_to`
            FROM block_block_1
            WHERE
              cust_4_n > 0
          )
          LATERAL VIEW
          EXPLODE(ARRAY(NAMED_STRUCT('v', _from, 'w', 1), NAMED_STRUCT('v', _to, 'w', -1))) t1 AS e
          WHERE
            t1.e.v > -1 AND t1.e.v < 9223372036854775807
        )
        WHERE
          sum_5 < 0
      )
      GROUP BY
        `cust_6`,
        `total_7`,
        _v
      HAVING
        SUM(_w) <> 0
    )
  )
)
