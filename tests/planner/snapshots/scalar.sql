-- SELECT count(*) AS n FROM orders
-- INCREMENTAL, key ()
-- aggregate without GROUP BY (count): INCREMENTAL, sums and counts are kept for the one row
-- block_block_1: _n, a0, _from, _to
SELECT
  `count_4_n` AS `_n`,
  `count_4_a0` AS `a0`,
  `_from` AS `_from`,
  `_to` AS `_to`
FROM (
  SELECT
    CAST((
      count_4_n_6
    ) AS BIGINT) AS `count_4_n`,
    CAST((
      count_4_a0_7
    ) AS BIGINT) AS `count_4_a0`,
    `_from`,
    until_8 AS `_to`
  FROM (
    SELECT
      `_from`,
      `count_4_n`,
      `count_4_a0`,
      SUM(count_4_n) OVER (ORDER BY _from ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS `count_4_n_6`,
      SUM(count_4_a0) OVER (ORDER BY _from ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS `count_4_a0_7`,
      COALESCE(LEAD(_from) OVER (ORDER BY _from), CAST(9223372036854775807 AS BIGINT)) AS `until_8`
    FROM (
      SELECT
        `_from`,
        `count_4_n`,
        `count_4_a0`
      FROM (
        SELECT
          _v AS `_from`,
          SUM(CAST((
            _w
          ) AS BIGINT)) AS `count_4_n`,
          CAST((
            COALESCE(
              SUM(
                CASE
                  WHEN _w > 0
                  THEN CAST((
                    1
                  ) AS BIGINT)
                  ELSE -(
                    CAST((
                      1
                    ) AS BIGINT)
                  )
                END
              ),
              0
            )
          ) AS BIGINT) AS `count_4_a0`
        FROM (
          SELECT
            `o_1`,
            `_v`,
            `_w`
          FROM (
            SELECT
              `o` AS `o_1`,
              _v,
              _w
            FROM changes_of_orders
          )
        )
        GROUP BY
          _v
      )
      UNION ALL
      SELECT
        `_from`,
        `count_4_n`,
        `count_4_a0`
      FROM (
        SELECT
          CAST(-1 AS BIGINT) AS `_from`,
          `count_4_n`,
          `count_4_a0`
        FROM state_block_1
      )
    )
  )
)
-- the delta
SELECT
  `n_5` AS `n`,
  _change_type,
  _commit_version,
  _sequence,
  _duplicate
FROM (
  SELECT
    `n_5`,
    CASE
      WHEN _w > 0
      THEN CASE WHEN _old > 0 THEN 'update_postimage' ELSE 'insert' END
      ELSE CASE WHEN _new > 0 THEN 'update_preimage' ELSE 'delete' END
    END AS _change_type,
    _v AS _commit_version,
    CAST(DENSE_RANK() OVER (PARTITION BY _v ORDER BY 1) AS BIGINT) AS _sequence,
    (
      _new > 1 OR _old > 1 OR _most > 1
    ) AS _duplicate
  FROM (
    SELECT
      *,
      COUNT_IF(_w > 0) OVER (PARTITION BY _v) AS _new,
      COUNT_IF(_w < 0) OVER (PARTITION BY _v) AS _old,
      MAX(ABS(_w)) OVER (PARTITION BY _v) AS _most
    FROM (
      SELECT
        `n_5`,
        _v,
        SUM(_w) AS _w
      FROM (
        SELECT
          count_4 AS `n_5`,
          `_v`,
          `_w`
        FROM (
          SELECT
            `count_4`,
            t1.e.v AS _v,
            t1.e.w AS _w
          FROM (
            SELECT
              count_4_a0 AS `count_4`,
              `_from`,
              `_to`
            FROM block_block_1
          )
          LATERAL VIEW
          EXPLODE(ARRAY(NAMED_STRUCT('v', _from, 'w', 1), NAMED_STRUCT('v', _to, 'w', -1))) t1 AS e
          WHERE
            t1.e.v > -1 AND t1.e.v < 9223372036854775807
        )
      )
      GROUP BY
        `n_5`,
        _v
      HAVING
        SUM(_w) <> 0
    )
  )
)
