-- title: User requests, the newest row of each
-- needs: all_requests
-- about: A request whose kind was not recorded counts as a user's.
SELECT * FROM all_requests WHERE coalesce(request_kind, 'user') = 'user'
