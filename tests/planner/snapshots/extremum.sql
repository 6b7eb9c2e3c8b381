-- SELECT cust, max(amt) AS top FROM orders GROUP BY cust
-- INCREMENTAL, key ('cust',)
-- GROUP BY cust (max): INCREMENTAL, kept per group; its rows are read again where an extremum, or a FLOAT or DOUBLE value, leaves
-- block_block_1: k0, _n, a0, _from, _to
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
  `_from` AS `_from`,
  `_to` AS `_to`,
  `_hit` AS `_hit`
FROM (
  SELECT
    `cust_4`,
    CAST((
      cust_4_n_10
    ) AS BIGINT) AS `cust_4_n`,
    CAST((
      cust_4_a0_11
    ) AS DECIMAL(10, 2)) AS `cust_4_a0`,
    `_from`,
    until_12 AS `_to`,
    hit_13 AS `_hit`
  FROM (
    SELECT
      `cust_4`,
      `_from`,
      `cust_4_n`,
      `cust_4_a0`,
      `lost_8`,
      `cust_4_n_10`,
      `cust_4_a0_11`,
      `until_12`,
      `_hit`,
      MAX(_hit) OVER (PARTITION BY cust_4) AS `hit_13`
    FROM (
      SELECT
        `cust_4`,
        `_from`,
        `cust_4_n`,
        `cust_4_a0`,
        `lost_8`,
        `cust_4_n_10`,
        `cust_4_a0_11`,
        `until_12`,
        CASE WHEN lost_8 >= cust_4_a0_11 THEN 1 ELSE 0 END AS `_hit`
      FROM (
        SELECT
          `cust_4`,
          `_from`,
          `cust_4_n`,
          `cust_4_a0`,
          `lost_8`,
          SUM(cust_4_n) OVER (
            PARTITION BY cust_4
            ORDER BY _from
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
          ) AS `cust_4_n_10`,
          MAX(cust_4_a0) OVER (
            PARTITION BY cust_4
            ORDER BY _from
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
          ) AS `cust_4_a0_11`,
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
            `lost_8`
          FROM (
            SELECT
              `cust_4`,
              _v AS `_from`,
              SUM(CAST((
                _w
              ) AS BIGINT)) AS `cust_4_n`,
              MAX(CASE WHEN _w > 0 THEN CAST((
                (
                  amt_3
                )
              ) AS DECIMAL(10, 2)) END) AS `cust_4_a0`,
              MAX(CASE WHEN _w < 0 THEN CAST((
                (
                  amt_3
                )
              ) AS DECIMAL(10, 2)) END) AS `lost_8`
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
            `lost_8`
          FROM (
            SELECT
              `cust_4`,
              CAST(-1 AS BIGINT) AS `_from`,
              `cust_4_n`,
              `cust_4_a0`,
              NULL AS `lost_8`
            FROM (
              SELECT
                `cust_4`,
                `cust_4_n`,
                `cust_4_a0`
              FROM state_block_1
              LEFT SEMI JOIN (
                SELECT DISTINCT
                  `k_9`
                FROM (
                  SELECT
                    cust_4 AS `k_9`
                  FROM shared_1
                )
              )
                ON (
                  cust_4 <=> k_9
                )
            )
          )
        )
      )
    )
  )
)
-- block_block_1, the groups with _hit = 1 (as hit_block_1), if any
WITH shared_1 AS (
  SELECT DISTINCT
    `pk_15`,
    `p_16`
  FROM (
    SELECT
      cust_4 AS `pk_15`,
      _v AS `p_16`
    FROM (
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
  )
)
SELECT
  `cust_4` AS `k0`,
  `cust_4_n` AS `_n`,
  `cust_4_a0` AS `a0`,
  `_from` AS `_from`,
  `_to` AS `_to`
FROM (
  SELECT
    pk_15 AS `cust_4`,
    `cust_4_n`,
    `cust_4_a0`,
    p_16 AS `_from`,
    until_17 AS `_to`
  FROM (
    SELECT
      `pk_15`,
      `p_16`,
      `until_17`,
      COUNT(_from) AS `cust_4_n`,
      MAX(CAST((
        (
          amt_3
        )
      ) AS DECIMAL(10, 2))) AS `cust_4_a0`
    FROM (
      SELECT
        `pk_15`,
        `p_16`,
        `until_17`,
        `cust_4`,
        `cust_2`,
        `amt_3`,
        `_from`,
        `_to`,
        `k_18`
      FROM (
        SELECT
          `pk_15`,
          `p_16`,
          `until_17`
        FROM (
          SELECT
            `pk_15`,
            `p_16`,
            COALESCE(
              LEAD(p_16) OVER (PARTITION BY pk_15 ORDER BY p_16),
              CAST(9223372036854775807 AS BIGINT)
            ) AS `until_17`
          FROM (
            SELECT
              `pk_15`,
              `p_16`
            FROM shared_1
            UNION ALL
            SELECT
              `pk_15`,
              `p_16`
            FROM (
              SELECT DISTINCT
                `pk_15`,
                `p_16`
              FROM (
                SELECT
                  `pk_15`,
                  CAST(-1 AS BIGINT) AS `p_16`
                FROM shared_1
              )
            )
          )
        )
        LEFT SEMI JOIN hit_block_1
          ON (
            pk_15 <=> k_14
          )
      )
      LEFT OUTER JOIN (
        SELECT
          `cust_4`,
          `cust_2`,
          `amt_3`,
          `_from`,
          `_to`,
          cust_4 AS `k_18`
        FROM (
          SELECT
            cust_2 AS `cust_4`,
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
          pk_15 <=> k_18
        ) AND (
          _from <= p_16
        ) AND (
          p_16 < _to
        )
    )
    GROUP BY
      pk_15,
      p_16,
      until_17
  )
)
-- the delta
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
              cust_4_a0 AS `max_5`,
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
