-- What a row says whose run was not claimed.
SET LOCAL lock_timeout = '5s';

COMMENT ON COLUMN admission_claims.at IS
    'When the claim was made; -infinity where a run that had a token was given back or ended before a worker claimed it.';
