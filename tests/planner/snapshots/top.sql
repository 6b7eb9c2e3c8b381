-- SELECT o, amt FROM orders ORDER BY amt DESC, o LIMIT 3
-- AFFECTED KEYS, key ('o',)
-- the first 3 rows by amt DESC, o: AFFECTED KEYS, all rows are one partition, computed anew
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
          t1.e.v AS _v,
          t1.e.w AS _w
        FROM (
          SELECT
            `o_4`,
            `amt_5`,
            p_6 AS `_from`,
            until_7 AS `_to`
          FROM (
            SELECT
              `p_6`,
              `until_7`,
              `o_4`,
              `amt_5`,
              `_from`,
              `_to`
            FROM (
              SELECT
                `p_6`,
                `until_7`,
                `o_4`,
                `amt_5`,
                `_from`,
                `_to`,
                ROW_NUMBER() OVER (PARTITION BY `p_6` ORDER BY amt_5 DESC, o_4) AS _n
              FROM (
                SELECT
                  `p_6`,
                  `until_7`,
                  `o_4`,
                  `amt_5`,
                  `_from`,
                  `_to`
                FROM (
                  SELECT
                    `p_6`,
                    COALESCE(LEAD(p_6) OVER (ORDER BY p_6), CAST(9223372036854775807 AS BIGINT)) AS `until_7`
                  FROM (
                    SELECT
                      `p_6`
                    FROM (
                      SELECT DISTINCT
                        `p_6`
                      FROM (
                        SELECT
                          _v AS `p_6`
                        FROM (
                          SELECT
                            o_1 AS `o_4`,
                            amt_3 AS `amt_5`,
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
                        )
                      )
                    )
                    UNION ALL
                    SELECT
                      `p_6`
                    FROM (
                      SELECT
                        *
                      FROM VALUES
                        (CAST(-1 AS BIGINT)) AS t2(`p_6`)
                    )
                  )
                )
                JOIN (
                  SELECT
                    `o_4`,
                    `amt_5`,
                    `_from`,
                    `_to`
                  FROM (
                    SELECT
                      o_1 AS `o_4`,
                      amt_3 AS `amt_5`,
                      `_from`,
                      `_to`
                    FROM (
                      SELECT
                        `o` AS `o_1`,
                        `amt` AS `amt_3`,
                        _from,
                        _to
                      FROM history_of_orders
                    )
                  )
                )
                  ON (
                    _from <= p_6
                  ) AND (
                    p_6 < _to
                  )
              )
            )
            WHERE
              _n > 0 AND _n <= 3
          )
        )
        LATERAL VIEW
        EXPLODE(ARRAY(NAMED_STRUCT('v', _from, 'w', 1), NAMED_STRUCT('v', _to, 'w', -1))) t1 AS e
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
