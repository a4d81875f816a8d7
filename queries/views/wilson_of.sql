-- title: End of the Wilson score interval of a share, at another confidence than 95 %
-- kind: macro
-- about: wilson_of(k, n, -1, z) is the lower end for k of n at z standard errors. Where m intervals are to hold together
--        in 95 of 100 cases, z is normal_quantile(0.025 / m) (Bonferroni). k and n may be fractions: counts that were
--        divided by a design effect. NULL when n is 0.
(k, n, side, z) AS
    CASE WHEN n > 0 THEN greatest(0.0, least(1.0,
        (k / nullif(n, 0) + z * z / (2 * nullif(n, 0))
         + side * z * sqrt(greatest(k / nullif(n, 0) * (1 - k / nullif(n, 0)), 0) / nullif(n, 0)
                           + z * z / (4 * nullif(n, 0) * nullif(n, 0))))
        / (1 + z * z / nullif(n, 0)))) END
