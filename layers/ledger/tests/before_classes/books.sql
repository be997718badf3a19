PRAGMA application_id = 1952934961;
PRAGMA user_version = 1;
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE accounts (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    suspended INTEGER NOT NULL CHECK (suspended IN (0, 1)),
    balance INTEGER NOT NULL CHECK (balance >= 0),
    loss INTEGER NOT NULL CHECK (loss >= 0)
) STRICT, WITHOUT ROWID;
INSERT INTO accounts VALUES('acme','Acme',0,999993700,0);
CREATE TABLE keys (
    id TEXT PRIMARY KEY NOT NULL,
    account TEXT NOT NULL REFERENCES accounts (id),
    digest TEXT NOT NULL UNIQUE,
    ceiling INTEGER,
    used INTEGER NOT NULL CHECK (used >= 0),
    record TEXT NOT NULL
, ceiling_month INTEGER, ceiling_day INTEGER, month INTEGER, month_before INTEGER, day INTEGER, day_before INTEGER) STRICT;
INSERT INTO keys VALUES('kI25TAcoPL0Hl6l7','acme','b769393fcec19449cb35daa3242318b5b9629b6807f4f205449ad5f2361c25cd',NULL,6300,'{"id":"kI25TAcoPL0Hl6l7","account":"acme","digest":"b769393fcec19449cb35daa3242318b5b9629b6807f4f205449ad5f2361c25cd","prefix":"tg-Tmxpgo…","name":"","status":"active","models":[],"addresses":[],"requests_per_second":null,"requests_per_minute":null,"tokens_per_minute":null,"expires_at_ms":null,"created_at_ms":1795441541968,"changed_at_ms":0}',NULL,NULL,682,0,20780,0);
CREATE TABLE entries (
    account TEXT NOT NULL REFERENCES accounts (id),
    id TEXT NOT NULL,
    amount INTEGER NOT NULL,
    reason TEXT,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;
INSERT INTO entries VALUES('acme','first',1000000000,NULL,1795441541960);
CREATE TABLE receipts (
    number TEXT PRIMARY KEY NOT NULL,
    at_ms INTEGER NOT NULL,
    account TEXT NOT NULL REFERENCES accounts (id),
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    vendor TEXT NOT NULL,
    input INTEGER NOT NULL,
    cached_input INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    output INTEGER NOT NULL,
    held INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    charged INTEGER NOT NULL CHECK (charged >= 0),
    loss INTEGER NOT NULL CHECK (loss >= 0),
    ended TEXT NOT NULL,
    booked TEXT NOT NULL,
    estimated INTEGER NOT NULL CHECK (estimated IN (0, 1)),
    price TEXT,
    bounded INTEGER NOT NULL DEFAULT 0 CHECK (bounded IN (0, 1))
) STRICT;
INSERT INTO receipts VALUES('01a208a7-c44f-77a8-b0e3-0d2a19e51441',1795441542231,'acme','kI25TAcoPL0Hl6l7','chat','chat-vendor',40,30,0,10,36200,3150,3150,0,'finished','held',0,'{"input":"50.00","cached_input":"5.00","output":"100.00","cache_write":"50.00","version":1,"exchange_rate":"100"}',0);
INSERT INTO receipts VALUES('01a208a7-c467-7b7b-b3d7-a09c28990e95',1795441542293,'acme','kI25TAcoPL0Hl6l7','chat','chat-vendor',40,30,0,10,36200,3150,3150,0,'finished','held',0,'{"input":"50.00","cached_input":"5.00","output":"100.00","cache_write":"50.00","version":1,"exchange_rate":"100"}',0);
CREATE TABLE tariff (
    id INTEGER PRIMARY KEY NOT NULL,
    effective_from_ms INTEGER NOT NULL,
    fingerprint TEXT NOT NULL
) STRICT;
INSERT INTO tariff VALUES(1,1795441541689,'36c071c609ac6f14066fd346a99c12e68356dbe4a49fd775096835400298d962');
CREATE TABLE running (
    number TEXT PRIMARY KEY NOT NULL,
    settlement TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO running VALUES('01a208a7-c4ab-7ffb-ba2a-fd50093a51f7','{"number":"01a208a7-c4ab-7ffb-ba2a-fd50093a51f7","account":"acme","key":"kI25TAcoPL0Hl6l7","held":"0.0362","cost":"0.00765","fresh":true,"item":{"model":"chat","vendor":"chat-vendor","usage":{"input":9,"cached_input":0,"cache_write":0,"output":72},"price":{"input":"50.00","cached_input":"5.00","output":"100.00","cache_write":"50.00","version":1,"exchange_rate":"100"},"estimated":true,"bounded":false,"end":"gateway_stopped"}}');
CREATE TABLE forgotten (
    account TEXT PRIMARY KEY NOT NULL REFERENCES accounts (id)
) STRICT, WITHOUT ROWID;
CREATE INDEX entries_by_time ON entries (account, at_ms);
CREATE INDEX receipts_by_time ON receipts (account, at_ms);
COMMIT;
