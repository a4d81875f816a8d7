-- title: End of the 95 % Wilson score interval of a share
-- kind: macro
-- about: wilson(k, n, -1) is the lower and wilson(k, n, 1) the upper end for k of n; NULL when n is 0.
(k, n, side) AS
    CASE WHEN n > 0 THEN greatest(0.0, least(1.0,
        (k / nullif(n, 0) + 1.9208 / nullif(n, 0)
         + side * 1.96 * sqrt(greatest(k / nullif(n, 0) * (1 - k / nullif(n, 0)), 0) / nullif(n, 0)
                              + 0.9604 / (nullif(n, 0) * nullif(n, 0))))
        / (1 + 3.8416 / nullif(n, 0)))) END
