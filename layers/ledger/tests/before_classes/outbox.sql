PRAGMA application_id = 1952935729;
PRAGMA user_version = 1;
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE calls (
    number TEXT PRIMARY KEY NOT NULL,
    account TEXT NOT NULL,
    key TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('intent', 'checkpoint', 'settle', 'release')),
    settlement TEXT,
    check_sum INTEGER NOT NULL,
    done_at_ms INTEGER
) STRICT;
INSERT INTO calls VALUES('01a208a8-020c-7d79-bb32-efe16ff7e4d9','acme','k8aV2YRIoJsiXQTI',1795441563836,'checkpoint','{"number":"01a208a8-020c-7d79-bb32-efe16ff7e4d9","account":"acme","key":"k8aV2YRIoJsiXQTI","held":"0.0362","cost":"0.00415","fresh":true,"item":{"model":"chat","vendor":"chat-vendor","usage":{"input":9,"cached_input":0,"cache_write":0,"output":37},"price":{"input":"50.00","cached_input":"5.00","output":"100.00","cache_write":"50.00","version":1,"exchange_rate":"100"},"estimated":true,"bounded":false,"end":"gateway_stopped"}}',-1472971901504432278,NULL);
CREATE TABLE synced (times INTEGER NOT NULL) STRICT;
INSERT INTO synced VALUES(0);
CREATE TABLE books (name TEXT NOT NULL) STRICT;
INSERT INTO books VALUES('01a208a7-f960-7622-9e9b-32d05e5a9654');
CREATE INDEX calls_done ON calls (done_at_ms) WHERE done_at_ms IS NOT NULL;
COMMIT;
