-- title: How far the positions that the draft was given lie from those that it is trained on, by depth
-- needs: drafts
-- about: A token at position p is drafted from the token before it, which the draft was trained to see at position
--        p - 2: hidden states are paired with the next token. Where the position was not recorded (depth 1 comes from
--        an extend) there is no row.
-- column shift: positions too far
SELECT depth, rope_position - (position - 2) AS shift, count(*) AS drafts
FROM drafts
WHERE rope_position IS NOT NULL AND position IS NOT NULL
GROUP BY ALL
