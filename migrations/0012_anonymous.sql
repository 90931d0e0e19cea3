-- What callers without credentials may do is the role `anonymous` from now on, so that operators can change it. Every
-- database gets what was built in until then, once: a role that is changed or deleted afterwards stays as it is. The
-- previous release, which may still run, goes on adding its built-in list to the role.

SET LOCAL lock_timeout = '5s';

INSERT INTO roles AS r (role_id, scopes, description)
VALUES (
    'anonymous',
    ARRAY[
        'auth:current-scopes',
        'auth:expand-scopes',
        -- What purge-cache requests there are, which workers ask before each task: new with 0015.
        'purge-cache:all-purge-requests',
        'purge-cache:purge-requests:*',
        'queue:get-artifact:public/*',
        'queue:get-provisioner:*',
        'queue:get-task:*',
        'queue:get-worker-type:*',
        'queue:get-worker:*',
        'queue:list-artifacts:*',
        'queue:list-dependent-tasks:*',
        'queue:list-provisioners',
        'queue:list-task-group:*',
        'queue:list-worker-types:*',
        'queue:list-workers:*',
        'queue:pending-count:*',
        'queue:status:*'
    ],
    'What every caller may do, with credentials or without. Made at the first start; without scopes, reading is closed.'
)
-- An operator's own role keeps its scopes and its description.
ON CONFLICT (role_id) DO UPDATE SET
    scopes = r.scopes || ARRAY(
        SELECT given.scope FROM unnest(EXCLUDED.scopes) WITH ORDINALITY AS given(scope, place)
        WHERE given.scope <> ALL (r.scopes) ORDER BY given.place
    ),
    last_modified = EXCLUDED.last_modified;
