-- title: What was hooked in the engine, and how often each hook ran
-- needs: hooks
SELECT target, status, required, calls, errors, detail, engine_version, pid
FROM hooks
ORDER BY status = 'installed', target, pid
