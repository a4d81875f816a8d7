-- title: The value that a standard normal variable exceeds with a small probability (below a half)
-- kind: macro
-- about: Abramowitz and Stegun 26.2.23; off by less than 0.00045.
(p) AS
    sqrt(-2 * ln(p)) - (2.515517 + 0.802853 * sqrt(-2 * ln(p)) - 0.020656 * ln(p))
        / (1 + 1.432788 * sqrt(-2 * ln(p)) - 0.378538 * ln(p) + 0.001308 * sqrt(-2 * ln(p)) ** 3)
