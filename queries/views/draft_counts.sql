-- title: Drafted tokens by depth and by how far the position they were drafted at lies from the one trained on; one scan
-- needs: drafts
-- about: A token at position p is drafted from the token before it, which the draft was trained to see at position
--        p - 2: hidden states are paired with the next token.
-- column shift: positions too far; NULL where the position was not recorded (depth 1 comes from an extend)
-- column known: of them, those whose entropy was recorded
-- column entropy: sum of the entropies of the draft's distributions, in nats
SELECT depth, rope_position - (position - 2) AS shift, count(*) AS drafts, count(draft_entropy) AS known,
       sum(draft_entropy) AS entropy
FROM drafts
GROUP BY ALL
